"""Processes of the tests' own: several that compute together, and one without the checkout."""

import os
import subprocess
import sys
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
    os._exit(0)  # see errors.End; PyTorch 2.6 may also hang where the group is destroyed


def run_fresh(code: str, *arguments: str, cache: Path) -> None:
    """Run code in a new process, from elsewhere, with an empty module cache."""
    environment = {**os.environ, "HF_MODULES_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}
    environment.pop("PYTHONPATH", None)
    hide = (
        "import importlib.util, os, sys\n"
        "sys.meta_path = [f for f in sys.meta_path if 'editable' not in repr(f).lower()]\n"
        "sys.path = [p for p in sys.path if not os.path.isdir(os.path.join(p, 'modeling_cmlmcse'))]\n"
        "assert importlib.util.find_spec('modeling_cmlmcse') is None, 'the checkout must not be on the path'\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", hide + code, *arguments],
        env=environment, cwd=cache.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
