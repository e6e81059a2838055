"""Processes of the tests' own: several that compute together, and one without the checkout."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from cmlmcse.training import command

# The first call starts a process that imports what takes seconds; the processes of all calls are its forks.
mp.set_forkserver_preload(
    ["cmlmcse.training.command", "cmlmcse.training.build", "cmlmcse.training.contrastive_trainer"]
)


def run_together(work: Callable[..., None], size: int, folder: Path, *arguments: Any) -> None:
    """`work(rank, size, folder, *arguments)` in each of `size` processes, which share a group over gloo.

    Raises:
        ProcessRaisedException: with the traceback of the first of them that failed.
    """
    mp.start_processes(_one, (size, work, str(folder), *arguments), nprocs=size, start_method="forkserver")


def _one(rank: int, size: int, work: Callable[..., None], folder: str, *arguments: Any) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size)
    work(rank, size, folder, *arguments)
    dist.barrier()
    os._exit(0)  # see errors.ImmediateExit; PyTorch 2.6 may also hang where the group is destroyed


def train_together(size: int, folder: Path, *arguments: object, **environment: str) -> None:
    """The training command in each of `size` processes, as `accelerate launch` with multi-cpu.yaml starts them.

    Raises:
        ProcessRaisedException: with the traceback of the first of them that failed.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    shared |= {"ACCELERATE_USE_CPU": "true", "ACCELERATE_MIXED_PRECISION": "no", **environment}
    given = {name: str(value) for name, value in shared.items()}
    mp.start_processes(_train, (given, folder, list(map(str, arguments))), nprocs=size, start_method="forkserver")


def _train(rank: int, environment: dict[str, str], folder: Path, arguments: list[str]) -> None:
    os.environ |= {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}
    os.chdir(folder)
    torch.set_num_threads(1)
    sys.argv = ["train.py", *arguments]
    command.main()


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


VERBS_IN_ONE_PROCESS = """
import contextlib, io, json, sys
from cmlmcse.cli import main

said = []
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as output:
        try:
            main(words)
        except SystemExit as stop:
            if stop.code:
                raise
    said.append(output.getvalue())
print(json.dumps(said))
"""


def run_verbs(
    python: Path | str, calls: list[list[object]], folder: Path, environment: dict[str, str] | None = None
) -> list[str]:
    """Commands of cmlmcse, one after the other in one fresh process in a folder → what each prints.

    Args:
        python: the interpreter.
        calls: the verbs with their arguments.
        folder: the working folder, which is on the path if it holds the code.
        environment: the variables of the process (default: this process's).
    """
    words = json.dumps([[str(word) for word in call] for call in calls])
    done = subprocess.run([str(python), "-c", VERBS_IN_ONE_PROCESS, words], cwd=folder, env=environment,
                          capture_output=True, text=True, check=False, timeout=600)  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)
