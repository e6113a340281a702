"""The command line in processes that have loaded it before: the same code, without the second that loading takes."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from autoresearchd.__main__ import main as program

_MOST = 1 << 20
_PROGRAM = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
    server.connect({address!r})
    request = {{"words": sys.argv[1:], "cwd": os.getcwd(), "env": dict(os.environ)}}
    socket.send_fds(server, [json.dumps(request).encode()], [1, 2])
    sys.exit(int(server.recv(20)))
"""


class Loaded:
    """A process that has imported the commands; each is run in a fork of it."""

    def __init__(self) -> None:
        self._control, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", __name__, str(its.fileno())]
        # It ends with this process, whose end of the pair is closed then.
        self._process = subprocess.Popen(command, cwd=Path(__file__).parents[2], pass_fds=[its.fileno()])
        its.close()

    def run(
        self, words: Sequence[str], cwd: Path, env: Mapping[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end. timeout: in seconds, after which TimeoutError is raised."""
        mine, its = socket.socketpair()
        with mine, its, tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            request = json.dumps({"words": list(words), "cwd": str(cwd), "env": dict(env)}).encode()
            socket.send_fds(self._control, [request], [its.fileno(), out.fileno(), err.fileno()])
            its.close()
            mine.settimeout(timeout)
            code = int(mine.recv(20))
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(words, code, out.read(), err.read())

    @contextlib.contextmanager
    def program(self, path: Path) -> Iterator[None]:
        """A program at ``path`` that is a command of the same kind, for shells; it reads nothing from its stdin."""
        address = f"\0{uuid.uuid4().hex}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
            server.bind(address)
            server.listen()
            path.write_text(_PROGRAM.format(python=sys.executable, address=address))
            path.chmod(0o755)
            forwarding = threading.Thread(target=self._forward, args=(server,))
            forwarding.start()
            try:
                yield
            finally:
                server.shutdown(socket.SHUT_RDWR)
                forwarding.join()

    def _forward(self, server: socket.socket) -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:  # nobody asks any more
                return
            with client:
                request, fds, _, _ = socket.recv_fds(client, _MOST, 2)
                socket.send_fds(self._control, [request], [client.fileno(), *fds])
            for fd in fds:
                os.close(fd)


def main() -> None:
    """Serve the requests of the socket that the argument names, until its other end is closed."""
    gc.set_threshold(150_000)  # as the program does
    import autoresearchd.app.start
    import autoresearchd.cli.main
    import autoresearchd.loop.daemon
    import autoresearchd.policy.search.search_policies  # noqa: F401

    gc.freeze()
    control = socket.socket(fileno=int(sys.argv[1]))
    while True:
        request, fds, _, _ = socket.recv_fds(control, _MOST, 3)
        if not request:
            return
        if os.fork() == 0:
            control.close()
            os._exit(_answer(json.loads(request), *fds))
        for fd in fds:
            os.close(fd)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _answer(request: Mapping[str, Any], reply: int, out: int, err: int) -> int:
    """Run a command in one more process, so that all it had open is closed when its end is told."""
    pid = os.fork()
    if pid == 0:
        os.close(reply)
        code = 1
        try:
            for number, fd in enumerate((os.open(os.devnull, os.O_RDONLY), out, err)):
                os.dup2(fd, number)
            # Those of this process know what kind of file they had.
            sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", 1, closefd=False)  # noqa: SIM115
            os.chdir(request["cwd"])
            os.environ.clear()
            os.environ.update(request["env"])
            sys.path[1:1] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
            sys.argv = ["autoresearchd", *request["words"]]
            code = program()
            sys.stdout.flush()
        finally:
            sys.stderr.flush()
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.write(reply, str(code).encode())
    return 0


if __name__ == "__main__":
    main()
