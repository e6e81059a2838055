"""Processes of the tests' own: warm ones, several that compute together, and one without the checkout."""

import json
import os
import pickle
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from cmlmcse.training import command
from support import warm

ONE_OF_SEVERAL = """
import pickle, sys
with open(sys.argv[1], "rb") as file:
    sys.path[:] = pickle.load(file)
    work, arguments = pickle.load(file)
work(int(sys.argv[2]), *arguments)
"""


def start_together(work: Callable[..., None], size: int, *arguments: Any) -> None:
    """`work(rank, *arguments)` in each of `size` warm processes. If one fails, the others are ended a second later.

    Raises:
        AssertionError: with what those that failed have printed, in the order of their ranks.
    """
    with tempfile.TemporaryDirectory() as folder:
        file, errors = Path(folder, "work"), [Path(folder, f"{rank}.txt") for rank in range(size)]
        file.write_bytes(pickle.dumps(sys.path) + pickle.dumps((work, arguments)))
        processes = []
        for rank, path in enumerate(errors):
            with path.open("w") as stderr:
                call = [warm.python(), "-c", ONE_OF_SEVERAL, str(file), str(rank)]
                processes.append(subprocess.Popen(call, stdout=subprocess.DEVNULL, stderr=stderr))
        try:
            while any(process.poll() is None for process in processes):
                if any(process.poll() for process in processes):
                    end = time.monotonic() + 1  # the cause and its consequence may end in either order
                    while time.monotonic() < end and any(process.poll() is None for process in processes):
                        time.sleep(0.01)
                    break
                time.sleep(0.01)
            failed = [rank for rank, process in enumerate(processes) if process.poll()]
            assert not failed, "\n".join(errors[rank].read_text()[-3000:] for rank in failed)
        finally:
            for process in processes:
                process.kill()
                process.wait()


def run_together(work: Callable[..., None], size: int, folder: Path, *arguments: Any) -> None:
    """`work(rank, size, folder, *arguments)` in each of `size` processes, which share a group over gloo.

    Raises:
        AssertionError: with what those that failed have printed, in the order of their ranks.
    """
    start_together(_one, size, size, work, str(folder), *arguments)


def _one(rank: int, size: int, work: Callable[..., None], folder: str, *arguments: Any) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size)
    work(rank, size, folder, *arguments)
    dist.barrier()
    os._exit(0)  # see errors.ImmediateExit; PyTorch 2.6 may also hang where the group is destroyed


def train_together(size: int, folder: Path, *arguments: object, **environment: str) -> None:
    """The training command in each of `size` processes; see :func:`launch`."""
    launch(command.main, size, folder, *arguments, **environment)


def launch(main: Callable[[list[str]], None], size: int, folder: Path, *arguments: object, **environment: str) -> None:
    """A command in each of `size` processes, as `accelerate launch` with multi-cpu.yaml starts them.

    Raises:
        AssertionError: with what those that failed have printed, in the order of their ranks.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    shared |= {"ACCELERATE_USE_CPU": "true", "ACCELERATE_MIXED_PRECISION": "no", **environment}
    given = {name: str(value) for name, value in shared.items()}
    start_together(_launched, size, main, given, folder, list(map(str, arguments)))


def _launched(
    rank: int,
    main: Callable[[list[str]], None],
    environment: dict[str, str],
    folder: Path,
    arguments: list[str],
) -> None:
    os.environ |= {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}
    os.chdir(folder)
    torch.set_num_threads(1)
    main(arguments)


def run_fresh(code: str, *arguments: str, cache: Path) -> None:
    """Run code in a warm process, from elsewhere, with an empty module cache."""
    environment = {**os.environ, "HF_MODULES_CACHE": str(cache)}
    hide = (
        "import importlib.util, os, sys\n"
        "sys.meta_path = [f for f in sys.meta_path if 'editable' not in repr(f).lower()]\n"
        "sys.path = [p for p in sys.path if not os.path.isdir(os.path.join(p, 'modeling_cmlmcse'))]\n"
        "assert importlib.util.find_spec('modeling_cmlmcse') is None, 'the checkout must not be on the path'\n"
    )
    done = subprocess.run(
        [warm.python(), "-I", "-c", hide + code, *arguments],
        env=environment, cwd=cache.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


VERBS_IN_ONE_PROCESS = """
import contextlib, io, json, os, sys
from cmlmcse.cli import main

sys.executable = os.environ["CMLMCSE_WARM_PYTHON"]  # of the processes that the verbs start
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
