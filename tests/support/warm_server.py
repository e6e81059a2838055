"""A process that has imported what takes seconds. Its forks do what new Python processes would do, and start at once;
only their pictures are empty files.

It has imported PyTorch, transformers and the like, and nothing of this project, and the checkout is not on its path. It
imports nothing before the first request, and ends when its standard input ends. Its argument is the path of its socket.
warm_client.py sends the requests.
"""

import atexit
import gc
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
import traceback
import types
from collections.abc import Callable
from importlib import import_module

PACKAGES = (
    "torch.nn.attention.varlen", "transformers.modeling_utils", "transformers.trainer", "sentence_transformers",
    "transformers.models.bert.modeling_bert", "datasets", "evaluate", "matplotlib.pyplot", "peft", "scipy.stats",
)  # fmt: skip
READ_AT_IMPORT = ("HF_ENDPOINT", "HF_HOME", "HF_HUB_OFFLINE")  # by huggingface_hub; a fork cannot have others


def serve(path: str) -> Callable[[], object]:
    """Fork for each request. Returns in the forks only: what they have to run."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    while True:
        ready, _, _ = select.select([sys.stdin, listener], [], [])
        if sys.stdin in ready:
            os._exit(0)
        if "torch" not in sys.modules:
            for name in PACKAGES:
                import_module(name)
            import_module("matplotlib.figure").Figure.savefig = write_empty
            gc.freeze()  # the forks' collections of garbage leave it alone
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            return supervise(connection)
        connection.close()
        while one_has_ended():
            pass


def write_empty(figure: object, path: str, **options: object) -> None:
    """In place of drawing, which takes a quarter of a tiny run and which no test of another process looks at."""
    open(path, "w").close()


def one_has_ended() -> bool:
    """Whether a fork has ended that was not counted yet."""
    try:
        return os.waitpid(-1, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return False


def supervise(connection: socket.socket) -> Callable[[], object]:
    """Read a request, fork once more, and answer with that fork's number and, at its end, its exit status. If nobody
    waits any longer, kill it. Returns in the fork."""
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    with connection.makefile("r") as lines:
        request = json.loads(lines.readline())
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    child = os.fork()
    if child == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor in (reader, writer, connection.detach()):
            os.close(descriptor)
        return lambda: run(streams, **request)
    connection.sendall(f"{child}\n".encode())
    ready, _, _ = select.select([connection, reader], [], [])
    if reader not in ready:
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if reader in ready:
        connection.sendall(str(status).encode())
    os._exit(0)


def run(streams: list[int], executable: str, arguments: list[str], folder: str, environment: dict[str, str]) -> None:
    """What a new Python process does with these arguments, in this process."""
    for stream, descriptor in enumerate(streams):
        os.dup2(descriptor, stream)
        os.close(descriptor)
    os.chdir(folder)
    set_environment(environment)
    sys.executable = executable
    isolated = False
    while arguments[0] in ("-I", "-u"):
        isolated = isolated or arguments[0] == "-I"
        arguments = arguments[1:]
    paths = [] if isolated else environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [os.path.abspath(path) for path in paths if path]
    run_code(arguments, isolated)


def set_environment(environment: dict[str, str]) -> None:
    """Set all variables, and what libraries took from some of them when they were imported."""
    for name in READ_AT_IMPORT:
        assert environment.get(name) == os.environ.get(name), f"{name} needs a process that is really new"
    os.environ.clear()
    os.environ.update(environment)
    if cache := environment.get("HF_MODULES_CACHE"):
        import_module("transformers.dynamic_module_utils").HF_MODULES_CACHE = cache
    import_module("torch").set_num_threads(int(environment.get("OMP_NUM_THREADS", "1")))


def run_code(arguments: list[str], isolated: bool) -> None:
    """Run -c CODE, -m MODULE or a script, with its arguments, as `__main__`."""
    if arguments[0] == "-c":
        sys.argv, code = [arguments[0], *arguments[2:]], arguments[1]
        sys.path[:0] = [] if isolated else [""]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(code, "<string>", "exec"), main.__dict__)
    elif arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, os.path.dirname(os.path.abspath(arguments[0])))
        runpy.run_path(arguments[0], run_name="__main__")


def leave(work: Callable[[], object]) -> None:
    """Do what there is to do, and end as Python ends, but do not take everything apart: that takes half a second."""
    status = 0
    try:
        work()
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    leave(serve(sys.argv[1]))
