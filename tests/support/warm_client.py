"""In the place of `python`: a fork of warm_server.py does the work, with the streams and the signals of this process.

Arguments: the path of the program that stands for `python`, beside which the server has its socket, and the arguments
of `python`. It ends as the fork ends.
"""

import json
import os
import signal
import socket
import sys
import time


def connect(path: str, seconds: float = 60.0) -> socket.socket:
    """A connection to the server, which may still be starting."""
    end = time.monotonic() + seconds
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(path)
            return connection
        except OSError:
            connection.close()
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


if __name__ == "__main__":
    executable, *arguments = sys.argv[1:]
    request = {"executable": executable, "arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ)}
    connection = connect(os.path.join(os.path.dirname(executable), "socket"))
    socket.send_fds(connection, [b" "], [0, 1, 2])
    connection.sendall(json.dumps(request).encode() + b"\n")
    answer = connection.makefile("r")
    child = int(answer.readline())
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: os.kill(child, number))
    status = int(answer.read() or 1)
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)
