"""Sessions in experiment trackers: everything arrives once, also from a session that goes on. The real packages."""

from __future__ import annotations

import importlib.util
import json
import sqlite3
import threading
import warnings
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from autoresearchd.domain.errors import AutoresearchdError, UsageError
from autoresearchd.domain.experiment import CurvePoint, Decision
from autoresearchd.domain.labels import Label, Status
from autoresearchd.domain.proposal import ASI, Proposal
from autoresearchd.report.log_files import read_log, store_log
from autoresearchd.report.trackers.book import Book, Entry, Ledger, constants_in_effect, read_book
from autoresearchd.report.trackers.otel_spans import _without_secrets
from autoresearchd.store.story_reader import Edit, StoryReader
from tests.fakes.stores import open_store
from tests.unit.report.test_story import edit, record

START = datetime(2026, 3, 8, 20, 0, tzinfo=UTC)
CURVE = [CurvePoint(float(step), 3.0 - step / 1000) for step in range(600)]
HOSTILE = "a\x1b[31m <b>&'\"; DROP TABLE runs; --\u202e" + "ä" * 300


def needs(package: str) -> pytest.MarkDecorator:
    try:
        there = importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # not even the package that it is in
        there = False
    return pytest.mark.skipif(not there, reason=f"{package} is not installed")


@pytest.fixture(autouse=True)
def others_warnings() -> Iterator[None]:
    """What these packages warn of is theirs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def entry(number: int, status: str, value: float | None, label: str = "", **constants: Any) -> Entry:
    begun = START + timedelta(minutes=6 * number)
    facts = {"description": HOSTILE, "hypothesis": "more steps", "policy": "search", "commit": f"{number:040x}"}
    values = {"LR": 0.02, "WIDTH": 64, "ACT": "relu", "TIE": True, **constants}
    own = (status, label, value, {"peak_vram_mb": 450.5}, values, facts, True if status == "keep" else None)
    return Entry(number, *own, begun, begun + timedelta(minutes=5))


ENTRIES = [
    entry(0, "keep", 1.0), entry(1, "keep", 0.9, LR=2.0), entry(2, "discard", 0.95, "no_gain", ACT="gelu"),
    entry(3, "discard", None, "aborted_early", WIDTH=32), entry(4, "crash", None, "oom", WIDTH=512),
]  # fmt: skip


@pytest.fixture
def book() -> Book:
    def curve(number: int) -> list[CurvePoint]:
        return CURVE if number == 3 else []

    return Book("autoresearch-mar8-0123abcd", "mar8", "autoresearch", "val_bpb", "minimize", ENTRIES, curve)


def twice(send: Any, book: Book, place: Path) -> None:
    """A session is sent when it has four experiments, when it has five, and again."""
    assert send(replace(book, entries=ENTRIES[:4]), place)[:2] == (4, 0)
    assert send(book, place)[:2] == (1, 4)
    assert send(book, place)[:2] == (0, 5)


@needs("optuna")
@pytest.mark.parametrize("name", ["optuna.log", "optuna.db"])
def test_optuna_has_a_trial_for_each_with_its_constants_and_its_state(book: Book, tmp_path: Path, name: str) -> None:
    import optuna
    from optuna.storages.journal import JournalFileBackend

    from autoresearchd.report.trackers.optuna_study import send

    twice(send, book, tmp_path / name)
    later = [*ENTRIES, entry(5, "keep", 0.8, LR=9.0, ACT="new", WIDTH="a word now")]
    assert send(replace(book, entries=later), tmp_path / name)[:2] == (1, 5)
    file = str(tmp_path / name)
    storage: Any = (
        f"sqlite:///{file}" if name[-2:] == "db" else optuna.storages.JournalStorage(JournalFileBackend(file))
    )
    study = optuna.load_study(study_name=book.name, storage=storage)
    assert [t.state.name for t in study.trials] == ["COMPLETE"] * 3 + ["PRUNED", "FAIL", "COMPLETE"]
    assert study.direction.name == "MINIMIZE" and study.best_trial.user_attrs["experiment"] == 5
    assert study.trials[1].params == {"LR": 2.0, "WIDTH": 64.0, "ACT": "relu", "TIE": True}
    assert study.trials[1].distributions["LR"].log and study.trials[1].duration == timedelta(minutes=5)
    assert study.trials[5].params == {"LR": 9.0, "TIE": True}  # what a study cannot take is told beside them
    assert study.trials[5].user_attrs["constant ACT"] == "new" and study.user_attrs["confirmed"] == [0, 1, 5]
    bound = [entry(6, "discard", 0.1, "constraint"), entry(7, "discard", 0.2, "gate_miss")]
    assert send(replace(book, entries=[*later, *bound]), tmp_path / name)[:2] == (2, 6)
    assert study.best_trial.user_attrs["experiment"] == 5, "what broke a bound is no best"
    assert 30 <= len(study.trials[3].intermediate_values) <= 41 and study.trials[3].last_step == 599


def test_a_curve_is_not_called_like_a_metric(book: Book) -> None:
    """MLflow and TensorBoard would show its last point in place of the value."""
    printed = replace(ENTRIES[1], metrics={"loss": 0.3})
    found = [book, replace(book, metric="loss"), replace(book, entries=[ENTRIES[3], printed])]
    assert [{name for _, name, _ in one.points(3)} for one in found] == [{"loss"}, {"curve/loss"}, {"curve/loss"}]


@needs("optuna")
@pytest.mark.parametrize("name", ["notes.log", "notes.db"])
def test_a_file_that_is_no_study_is_refused_and_left_as_it_is(book: Book, tmp_path: Path, name: str) -> None:
    from autoresearchd.report.trackers.optuna_study import send

    (tmp_path / name).write_text("what I did today\n" * 100)
    with pytest.raises(UsageError, match=f"{name} cannot be read as studies of Optuna"):
        send(book, tmp_path / name)
    assert (tmp_path / name).read_text() == "what I did today\n" * 100


@needs("tensorboard")
def test_tensorboard_has_the_curve_the_metric_and_the_constants(book: Book, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    from autoresearchd.report.trackers.tensorboard_events import send

    (tmp_path / book.name / ".00001.part").mkdir(parents=True)  # an export was killed in the middle of it
    twice(send, book, tmp_path)
    assert sorted(f.name for f in (tmp_path / book.name).iterdir()) == [f"0000{n}" for n in range(5)]
    events = {n: EventAccumulator(str(tmp_path / book.name / f"0000{n}")).Reload() for n in (1, 3)}
    assert [event.value for event in events[1].Scalars("val_bpb")] == [pytest.approx(0.9)]
    assert events[3].Scalars("loss")[-1].step == 599 and "val_bpb" not in events[3].Tags()["scalars"]
    told = events[1].SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    values = HParamsPluginData.FromString(told).session_start_info.hparams
    assert values["LR"].number_value == 2.0 and values["ACT"].string_value == "relu" and values["TIE"].bool_value


@needs("mlflow")
def test_mlflow_has_a_run_for_each_and_finishes_what_was_cut_off(book: Book, tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    from autoresearchd.report.trackers.mlflow_runs import send

    file = tmp_path / "mlflow.db"
    twice(send, book, file)
    client = MlflowClient(tracking_uri=f"sqlite:///{file}")
    found = client.get_experiment_by_name(book.name)
    runs = {int(r.data.tags["autoresearchd.experiment"]): r for r in client.search_runs([found.experiment_id])}
    assert [runs[n].info.status for n in range(5)] == ["FINISHED"] * 3 + ["KILLED", "FAILED"]
    assert runs[1].data.params == {"LR": "2.0", "WIDTH": "64", "ACT": "relu", "TIE": "True"}
    assert runs[1].data.metrics["val_bpb"] == 0.9 and runs[1].info.end_time - runs[1].info.start_time == 300_000
    assert client.get_metric_history(runs[3].info.run_id, "loss")[-1].step == 599
    client.update_run(runs[2].info.run_id, status="RUNNING")
    told = {**ENTRIES[1].facts, "confirmed": "fell back"}
    fell = [replace(e, confirmed=False, facts=told) if e.number == 1 else e for e in ENTRIES]
    assert send(replace(book, entries=fell), file)[:2] == (1, 4)
    tags = client.get_run(runs[1].info.run_id).data.tags
    assert (tags["autoresearchd.confirmed"], tags["confirmed"]) == ("False", "fell back")


@needs("wandb")
def test_wandb_has_a_run_for_each_without_a_network(
    book: Book, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from autoresearchd.report.trackers.wandb_runs import send

    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    twice(send, book, tmp_path)
    assert len(list((tmp_path / "wandb").glob("offline-run-*/run-*.wandb"))) == 5


@needs("trackio")
def test_trackio_has_a_run_for_each(book: Book, tmp_path: Path) -> None:
    from autoresearchd.report.trackers.trackio_runs import send

    twice(send, book, tmp_path)
    (tmp_path / f"{book.name}.json").write_text("[0, 2, 3, 4]")  # killed after run 1 and before that was noted
    assert send(book, tmp_path)[:2] == (1, 4)
    [file] = tmp_path.glob("*.db")
    with sqlite3.connect(file) as db:
        rows = db.execute("SELECT run_name, metrics FROM metrics WHERE run_name = '00001'").fetchall()
    assert [json.loads(row[1])["val_bpb"] for row in rows] == [0.9]


@pytest.fixture
def collector() -> Iterator[tuple[str, list[bytes]]]:
    """A collector on loopback, and what it was sent."""
    taken: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            taken.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200 if len(taken) > 1 else 400)  # the first one is refused
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", taken
        server.shutdown()
        thread.join()


def test_the_address_of_a_collector_is_told_without_what_is_secret() -> None:
    assert _without_secrets("http://me:s3cret@host:4318/v1?key=s3cret#s3cret") == "http://host:4318/v1"
    assert _without_secrets("http://host:4318") == "http://host:4318" and "s3cret" not in _without_secrets("s3cret")


@needs("opentelemetry.exporter.otlp.proto.http")
def test_a_collector_has_a_span_for_each_and_what_it_refuses_comes_again(
    book: Book, tmp_path: Path, collector: tuple[str, list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    from autoresearchd.report.trackers.otel_spans import send

    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    with pytest.raises(UsageError, match="no collector"):
        send(book, tmp_path)
    endpoint, taken = collector
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
    with pytest.raises(AutoresearchdError, match="does not take spans"):
        send(book, tmp_path)
    twice(send, book, tmp_path)
    requests = [ExportTraceServiceRequest.FromString(body) for body in taken[1:]]
    spans = [span for r in requests for of in r.resource_spans for scope in of.scope_spans for span in scope.spans]
    assert (
        len(spans) == 5 and len({span.trace_id for span in spans}) == 1 and len({span.span_id for span in spans}) == 5
    )
    assert spans[1].end_time_unix_nano - spans[1].start_time_unix_nano == 300 * 10**9
    values = {one.key: one.value for one in spans[1].attributes}
    assert values["autoresearchd.val_bpb"].double_value == 0.9
    assert values["autoresearchd.constant.LR"].double_value == 2.0


def test_a_broken_list_of_what_was_sent_is_refused_and_nothing_is_sent_twice(book: Book, tmp_path: Path) -> None:
    Ledger(tmp_path, book).add(1, 2)
    assert Ledger(tmp_path, book).known == {1, 2}
    for broken in ("", "[1, 2", "7", '["a"]', "[[1]]"):
        (tmp_path / f"{book.name}.json").write_text(broken)
        with pytest.raises(UsageError, match="the list of what was sent"):
            Ledger(tmp_path, book)


def test_what_became_of_a_keep_and_constants_of_two_files_are_told_to_every_tracker(tmp_path: Path) -> None:
    lines = [{"run": n, "metric": 1 - n / 10, "status": s, "commit": f"c{n}", "confirmed": state}
             for n, (s, state) in enumerate((("keep", True), ("keep", False), ("discard", None)))]  # fmt: skip
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with open_store(tmp_path / "state.db") as store:
        store_log(store, read_log(tmp_path / "log.jsonl"))
        session = store.session("imported-log").id
        number = store.open_experiment(session, parent="c0", segment=0, at=START).number
        changes = {"train.py:LR": 1.0, "model.py:LR": 2.0, "train.py:WIDTH": 3}
        store.record_proposal(session, number, Proposal({}, "h", "p", changes=changes), diff="", code_hash="h")
        decision = Decision(Status.DISCARD, Label.NO_GAIN, 1.0, 0.0)
        store.record_commit(session, number, "c3")
        store.record_decision(session, number, decision, ASI(), START, incumbent=None)
    with StoryReader(tmp_path / "state.db") as reader:
        entries = read_book(reader, "imported-log", reader.status("imported-log"), str).entries
    assert [e.facts.get("confirmed") for e in entries] == ["yes", "fell back", None, None]
    assert entries[3].constants == {"train.py/LR": 1.0, "model.py/LR": 2.0, "WIDTH": 3}


PROGRAM = "LR = 0.02\nWIDTH = 64\nBETA = 0.9\n"


def test_each_experiment_has_the_constants_of_its_parent_and_what_it_changed() -> None:
    records = [
        record(0, "keep", 1.0), record(1, "keep", 0.9), record(2, parent="c1"), record(3, parent="c1"),
        record(4, "keep", 0.8, parent="c1"), record(5, parent="c4"),
    ]  # fmt: skip
    edits: list[Edit] = [
        edit(1, changes={"train.py:LR": 0.1}, diff="--- a/train.py\n-LR = 0.02\n+LR = 0.1\n"),
        edit(2, changes={"train.py:WIDTH": 32}),
        edit(3, changes={"train.py:NEW": "x"}, diff="-?? no program\n"),
        edit(4, diff="+gate"),
        edit(5, changes={"train.py:LR": 0.3}),
    ]
    found = constants_in_effect(
        records, edits, lambda n: {"train.py": PROGRAM.replace("0.02", "0.1")} if n == 1 else {}
    )
    lr, width, new = "train.py:LR", "train.py:WIDTH", "train.py:NEW"
    assert found == {
        0: {lr: 0.02, width: 64}, 1: {lr: 0.1, width: 64}, 2: {lr: 0.1, width: 32}, 3: {lr: 0.1, width: 64, new: "x"},
        4: {lr: 0.1, width: 64}, 5: {lr: 0.3, width: 64},
    }  # fmt: skip


def test_a_later_segments_baseline_is_the_program_that_was_confirmed_and_not_the_first_one() -> None:
    """Both have one commit: what was made on either has its values, not those that all began with."""
    records = [
        record(0, "keep", 1.0), record(1, "keep", 0.9), record(2, parent="c1"),
        record(3, "keep", 0.95, parent="c1", commit="c1", segment=1), record(4, parent="c1", segment=1),
    ]  # fmt: skip
    diff = "--- a/train.py\n-LR = 0.02\n+LR = 0.1\n"
    edits = [edit(1, changes={"train.py:LR": 0.1}, diff=diff), edit(2, changes={"train.py:WIDTH": 32})]
    program = {"train.py": PROGRAM.replace("0.02", "0.1")}
    found = constants_in_effect(records, [*edits, edit(4, diff="+gate")], lambda n: program if n == 1 else {})
    began, kept = {"train.py:LR": 0.02, "train.py:WIDTH": 64}, {"train.py:LR": 0.1, "train.py:WIDTH": 64}
    assert found == {0: began, 1: kept, 2: {**kept, "train.py:WIDTH": 32}, 3: kept, 4: kept}
