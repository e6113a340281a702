"""TensorBoard: a folder for each experiment, its curve among the scalars, its constants among the hyper-parameters."""

from __future__ import annotations

import importlib
import shlex
import shutil
from pathlib import Path
from typing import Any

from autoresearchd.report.trackers.book import Book, Entry, Sent, require


def send(book: Book, place: Path) -> Sent:
    """Place: the folder of logs. An experiment's folder is there as a whole or not at all."""
    writers = require(lambda: importlib.import_module("tensorboard.summary.writer.event_file_writer"), "TensorBoard")
    root, new = place / book.name, 0
    for entry in book.entries:
        folder = root / f"{entry.number:05d}"
        if not folder.exists():
            part = root / f".{entry.number:05d}.part"
            shutil.rmtree(part, ignore_errors=True)
            _write(writers.EventFileWriter, book, entry, part)
            part.rename(folder)
            new += 1
    return Sent(new, len(book.entries) - new, f"tensorboard --logdir {shlex.quote(str(place))}")


def _write(make_writer: Any, book: Book, entry: Entry, folder: Path) -> None:
    protos: Any = importlib.import_module("tensorboard.compat.proto.summary_pb2")
    events: Any = importlib.import_module("tensorboard.compat.proto.event_pb2")
    hparams: Any = importlib.import_module("tensorboard.plugins.hparams.plugin_data_pb2")
    status: Any = importlib.import_module("tensorboard.plugins.hparams.api_pb2").Status
    begun, ended = entry.started_at.timestamp(), entry.finished_at.timestamp()
    writer = make_writer(str(folder))

    def add(at: float, step: int = 0, **value: Any) -> None:
        summary = protos.Summary(value=[protos.Summary.Value(**value)])
        writer.add_event(events.Event(wall_time=at, step=step, summary=summary))

    def tell(at: float, tag: str, **what: Any) -> None:
        """As the plug-in's own module does, which needs TensorFlow."""
        content = hparams.HParamsPluginData(version=0, **what).SerializeToString()
        plugin = protos.SummaryMetadata.PluginData(plugin_name="hparams", content=content)
        add(at, tag=f"_hparams_/{tag}", metadata=protos.SummaryMetadata(plugin_data=plugin))

    start = hparams.SessionStartInfo(group_name=entry.title, start_time_secs=begun)
    facts = {"status": entry.status, "label": entry.label, **entry.facts}
    told = {k: facts.get(k, "") for k in ("status", "label", "confirmed", "policy", "role")}
    shown = {**entry.constants, **told}
    for name, value in shown.items():
        kind = "bool" if isinstance(value, bool) else "string" if isinstance(value, str) else "number"
        setattr(start.hparams[name], f"{kind}_value", value)
    tell(begun, "session_start_info", session_start_info=start)
    figures = {} if entry.value is None else {book.metric: entry.value}
    for name, figure in {**entry.metrics, **figures}.items():
        add(ended, tag=name, simple_value=figure)
    for step, name, figure in book.points(entry.number):
        add(ended, step, tag=name, simple_value=figure)
    result = status.Value("STATUS_FAILURE" if entry.failed else "STATUS_SUCCESS")
    tell(ended, "session_end_info", session_end_info=hparams.SessionEndInfo(status=result, end_time_secs=ended))
    writer.close()
