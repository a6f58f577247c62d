"""The engine process ends with the one that it works for, whatever it is at."""

import socket
import subprocess
import sys

program = """
import socket, sys, threading
from headrace.engine_server.engine_process import exit_when_alone
sock = socket.socket(fileno=int(sys.argv[1]))
threading.Thread(target=exit_when_alone, args=(sock,), daemon=True).start()
print("loading", flush=True)
threading.Event().wait()
"""


def test_a_loading_engine_ends_when_nobody_is_left() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            stdout=subprocess.PIPE,
        )
        theirs.close()
        assert process.stdout is not None
        with process.stdout as output:
            assert output.readline() == b"loading\n"
            ours.sendall(b"what it has no time to read")
            try:
                ours.close()
                assert process.wait(60) == 0
            finally:
                process.kill()
                process.wait()
