"""Weights & Biases, offline: a run for each experiment, grouped by session; nothing leaves the machine by itself."""

from __future__ import annotations

import importlib
import shlex
from hashlib import sha256
from pathlib import Path
from typing import Any

from autoresearchd.report.trackers.book import Book, Entry, Ledger, Sent, plain, require


def send(book: Book, place: Path) -> Sent:
    """Place: the folder that gets ``wandb/``. A run that an export was killed in is written anew under the same id."""
    wandb = require(lambda: importlib.import_module("wandb"), "Weights & Biases")
    place.mkdir(parents=True, exist_ok=True)
    ledger = Ledger(place, book)
    new = [entry for entry in book.entries if entry.number not in ledger.known]
    for entry in new:
        _write(wandb, book, entry, place)
        ledger.add(entry.number)
    return Sent(len(new), len(book.entries) - len(new), f"wandb sync {shlex.quote(str(place))}/wandb/offline-run-*")


def _write(wandb: Any, book: Book, entry: Entry, place: Path) -> None:
    run = wandb.init(
        mode="offline",
        dir=str(place),
        project=plain(book.task).replace("/", "-"),
        group=book.name,
        id=sha256(f"{book.name} {entry.number}".encode()).hexdigest()[:16],
        name=entry.title,
        config={**entry.constants, "experiment": entry.number, **entry.facts},
        tags=[word for word in (entry.status, entry.label) if word],
        settings=wandb.Settings(
            console="off", quiet=True, silent=True, disable_git=True, disable_code=True, save_code=False,
            x_disable_stats=True, x_disable_meta=True, x_save_requirements=False,
        ),
    )  # fmt: skip
    rows: dict[int, dict[str, float]] = {}
    for step, name, value in book.points(entry.number):
        rows.setdefault(step, {})[name] = value
    for step, row in rows.items():
        run.log(row, step=step)
    figures = {} if entry.value is None else {book.metric: entry.value}
    run.summary.update({**entry.metrics, **figures, "status": entry.status, "label": entry.label})
    run.finish(exit_code=int(entry.failed))
