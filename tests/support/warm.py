"""A `python` that starts at once, for tests whose point is another process and not what Python itself does."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

VARIABLE = "CMLMCSE_WARM_PYTHON"  # where it is


def python() -> str:
    """Its path. It takes a script, -c or -m, as sys.executable does."""
    return os.environ[VARIABLE]


@contextmanager
def server() -> Iterator[None]:
    """The server, for this process and those that it starts."""
    folder, here = Path(tempfile.mkdtemp()), Path(__file__).parent
    client = folder / "python"
    client.write_text(f'#!/bin/sh\nexec "{sys.executable}" -IS "{here / "warm_client.py"}" "$0" "$@"\n')
    client.chmod(0o700)
    os.environ[VARIABLE] = str(client)
    # Without the variable a library that asks for GPUs when it is imported could leave the forks none.
    environment = {**os.environ, "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
    command = [sys.executable, "-I", str(here / "warm_server.py"), str(folder / "socket")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, start_new_session=True):
        yield
    shutil.rmtree(folder)
