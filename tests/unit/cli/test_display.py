"""The foreground display: lines without a terminal, the status with one, and never a reason to fail."""

from __future__ import annotations

import io
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from autoresearchd.cli.foreground import LiveDisplay, PlainDisplay, foreground_sink
from autoresearchd.domain.ports import Event, EventKind
from tests.unit.cli.conftest import HOSTILE

AT = datetime(2026, 3, 8, 20, 0, tzinfo=UTC)


def event(kind: EventKind, message: str = "", experiment: int | None = None, **data: Any) -> Event:
    return Event(kind, AT, message, experiment, data)


def test_without_a_terminal_each_event_is_a_plain_line() -> None:
    stream = io.StringIO()
    with foreground_sink(stream=stream) as sink:
        assert isinstance(sink, PlainDisplay)
        sink.emit(event(EventKind.SESSION_STARTED, "begins"))
        sink.emit(event(EventKind.OPENED, "baseline", 0))
        sink.emit(event(EventKind.RUN_STARTED, "run", 0))
        sink.emit(event(EventKind.WARNING, HOSTILE))
    lines = [line.split("  ", 1)[1] for line in stream.getvalue().splitlines()]
    assert lines == ["begins", "#0    run", "warning: try a red [bold]herring[/bold] gnirts $x_{"]


def test_a_terminal_shows_what_status_shows_with_warnings_above(repository: Path) -> None:
    stream = io.StringIO()
    with LiveDisplay(stream) as display:
        display.emit(event(EventKind.SETUP, "before there is anything to show"))
        display.emit(event(EventKind.SESSION_RESUMED, "again", tag="mar8", root=str(repository)))
        before = stream.getvalue()
        display.emit(event(EventKind.FAULT, "the disk is full"))
        display.emit(event(EventKind.CONFIRMED, "experiment 1 is confirmed", 1))
    assert "before there is anything to show\n" in before and "autoresearch · mar8 · stopped" in before
    assert "add 5% warmup" in before
    added = stream.getvalue().removeprefix(before)
    erased, told, below = added.partition("fault: the disk is full\n")  # each second all of it is drawn anew
    assert told and re.search(r"\x1b\[J[0-9:]{8}  $", erased) and "autoresearch · mar8" in below
    assert "#1    experiment 1 is confirmed\n" in added
    assert "autoresearchd resume" not in added, "what to do next is for those who are elsewhere"


def test_without_colours_no_line_is_cut_either(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "50")
    stream = Terminal()
    with LiveDisplay(stream) as display:
        display.emit(event(EventKind.SESSION_RESUMED, "again", tag="mar8", root=str(repository)))
    shown = stream.getvalue().rpartition("\x1b[?7l")[2].partition("\x1b[?7h")[0]
    assert "autoresearch · mar8" in shown and max(map(len, shown.splitlines())) <= 50


@pytest.mark.parametrize("tag", ["gone", "mar8"])
def test_nothing_that_is_missing_ends_the_research(empty_repository: Path, tag: str) -> None:
    stream = io.StringIO()
    with LiveDisplay(stream) as display:
        display.emit(event(EventKind.SESSION_STARTED, "begins", tag=tag, root=str(empty_repository)))
        stream.close()
        display.emit(event(EventKind.WARNING, "nobody reads this"))
    PlainDisplay(stream).emit(event(EventKind.WARNING, "nor this"))
