"""Trains or adapts, and dies where it is told to.

Arguments: the folder to watch, the event, and those of train.py; or the word adapt and those of `cmlmcse adapt`, whose
rounds are short. An event is a number, a part of the path, or none. Each event is a byte in the file FOLDER.events.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

WATCHED = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree")


def die_at(event: int | str | None, folder: str) -> None:
    """Kill this process (SIGKILL) at the so-manieth time that it opens, renames or removes something in the folder, or
    at the first time that the path has this part."""
    file = os.open(f"{folder}.events", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    seen = 0

    def hook(name: str, details: tuple) -> None:
        nonlocal seen
        if name in WATCHED and f"{details[0]}/".startswith(f"{folder}/"):
            if seen == event or (isinstance(event, str) and event in str(details[0])):
                os.kill(os.getpid(), signal.SIGKILL)
            seen += 1
            os.write(file, b".")

    sys.addaudithook(hook)


def main_of(command: str) -> Callable[[], None]:
    """The command, imported."""
    if command != "adapt":
        import train

        return train.main
    from cmlmcse.adaptation import budget, rounds
    from cmlmcse.adaptation.command import main

    budget.COMPARED_STEPS, rounds.EVERY = 4, 2
    return main


if __name__ == "__main__":
    watched, number, *rest = sys.argv[1:]
    main = main_of(rest[0])
    die_at(int(number) if number.isdecimal() else None if number == "none" else number, watched)
    sys.argv = rest if rest[0] == "adapt" else ["train.py", *rest]
    main()
