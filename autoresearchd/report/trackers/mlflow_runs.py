"""MLflow: a session is an experiment there, each of its experiments a run, in a file of SQLite."""

from __future__ import annotations

import importlib
import logging
import math
import shlex
from pathlib import Path
from typing import Any

from autoresearchd.domain.errors import UsageError
from autoresearchd.report.trackers.book import Book, Entry, Sent, require

_NUMBER, _CONFIRMED = "autoresearchd.experiment", "autoresearchd.confirmed"
_METRICS, _PARAMS = 900, 100
"""Of one call, as MLflow allows."""


def send(book: Book, place: Path) -> Sent:
    """Place: the database. A run that an export was killed in is written anew; what a keep became is kept current."""
    tracking = require(lambda: importlib.import_module("mlflow.tracking"), "MLflow")
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    uri = f"sqlite:///{place.resolve()}"
    client = tracking.MlflowClient(tracking_uri=uri)
    there = client.get_experiment_by_name(book.name)
    if there is not None and there.lifecycle_stage != "active":
        raise UsageError(f"{book.name} was deleted in {place}", hint="restore it there, or name another file with -o")
    id_ = there.experiment_id if there else client.create_experiment(book.name)
    known = _known(client, id_)
    new = 0
    for entry in book.entries:
        if entry.number not in known:
            _write(client, id_, book, entry)
            new += 1
        elif entry.status == "keep" and known[entry.number].data.tags.get(_CONFIRMED) != str(entry.confirmed):
            for name, value in ((_CONFIRMED, str(entry.confirmed)), ("confirmed", entry.facts.get("confirmed", ""))):
                client.set_tag(known[entry.number].info.run_id, name, value)
    return Sent(new, len(known), f"mlflow ui --backend-store-uri {shlex.quote(uri)}")


def _known(client: Any, experiment: str) -> dict[int, Any]:
    """The finished runs by number; the others are removed."""
    found: dict[int, Any] = {}
    token: str | None = ""
    while token is not None:
        page = client.search_runs([experiment], max_results=1000, page_token=token or None)
        for run in page:
            if run.info.status == "RUNNING":
                client.delete_run(run.info.run_id)
            elif (number := run.data.tags.get(_NUMBER, "")).isdigit():
                found[int(number)] = run
        token = page.token or None
    return found


def _write(client: Any, experiment: str, book: Book, entry: Entry) -> None:
    entities: Any = importlib.import_module("mlflow.entities")
    begun, ended = (int(at.timestamp() * 1000) for at in (entry.started_at, entry.finished_at))
    tags = {_NUMBER: str(entry.number), _CONFIRMED: str(entry.confirmed), "status": entry.status, "label": entry.label}
    tags |= {"mlflow.runName": entry.title, "mlflow.note.content": entry.facts.get("hypothesis", ""), **entry.facts}
    run = client.create_run(experiment, start_time=begun, tags=tags).info.run_id
    figures = [(book.metric, entry.value, 0)] if entry.value is not None else []
    figures += [(name, value, 0) for name, value in entry.metrics.items() if name != book.metric]
    figures += [(name, value, step) for step, name, value in book.points(entry.number)]
    metrics = [entities.Metric(name, value, ended, step) for name, value, step in figures]
    params = [entities.Param(name, str(value)) for name, value in entry.constants.items()]
    for i in range(max(math.ceil(len(metrics) / _METRICS), math.ceil(len(params) / _PARAMS), 1)):
        some = metrics[i * _METRICS : (i + 1) * _METRICS]
        client.log_batch(run, metrics=some, params=params[i * _PARAMS : (i + 1) * _PARAMS])
    status = "FAILED" if entry.failed else "KILLED" if entry.stopped else "FINISHED"
    client.set_terminated(run, status=status, end_time=ended)
