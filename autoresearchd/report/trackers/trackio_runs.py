"""Trackio: a session is a project there, each experiment a run, in a folder of its own."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import shlex
from pathlib import Path
from typing import Any

from autoresearchd.report.trackers.book import Book, Entry, Ledger, Sent, require


def send(book: Book, place: Path) -> Sent:
    """Place: the folder that trackio keeps its projects in. A run that an export was killed in is written anew."""
    place.mkdir(parents=True, exist_ok=True)
    os.environ["TRACKIO_DIR"] = str(place.resolve())  # read when it is imported
    trackio = require(lambda: importlib.import_module("trackio"), "trackio")
    ledger = Ledger(place, book)
    new = [entry for entry in book.entries if entry.number not in ledger.known]
    cut_off = _runs(trackio, book.name)
    for entry in new:
        with contextlib.redirect_stdout(io.StringIO()):
            if (run := cut_off.get(_name(entry))) is not None:
                run.delete()
            _write(trackio, book, entry)
        ledger.add(entry.number)
    look = f"TRACKIO_DIR={shlex.quote(str(place))} trackio show --project {book.name}"
    return Sent(len(new), len(book.entries) - len(new), look)


def _name(entry: Entry) -> str:
    return f"{entry.number:05d}"


def _runs(trackio: Any, project: str) -> dict[str, Any]:
    """What is there, by name."""
    try:
        return {str(run.name): run for run in trackio.Api().runs(project)}
    except ValueError:  # there is no such project yet
        return {}


def _write(trackio: Any, book: Book, entry: Entry) -> None:
    facts = {"experiment": entry.number, "status": entry.status, "label": entry.label, **entry.facts}
    trackio.init(project=book.name, name=_name(entry), config={**entry.constants, **facts}, embed=False)
    last = 0
    for step, name, value in book.points(entry.number):
        trackio.log({name: value}, step=step)
        last = step
    figures = {} if entry.value is None else {book.metric: entry.value}
    trackio.log({**entry.metrics, **figures}, step=last)
    trackio.finish()
