"""``status`` and ``experiments`` say what the journal says, quickly, whatever the daemon is doing."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from autoresearchd.domain.confirmation import Verdict
from autoresearchd.domain.errors import SchemaTooNew, StoreDamaged, StoreError
from autoresearchd.domain.experiment import Decision, Measurement
from autoresearchd.domain.labels import Label, Outcome, SessionState, Status
from autoresearchd.domain.proposal import ASI, Cost, Proposal
from autoresearchd.store.page_reader import PageReader
from autoresearchd.store.reader import Reader
from autoresearchd.store.repository import SqlStore
from tests.unit.store.driver import (
    AT,
    Driver,
    Where,
    asked_again,
    commit_of,
    execute,
    new_answer,
    new_proposal,
    new_session,
    result,
)


def fill(lab: Driver) -> None:
    """A session with every kind of experiment in it."""
    lab.baseline()
    lab.decided(Status.DISCARD, 1.1)
    lab.decided(Status.KEEP, 0.9)
    e = lab.measured(None)
    bad = {"loss": math.nan, "ok": 1.0}
    lab.decide(e, Decision(Status.CRASH, Label.NON_FINITE, None, metrics=bad, reason="diverged"))
    lab.decide(lab.open(), Decision(Status.CRASH, Label.MALFORMED_ANSWER))
    lab.decide(lab.propose(lab.open()), Decision(Status.DISCARD, Label.DUPLICATE))
    lab.decided(Status.CHECKS_FAILED, 0.1)
    e = lab.commit(lab.propose(lab.open(), new_proposal(7, usd=None)))
    lab.run(e, Measurement(Label.INTERRUPTED))
    lab.store.open_run(lab.id, e.number, 3, AT)
    for number in range(7):
        lab.store.record_overhead(lab.id, number, 10.0 * (number + 1))
    lab.store.set_state(lab.id, SessionState.RUNNING, AT + timedelta(seconds=60), pid=4321)


def test_status_has_the_documented_form_and_the_right_figures(lab: Driver, journal: Where) -> None:
    fill(lab)
    with Reader(journal) as reader:
        status = reader.status("nov21", alive=True, now=AT + timedelta(seconds=42))
    assert json.loads(json.dumps(status, allow_nan=False)) == status
    assert status["session"] == {
        "tag": "nov21", "task": "toy", "branch": "autoresearch/nov21", "state": "running", "pid": 4321,
        "started_at": AT.isoformat(), "experiments": 6, "keeps": 1, "confirmed": 0, "discards": 2, "crashes": 2,
        "checks_failed": 1,
    }  # fmt: skip
    metric = status["metric"]
    assert (metric["name"], metric["direction"], metric["source"]) == ("val_bpb", "minimize", "evaluator")
    assert (metric["baseline"], metric["best"], metric["best_experiment"]) == (1.0, 1.0, 0)
    at_first = {"experiment": 0, "value": 1.0, "runs": 3, "since": AT.isoformat(), "gain": 0.0, "error": 0.0}
    assert metric["confirmed"] == at_first
    assert metric["tip"] == {"experiment": 2, "estimate": 0.9, "standard_error": None}
    assert metric["improvement_pct"] == 0.0, "what is only believed is not called better"
    assert metric["sigma"] == pytest.approx(statistics.stdev([1.0, 1.02, 0.98]))
    assert metric["confidence"] is None
    assert status["current"] == {
        "experiment": 7, "phase": "running", "elapsed_s": 42.0, "budget_s": 300.0, "forecast": None,
        "abort_probability": None,
    }  # fmt: skip
    rates = dict.fromkeys(("false_abort_rate", "false_abort_limit", "throughput_gain"))
    assert status["abort"] == {"aborted": 0, "audited": 0, **rates}
    assert status["cost"] == {"usd": 1.25, "tokens_in": 600, "tokens_out": 120, "gpu_s": 0.0, "unpriced": True}
    assert status["overhead"] == {"median_ms": 40.0, "p95_ms": 70.0}
    assert status["policy"] == {"name": "search", "adapter": "v3"} and status["asked"] is None


def test_what_a_hybrids_model_did_in_its_turns_is_counted(store: SqlStore, journal: Where) -> None:
    """Else one whose server never answers looks like one that is at work."""
    session = store.create_session(replace(new_session("mixed"), policy="hybrid:local:m"), AT)
    store.open_segment(session.id, "f0", "start", "cpu", AT)
    lab, passed, away = Driver(store, session.id), {"passed_by": "local:m"}, {"unused": "no\x1b[2Jbody is there"}
    lab.baseline()

    def turn(policy: str, extra: dict[str, Any] | None = None, *seconds: float, keep: bool = False) -> None:
        e = lab.open()
        for took in seconds:
            lab.answer(e, replace(new_answer(), cost=Cost(None, 0, 0, took)))
        lab.propose(e, Proposal({}, "h", policy, asi=ASI(extra=extra or {})))
        lab.decide(e, Decision(Status.KEEP if keep else Status.DISCARD, Label.NONE if keep else Label.DUPLICATE, 0.9))

    def asked() -> Any:
        with Reader(journal) as reader:
            return reader.status("mixed")["asked"]

    nothing = {"turns": 0, "of": 0, "used": 0, "passed": 0, "not_usable": 0, "not_asked": 0, "kept": 0}
    assert asked() == {"name": "local:m", **nothing, "seconds": None, "away": None}
    turn("search", away)
    assert asked()["away"] == {"experiment": 1, "reason": away["unused"]} and asked()["turns"] == 1
    turn("search", keep=True)
    turn("search", passed, 30.0, 2.0, keep=True)
    turn("search", {**passed, "unused": "out of range"}, 0.0)  # no answer ever came
    turn("local:m", None, 4.0, keep=True)
    turn("local:m")  # tried before
    turn("local:m", {"refused": "error"})
    turn("local:m", {"rebased": [5]}, keep=True)  # nobody was asked
    turn("outside", keep=True)
    counts = {"turns": 6, "of": 7, "used": 1, "passed": 1, "not_usable": 3, "not_asked": 1, "kept": 1}
    assert asked() == {"name": "local:m", **counts, "seconds": 4.0, "away": None}


def test_reader_and_repository_tell_the_same_story(lab: Driver, journal: Where) -> None:
    fill(lab)
    with Reader(journal) as reader:
        told = list(reader.experiments("nov21"))
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    stored = list(lab.store.experiments(lab.id))
    assert [t["experiment"] for t in told] == [e.number for e in stored] == list(range(8))
    for t, e in zip(told, stored, strict=True):
        d, p = e.decision, e.proposal
        assert (t["status"], t["label"]) == ((d.status, d.label) if d else (None, ""))
        assert t["metric"] == (d.value if d else None)
        assert (t["commit"], t["parent"]) == (e.commit, e.parent)
        assert (t["policy"], t["role"]) == ((p.policy, p.role) if p else (None, None))
        assert t["adapter"] == (p.adapter or None if p else None)
        assert t["description"] == (p.description or p.hypothesis if p else "")
        assert t["cost_usd"] == (p.cost.usd if p else None)
        assert t["asi"] == (e.asi if d else p.asi if p else ASI()).as_dict()
        assert t["overhead_ms"] == e.overhead_ms
        assert datetime.fromisoformat(t["started_at"]) == e.started_at
        assert (t["finished_at"] and datetime.fromisoformat(t["finished_at"])) == e.finished_at
        assert (t["confirmed"], t["expected_gain"]) == (e.confirmed, d.delta if d else None)
        assert [(r["seed"], r["metric"], r["exit_code"], r["label"]) for r in t["runs"]] == [
            (r.seed, r.value, r.exit_code, r.label) for r in e.runs
        ]
        assert [r["duration_s"] for r in t["runs"]] == [None if r.open else r.duration_s for r in e.runs]
    assert told[3]["metrics"] == {"loss": None, "ok": 1.0}


def test_an_experiment_costs_what_all_its_answers_cost_or_all_its_attempts(lab: Driver, journal: Where) -> None:
    lab.measured()  # one proposal for 0.25
    e = lab.measured()
    lab.propose(e, new_proposal(8, attempt=1))
    unknown = lab.measured()
    lab.propose(unknown, new_proposal(9, attempt=1, usd=None))
    for usds in ((0.5, 0.75), (0.5, None), ()):
        answered = lab.open()
        for usd in usds:
            lab.answer(answered, new_answer(usd=usd))
        if usds:
            lab.propose(answered, replace(new_proposal(answered.number), charged=True))
    with Reader(journal) as reader:
        costs = [e["cost_usd"] for e in reader.experiments("nov21")]
        assert costs == [0.25, 0.5, None, 1.25, None, None]
        assert [e["cost_usd"] for e in reader.experiments("nov21", last=3)] == costs[3:]
        assert [reader.show("nov21", n)["cost_usd"] for n in range(6)] == costs


def test_show_tells_answers_and_attempts(lab: Driver, journal: Where) -> None:
    e = lab.open()
    first = new_answer(error="no such line")
    second = asked_again(first, {"role": "user", "content": "again"}, usd=None)
    for answer in (first, second):
        lab.answer(e, answer)
    e = lab.commit(lab.propose(e))
    lab.store.close_run(
        lab.store.open_run(lab.id, 0, 1, AT).id, Measurement(Label.OOM, detail="beside it"), None, AT, last=False
    )
    e = lab.run(e, Measurement(Label.ERROR, detail="NameError: x"))
    lab.propose(e, new_proposal(5, attempt=1))
    with Reader(journal) as reader:
        brief, full = reader.show("nov21", 0), reader.show("nov21", 0, full=True)
    assert json.loads(json.dumps(full, allow_nan=False)) == full
    assert brief["answers"][0] == {
        "attempt": 0, "at": AT.isoformat(), "model": "some/model", "form": "", "error": "no such line",
        "finish": "stop", "cost_usd": 0.5, "tokens_in": 1000, "tokens_out": 200, "seconds": 2.5,
    }  # fmt: skip
    assert brief["answers"][1]["cost_usd"] is None
    stored = lab.store.answers(lab.id, 0)
    assert [tuple(a["messages"]) for a in full["answers"]] == [a.generation.messages for a in stored]
    assert [a["completion"] for a in full["answers"]] == ["<edit>", "<better>"]
    assert brief["attempts"] == [
        {"attempt": 0, "description": "LR → 0", "label": "error", "reason": "NameError: x"},
        {"attempt": 1, "description": "LR → 5", "label": "", "reason": ""},
    ]
    assert [r["attempt"] for r in brief["runs"]] == [0, 0]


def test_the_best_is_what_runs_that_had_no_part_in_keeping_it_have_shown(lab: Driver, journal: Where) -> None:
    """0.7 was the luck of the run that it was kept for: `status` must not promise that."""
    lab.baseline()
    lab.decided(Status.KEEP, 0.8)
    lab.decided(Status.KEEP, 0.7)
    lab.store.record_belief(lab.id, 2, 0.78, 0.03)
    lab.begin_confirmation(2)
    lab.confirm(0, (None, 1, 0.8), (0, 1, 1.0), (0, 2, 1.1), (None, 2, 0.84))
    with Reader(journal) as reader:
        open_still = reader.status("nov21")
        verdict = Verdict(Outcome.CONFIRMED, 0.23, 0.02, 0.999, "better")
        lab.store.decide_confirmation(lab.id, 0, verdict, AT + timedelta(minutes=1))
        lab.decided(Status.KEEP, 0.6)
        lab.store.record_belief(lab.id, 2.5, 0.82, None)
        for error in (0.05, 0.04):  # a restart writes it again
            lab.store.record_belief(lab.id, 3, 0.75, error)
        assert reader.beliefs("nov21") == [(2.0, 0.78, 0.03), (2.5, 0.82, 0.0), (3.0, 0.75, 0.04)]
        status = reader.status("nov21")
        lab.begin_confirmation(3, against=2)
        lab.confirm(1, (None, 3, 0.9), (2, 3, 0.91))
        later = reader.status("nov21")["metric"]["confirmed"]
        verdict = Verdict(Outcome.CONFIRMED, 0.01, 0.015, 0.99, "better")
        lab.store.decide_confirmation(lab.id, 1, verdict, AT + timedelta(minutes=2))
        both = reader.status("nov21")["metric"]["confirmed"]
    assert (open_still["metric"]["best"], open_still["session"]["confirmed"]) == (1.0, 0)
    metric, session = status["metric"], status["session"]
    assert metric["confirmed"] == {
        "experiment": 2, "value": pytest.approx(0.82), "runs": 2, "since": (AT + timedelta(minutes=1)).isoformat(),
        "gain": 0.23, "error": 0.02,
    }  # fmt: skip
    assert (metric["best"], metric["best_experiment"]) == (metric["confirmed"]["value"], 2)
    assert metric["improvement_pct"] == pytest.approx(100 * 0.23 / (0.82 + 0.23)), "side by side, as the page has it"
    assert metric["confidence"] == pytest.approx(0.18 / 0.1), "by the MAD of 1.0, 0.8, 0.7, 0.6"
    assert metric["tip"] == {"experiment": 3, "estimate": 0.75, "standard_error": 0.04}
    assert (session["keeps"], session["confirmed"]) == (3, 2)
    assert (later["value"], later["runs"]) == (pytest.approx((0.8 + 0.84 + 0.91) / 3), 3), "each run says more of it"
    assert (both["experiment"], both["gain"], both["error"]) == (3, pytest.approx(0.24), pytest.approx(0.025))


def test_a_keep_of_a_session_before_confirmations_has_the_value_that_it_was_kept_with(
    lab: Driver, journal: Where
) -> None:
    lab.baseline()
    e = lab.run(lab.committed(), Measurement(Label.NONE, 0.8), last=False)
    e = lab.run(e, Measurement(Label.NONE, 0.9))
    lab.decide(e, Decision(Status.KEEP, Label.NONE, 0.85), commit_of(e.number), confirmed=True)
    with Reader(journal) as reader:
        metric = reader.status("nov21")["metric"]
    as_kept = {"experiment": 1, "value": 0.85, "runs": 2, "since": AT.isoformat(), "gain": None, "error": None}
    assert metric["confirmed"] == as_kept
    assert (metric["best"], metric["tip"]["experiment"]) == (0.85, 1)


def test_runs_with_another_budget_say_nothing_of_the_best(lab: Driver, journal: Where) -> None:
    """`confirm --budget 20m` asks whether a gain lasts; its values are those of other runs."""
    lab.baseline()
    lab.decided(Status.KEEP, 0.8)
    for number, budget in ((0, None), (1, 1200.0)):
        lab.store.open_confirmation(lab.id, experiment=1, against=0, why="asked", at=AT, budget=budget)
        lab.confirm(number, (None, number, 0.8 - number), (0, number, 1.0 - number))
        verdict = Verdict(Outcome.CONFIRMED, 0.2, 0.1, 0.99, "better")
        moved = lab.store.decide_confirmation(lab.id, number, verdict, AT).moved
        assert moved is (budget is None)
    with Reader(journal) as reader:
        assert reader.status("nov21")["metric"]["best"] == 0.8
        assert [c["budget"] for c in reader.show("nov21", 1)["confirmations"]] == [None, 1200.0]


def test_a_confirmation_under_way_is_what_goes_on_now(lab: Driver, journal: Where) -> None:
    lab.baseline()
    kept = lab.decided(Status.KEEP, 0.8)
    for number in range(kept.number + 1):
        lab.store.record_overhead(lab.id, number, 1.0)
    lab.store.set_state(lab.id, SessionState.RUNNING, AT, pid=4321)
    lab.begin_confirmation(1)
    lab.confirm(0, (None, 1, 0.8))
    lab.store.open_confirmation_run(lab.id, 0, 1, AT + timedelta(seconds=5), of=0)
    with Reader(journal) as reader:
        current = reader.status("nov21", alive=True, now=AT + timedelta(seconds=9))["current"]
        lab.store.set_state(lab.id, SessionState.STOPPED, AT, pid=None)
        assert reader.status("nov21")["current"] is None
    assert current == {
        "experiment": 1, "phase": "running", "elapsed_s": 4.0, "budget_s": 300.0, "forecast": None,
        "abort_probability": None, "confirmation": {"against": 0, "why": "gain", "runs": 1},
    }  # fmt: skip


def test_show_tells_which_runs_were_of_which_confirmation_and_what_came_of_it(lab: Driver, journal: Where) -> None:
    lab.baseline()
    for status in (Status.KEEP, Status.DISCARD, Status.KEEP):
        lab.decided(status, 0.8)
    lab.begin_confirmation(3)
    lab.confirm(0, (None, 1, 0.8), (0, 1, 1.0), (0, 2, 1.1), (None, 2, 0.7))
    lab.store.decide_confirmation(lab.id, 0, Verdict(Outcome.FELL, 0.3, 0.1, 0.2, "no"), AT)
    with Reader(journal) as reader:
        shown = [reader.show("nov21", n) for n in range(4)]
        assert reader.confirmations("nov21") == shown[3]["confirmations"]
    assert json.loads(json.dumps(shown, allow_nan=False)) == shown
    assert [len(one["confirmations"]) for one in shown] == [1, 1, 0, 1], "a keep of the chain, no discard between them"
    assert [one["confirmed"] for one in shown] == [True, False, None, False]
    assert [len(one["runs"]) for one in shown] == [3, 1, 1, 1], "its own alone"
    found = shown[3]["confirmations"][0]
    assert [(r["of"], r["seed"], r["metric"]) for r in found["runs"]] == [
        (None, 1, 0.8), (0, 1, 1.0), (0, 2, 1.1), (None, 2, 0.7),
    ]  # fmt: skip
    assert found["path"] == [pytest.approx(0.2), pytest.approx(0.3)], "less is better here"
    names = ("number", "experiment", "against", "after", "why", "outcome", "gain", "error", "probability", "reason")
    assert [found[name] for name in names] == [0, 3, 0, 3, "gain", "fell", 0.3, 0.1, 0.2, "no"]
    assert found["value"] == pytest.approx(0.75)


def test_show_gives_diff_phase_and_reason(lab: Driver, journal: Where) -> None:
    fill(lab)
    with Reader(journal) as reader:
        shown = reader.show("nov21", 3)
        assert (shown["diff"], shown["phase"], shown["reason"]) == ("+LR = 3\n", "decided", "diverged")
        assert reader.show("nov21", 4)["diff"] == ""
        with pytest.raises(KeyError):
            reader.show("nov21", 99)
        with pytest.raises(KeyError):
            reader.experiments("nope")
        with pytest.raises(KeyError):
            reader.status("nope")


@pytest.mark.parametrize("state", [SessionState.RUNNING, SessionState.PAUSED, SessionState.BACKING_OFF])
def test_a_session_whose_daemon_is_gone_is_shown_as_crashed(lab: Driver, journal: Where, state: SessionState) -> None:
    fill(lab)
    lab.store.set_state(lab.id, state, AT + timedelta(seconds=60), pid=4321, reason="disk full")
    with Reader(journal) as reader:
        dead = reader.status("nov21", alive=False, now=AT + timedelta(days=3))
        assert reader.status("nov21", alive=None)["session"]["state"] == state
    assert (dead["session"]["state"], dead["session"]["pid"]) == ("crashed", None)
    reason = "disk full" if state is not SessionState.RUNNING else None  # that of one at work has died with it
    assert dead["session"].get("reason") == reason
    assert dead["current"]["elapsed_s"] == 60.0, "up to the last sign of life, not until today"


def test_a_stopped_session_has_nothing_under_way(lab: Driver, journal: Where) -> None:
    fill(lab)
    lab.store.set_state(lab.id, SessionState.STOPPED, AT, pid=None)
    with Reader(journal) as reader:
        status = reader.status("nov21", alive=False)
    assert (status["session"]["state"], status["current"]) == ("stopped", None)
    assert "reason" not in status["session"]


def test_slots_tell_how_much_of_their_time_is_used_and_which_hosts_fail(lab: Driver, journal: Where) -> None:
    """Else somebody pays for eight GPUs of which six wait."""
    lab.store.open_segment(lab.id, "f1", "more", "cpu · x86_64 · 2 slots", AT)
    e = lab.committed(1)

    def run(host: str, begun: float, seconds: float, label: Label = Label.NONE) -> None:
        row = lab.store.open_run(lab.id, e.number, 7, AT + timedelta(seconds=begun))
        took = replace(result(), host=host, duration_s=seconds)
        at = AT + timedelta(seconds=begun + seconds)
        lab.store.close_run(row.id, Measurement(label, None if label else 1.0), took, at, last=False)

    run("a", 0, 60)
    run("b", 0, 30)
    run("b", 30, 20, Label.HOST_LOST)
    run("a", 3600, 20)  # after a pause
    lab.store.open_run(lab.id, e.number, 7, AT + timedelta(seconds=3610))
    lab.store.set_state(lab.id, SessionState.RUNNING, AT, pid=4321)
    hosts = [{"host": "a", "runs": 2, "failed": 0}, {"host": "b", "runs": 1, "failed": 1}]
    with Reader(journal) as reader:
        slots = reader.status("nov21", alive=True, now=AT + timedelta(seconds=3640))["slots"]
        gone = reader.status("nov21", alive=False, now=AT + timedelta(days=1))["slots"]
    assert slots == {"count": 2, "busy": 1, "utilisation": pytest.approx((60 + 30 + 20 + 30) / 200), "hosts": hosts}
    assert gone == {"count": 2, "busy": 0, "utilisation": pytest.approx((60 + 30 + 20) / 160), "hosts": hosts}


def test_a_session_without_a_baseline_shows_no_figures_instead_of_wrong_ones(lab: Driver, journal: Where) -> None:
    with Reader(journal) as reader:
        metric = reader.status("nov21")["metric"]
        assert [metric[k] for k in ("baseline", "best", "best_experiment", "sigma", "confidence")] == [None] * 5
        assert reader.status("nov21")["current"] is None
        assert list(reader.experiments("nov21")) == []
        lab.baseline((1.0,))
        metric = reader.status("nov21")["metric"]
        assert (metric["baseline"], metric["best"], metric["improvement_pct"]) == (1.0, 1.0, 0.0)
        assert (metric["sigma"], metric["confidence"]) == (None, None)


def test_figures_are_those_of_the_current_segment(lab: Driver, journal: Where) -> None:
    fill(lab)
    lab.store.open_segment(lab.id, "f1", "budget changed", "cpu", AT)
    with Reader(journal) as reader:
        assert reader.status("nov21")["metric"]["best"] is None
        e = lab.baseline((5.0, 5.5, 4.5), segment=1)
        metric = reader.status("nov21")["metric"]
    assert (metric["baseline"], metric["best"], metric["best_experiment"]) == (5.0, 5.0, e.number)
    assert metric["sigma"] == pytest.approx(0.5)


def test_a_baseline_that_was_never_kept_is_not_taken_off_what_was_tried(lab: Driver, journal: Where) -> None:
    """Of two later segments the first was stopped before its baseline, and that of the second failed at first."""
    fill(lab)
    for name in ("f1", "f2"):
        lab.store.open_segment(lab.id, name, "budget changed", "cpu", AT)
    lab.decide(lab.propose(lab.open(2), Proposal({}, "as it is", "baseline")), Decision(Status.CRASH, Label.ERROR))
    lab.baseline((5.0, 5.5, 4.5), segment=2)
    with Reader(journal) as reader:
        counts = reader.status("nov21")["session"]
    assert {k: counts[k] for k in ("experiments", "keeps", "confirmed", "crashes")} == {
        "experiments": 7, "keeps": 1, "confirmed": 0, "crashes": 3,
    }  # fmt: skip


def test_what_was_made_on_a_later_baseline_is_not_shown_beside_the_keep_with_its_commit(
    lab: Driver, journal: Where
) -> None:
    """That one was run under other conditions, and so is its curve."""
    lab.baseline()
    lab.store.open_segment(lab.id, "f1", "budget changed", "cpu", AT)
    again = lab.store.open_experiment(lab.id, parent=commit_of(0), segment=1, at=AT)
    again = lab.store.record_commit(lab.id, lab.propose(again).number, commit_of(0))
    again = lab.run(again, Measurement(Label.NONE, 2.0))
    lab.decide(again, Decision(Status.KEEP, Label.NONE, 2.0), commit_of(0), confirmed=True)
    lab.propose(lab.store.open_experiment(lab.id, parent=commit_of(0), segment=1, at=AT))
    with PageReader(journal) as reader:
        assert [reader.around("nov21", number)["parent"] for number in (0, 1, 2)] == [None, 0, 1]


def test_noise_that_has_grown_is_told_until_it_is_down_again(lab: Driver, journal: Where) -> None:
    """A busy machine ends all gains without a word: every proposal is discarded, and nobody knows why."""
    e = lab.run(lab.commit(lab.propose(lab.open(), Proposal({}, "as it is", "baseline"))), Measurement(Label.NONE, 1.0))
    lab.decide(e, Decision(Status.KEEP, Label.NONE, 1.0, sigma=0.1), commit_of(e.number))

    def then(sigma: float | None) -> tuple[float | None, float | None, bool]:
        lab.decide(lab.measured(1.2), Decision(Status.DISCARD, Label.NO_GAIN, 1.2, sigma=sigma))
        with Reader(journal) as reader:
            metric = reader.status("nov21")["metric"]
        return metric["sigma"], metric["baseline_sigma"], metric["too_noisy"]

    assert then(0.29) == (0.29, 0.1, False)
    assert then(0.31) == (0.31, 0.1, True)
    assert then(None) == (0.31, 0.1, True), "a crash tells nothing of it"
    assert then(0.2) == (0.2, 0.1, False)


def test_it_reads_a_database_without_wal_files_and_leaves_it_as_it_was(lab: Driver, path: Path) -> None:
    fill(lab)
    lab.store.close()
    assert [p.name for p in path.parent.iterdir()] == ["state.db"]
    before = path.read_bytes()
    path.chmod(0o444)
    path.parent.chmod(0o555)
    try:
        with Reader(path) as reader:
            assert len(list(reader.experiments("nov21"))) == 8
    finally:
        path.parent.chmod(0o755)
    assert path.read_bytes() == before


def test_a_missing_a_foreign_and_a_damaged_file_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no database at"):
        Reader(tmp_path / "state.db")
    foreign = tmp_path / "foreign.db"
    execute(foreign, "CREATE TABLE recipes (a)")
    with pytest.raises(StoreError, match="no database of autoresearchd"):
        Reader(foreign)
    damaged = tmp_path / "damaged.db"
    damaged.write_bytes(b"this is not a database" * 100)
    with pytest.raises(StoreError, match="backup"):
        Reader(damaged)
    damaged.write_bytes(b"no tables")
    with pytest.raises(StoreDamaged, match=r"is no database: 9 bytes"):
        Reader(damaged)


def test_a_database_that_a_killed_start_has_just_begun_is_not_called_somebody_elses(tmp_path: Path) -> None:
    execute(tmp_path / "state.db", "PRAGMA journal_mode=WAL")  # the first thing that is written of it
    with pytest.raises(StoreError, match="holds nothing yet") as caught:
        Reader(tmp_path / "state.db")
    assert "autoresearchd start" in caught.value.hint


@pytest.mark.parametrize(
    ("revision", "error", "told"),
    [("9999", SchemaTooNew, "pip install --upgrade"), ("0000", StoreError, "autoresearchd resume")],
)
def test_another_revision_is_refused(lab: Driver, path: Path, revision: str, error: type[Exception], told: str) -> None:
    execute(path, "UPDATE alembic_version SET version_num = ?", revision)
    with pytest.raises(error, match=told):
        Reader(path)
