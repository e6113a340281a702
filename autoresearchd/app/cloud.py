"""What is rented at present, of whichever session: shown, and ended."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from autoresearchd.app.project import Project
from autoresearchd.domain.errors import AutoresearchdError
from autoresearchd.executor.cloud.rental import NAME, PREFIX, Rental, Rented, prefix_of


def rented(rental: Rental) -> list[Rented]:
    """All machines of this user that a session of ours has rented."""
    return [machine for machine in rental.look(PREFIX) if NAME.fullmatch(machine.name)]


def describe(machine: Rented) -> dict[str, Any]:
    """As ``cloud list --json`` has it. spent: since it was launched, None: nobody knows."""
    hours = max(0.0, time.time() - machine.since) / 3600
    return {
        "name": machine.name, "session": tag_of(machine), "state": machine.state, "what": machine.what,
        "usd_per_hour": machine.usd, "since": datetime.fromtimestamp(machine.since, UTC).isoformat(),
        "usd": None if machine.usd is None else round(machine.usd * hours, 4),
    }  # fmt: skip


def tag_of(machine: Rented) -> str:
    """Of the session that rented it."""
    found = NAME.fullmatch(machine.name)
    return found["tag"] if found else ""


def chosen(machines: Sequence[Rented], directory: Path, tag: str | None) -> list[Rented]:
    """Those of a session, by default of the one here; SessionLocked where its daemon runs, which has use for them.

    In no repository, all of sessions of that name: theirs may be gone, and the machines still there.
    """
    try:
        project = Project.of_session(directory)
    except AutoresearchdError:
        if tag is None:
            raise
        return [machine for machine in machines if tag_of(machine) == tag]
    with project.existing_store() as store:
        session = project.pick(store, tag)
        project.refuse_held(store, session.tag)
    return [machine for machine in machines if machine.name.startswith(prefix_of(session))]
