"""The small commands: each leaves a request or a note in the store for the daemon to find."""

from __future__ import annotations

from pathlib import Path

from autoresearchd.app.project import Project
from autoresearchd.loop.clock import SystemClock


def _request(directory: Path, tag: str | None, kind: str, sentence: str) -> str:
    project = Project.at(directory)
    store = project.existing_store()
    try:
        session = project.pick(store, tag)
        pid = project.daemon(session.tag)
        if pid is None:
            return f"session {session.tag} has no daemon running; `autoresearchd resume {session.tag}` goes on with it"
        store.add_control(session.id, kind, SystemClock().now())
        return f"session {session.tag} (process {pid}) {sentence}"
    finally:
        store.close()


def stop(directory: Path, tag: str | None, now: bool) -> str:
    """Ask the daemon to stop; the sentence to show."""
    if now:
        return _request(directory, tag, "stop_now", "stops at once; the running experiment is recorded as interrupted")
    return _request(directory, tag, "stop", "stops after the running experiment")


def pause(directory: Path, tag: str | None) -> str:
    """Ask the daemon to pause; the sentence to show."""
    return _request(directory, tag, "pause", "pauses after the running experiment")


def unpause(directory: Path, tag: str | None) -> str:
    """Ask the daemon to go on; the sentence to show."""
    return _request(directory, tag, "unpause", "goes on")


def note(directory: Path, tag: str | None, text: str) -> str:
    """Leave a note for the policy; the sentence to show."""
    project = Project.at(directory)
    store = project.existing_store()
    try:
        session = project.pick(store, tag)
        store.add_note(session.id, text, SystemClock().now())
        return f"noted; session {session.tag} reads it with its next proposal"
    finally:
        store.close()
