"""Does the runs of a study: each run once, by the first free worker, and the remaining runs after an interruption.

The folders of the runs are the queue. During a run, its worker and its training process hold a kernel lock on the file
`lock` in the run's folder. The kernel releases the lock when both processes have ended, also after a crash, so nothing
needs to be cleaned up.
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
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cmlmcse.common.errors import InputError
from cmlmcse.common.files import replace_json
from cmlmcse.common.recipes import find_recipe, read_recipe
from cmlmcse.common.run_files import RESULTS, RUN
from cmlmcse.training.records import RUN_FILES
from cmlmcse.training.resume import TRAINER_STATE_NAME, all_checkpoints, can_go_on

from .plan import MACHINE_FIELDS, Run, Study

TRAIN = ("-m", "cmlmcse", "train")  # the command that a launcher starts
LAUNCHER = {"accelerate launch": "accelerate.commands.launch"}


def read_json(path: Path) -> dict[str, Any] | None:
    """The content of a JSON file; None if it is missing or incomplete."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def is_done(run: Run) -> bool:
    """Whether a run has succeeded: it writes its records last, and they exist."""
    return all(read_json(run.folder / name) is not None for name in (RUN, RESULTS))


def state(run: Run) -> str:
    """The state of a run, in words."""
    if is_done(run):
        return "done"
    if not run.folder.is_dir():
        return "to do"
    with claim_run(run) as lock:
        return "running" if lock is None else "to go on with" if checkpoints(run) else "to do"


@contextlib.contextmanager
def claim_run(run: Run) -> Iterator[int | None]:
    """Lock a run. The value is the lock's file descriptor, or None if another process holds the lock.

    Raises:
        InputError: the folder cannot be written, or its file system has no locks.
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
    """The checkpoints that a run can be resumed from."""
    return [path for path in all_checkpoints(run.folder) if can_go_on(path)]


def check_unchanged(runs: Sequence[Run], arms: Mapping[str, Collection[str]] | None = None) -> None:
    """Check that every run that has begun had the recipe and the fields that the study has now.

    Args:
        runs: the runs.
        arms: the fields that each arm sets itself, to compare only these: a report needs no fields of the command line,
            which may have overridden the others.

    Raises:
        InputError: a run's folder holds a run with others.
    """
    for run in runs:
        kept = read_json(run.folder / "fields.json") or {}
        stored = kept.get("fields")
        if stored is None:
            continue
        now = asked_of(run)
        if kept.get("recipe") != now["recipe"]:
            raise InputError(
                f"{run} expects the recipe {now['recipe']}, found a run of {kept.get('recipe')} in {run.folder}; "
                "remove that folder or rename the study"
            )
        if kept.get("recipe_fields", now["recipe_fields"]) != now["recipe_fields"]:  # older runs have none
            raise InputError(
                f"{run} expects the recipe {now['recipe']} as it is now, found a run from before it was changed in "
                f"{run.folder}; remove that folder or rename the study"
            )
        compared = {**stored, **run.fields} if arms is None else arms[run.arm]
        names = [name for name in compared if name not in MACHINE_FIELDS]
        if changed := [name for name in names if stored.get(name) != run.fields.get(name)]:
            name = changed[0]
            raise InputError(
                f"{run} expects {name} {run.fields.get(name)}, found a run with {stored.get(name)} in {run.folder}; "
                "remove that folder or rename the arm"
            )
        if kept.get("asked", run.asked) != run.asked:
            raise InputError(
                f"{run} expects the fields that the study's file gives it now, found a run from before they were "
                f"changed in {run.folder}; remove that folder or rename the study"
            )


def launcher(study: Study) -> list[str]:
    """The command that starts a training run.

    Raises:
        InputError: the program does not exist.
    """
    try:
        words = shlex.split(study.launch or "")
    except ValueError as error:
        raise InputError(f"launch expects a command, found {study.launch!r} ({error}); fix the study") from error
    if module := LAUNCHER.get(" ".join(words[:2])):  # works without an activated environment
        return [sys.executable, "-m", module, *words[2:]]
    if words and shutil.which(words[0]) is None:
        raise InputError(f"launch expects a program, found none called {words[0]!r}; install it or fix the study")
    return words or [sys.executable]


@dataclass
class RunPool:
    """Workers that do the runs of a study at the same time on this machine. They take the GPUs in turn.

    Attributes:
        failed: index of each failed run → one line that says why.
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
        """Do all runs that are not done. If this is interrupted, stop the ones that are running."""
        with ThreadPoolExecutor(self.workers) as pool:
            jobs = [pool.submit(self._work, runs, number) for number in range(self.workers)]
            try:
                for job in jobs:
                    job.result()
            finally:
                self.stop()

    def stop(self) -> None:
        """Start no more runs, and end the running ones. They can be resumed from their checkpoints."""
        self.stopped.set()
        for process in list(self.processes):
            process.terminate()

    def _work(self, runs: Sequence[Run], number: int) -> None:
        """One worker: do every run that is not done and that no other worker is doing."""
        for run in runs:
            if self.stopped.is_set():
                return
            with claim_run(run) as lock:
                if lock is not None and run.index not in self.failed and not is_done(run):
                    self._do(run, lock, number)

    def _do(self, run: Run, lock: int, number: int) -> None:
        """Do one run, from the start or from its newest checkpoint."""
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
        if self.stopped.is_set():  # stopped after `_work` checked and before the process was listed
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
        outcome = "failed" if run.index in self.failed else "done"
        print(f"{run}: {outcome} after {time.time() - start:.0f} s", flush=True)

    def _environment(self, number: int) -> dict[str, str]:
        """The environment of a worker: its share of the cores, and its GPU unless a launcher assigns GPUs. Its runs
        compute in fp32 unless their fields say otherwise, so that all arms do, and on every machine."""
        cores = str(max(1, (os.cpu_count() or 1) // self.workers))
        defaults = {"TOKENIZERS_PARALLELISM": "false", "ACCELERATE_MIXED_PRECISION": "no"}
        environment = {"OMP_NUM_THREADS": cores, **defaults, **os.environ}
        if self.gpus and self.study.launch is None:
            environment["CUDA_VISIBLE_DEVICES"] = self.gpus[number % len(self.gpus)]
        return environment


def prepare(run: Run) -> bool:
    """Remove what an interrupted run does not need to go on; True if it has a checkpoint to resume from."""
    resumes = bool(checkpoints(run))
    for path in run.folder.glob("checkpoint-*"):
        if not resumes or not (path / TRAINER_STATE_NAME).is_file():  # the best one may hold weights alone
            shutil.rmtree(path)
    for name in RUN_FILES if not resumes else ():
        path = run.folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    replace_json(run.folder / "fields.json", asked_of(run))
    return resumes


def asked_of(run: Run) -> dict[str, Any]:
    """What a run does: its recipe, the fields in that file now, its own fields, and what the study's file asks."""
    recipe_fields = read_recipe(find_recipe(run.recipe))
    return {"recipe": run.recipe, "recipe_fields": recipe_fields, "fields": run.fields, "asked": run.asked}


def last_line(log: Path) -> str:
    """The last line of a run's log; for a failed run, the error."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return f"{lines[-1][:300]} ({log})"
