"""What the launcher of several processes says in the environment, before they have connected."""

import os


def launched_processes() -> int:
    """The processes that a launcher started for this run; 1 without a launcher."""
    return int(os.environ.get("WORLD_SIZE", 1))
