"""Leaving a daemon behind: started as a process of its own, watched until it is at work, and announced only then."""

from __future__ import annotations

import math
import subprocess
import sys
import time

from autoresearchd.app.project import Project
from autoresearchd.config.task_json import parse_task
from autoresearchd.domain.quantities import format_duration
from autoresearchd.loop.context import BASELINE_RUNS
from autoresearchd.loop.upkeep.session_lock import announce
from autoresearchd.workspace import layout
from autoresearchd.workspace.files import disk_errors

_LOOK_EVERY = 0.1
_SILENT_S = 5.0
"""How long nothing is said while a daemon looks at what the last one left."""


def detach(project: Project, tag: str, *, wait: bool) -> int:
    """Leave a daemon behind; the exit code.

    With ``wait``, until the first run has been measured, so that a broken baseline is seen. Raises
    EnvironmentFailure or RepositoryError where the public folder cannot be written.
    """
    log = layout.daemon_log(project.root)
    errors = log.with_name(f"daemon-{tag}.err")
    with disk_errors(f"writing {errors}"):
        log.parent.mkdir(parents=True, exist_ok=True)
        stderr = errors.open("wb")
    with stderr:
        daemon = subprocess.Popen(
            [sys.executable, "-P", "-m", "autoresearchd", "resume", tag, "--foreground", "--quiet"],
            cwd=project.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
        )
    announce(project.lock(tag), daemon.pid)
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
    patient_until = time.monotonic() + _SILENT_S
    while (code := daemon.poll()) is None:
        if project.daemon(tag, ready=ready) == daemon.pid:
            return None
        if time.monotonic() > patient_until:
            sys.stderr.write(f"process {daemon.pid} is bringing session {tag} in order; Ctrl-C leaves it at that\n")
            patient_until = math.inf
        time.sleep(_LOOK_EVERY)
    return code


def _wait_for_first_result(project: Project, tag: str, daemon: subprocess.Popen[bytes]) -> int | None:
    """Until the daemon is at work and its first run is measured; its exit code if it ended."""
    said, over = "", False
    while (code := daemon.poll()) is None:
        if project.daemon(tag) == daemon.pid:
            words, over = _first_step(project, tag)
            if words != said:
                leave = "" if said or over else "; Ctrl-C leaves it running in the background"
                sys.stderr.write(f"{words}{leave}\n")
                said = words
            if over:
                return None
        time.sleep(_LOOK_EVERY)
    return code


def _first_step(project: Project, tag: str) -> tuple[str, bool]:
    measuring = "measuring the baseline", False
    try:
        with project.open_store() as store:
            session = store.session(tag)
            latest = store.latest(session.id)
    except KeyError:  # a baseline that failed takes its session with it
        return measuring
    task = parse_task(session.task_json)
    if latest is None:
        setup = "; ".join(task.execution.setup_commands)
        return (session.reason or f"setting up: {setup}", False) if session.reason or setup else measuring
    if latest.number == 0 and latest.good_runs:
        run = latest.good_runs[0]
        metric = f"{task.metric.name} {run.value:.4g} ({format_duration(run.duration_s)})"
        return f"first of {BASELINE_RUNS} baseline runs: {metric}", True
    return measuring if latest.number == 0 else ("the baseline is measured", True)
