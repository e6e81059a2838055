"""Of the processes that a launcher starts one says what all of them meet."""

import os
import socket
import subprocess

import pytest
from torch.distributed import TCPStore

from cmlmcse.common.command import command
from cmlmcse.common.errors import InputError
from cmlmcse.common.launch import says_it_first
from support import warm
from support.paths import ROOT


@pytest.fixture
def store(monkeypatch):
    """The launcher's, as torchrun has it, and the environment that it gives to its processes."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    launched = {"WORLD_SIZE": "2", "TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port)}  # fmt: skip
    for name, value in launched.items():
        monkeypatch.setenv(name, value)
    return TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)


def test_one_speaks(store, monkeypatch):
    """Once for each message and start; everyone where there is no store, or no launcher."""
    assert [says_it_first(each) for each in ("one", "one", "two")] == [True, False, True]
    for name in ("TORCHELASTIC_RESTART_COUNT", "GROUP_RANK"):  # another start, another machine
        monkeypatch.setenv(name, "1")
        assert [says_it_first("one"), says_it_first("one")] == [True, False]
    monkeypatch.setenv("MASTER_PORT", "no number")
    assert says_it_first("one")
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE")
    assert says_it_first("one")


MUTE = """
import os, socket, sys
from cmlmcse.common import launch
mute = socket.socket()
mute.bind(("127.0.0.1", 0))
if sys.argv[1] == "True":
    mute.listen()
os.environ["MASTER_PORT"] = str(mute.getsockname()[1])
launch.SECONDS = 0.5
print(launch.says_it_first("one"), flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("listens", (False, True))
def test_a_store_that_does_not_answer(listens, store):
    """The launcher has gone, or is stopped: everyone speaks, soon, and PyTorch prints nothing. In a process of its own,
    because a thread of PyTorch still waits."""
    done = subprocess.run([warm.python(), "-c", MUTE, str(listens)], env={**os.environ, "PYTHONPATH": str(ROOT)},
                          capture_output=True, text=True, timeout=60, check=False)  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


def test_a_network_error_is_none_of_the_launch(store):
    """It keeps its traceback."""

    @command
    def fails():
        raise ConnectionError("('Connection aborted.', ConnectionResetError(104, 'Connection reset by peer'))")

    with pytest.raises(ConnectionError):
        fails()


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (InputError("expected a, found b"), 2, "error: expected a, found b"),
        (RuntimeError("[gloo/pair.cc:547] Connection closed by peer [127.0.0.1]:7"), 1, "stopped: another process of"),
    ],
)
def test_a_command_of_two_processes(error, status, line, store, monkeypatch, capsys):
    """Both end with the status, and one line is printed, without a traceback."""
    monkeypatch.setattr("cmlmcse.common.command.ImmediateExit", lambda: None)

    @command
    def fails():
        raise error

    for _ in range(2):
        with pytest.raises(SystemExit) as stop:
            fails()
        assert stop.value.code == status
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith(line)
