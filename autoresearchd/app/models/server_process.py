"""Keeping a server process up: started, watched over HTTP, started again with growing pauses, ended as a whole group.

The server runs in a session of its own, beside a small shell that holds a pipe to this process: when this process dies,
for whatever reason, the pipe closes and the group is killed.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from autoresearchd.domain.cleaning import clean
from autoresearchd.domain.errors import EnvironmentFailure
from autoresearchd.domain.ports import Cancel
from autoresearchd.domain.quantities import format_duration

MAX_LOG_BYTES = 16 * 1024 * 1024
_TAIL_BYTES, _TAIL_LINES = 16 * 1024, 12
# File 3 is the pipe from this process.
_WRAPPER = 'exec 3<&0; { read -r _ <&3; kill -KILL 0; } >/dev/null 2>&1 </dev/null & exec 3<&-; exec "$@" </dev/null'


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """How a server is started. environment: beside that of this process; port: on 127.0.0.1."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    port: int


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a server is waited for, in seconds.

    ready: for its first sign of life (a large model takes minutes to load). silent: without one, before it is started
    again (it may be at work on a long answer). look: between two looks. first, longest: pauses before it is started
    again, doubled each time. settled: after which its next end counts as the first. starts: that may fail in a row.
    end: for it to end by itself when it is told to.
    """

    ready: float = 1800.0
    silent: float = 600.0
    look: float = 2.0
    first: float = 1.0
    longest: float = 60.0
    settled: float = 300.0
    starts: int = 5
    end: float = 10.0


def keep_up(
    command: ServerCommand, log: Path, cancel: Cancel, say: Callable[[str], None], patience: Patience | None = None
) -> None:
    """Keep a server up until ``cancel`` is set.

    Args:
        command: what starts it.
        log: what it prints goes there, behind what is there already; begun anew when it has grown large.
        cancel: ends it.
        say: is told in a line what happens.
        patience: how long it is waited for.

    Raises:
        EnvironmentFailure: it ended several times in a row before it had been of use; with the end of its log.
    """
    patience = patience or Patience()
    failures = 0
    while not cancel.is_set():
        began = time.monotonic()
        with _running(command, log, patience) as process:
            reason = _watch(process, command.port, cancel, say, patience)
        if cancel.is_set():
            return
        failures = 1 if time.monotonic() - began >= patience.settled else failures + 1
        if failures >= patience.starts:
            raise EnvironmentFailure(
                f"the server ended {failures} times in a row; the last time it {reason}{tail(log)}",
                hint=f"its whole log: {log}",
            )
        pause = min(patience.longest, patience.first * 2 ** (failures - 1))
        say(f"the server {reason}; it is started again in {format_duration(pause)}; log: {log}")
        cancel.wait(pause)


def answers(port: int, timeout: float = 10.0) -> bool:
    """Whether a server on loopback gives a sign of life: ``/health``, or the list of its models."""
    for path in ("/health", "/v1/models"):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
        try:
            connection.request("GET", path)
            if connection.getresponse().status == 200:
                return True
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
    return False


def tail(log: Path) -> str:
    """The last lines of a log, cleaned, to be put behind an error; empty where there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    shown = [clean(line, 300) for line in lines if line.strip()][-_TAIL_LINES:]
    return "".join(f"\n  {line}" for line in shown)


def _watch(
    process: subprocess.Popen[bytes], port: int, cancel: Cancel, say: Callable[[str], None], patience: Patience
) -> str:
    """Wait until the server is to be started again, or ``cancel`` is set; what became of it."""
    ready, seen = False, time.monotonic()
    while not cancel.wait(patience.look):
        code = process.poll()
        if code is not None:
            return f"ended with exit code {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"
        if answers(port, timeout=max(patience.look, 10.0)):
            if not ready:
                say(f"ready: http://127.0.0.1:{port}/v1")
            ready, seen = True, time.monotonic()
        elif time.monotonic() - seen >= (patience.silent if ready else patience.ready):
            how = "has not answered" if ready else "has not become ready"
            return f"{how} for {format_duration(time.monotonic() - seen)}"
    return "was stopped"


@contextmanager
def _running(command: ServerCommand, log: Path, patience: Patience) -> Iterator[subprocess.Popen[bytes]]:
    """The server, for as long as the block lasts; nothing of its process group is left behind."""
    with _opened(log) as output:
        try:
            process = subprocess.Popen(
                ["/bin/sh", "-c", _WRAPPER, "sh", *command.arguments],
                cwd="/",
                env={**os.environ, **command.environment},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise EnvironmentFailure(f"the server could not be started: {error}") from error
    try:
        yield process
    finally:
        if process.poll() is None:
            _signal(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(patience.end)
        _signal(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdin is not None:
            process.stdin.close()


def _opened(log: Path) -> IO[bytes]:
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        if log.exists() and log.stat().st_size > MAX_LOG_BYTES:
            log.replace(log.with_name(f"{log.name}.1"))
        return log.open("ab")
    except OSError as error:
        raise EnvironmentFailure(
            f"the log {log} cannot be written: {error}", hint="name another: --log FILE"
        ) from error


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
