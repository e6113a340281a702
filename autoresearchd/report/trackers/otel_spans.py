"""OpenTelemetry: a session is a trace, each of its experiments a span, sent by OTLP over HTTP to your own collector.

Where to, and with which headers, is said by the variables of the specification (OTEL_EXPORTER_OTLP_ENDPOINT, …;
https://opentelemetry.io/docs/specs/otel/protocol/exporter/). Ids follow from the session and the number: what is sent
twice is the same span.
"""

from __future__ import annotations

import importlib
import os
import re
from hashlib import sha256
from pathlib import Path
from typing import Any

from autoresearchd.domain.errors import AutoresearchdError, UsageError
from autoresearchd.report.trackers.book import Book, Entry, Ledger, Sent, require

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_BATCH, _TIMEOUT_S = 200, 10


def send(book: Book, place: Path) -> Sent:
    """Place: a folder for the list of what was sent. A batch that a collector does not take is sent again next time."""
    endpoint = next((value for name in _ENDPOINTS if (value := os.environ.get(name))), "")
    if not endpoint:
        hint = f"for example: {_ENDPOINTS[1]}=http://127.0.0.1:4318 autoresearchd export --to otel"
        raise UsageError("no collector is named to send to", hint=hint)
    named = _without_secrets(endpoint)
    name = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
    exporters = require(lambda: importlib.import_module(name), "OpenTelemetry", "otel")
    sdk: Any = importlib.import_module("opentelemetry.sdk.trace")
    resources: Any = importlib.import_module("opentelemetry.sdk.resources")
    about = {"service.name": "autoresearchd", "autoresearchd.session": book.tag, "autoresearchd.task": book.task}
    resource, exporter = resources.Resource.create(about), exporters.OTLPSpanExporter(timeout=_TIMEOUT_S)
    place.mkdir(parents=True, exist_ok=True)
    ledger = Ledger(place, book)
    new = [entry for entry in book.entries if entry.number not in ledger.known]
    for at in range(0, len(new), _BATCH):
        batch = new[at : at + _BATCH]
        result = exporter.export([_span(sdk, resource, book, entry) for entry in batch])
        if result.name != "SUCCESS":
            raise AutoresearchdError(f"{named} does not take spans", hint="is a collector there, and OTLP over HTTP?")
        ledger.add(*(entry.number for entry in batch))
    exporter.shutdown()
    return Sent(len(new), len(book.entries) - len(new), f"your collector at {named}: trace {_id(book.name, 16):032x}")


def _without_secrets(url: str) -> str:
    """An address without a user, a password and a query, which may hold keys."""
    scheme, found, rest = url.partition("://")
    if not found:
        return "the address given"
    host, slash, path = re.split(r"[?#]", rest, maxsplit=1)[0].partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def _id(text: str, length: int) -> int:
    return int.from_bytes(sha256(text.encode()).digest()[:length]) or 1


def _span(sdk: Any, resource: Any, book: Book, entry: Entry) -> Any:
    trace: Any = importlib.import_module("opentelemetry.trace")
    ids = {"trace_id": _id(book.name, 16), "span_id": _id(f"{book.name} {entry.number}", 8)}
    context = trace.SpanContext(**ids, is_remote=False, trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED))
    facts = {"experiment": entry.number, "status": entry.status, "label": entry.label, **entry.facts, **entry.metrics}
    if entry.value is not None:
        facts[book.metric] = entry.value
    constants = {f"constant.{name}": value for name, value in entry.constants.items()}
    code = trace.StatusCode.ERROR if entry.failed else trace.StatusCode.OK
    begun, ended = (int(at.timestamp() * 1e9) for at in (entry.started_at, entry.finished_at))
    return sdk.ReadableSpan(
        name=f"experiment {entry.title}",
        context=context,
        resource=resource,
        attributes={f"autoresearchd.{name}": value for name, value in {**facts, **constants}.items()},
        status=trace.Status(code, entry.label if entry.failed else None),
        start_time=begun,
        end_time=ended,
    )
