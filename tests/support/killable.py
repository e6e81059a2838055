"""A process that has imported train.py and does nothing else, of which each line of standard input makes a fork that
trains, and dies where it is told to. (A fork of the tests' own process could hang on a lock that a thread held.)

A line: {"arguments": [...], "folder": ..., "event": N or null}. The answer: {"status": of waitpid, "events": how many}.
"""

import json
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import cmlmcse.training.build
import cmlmcse.training.finalize
import cmlmcse.training.trainer  # noqa: F401
import train

WATCHED = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree")


def train_in_fork(arguments: list[str], folder: str, event: int | None) -> dict[str, int]:
    """Train in a fork, which kills itself (SIGKILL) at the so-manieth time that it opens, renames or removes something
    in the folder."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(240)
        seen = 0

        def hook(name: str, details: tuple) -> None:
            nonlocal seen
            if name in WATCHED and str(details[0]).startswith(folder):
                if seen == event:
                    os.kill(os.getpid(), signal.SIGKILL)
                seen += 1
                os.write(writer, b".")

        sys.addaudithook(hook)
        log = os.open(f"{folder}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for stream in (1, 2):
            os.dup2(log, stream)
        sys.argv = ["train.py", *arguments]
        status = 1
        try:
            train.main()
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, "rb") as events:
        count = len(events.read())
    return {"status": os.waitpid(child, 0)[1], "events": count}


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(train_in_fork(**json.loads(line))), flush=True)
