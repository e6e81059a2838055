"""What the launcher of several processes says in the environment, before they have connected; and who speaks."""

import os
from datetime import timedelta
from hashlib import sha256


def launched_processes() -> int:
    """The processes that a launcher started for this run; 1 without a launcher."""
    return int(os.environ.get("WORLD_SIZE", 1))


def says_it_first(message: str) -> bool:
    """Whether no process of this launch has said this yet: all of them meet a wrong argument, and one line is enough.

    They ask the store of `torchrun` and `accelerate launch`, which outlives each of them. Without it everyone speaks.
    """
    if launched_processes() == 1 or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return True
    from torch.distributed import TCPStore

    start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # a launcher that starts its processes again
    name = f"cmlmcse/said/{start}/{sha256(message.encode()).hexdigest()}"
    try:
        place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        return TCPStore(*place, is_master=False, timeout=timedelta(seconds=5)).add(name, 1) == 1
    except (KeyError, ValueError, RuntimeError):  # the launcher has gone
        return True
