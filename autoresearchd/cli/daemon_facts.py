"""What ``status`` says of a daemon beside its experiments: what holds them up, since when it runs, when it ended."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from autoresearchd.cli.render import clean
from autoresearchd.loop.lock import process_began
from autoresearchd.workspace import layout

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autoresearchd.cli.place import Place

_TAIL_BYTES = 16 * 1024
_LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)Z (\S+) (\w+) ?(.*)")
_ROUNDED = timedelta(seconds=2)
"""The log knows no parts of seconds, and the start of a process is known to the second."""
_BESIDE = ("housekeeping", "warning", "fault")
"""What may be logged while something else goes on."""
_MEANWHILE = ("setup", "waiting")


class Meanwhile(NamedTuple):
    """What goes on while no experiment does: set-up commands, a learner's work. words: as the log names it."""

    words: str
    began: datetime


class DaemonFacts(NamedTuple):
    """Each None where it is not known, or not so.

    meanwhile: what holds experiments up; began: when the process that holds the session started; last: when a
    daemon of the session last wrote.
    """

    meanwhile: Meanwhile | None = None
    began: datetime | None = None
    last: datetime | None = None


def daemon_facts(place: Place, tag: str, status: Mapping[str, Any]) -> DaemonFacts:
    """The facts about the daemon of a session whose status is this."""
    session = status.get("session") or {}
    found = meanwhile_in(layout.daemon_log(place.root), tag) if session.get("state") == "running" else None
    pid = session.get("pid")
    began = process_began(pid) if isinstance(pid, int) else None
    if found is not None and began is not None and found.began < began - _ROUNDED:
        found = None  # of a daemon that was killed during it
    return DaemonFacts(found, began, place.reader.heartbeat(tag))


def meanwhile_in(log: Path, tag: str) -> Meanwhile | None:
    """The set-up or the wait that the log of the daemons ends with for a session; None where more has come after it."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - _TAIL_BYTES))
            lines = stream.read(_TAIL_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        found = _LINE.fullmatch(line)
        if found is None or found[2] != tag or found[3] in _BESIDE:
            continue
        if found[3] not in _MEANWHILE:
            return None
        try:
            return Meanwhile(clean(found[4]), datetime.fromisoformat(found[1]).replace(tzinfo=UTC))
        except ValueError:
            return None
    return None
