"""One ``git update-ref --stdin`` that stays, for refs that are written with every experiment.

A process for each would take longer than all else that a commit takes. Each ref is a transaction of its own
(git-update-ref(1): ``start`` … ``commit``), so that between two of them no lock is held and all is on disk. This is a
short cut only: what does not succeed here, for whatever reason, is written and explained by ``refs.py``.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import threading
import weakref

from autoresearchd.workspace.command import Git

_PATIENCE_S = 10.0
_DONE = b"commit: ok\n"


class QuickRefs:
    """Sets refs. Safe to use from several threads.

    Args:
        git: git in the repository's common directory.
        arguments: the ``update-ref`` command that reads transactions from its standard input.
    """

    def __init__(self, git: Git, arguments: tuple[str, ...]) -> None:
        self._git, self._arguments = git, arguments
        self._lock = threading.Lock()
        self._running: list[subprocess.Popen[bytes]] = []
        # The list and not this object: what a finalizer holds would never go.
        self._closer = weakref.finalize(self, _end, self._running)

    def set(self, ref: str, commit: str) -> bool:
        """Point a ref at a commit; whether that is on disk. Both are words of ours: a checked name and hex digits."""
        transaction = f"start\nupdate {ref} {commit}\ncommit\n".encode("ascii")
        with self._lock:
            try:
                done = _answered(self._process(), transaction)
            except OSError:  # it cannot be started, or has been killed
                done = False
            if not done:
                _end(self._running)
        return done

    def close(self) -> None:
        """End the process; it is started again when a ref is set."""
        with self._lock:
            _end(self._running)

    def _process(self) -> subprocess.Popen[bytes]:
        if not self._running:
            self._running.append(
                subprocess.Popen(
                    [self._git.program, *self._arguments],
                    cwd=self._git.directory,
                    env={**self._git.environment, "GIT_DIR": str(self._git.directory)},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,  # the way round says what is wrong
                    bufsize=0,
                    process_group=0,
                )
            )
        return self._running[0]


def _answered(process: subprocess.Popen[bytes], transaction: bytes) -> bool:
    """Hand a transaction over; whether git says that it is committed."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(transaction)
    poll, said = select.poll(), b""
    poll.register(process.stdout, select.POLLIN)
    while not said.endswith(_DONE):
        if not poll.poll(_PATIENCE_S * 1000):
            return False
        more = os.read(process.stdout.fileno(), 4096)
        if not more:
            return False
        said += more
    return True


def _end(running: list[subprocess.Popen[bytes]]) -> None:
    """End the process: without its input it ends by itself, and whatever it has not committed is undone."""
    for process in running:
        with contextlib.suppress(OSError):
            if process.stdin is not None:
                process.stdin.close()
        try:
            process.wait(timeout=_PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
    running.clear()
