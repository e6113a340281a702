"""Leaving a daemon behind: started as a process of its own, watched until it is at work, and announced only then."""

from __future__ import annotations

import subprocess
import sys
import time

from autoresearchd.app.project import Project
from autoresearchd.domain.duration import format_duration
from autoresearchd.workspace import layout

_LOOK_EVERY = 0.1
_SILENT_S = 5.0
"""How long nothing is said while a daemon looks at what the last one left."""


def detach(project: Project, tag: str, *, wait: bool) -> int:
    """Leave a daemon behind; the exit code.

    With ``wait``, until the first run has been measured, so that a broken baseline is seen.
    """
    log = layout.daemon_log(project.root)
    log.parent.mkdir(parents=True, exist_ok=True)
    errors = log.with_name(f"daemon-{tag}.err")
    with errors.open("wb") as stderr:
        daemon = subprocess.Popen(
            [sys.executable, "-P", "-m", "autoresearchd", "resume", tag, "--foreground", "--quiet"],
            cwd=project.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
        )
    try:
        code = _wait_for_daemon(project, tag, daemon, ready=not wait)
        if code is None:
            sys.stderr.write(
                f"session {tag}: the daemon is process {daemon.pid}\n"
                f"  watch  autoresearchd status --watch   (in {project.root})\n"
                f"  log    {log}\n  stop   autoresearchd stop\n"
            )
            code = _wait_for_first_result(project, tag, daemon) if wait else None
    except KeyboardInterrupt:
        sys.stderr.write("left running in the background\n")
        return 0
    if code is not None and code != 0:
        sys.stderr.write(errors.read_text("utf-8", "replace"))
    return code or 0


def _wait_for_daemon(project: Project, tag: str, daemon: subprocess.Popen[bytes], *, ready: bool) -> int | None:
    """Until the daemon holds the session, with ``ready`` until all is in order; its exit code if it ended instead."""
    patient_until: float | None = time.monotonic() + _SILENT_S
    while (code := daemon.poll()) is None:
        if project.daemon(tag, ready=ready) == daemon.pid:
            return None
        if patient_until is not None and time.monotonic() > patient_until:
            sys.stderr.write(f"process {daemon.pid} is bringing session {tag} in order; Ctrl-C leaves it at that\n")
            patient_until = None
        time.sleep(_LOOK_EVERY)
    return code


def _wait_for_first_result(project: Project, tag: str, daemon: subprocess.Popen[bytes]) -> int | None:
    """Until the daemon is at work and its first run is measured; its exit code if it ended."""
    sys.stderr.write("measuring the baseline; Ctrl-C leaves it running in the background\n")
    while (code := daemon.poll()) is None:
        if project.daemon(tag) == daemon.pid and _first_result(project, tag):
            return None
        time.sleep(_LOOK_EVERY)
    return code


def _first_result(project: Project, tag: str) -> bool:
    store = project.open_store()
    try:
        latest = store.latest(store.session(tag).id)
    except KeyError:
        return False
    finally:
        store.close()
    if latest is None or not (latest.number > 0 or latest.good_runs):
        return False
    if latest.good_runs:
        sys.stderr.write(
            f"first run: {latest.good_runs[0].value} in {format_duration(latest.good_runs[0].duration_s)}\n"
        )
    return True
