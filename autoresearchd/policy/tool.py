"""Running a tool of the user's own: its whole process group, a deadline, bounded output, and an end when we end.

The tool runs in a session of its own, beside a small shell that holds a pipe to this process: when this process dies,
for whatever reason, the pipe closes and the group is killed. A tool that leaves its process group on purpose is not
followed: it is trusted.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from autoresearchd.errors import EnvironmentFailure, Interrupted
from autoresearchd.ports import Cancel

KEEP_BYTES = 64 * 1024
"""How much of the end of each stream is kept."""
_LOOK_S = 0.02
_PATIENCE_S = 3.0
# $1: the user's command, $2: the file that is its standard input. File 3 is the pipe from this process.
_WRAPPER = (
    'exec 3<&0; { read -r _ <&3; kill -KILL 0; } >/dev/null 2>&1 </dev/null & exec 3<&-; exec /bin/sh -c "$1" <"$2"'
)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """How a tool ended. exit_code: −signal where it was killed; stdout, stderr: the end of each."""

    exit_code: int
    stdout: str
    stderr: str
    duration_s: float
    timed_out: bool = False


def run_tool(
    command: str, *, cwd: Path, stdin: Path, env: Mapping[str, str], timeout: float, cancel: Cancel
) -> ToolResult:
    """Run a shell command to its end, to its deadline, or until ``cancel`` is set (then Interrupted is raised)."""
    began = time.monotonic()
    try:
        process = subprocess.Popen(
            ["/bin/sh", "-c", _WRAPPER, "sh", command, str(stdin)],
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise EnvironmentFailure(f"the command of the policy could not be started: {error}") from error
    out, err = _Tail(process.stdout), _Tail(process.stderr)
    try:
        stopped = _watch(process, began + timeout, cancel)
    finally:
        _end_group(process)
        out.close()
        err.close()
        if process.stdin is not None:
            process.stdin.close()
    if stopped == "cancel":
        raise Interrupted("the command of the policy was stopped on request")
    return ToolResult(
        exit_code=process.returncode,
        stdout=out.text(),
        stderr=err.text(),
        duration_s=time.monotonic() - began,
        timed_out=stopped == "timeout",
    )


def _watch(process: subprocess.Popen[bytes], deadline: float, cancel: Cancel) -> str:
    """Wait for the end; why the waiting ended: ``""``, ``timeout`` or ``cancel``."""
    while process.poll() is None:
        if cancel.wait(_LOOK_S):
            return "cancel"
        if time.monotonic() >= deadline:
            return "timeout"
    return ""


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End what is left of the group: asked first where the tool itself is still there, then killed."""
    if process.poll() is None:
        _signal(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE_S)
    _signal(process.pid, signal.SIGKILL)
    process.wait()


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


class _Tail:
    """Reads a stream to its end in a thread and keeps the last bytes of it."""

    def __init__(self, stream: IO[bytes] | None) -> None:
        self._stream, self._kept, self._lock = stream, bytearray(), threading.Lock()
        self._cut = False
        self._thread = threading.Thread(target=self._read, name="tool-output", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        if self._stream is None:
            return
        with contextlib.suppress(OSError, ValueError):
            while chunk := os.read(self._stream.fileno(), 65536):
                with self._lock:
                    self._kept += chunk
                    self._cut = self._cut or len(self._kept) > KEEP_BYTES
                    del self._kept[:-KEEP_BYTES]

    def close(self) -> None:
        """Wait for the end; a process that left the group and holds the pipe is not waited for long."""
        self._thread.join(1.0)
        if self._stream is not None and not self._thread.is_alive():
            self._stream.close()

    def text(self) -> str:
        """The end of the stream, from the beginning of a line on: half a line could hold half a key."""
        with self._lock:
            kept = bytes(self._kept)
            if self._cut:
                kept = kept.partition(b"\n")[2] or kept
            return kept.decode("utf-8", "replace")
