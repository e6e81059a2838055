"""Several processes that compute together, without a launcher."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def run_together(work: Callable[..., None], size: int, folder: Path, *arguments: Any) -> None:
    """`work(rank, size, folder, *arguments)` in each of `size` processes, which share a group over gloo.

    Raises:
        ProcessRaisedException: with the traceback of the first of them that failed.
    """
    mp.start_processes(_one, (size, work, str(folder), *arguments), nprocs=size, start_method="spawn")


def _one(rank: int, size: int, work: Callable[..., None], folder: str, *arguments: Any) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size)
    work(rank, size, folder, *arguments)
    dist.barrier()
    os._exit(0)  # see errors.ImmediateExit; PyTorch 2.6 may also hang where the group is destroyed
