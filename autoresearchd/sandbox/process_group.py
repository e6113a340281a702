"""Programs of the user's own, not sandboxed, that do not outlive this process, whatever ends it.

Each runs in a session of its own, beside a small shell that holds a pipe to this process: when that closes, the group
is killed. A program that leaves its process group on purpose is not followed: it is trusted.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from autoresearchd.domain.errors import EnvironmentFailure

# $1: the file that is the program's standard input. File 3 is the pipe from this process.
_WRAPPER = (
    "exec 3<&0; { read -r _ <&3; kill -KILL 0; } >/dev/null 2>&1 </dev/null & exec 3<&-; "
    'input=$1; shift; exec "$@" <"$input"'
)


def start(
    arguments: Sequence[str], what: str, *, cwd: Path, env: Mapping[str, str], stdin: Path = Path(os.devnull),
    stdout: int | IO[bytes] = subprocess.PIPE, stderr: int = subprocess.PIPE,
) -> subprocess.Popen[bytes]:  # fmt: skip
    """Start a program; ``end`` is to be called. EnvironmentFailure: ``what`` could not be started."""
    try:
        return subprocess.Popen(
            ["/bin/sh", "-c", _WRAPPER, "sh", str(stdin), *arguments], cwd=cwd, env=dict(env), stdin=subprocess.PIPE,
            stdout=stdout, stderr=stderr, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise EnvironmentFailure(f"{what} could not be started: {error}") from error


def end(process: subprocess.Popen[bytes], patience: float) -> None:
    """Kill what is left of the group; a program that is still there is asked first, and given so many seconds."""
    if process.poll() is None:
        _signal(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
    _signal(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
