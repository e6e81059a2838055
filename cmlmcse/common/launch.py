"""What the launcher of several processes says in the environment, before they have connected; and who speaks."""

import os
import socket
import sys
from datetime import timedelta
from functools import cache
from hashlib import sha256
from queue import Empty, SimpleQueue
from threading import Thread

SECONDS = 3  # that an error waits for the launcher's store


def launched_processes() -> int:
    """The processes that a launcher started for this run; 1 without a launcher."""
    return int(os.environ.get("WORLD_SIZE", 1))


@cache
def say_once(line: str) -> None:
    """Print a line on stderr, once in this process: the runs of `adapt` come to the same places in turn."""
    print(line, file=sys.stderr)


def says_it_first(message: str) -> bool:
    """Whether no process of this machine has said this yet in this launch: all of them meet a wrong argument, and one
    line is enough.

    They ask the store of `torchrun` and `accelerate launch`. Without it, or if it does not answer, everyone speaks.
    """
    if launched_processes() == 1 or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return True
    answers: SimpleQueue[bool] = SimpleQueue()
    Thread(target=lambda: answers.put(count_in_store(message) <= 1), daemon=True).start()
    try:
        return answers.get(timeout=SECONDS)
    except Empty:  # the store's own limit of time holds for some of its waits only
        return True


def count_in_store(message: str) -> int:
    """How many processes of this machine have come with this message, this one included; 0 without a store."""
    from torch.distributed import TCPStore

    machine, start = (os.environ.get(name, "0") for name in ("GROUP_RANK", "TORCHELASTIC_RESTART_COUNT"))
    name = f"cmlmcse/said/{machine}/{start}/{sha256(message.encode()).hexdigest()}"
    try:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        socket.create_connection((host, port), timeout=1).close()  # PyTorch prints its stack where nobody listens
        return TCPStore(host, port, is_master=False, timeout=timedelta(seconds=SECONDS)).add(name, 1)
    except (KeyError, ValueError, RuntimeError, OSError):
        return 0
