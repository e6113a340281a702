"""`top`: what the keys do, and that whatever models wrote is shown as text."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from autoresearchd.app.project import Project
from autoresearchd.domain.labels import SessionState
from autoresearchd.domain.proposal import Proposal
from autoresearchd.loop.upkeep.session_lock import SessionLock
from autoresearchd.store.repository import SqlStore
from autoresearchd.workspace import layout
from tests.unit.cli.conftest import SHA, Command, add_session

pytest.importorskip("textual")


def walk(root: Path, steps: Callable[[Any, Any], Awaitable[None]]) -> None:
    from autoresearchd.cli.top_app import Top

    async def main() -> None:
        app = Top(Project.at(root), "mar8")
        async with app.run_test(size=(100, 40)) as pilot:
            await read(app, pilot)
            await steps(app, pilot)
        assert app.return_code == 0

    asyncio.run(main())


async def read(app: Any, pilot: Any) -> None:
    """Until what is being read is shown."""
    await pilot.pause()
    while app._reading:
        await app.workers.wait_for_complete()
        await pilot.pause()


def rows(app: Any, table: str) -> list[str]:
    found = app.query_one(f"#{table}")
    return [" ".join(cell.plain for cell in found.get_row_at(i)) for i in range(found.row_count)]


def said(app: Any) -> str:
    return " ".join(one.message for one in app._notifications)


def run_one(root: Path, losses: list[float]) -> None:
    """A run under way, and what it has printed."""
    now = datetime.now(UTC)
    with SqlStore.open(f"sqlite:///{layout.database_path(root)}") as store:
        session = store.session("mar8").id
        e = store.open_experiment(session, parent=SHA, segment=0, at=now - timedelta(seconds=80))
        proposal = Proposal({"train.py": "x = 2\n"}, "h", "search", description="[blink]wider")
        store.record_proposal(session, e.number, proposal, diff="", code_hash="h")
        store.record_commit(session, e.number, "9" * 40)
        store.open_run(session, e.number, 5, now - timedelta(seconds=70))
        store.set_state(session, SessionState.RUNNING, now, pid=os.getpid())
    log = layout.run_dir(root, "mar8", e.number, 0) / "training.log"
    log.parent.mkdir(parents=True)
    log.write_text("".join(f"step {i:05d} ({i}.0%) | loss: {loss} | dt: 5ms\n" for i, loss in enumerate(losses)))


def test_sessions_runs_and_experiments_are_seen_and_the_keys_do_what_they_say(repository: Path) -> None:
    add_session(repository, "other")
    run_one(repository, [4.0, 3.0, 2.5])

    async def steps(app: Any, pilot: Any) -> None:
        first, second = rows(app, "sessions")
        assert first.startswith("▶ mar8 running 4 1 0 0.997900") and second.startswith("  other stopped")
        listed = rows(app, "experiments")
        assert listed[0].startswith("4 discard no_gain") and "[bold]herring[/bold]" in listed[0]
        assert listed[-1].startswith("0 keep ✓") and "\x1b" not in "".join(listed)
        assert "#5 running" in str(app.query_one("#run0").render())
        assert list(app.query_one("#loss0").data) == [4.0, 3.0, 2.5]
        await pilot.press("n", *"[b]p q s[/b]", "enter")
        await pilot.press("p", "s")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert "noted" in said(app) and "pauses after" in said(app) and "stops after" in said(app)
        await pilot.press("n", *"no", "escape")
        app.query_one("#sessions").focus()
        await pilot.press("down", "enter")
        await read(app, pilot)
        assert rows(app, "sessions")[1].startswith("▶ other")
        await pilot.press("q")

    with SessionLock(layout.lock_path(repository, "mar8"), "mar8") as lock:
        lock.ready()
        walk(repository, steps)
    with SqlStore.open(f"sqlite:///{layout.database_path(repository)}") as store:
        session = store.session("mar8").id
        assert [note.text for note in store.unseen_notes(session)] == ["[b]p q s[/b]"]
        assert [control.kind for control in store.take_controls(session)] == ["pause", "stop"]


def test_a_key_that_can_do_nothing_says_so(repository: Path) -> None:
    async def steps(app: Any, pilot: Any) -> None:
        await pilot.press("p")
        await app.workers.wait_for_complete()
        layout.database_path(repository).unlink()
        for _ in range(3):
            app.refresh_now()
            await read(app, pilot)
        assert "nothing is running" in said(app) and said(app).count("there is no session in") == 1
        await pilot.press("q")

    walk(repository, steps)


def test_without_a_terminal_it_is_refused(repository: Path, command: Command) -> None:
    answer = command("top")
    assert answer.code == 2 and "needs a terminal" in answer.err
