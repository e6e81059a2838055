"""Doing the runs of a study: each once, whichever worker comes first, and after an interruption the rest.

The run's folder is the queue. A worker holds the kernel's lock on the file `lock` in it while the run goes on, and so
does the training process: the lock ends with them, however they end, and nothing needs to be cleaned up after a crash.
"""

import contextlib
import fcntl
import json
import os
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cmlmcse.common.errors import InputError
from cmlmcse.hub.export import write_json
from cmlmcse.training.checkpoints import TRAINER_STATE_NAME
from cmlmcse.training.records import RUN_FILES

from .plan import Run, Study

TRAIN = ("-m", "cmlmcse", "train")  # what the launcher starts
MACHINE_FIELDS = ("data_dir",)  # which may differ between the machines of a study
LAUNCHER = {"accelerate launch": "accelerate.commands.launch"}


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON file's content; None if it is not there or not whole."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def is_done(run: Run) -> bool:
    """Whether a run has ended well: its records are there, the last thing it writes."""
    return all(read_json(run.folder / name) is not None for name in ("run.json", "results.json"))


def state(run: Run) -> str:
    """A run's state in a word or two."""
    if is_done(run):
        return "done"
    if not run.folder.is_dir():
        return "to do"
    with claim_run(run) as lock:
        return "running" if lock is None else "to go on with" if checkpoints(run) else "to do"


@contextlib.contextmanager
def claim_run(run: Run) -> Iterator[int | None]:
    """Hold the run's lock: its file descriptor, or None if someone else holds it.

    Raises:
        InputError: the folder cannot be written, or its file system knows no locks.
    """
    path = run.folder / "lock"
    try:
        run.folder.mkdir(parents=True, exist_ok=True)
        file = open(path, "w")  # noqa: SIM115 (closed below)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = True
        except BlockingIOError:
            held = False
    except OSError as error:
        raise InputError(
            f"{path} must be a file that can be written and locked, found {error.strerror}; choose another place, or "
            "give every machine runs of its own with --index"
        ) from error
    with file:
        yield file.fileno() if held else None


def checkpoints(run: Run) -> list[Path]:
    """The checkpoints of a run that can be gone on from."""
    return [path for path in run.folder.glob("checkpoint-*") if (path / TRAINER_STATE_NAME).is_file()]


def check_unchanged(runs: Sequence[Run]) -> None:
    """Refuse to mix: what was begun with other fields is no part of the study as it is now.

    Raises:
        InputError: a run's folder holds a run with other fields.
    """
    for run in runs:
        began = (read_json(run.folder / "fields.json") or {}).get("fields")
        if began is None:
            continue
        names = [name for name in {**began, **run.fields} if name not in MACHINE_FIELDS]
        if changed := [name for name in names if began.get(name) != run.fields.get(name)]:
            name = changed[0]
            raise InputError(
                f"{run} expects {name} {run.fields.get(name)}, found a run with {began.get(name)} in {run.folder}; "
                "remove that folder or name the arm anew"
            )


def launcher(study: Study) -> list[str]:
    """The command that starts a training run.

    Raises:
        InputError: there is no such program.
    """
    words = shlex.split(study.launch or "")
    if module := LAUNCHER.get(" ".join(words[:2])):  # also where the environment is not activated
        return [sys.executable, "-m", module, *words[2:]]
    if words and shutil.which(words[0]) is None:
        raise InputError(f"launch expects a program, found none called {words[0]!r}; install it or fix the study")
    return words or [sys.executable]


@dataclass
class RunPool:
    """Workers that do a study's runs side by side on this machine, a GPU each as long as there are as many.

    Attributes:
        failed: the runs that did not end well, with a line that says why.
    """

    study: Study
    workers: int = 1
    gpus: list[str] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.command = launcher(self.study)
        self.processes: set[subprocess.Popen[bytes]] = set()
        self.stopped = threading.Event()

    def run_all(self, runs: Sequence[Run]) -> None:
        """Do what is left of the runs; stop the running ones if this is interrupted."""
        with ThreadPoolExecutor(self.workers) as pool:
            jobs = [pool.submit(self._work, runs, number) for number in range(self.workers)]
            try:
                for job in jobs:
                    job.result()
            finally:
                self.stop()

    def stop(self) -> None:
        """Begin no more runs and end those that go on; they can be gone on with from their checkpoints."""
        self.stopped.set()
        for process in list(self.processes):
            process.terminate()

    def _work(self, runs: Sequence[Run], number: int) -> None:
        """One worker: each run that nobody has done and nobody is doing."""
        for run in runs:
            if self.stopped.is_set():
                return
            with claim_run(run) as lock:
                if lock is not None and run.index not in self.failed and not is_done(run):
                    self._do(run, lock, number)

    def _do(self, run: Run, lock: int, number: int) -> None:
        """One run, from the start or from its newest checkpoint."""
        start, resumed = time.time(), prepare(run)
        print(f"{run}: {'goes on' if resumed else 'begins'}", flush=True)
        command = [*self.command, *TRAIN, *run.arguments, "--output_dir", str(run.folder)]
        command += ["--resume_from_checkpoint", "auto"] if resumed else []
        with open(run.folder / "log.txt", "ab") as log:
            log.write(f"\n$ cmlmcse train {shlex.join(command[len(self.command) + len(TRAIN) :])}\n".encode())
            log.flush()
            environment = self._environment(number)
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, pass_fds=[lock]
            )
        self.processes.add(process)
        if self.stopped.is_set():  # between the question and the start
            process.terminate()
        status = process.wait()
        self.processes.discard(process)
        if self.stopped.is_set():
            return
        if status != 0 or not is_done(run):
            self.failed[run.index] = f"{run}: status {status}, {last_line(run.folder / 'log.txt')}"
        elif not self.study.keep_checkpoints:
            for path in run.folder.glob("checkpoint-*"):
                shutil.rmtree(path)
        said = "failed" if run.index in self.failed else "done"
        print(f"{run}: {said} after {time.time() - start:.0f} s", flush=True)

    def _environment(self, number: int) -> dict[str, str]:
        """A worker's environment: its GPU, unless a launcher deals them, and its share of the cores."""
        cores = str(max(1, (os.cpu_count() or 1) // self.workers))
        environment = {"OMP_NUM_THREADS": cores, "TOKENIZERS_PARALLELISM": "false", **os.environ}
        if self.gpus and self.study.launch is None:
            environment["CUDA_VISIBLE_DEVICES"] = self.gpus[number % len(self.gpus)]
        return environment


def prepare(run: Run) -> bool:
    """Clear away what an interrupted run left unfinished; whether there is a checkpoint to go on from."""
    whole = checkpoints(run)
    for path in run.folder.glob("checkpoint-*"):
        if path not in whole:
            shutil.rmtree(path)
    for name in RUN_FILES if not whole else ():
        path = run.folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    write_json(run.folder / "fields.json", {"recipe": run.recipe, "fields": run.fields})
    return bool(whole)


def last_line(log: Path) -> str:
    """The last line that a run said: the error, if it failed."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return f"{lines[-1][:300]} ({log})"
