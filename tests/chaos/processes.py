"""Finding the processes of a daemon that a test kills one by one."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from autoresearchd.sandbox.process_tree import descendants


def command_of(pid: int) -> bytes:
    """A process's command line, empty when it is gone or a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def below(daemon: int, word: bytes) -> list[int]:
    """Processes below a daemon whose command line holds a word."""
    return [pid for pid in descendants(daemon) if word in command_of(pid)]


def seen(daemon: int, word: bytes, *, seconds: float = 200.0) -> Iterator[int]:
    """Processes with that word as they come, each once, until the daemon is gone or the time is up."""
    known: set[int] = set()
    end = time.monotonic() + seconds
    while time.monotonic() < end and command_of(daemon):
        for pid in below(daemon, word):
            if pid not in known:
                known.add(pid)
                yield pid


def kill_tree(daemon: int) -> None:
    """SIGKILL a daemon and all below it at one instant, as a power cut does: stopped first, so that none can react."""
    os.kill(daemon, signal.SIGSTOP)
    tree = [daemon, *descendants(daemon)]
    for pid in tree:
        send(pid, signal.SIGSTOP)
    for pid in dict.fromkeys([*descendants(daemon), *reversed(tree)]):
        send(pid)


def send(pid: int, number: int = signal.SIGKILL) -> bool:
    """Send a signal; whether the process was still there."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
