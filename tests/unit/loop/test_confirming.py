"""Chains of keeps are tested when it is due, are on the branch once they are confirmed, and undone if they fail."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autoresearchd.app.session_requests import reached_limit
from autoresearchd.domain import errors
from autoresearchd.domain.confirmation import ABLATION, Confirmation, Verdict, ablates
from autoresearchd.domain.experiment import Limits, Run
from autoresearchd.domain.labels import Label, Outcome, Status
from autoresearchd.domain.ports import Cancel, Event, EventKind, ResearchState, RunRequest
from autoresearchd.domain.proposal import Proposal
from autoresearchd.loop import session_view
from autoresearchd.loop.confirming import Asked
from autoresearchd.loop.context import Context, StopSwitch, SystemClock
from autoresearchd.loop.session import Backoff, SessionLoop
from autoresearchd.loop.session_view import SessionView
from autoresearchd.store.reader import Reader
from tests.fakes.bench import (
    LOCKED,
    PROGRAM,
    TASK,
    Bench,
    Doom,
    Forward,
    Passing,
    Writing,
    failing,
    fails,
    program_of,
    run_until_killed,
)  # fmt: skip
from tests.fakes.executors import Job, Script, prints

NEVER, SOON, AT_ONCE = "confirm_every: 1000000", "confirm_every: 17", "confirm_every: 0"
SIGMA = 0.03


def building(state: ResearchState) -> str:
    """Edits of the code that there is, each better by 0.5; all carry what was put in before."""
    return state.code["train.py"].replace("SCALE", f"V{state.number} = 1\nSCALE", 1).replace(*_lower(state))


def _lower(state: ResearchState) -> tuple[str, str]:
    found = re.search(r"SCALE = (\S+)", state.code["train.py"])
    assert found is not None
    return found[0], f"SCALE = {float(found[1]) - 0.5}"


def score(request: RunRequest, text: str) -> str:
    scale = float(text.split("SCALE = ")[1].split()[0])
    return f"score: {10.0 + scale + random.Random(f'{request.seed}/{text}').gauss(0.0, SIGMA):.6f}\n"


def true(request: RunRequest) -> Script | str:
    """What a program's SCALE says, and σ of ``SIGMA``."""
    return score(request, program_of(request))


def make(folder: Path, *scoring: str, job: Job = true, text: Callable[[ResearchState], str] = building) -> Bench:
    """A session whose scoring, or history, is given in lines."""
    inner, outer = ([x for x in scoring if x.startswith("history") is own] for own in (False, True))
    inner = inner or [SOON]
    task = TASK.replace("metric_source: stdout", ", ".join(["metric_source: stdout", *inner]))
    bench = Bench(folder, task="".join(f"{line}\n" for line in outer) + task)
    bench.policy, bench.job = Writing(text), job
    return bench


def run_of(bench: Bench, request: RunRequest) -> Run:
    """The run that a request is for."""
    number, index = (int(part) for part in request.key.split("/")[1:])
    return bench.experiment(number).runs[index]


def confirmations(bench: Bench) -> list[Confirmation]:
    return list(bench.store.confirmations(bench.session.id))


def verdicts(bench: Bench) -> list[tuple[str, int, int, Outcome | None]]:
    """Of each confirmation why it was made, of what, against what, and what came of it."""
    return [(c.why, c.experiment, c.against, c.verdict and c.verdict.outcome) for c in confirmations(bench)]


def kept(bench: Bench) -> list[int]:
    found = bench.experiments()[1:]
    return [e.number for e in found if e.decision and e.decision.status is Status.KEEP]


def require_proven(bench: Bench) -> None:
    """No commit of the branch is one that was kept and not confirmed; with reverts, what fell is there, undone."""
    known = {e.commit: e for e in bench.experiments() if e.decision and e.decision.status is Status.KEEP}
    may = {True, False} if bench.task.history == "revert" else {True}
    for e in (known[name] for name in bench.line()[1:] if name in known):
        assert e.confirmed in may, f"experiment {e.number} is on the branch"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = make(tmp_path)
    yield made
    made.close()


def test_checkpoints_stay_of_the_tip_and_of_the_confirmed_program(tmp_path: Path) -> None:
    def saving(request: RunRequest) -> Script:
        return replace(prints(score(request, program_of(request))), output={"model.pt": b"weights"})

    with closing(make(tmp_path, job=saving)) as bench:
        bench.run(6)
        session = bench.store.session("t")
        left = {int(path.parts[-4]) for path in bench.laboratory().site.runs.glob("*/*/output/model.pt")}
        since = [number for number in kept(bench) if number > session.confirmed_experiment]
        assert session.confirmed_experiment > 1 and left == {session.confirmed_experiment, *since}


# ---------------------------------------------------------------------- when
def test_a_keep_takes_one_run_and_moves_the_tip_while_the_branch_waits(tmp_path: Path) -> None:
    bench, seen = make(tmp_path, NEVER), list[tuple[str, str]]()

    def watched(state: ResearchState) -> str:
        seen.append((state.code["train.py"], bench.program()))
        return building(state)

    bench.policy = Writing(watched)
    lab = bench.laboratory()
    loop = bench.loop(None, lab)
    loop.between = lambda enough: lab.stop.request("now", now=True) if len(seen) == 4 else None
    loop.run()
    assert kept(bench) == [1, 2, 3, 4] and verdicts(bench) == []
    assert [len(e.runs) for e in bench.experiments()] == [3, 1, 1, 1, 1]
    assert {branch for _, branch in seen} == {PROGRAM}
    assert [code.count("V") for code, _ in seen] == [0, 1, 2, 3], "each was written on the one before"
    assert bench.workspace().tip() == bench.store.session("t").incumbent == bench.experiment(4).commit


def test_what_was_gained_is_confirmed_once_it_is_enough_and_the_branch_goes_there(bench: Bench) -> None:
    bench.run(5)
    first = confirmations(bench)[0]
    assert (first.why, first.against, first.verdict and first.verdict.outcome) == ("gain", 0, Outcome.CONFIRMED)
    gained = [e.decision.delta / e.decision.sigma for e in bench.experiments()[1 : first.experiment + 1]]  # type: ignore[operator, union-attr]
    assert sum(gained) > 17 >= sum(gained[:-1]), "not before scoring.confirm_every"
    assert verdicts(bench)[-1][:2] == ("limit", 5), "what was left, at the end"
    assert all(e.confirmed for e in bench.experiments()) and bench.program().count("V") == 5
    commits = [e.commit for e in bench.experiments()[1:]]
    assert bench.line()[1:] == commits, "each edit a commit of its own"


def test_each_keep_is_confirmed_at_once_where_a_user_wants_it(tmp_path: Path) -> None:
    bench = make(tmp_path, AT_ONCE)
    bench.run(3)
    confirmed = Outcome.CONFIRMED
    assert verdicts(bench) == [("gain", 1, 0, confirmed), ("gain", 2, 1, confirmed), ("limit", 3, 2, confirmed)]


def test_runs_of_a_confirmation_are_of_both_programs_on_seeds_that_nothing_was_chosen_on(bench: Bench) -> None:
    programs: dict[str, str] = {}

    def watched(request: RunRequest) -> Script | str:
        programs[request.key] = program_of(request)
        return true(request)

    bench.job = watched
    bench.run(3)
    known = {r.seed for e in bench.experiments() for r in e.current_runs}
    for c in confirmations(bench):
        sides = [r.of for r in c.runs]
        assert sides[:3] == [None, c.against, None], "in turns, against drift"
        seeds = [r.seed for r in c.runs]
        assert seeds[:-1:2] == seeds[1::2] and not known & set(seeds)
        for r in c.runs:
            whose = c.experiment if r.of is None else c.against
            assert programs[f"t/{c.experiment}/{r.index}"] == programs[f"t/{whose}/0"]
        known |= set(seeds)


def test_experiments_share_the_first_seed_of_the_baseline_so_that_an_edit_of_nothing_is_seen(bench: Bench) -> None:
    bench.policy = Writing(lambda state: PROGRAM + f"UNUSED = {state.number}\n")
    bench.job = lambda request: score(request, PROGRAM)
    bench.run(2)
    assert {e.runs[0].seed for e in bench.experiments()} == {bench.experiment(0).runs[0].seed}
    assert kept(bench) == [] and "the edit changes nothing" in bench.experiment(2).decision.reason  # type: ignore[union-attr]


def run_until(bench: Bench, number: int, *, now: bool) -> str:
    """A daemon that is told to stop during an experiment; why it ended."""
    lab, text = bench.laboratory(), bench.policy.text

    def stopping(state: ResearchState) -> str:
        if state.number == number:
            lab.stop.request("the user asked for it", now=now)
        return str(text(state))

    return bench.loop(None, replace(lab, policy=Writing(stopping))).run()


def left_open(folder: Path, *history: str) -> Bench:
    """A session that was stopped at once after three keeps, of which none is confirmed yet."""
    bench = make(folder, NEVER, *history)
    run_until(bench, 3, now=True)
    return bench


def test_a_chain_that_is_open_is_confirmed_before_the_session_stops(tmp_path: Path) -> None:
    bench = make(tmp_path, NEVER)
    assert run_until(bench, 3, now=False) == "the user asked for it"
    assert verdicts(bench) == [("stop", 3, 0, Outcome.CONFIRMED)] and bench.program().count("V") == 3


def test_a_user_who_stops_at_once_waits_for_no_confirmation_and_resume_makes_up_for_it(tmp_path: Path) -> None:
    bench = left_open(tmp_path)
    assert verdicts(bench) == [] and bench.program() == PROGRAM and bench.store.session("t").incumbent_experiment == 3
    bench.run(3)
    assert verdicts(bench) == [("limit", 3, 0, Outcome.CONFIRMED)]


def test_a_confirmation_that_is_stopped_at_once_is_gone_on_with_and_no_run_is_lost(bench: Bench) -> None:
    reference = make(bench.root.parent / "other")
    extra = reference.run(2).view.extra
    with pytest.raises(errors.Interrupted, match="resume"):
        bench.loop(2, stopped_at(bench, true, lambda request: run_of(bench, request).of is not None)).run()
    [c] = confirmations(bench)
    assert c.verdict is None and [r.label for r in c.runs] == [Label.NONE, Label.INTERRUPTED]
    assert bench.run(2).view.extra == extra, "nor counted twice, so that the next would wait"
    assert outcome(bench) == outcome(reference)
    reference.close()


# ---------------------------------------------------------------------- what a verdict does
def doubtful(bench: Bench, confirmation: int | None = None) -> Job:
    """Edits that look better once; in a confirmation (None: in all), runs of both sides do not tell."""

    def job(request: RunRequest) -> Script | str:
        run = run_of(bench, request)
        if run.attempt >= 0 or confirmation not in (None, -1 - run.attempt):
            return true(request)
        before = [r for r in bench.experiment(run.experiment).runs if r.attempt == run.attempt and r.good]
        ahead = (0.0 if run.of is not None else 1.2 if len(before) % 4 < 2 else -0.8) * SIGMA
        return f"score: {11.0 - ahead + 1e-9 * (run.seed % 1000):.9f}\n"

    return job


def test_a_chain_that_no_test_can_tell_of_is_not_tested_over_and_over(bench: Bench) -> None:
    """Else runs would be spent on one doubt all night."""
    bench.job = doubtful(bench)
    bench.policy = Writing(lambda s: building(s) if s.number <= 2 else f"SCALE = {s.number}.0\n")
    bench.run(12)
    undecided = Outcome.UNDECIDED
    assert verdicts(bench) == [("gain", 2, 0, undecided), ("limit", 2, 0, undecided)]
    assert [len(c.runs) for c in confirmations(bench)] == [12, 12]
    assert bench.program() == PROGRAM and bench.store.session("t").incumbent_experiment == 2
    bench.run(12)
    assert len(confirmations(bench)) == 2, "nor by each resume"


def test_a_keep_whose_own_test_spoke_for_it_is_not_taken_back_without_a_run(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program at 1.0, better by 10σ in four pairs, went when later edits only undid its change."""
    bench.job = doubtful(bench)
    bench.policy = Writing(lambda s: building(s) if s.number <= 2 else f"SCALE = {s.number}.0\n")
    view = bench.run(12).view
    assert verdicts(bench)[-1] == ("limit", 2, 0, Outcome.UNDECIDED)
    worse = Verdict(Outcome.FELL, -0.1, 0.1, 0.2, "It is believed to be worse.")
    monkeypatch.setattr(session_view, "doubt", lambda *known: worse)
    assert view.doubt() is None and SessionView(bench.laboratory()).doubt() is None


def test_what_is_believed_is_tested_while_nothing_is_proposed(tmp_path: Path) -> None:
    """A search that had tried all its values, or a model that is away: what was kept waited all night, unconfirmed."""

    def used_up(state: ResearchState) -> str:
        if state.number > 1:
            raise errors.PolicyError("no answer")
        return building(state)

    bench = make(tmp_path, NEVER, text=used_up)
    bench.loop(8, backoff=Backoff(first=0.01, most=0.04)).run()
    assert verdicts(bench) == [("idle", 1, 0, Outcome.CONFIRMED)]
    assert confirmations(bench)[0].after < 8, "it did not wait for the end of the session"
    bench.close()


def test_a_comparison_that_a_user_asked_for_leaves_the_chain_to_be_confirmed(tmp_path: Path) -> None:
    """A question about a larger budget, without an answer, is no doubt of what was kept at the usual one."""
    bench = left_open(tmp_path)
    bench.job = doubtful(bench, confirmation=0)
    ask(bench, Asked(experiment=1, pairs=2, budget=10.0))
    bench.run(3)
    undecided, confirmed = Outcome.UNDECIDED, Outcome.CONFIRMED
    assert verdicts(bench) == [("asked", 1, 0, undecided), ("limit", 3, 0, confirmed)]


@pytest.mark.parametrize("history", ["refs", "revert"])
def test_a_keep_below_the_tip_can_be_confirmed_and_the_tip_goes_on(tmp_path: Path, history: str) -> None:
    bench = left_open(tmp_path, f"history: {history}")
    believed = SessionView(bench.laboratory()).best
    ask(bench, Asked(experiment=1))
    assert bench.program().count("V") == 1 and bench.workspace().tip() == bench.experiment(3).commit
    assert [e.confirmed for e in bench.experiments()[1:]] == [True, None, None]
    assert SessionView(bench.laboratory()).best == believed, "its runs are none of the tip's"
    bench.run(4)
    assert verdicts(bench) == [("asked", 1, 0, Outcome.CONFIRMED), ("limit", 4, 1, Outcome.CONFIRMED)]
    assert bench.program().count("V") == 4


def poison(state: ResearchState) -> str:
    """A program that runs well once; and then edits of whatever is the best that are better by 0.5 each."""
    return building(state).replace("SCALE", "# POISON\nSCALE", 1) if state.number == 1 else building(state)


def poisoned(bench: Bench, how: str = "crash") -> Job:
    """What is poisoned fails whenever it is run to confirm it."""

    def job(request: RunRequest) -> Script | str:
        if "POISON" in program_of(request) and run_of(bench, request).attempt < 0:
            return prints("score: nan\n") if how == "nan" else prints("", exit_code=1)
        return true(request)

    return job


@pytest.mark.parametrize("how", ["crash", "nan"])
@pytest.mark.parametrize("history", ["refs", "revert"])
def test_a_tip_that_fails_twice_falls_and_what_follows_is_built_on_what_is_confirmed(
    tmp_path: Path, history: str, how: str
) -> None:
    bench = make(tmp_path, f"history: {history}", text=poison)
    bench.job = poisoned(bench, how)
    bench.run(5)
    assert verdicts(bench)[0] == ("gain", 2, 0, Outcome.FELL), "the tip is built on what is poisoned"
    assert "failed 2 times" in confirmations(bench)[0].verdict.reason  # type: ignore[union-attr]
    assert kept(bench) == [1, 2, 3, 4, 5], "one run each"
    assert [e.confirmed for e in bench.experiments()] == [True, False, False, True, True, True]
    assert bench.program().count("V") == 3 and "POISON" not in bench.program()
    require_proven(bench)
    bench.run(6)
    assert bench.program().count("V") == 4, "also after a restart"


def test_an_edit_that_was_only_lucky_is_undone_by_the_confirmation(bench: Bench) -> None:
    """A keep after one run is partly luck; the branch must not be."""

    def lucky(request: RunRequest) -> Script | str:
        run = run_of(bench, request)
        return true(request) if run.attempt >= 0 else score(request, f"SCALE = {1.0 + SIGMA * (run.of is None)}\n")

    bench.job = lucky
    bench.run(2)
    found = confirmations(bench)[0]
    assert (found.verdict and found.verdict.outcome) is Outcome.FELL, found
    assert bench.store.session("t").incumbent == bench.experiment(0).commit and bench.program() == PROGRAM
    assert bench.workspace().tip() == bench.experiment(0).commit


def test_noise_that_a_confirmation_shows_first_is_believed_from_then_on(tmp_path: Path) -> None:
    """Of a coarse metric, of which the baseline's three runs are alike: else each lucky value would be a true gain."""

    def noisy(request: RunRequest) -> Script | str:
        scale = float(program_of(request).split("SCALE = ")[1].split()[0])
        luck = request.seed % 1000 * 1e-4 if run_of(bench, request).attempt < 0 else 0.0
        return f"score: {10.0 + scale + luck:.6f}\n"

    bench = make(tmp_path, AT_ONCE, job=noisy)
    belief = bench.run(1).view.belief
    assert bench.experiment(1).confirmed and belief is not None and not belief.exact and 0.0 < belief.sigma < 0.5
    resumed = bench.run(1).view.belief
    assert resumed is not None and resumed.sigma == belief.sigma


def test_a_chain_that_falls_to_a_keep_confirmed_below_it_is_believed_to_be_there(tmp_path: Path) -> None:
    """Not where the baseline was: each program as good as that keep would then be kept."""
    bench = left_open(tmp_path)
    ask(bench, Asked(experiment=1))
    bench.job = lambda request: score(request, "SCALE = 3.0\n") if "V2" in program_of(request) else true(request)
    view = bench.run(3).view
    assert verdicts(bench) == [("asked", 1, 0, Outcome.CONFIRMED), ("limit", 3, 1, Outcome.FELL)]
    assert view.tip.number == 1 and view.best == pytest.approx(10.5, abs=4 * SIGMA)
    assert SessionView(bench.laboratory()).best == pytest.approx(view.best)


def bombing(state: ResearchState) -> str:
    """The first edit brings a time bomb with it."""
    return building(state) + "# BOMB\n" * (state.number == 1)


def sleeping(bench: Bench, goes_off: int) -> Job:
    """The bomb goes off with an experiment, and in every run from then on, also of programs kept before."""

    def job(request: RunRequest) -> Script | str:
        latest = bench.store.latest(bench.session.id)
        if "BOMB" in program_of(request) and latest is not None and latest.number >= goes_off:
            return prints("too late\n", exit_code=1, outcome="failed")
        return true(request)

    return job


@pytest.mark.parametrize("history", ["refs", "revert"])
def test_a_time_bomb_in_the_tip_costs_three_experiments_and_not_the_night(tmp_path: Path, history: str) -> None:
    bench = make(tmp_path, NEVER, f"history: {history}", text=bombing)
    bench.job = sleeping(bench, 2)
    bench.run(6)
    labels = [e.decision.label for e in bench.experiments() if e.decision is not None]
    assert labels[1:] == [Label.NONE, Label.ERROR, Label.ERROR, Label.ERROR, Label.NONE, Label.NONE]
    assert verdicts(bench)[0] == ("failures", 1, 0, Outcome.FELL)
    assert bench.program().count("V") == 2 and "BOMB" not in bench.program()


def test_a_confirmed_program_that_no_longer_runs_is_said_once_and_the_session_goes_on(tmp_path: Path) -> None:
    """Else a user finds a night of crashes, and nothing that says why."""
    bench = make(tmp_path, AT_ONCE, text=bombing)
    bench.job = sleeping(bench, 3)
    bench.run(12)
    confirmed = [("gain", 1, 0, Outcome.CONFIRMED), ("gain", 2, 1, Outcome.CONFIRMED)]
    assert verdicts(bench) == [*confirmed, ("failures", 2, 0, Outcome.FELL)]
    assert confirmations(bench)[-1].after == 5 and len(confirmations(bench)[-1].runs) == 3
    [said] = [said for said in bench.messages(EventKind.WARNING) if "confirmed" in said]
    assert "experiment 2, which is confirmed" in said and "failed 2 times" in said
    assert len(bench.experiments()) == 13 and bench.program().count("V") == 2, "the branch stays where it is"
    bench.run(13)
    assert len(confirmations(bench)) == 3, "nor again after a restart"


def test_where_nothing_runs_any_more_all_that_was_kept_stays(tmp_path: Path) -> None:
    """Data that was unmounted in the night is no fault of thirty keeps."""
    bench, gone = make(tmp_path, NEVER), list[bool]()

    def job(request: RunRequest) -> Script | str:
        if len(bench.experiments()) == 5 and not gone:
            gone.append(True)
        return prints("no data\n", exit_code=1, outcome="failed") if gone == [True] else true(request)

    bench.job = job
    bench.run(8)
    assert verdicts(bench) == [("failures", 3, 0, Outcome.UNDECIDED), ("limit", 3, 0, Outcome.UNDECIDED)]
    assert [e.confirmed for e in bench.experiments()[1:4]] == [None] * 3
    gone.append(False)  # it is back
    bench.run(9)
    assert verdicts(bench)[-1] == ("limit", 9, 0, Outcome.CONFIRMED) and bench.program().count("V") == 4


def test_a_tip_that_no_test_could_tell_of_is_tested_again_when_all_that_is_built_on_it_fails(bench: Bench) -> None:
    doubt = doubtful(bench)

    def job(request: RunRequest) -> Script | str:
        latest = bench.store.latest(bench.session.id)
        if "V1" in program_of(request) and latest is not None and latest.number > 2:
            return prints("too late\n", exit_code=1, outcome="failed")
        return doubt(request)

    bench.job = job
    bench.run(7)
    assert verdicts(bench)[:2] == [("gain", 2, 0, Outcome.UNDECIDED), ("failures", 2, 0, Outcome.FELL)]
    assert kept(bench) == [1, 2, 6, 7]


def test_failures_on_the_baseline_are_no_reason_to_run_it_against_itself(bench: Bench) -> None:
    bench.policy = Writing(lambda state: f"BROKEN = {state.number}\n")
    bench.job = broken
    for experiments in (4, 8):
        bench.run(experiments)
    assert verdicts(bench) == []


class Breaking:
    """One gain, and then edits that fail by themselves, but for those of no use that are in between."""

    name, repairs = "scripted", 1

    def __init__(self) -> None:
        self.logs = list[tuple[int, str]]()

    def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
        if state.repair is not None:
            self.logs.append((state.number, state.repair.log))
        text = {1: "SCALE = 0.5\n", 3: "SCALE = ("}.get(state.number)
        text = text or f"BROKEN = {state.number + 0.5 * bool(state.repair)}\n"
        return Proposal({"train.py": text}, "It may be better", self.name)


broken = failing("BROKEN", "NameError: name 'x' is not defined\n", true)


def test_a_tip_is_tested_once_for_all_failures_of_others_and_keeps_its_place_where_it_runs_well(tmp_path: Path) -> None:
    """More would cost a user the night; and what is to be fixed is still the edit, with its own log."""
    bench = make(tmp_path, NEVER, job=broken)
    bench.policy = Breaking()
    bench.run(10)
    experiments = bench.experiments()[2:]
    assert kept(bench) == [1] and experiments[1].decision.label is Label.ILLEGAL_EDIT  # type: ignore[union-attr]
    assert verdicts(bench) == [("failures", 1, 0, Outcome.CONFIRMED)]
    assert confirmations(bench)[0].after == 5, "after three that failed, the illegal edit not counted"
    ran = [e for e in experiments if e.runs]
    assert {e.decision.label for e in ran if e.decision} == {Label.ERROR}
    assert all("NameError" in e.asi.extra["failure"] for e in ran)
    assert [n for n, _ in bench.policy.logs] == [e.number for e in ran], "each was given back to be fixed, once"
    assert all("NameError" in log for _, log in bench.policy.logs)


def test_a_confirmed_program_that_fails_twice_is_said_and_does_not_hold_the_session_up(bench: Bench) -> None:
    def job(request: RunRequest) -> Script | str:
        return prints("", exit_code=1) if run_of(bench, request).of is not None else true(request)

    bench.job = job
    bench.run(2)
    assert [outcome for *_, outcome in verdicts(bench)] == [Outcome.UNDECIDED]
    [said] = bench.messages(EventKind.CONFIRMED)
    assert "experiment 0, beside it, failed 2 times" in said.lower()
    assert bench.program() == PROGRAM and bench.store.session("t").incumbent_experiment == 2
    bench.run(4)
    assert kept(bench) == [1, 2, 3, 4] and len(confirmations(bench)) <= 3


@pytest.mark.parametrize("history", ["refs", "revert"])
def test_a_chain_from_before_the_conditions_changed_falls_and_never_gets_on_the_branch(
    tmp_path: Path, history: str
) -> None:
    """Runs of today cannot be compared with it, and its baseline is no proof of it."""
    bench = left_open(tmp_path, f"history: {history}")
    session_loop = bench.loop(4)

    def another_machine() -> bool:
        if bench.store.segment(bench.session.id).number:  # type: ignore[union-attr]
            return False
        bench.store.open_segment(bench.session.id, "other", "another machine", "gpu", bench.session.started_at)
        return True

    session_loop.conditions = another_machine
    session_loop.run()
    again = bench.experiment(4)
    assert again.segment == 1 and bench.workspace().read(str(again.commit), "train.py") == PROGRAM
    assert [e.confirmed for e in bench.experiments()[:5]] == [True, False, False, False, True]
    assert verdicts(bench)[-1] == ("limit", 5, 4, Outcome.CONFIRMED)
    assert bench.program().count("V") == 1
    require_proven(bench)


@pytest.mark.parametrize("history", ["refs", "revert"])
def test_a_restart_leaves_a_chain_alone_that_was_begun_after_another_fell(tmp_path: Path, history: str) -> None:
    """The old verdict is on disk for ever; it was carried out once."""
    bench = make(tmp_path, f"history: {history}", text=poison)
    bench.job = poisoned(bench)
    run_until(bench, 3, now=True)
    assert verdicts(bench) == [("gain", 2, 0, Outcome.FELL)] and kept(bench) == [1, 2, 3]
    shown: list[str] = []

    def watched(state: ResearchState) -> str:
        shown.append(state.code["train.py"])
        return building(state)

    bench.policy = Writing(watched)
    bench.run(4)
    assert shown[0].count("V") == 1, "experiment 4 is built on 3"
    require_proven(bench)
    assert bench.program().count("V") == 2


@pytest.mark.parametrize("outcome", [Outcome.CONFIRMED, Outcome.FELL])
def test_with_reverts_what_was_discarded_stays_in_the_history_and_the_branch_has_confirmed_files(
    tmp_path: Path, outcome: Outcome
) -> None:
    def mixed(state: ResearchState) -> str:
        return poison(state) if state.number % 2 else f"SCALE = {5.0 + state.number}\n"

    bench = make(tmp_path, "history: revert", NEVER, text=mixed)
    bench.job = poisoned(bench) if outcome is Outcome.FELL else true
    bench.run(4)
    assert verdicts(bench) == [("limit", 3, 0, outcome)] and kept(bench) == [1, 3]
    workspace, branch = bench.workspace(), bench.workspace().confirmed()
    if outcome is Outcome.CONFIRMED:
        assert branch == workspace.tip() and bench.program().count("V") == 2
        assert len(bench.line()) == 1 + 2 + 2 * 2, "two keeps; two discards, each with its revert"
    else:
        assert branch == bench.session.base_commit and not workspace.diff(branch, workspace.tip())
        assert workspace.tip() != branch, "what was tried stays to be seen"


# ---------------------------------------------------------------------- what goes wrong meanwhile
class Ticking(SystemClock):
    """Goes on by what a job takes, and not by itself."""

    seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


def slow(bench: Bench, job: Job, seconds: float) -> Context:
    """A laboratory whose runs take their time while they are waited for, a second at each look."""
    clock = Ticking()

    def pass_by() -> None:
        clock.seconds += 1.0

    def taking_time(request: RunRequest) -> Script | str:
        done = job(request)
        assert isinstance(done, str)
        pieces = (*[""] * (int(seconds) - 1), done)
        return Script(stage={"duration_s": seconds}, pieces=pieces, passing=pass_by)

    bench.job = taking_time
    return replace(bench.laboratory(), clock=clock)


@pytest.mark.parametrize(
    "limit", [250.0, 256.0, *(pytest.param(limit, marks=pytest.mark.nightly) for limit in (253.0, 259.0))]
)
def test_a_time_limit_leaves_room_for_the_confirmation(tmp_path: Path, limit: float) -> None:
    """Wherever the experiments happen to end before it."""
    bench = make(tmp_path, NEVER)
    lab = slow(bench, true, 10.0)
    reason = bench.loop(None, lab, max_seconds=limit).run()
    assert "time limit" in reason and lab.clock.monotonic() <= limit + 3.0
    assert verdicts(bench)[0][0] == "limit" and verdicts(bench)[0][3] is Outcome.CONFIRMED
    assert len(kept(bench)) >= 14 and bench.program().count("V") >= 14


def renting(bench: Bench, job: Job, seconds: float) -> Context:
    """A laboratory whose machines cost a dollar a second; the clock stands still."""
    clock = slow(bench, job, seconds).clock
    taking, bills = bench.job, count()

    def paying(request: RunRequest) -> Script | str:
        script = taking(request)
        assert isinstance(script, Script)
        return replace(script, passing=lambda: bench.store.charge(bench.session.id, 1.0, str(next(bills))))

    bench.job = paying
    return replace(bench.laboratory(), clock=clock, rate=lambda: 3600.0)


def test_of_a_spend_limit_the_confirmation_is_paid_too_where_machines_are_rented(tmp_path: Path) -> None:
    """Else what was gained is never proven, or the limit is overstepped by it."""
    bench = make(tmp_path, NEVER)
    reason = bench.loop(None, renting(bench, true, 10.0), max_usd=250.0).run()
    spent = bench.store.totals(bench.session.id).usd
    assert "spend limit" in reason and 150.0 < spent <= 253.0
    assert verdicts(bench)[0][0] == "limit" and verdicts(bench)[0][3] is Outcome.CONFIRMED


def test_a_store_that_fails_as_the_spend_limit_is_looked_at_ends_nothing(tmp_path: Path) -> None:
    """Where machines are rented it is asked at each turn."""
    bench = make(tmp_path, NEVER)
    lab = renting(bench, true, 10.0)

    def between() -> bool:
        return all(e.overhead_ms is not None for e in bench.experiments()) and len(bench.experiments()) > 1

    left = fails(bench.store, "totals", LOCKED, LOCKED, when=between)
    assert "spend limit" in bench.loop(None, lab, max_usd=250.0).run()
    assert not left and verdicts(bench)[0][3] is Outcome.CONFIRMED


def test_a_spend_limit_that_machines_reach_before_the_first_result_ends_the_session(tmp_path: Path) -> None:
    bench = make(tmp_path, NEVER)
    with pytest.raises(errors.LimitReached, match="the spend limit of 5 USD was reached before the baseline"):
        bench.loop(None, renting(bench, true, 100.0), max_usd=5.0).run()
    assert bench.store.totals(bench.session.id).usd < 20.0


def test_a_confirmation_that_the_time_limit_cuts_off_is_no_doubt(tmp_path: Path) -> None:
    """With more time the chain is tested again."""
    bench = make(tmp_path, NEVER)
    bench.loop(None, slow(bench, true, 45.0), max_seconds=250.0).run()
    bench.run(1)
    (_, _, _, cut), (_, _, _, again) = verdicts(bench)
    assert (cut, again) == (Outcome.UNDECIDED, Outcome.CONFIRMED)


def test_a_confirmation_ends_with_the_time_limit_and_what_is_left_after_a_doubt_is_used(tmp_path: Path) -> None:
    bench = make(tmp_path, NEVER)
    lab = slow(bench, doubtful(bench), 10.0)
    bench.loop(None, lab, max_seconds=200.0).run()
    [c] = confirmations(bench)
    assert c.verdict and c.verdict.outcome is Outcome.UNDECIDED and "the time limit is reached" in c.verdict.reason
    assert lab.clock.monotonic() <= 210.0 and sum(run.good for run in c.runs) >= 6, "three pairs decide most"


# ---------------------------------------------------------------------- what a user asks for
def ask(bench: Bench, asked: Asked, lab: Context | None = None) -> None:
    SessionLoop(lab or bench.laboratory(), Limits(), backoff=Backoff(first=0.0), asked=asked).run()


def stopped_at(bench: Bench, job: Job, when: Callable[[RunRequest], bool] = lambda request: True) -> Context:
    """What a daemon works with that is stopped at once in the first run of which that is true."""
    stops = list[Context]()

    def stopping(request: RunRequest) -> Script | str:
        if stops and when(request):
            stops.pop().stop.request("now", now=True)
            return Script(hang=True)
        return job(request)

    bench.job = stopping
    stops.append(lab := bench.laboratory())
    return lab


def test_a_keep_below_the_tip_that_does_not_pass_leaves_the_tip_where_it_is(tmp_path: Path) -> None:
    """What was built on it was not tested, and may be far better."""
    bench = left_open(tmp_path)
    lucky = bench.experiment(1)
    bench.job = lambda r: f"score: {13.0 + r.seed % 7 / 100}\n" if program_of(r).count("V") == 1 else true(r)
    ask(bench, Asked(experiment=lucky.number))
    assert verdicts(bench) == [("asked", 1, 0, Outcome.FELL)] and not confirmations(bench)[0].moved
    assert [e.confirmed for e in bench.experiments()[1:]] == [None, None, None]
    assert "compared only" in list(bench.messages(EventKind.CONFIRMED))[-1]
    bench.job = true
    bench.run(3)
    assert verdicts(bench)[-1] == ("limit", 3, 0, Outcome.CONFIRMED)


def test_what_is_asked_for_is_done_after_what_was_under_way(tmp_path: Path) -> None:
    bench = make(tmp_path, AT_ONCE)
    bench.run(2)
    with pytest.raises(errors.Interrupted):
        bench.loop(3, stopped_at(bench, true, lambda request: run_of(bench, request).attempt < 0)).run()
    ask(bench, Asked(experiment=2, pairs=3, budget=9.0))
    assert [c.experiment for c in confirmations(bench)] == [1, 2, 3, 2]
    last = confirmations(bench)[-1]
    assert (last.pairs, last.budget, len(last.runs), last.against) == (3, 9.0, 6, 3)


def test_an_ablation_goes_on_where_it_was_cut_off_and_holds_up_no_research(tmp_path: Path) -> None:
    bench = make(tmp_path, AT_ONCE)
    bench.run(2)
    without = Asked(2, why=f"{ABLATION} tree", program=bench.experiment(1).commit)

    def cut_off() -> None:
        lab = stopped_at(bench, true, lambda request: bool(confirmations(bench)[-1].runs[1:]))
        with pytest.raises(errors.Interrupted):
            ask(bench, without, lab)
        bench.job = true

    cut_off()
    ask(bench, without)
    [*_, test] = confirmations(bench)
    assert (test.number, test.experiment, test.against, test.moved) == (2, 2, 2, False)
    assert [run.label for run in test.runs[:2]] == [Label.NONE, Label.INTERRUPTED] and test.runs[0].of is None
    assert test.verdict and test.verdict.outcome is Outcome.FELL
    assert test.verdict.reason.startswith("The confirmed program without experiment 2 is ")
    branch = bench.workspace().confirmed()
    without = replace(without, why=f"{ABLATION} another tree")
    cut_off()
    bench.run(3)
    assert verdicts(bench)[3:] == [(without.why, 2, 2, Outcome.UNDECIDED), ("limit", 3, 2, Outcome.CONFIRMED)]
    assert bench.workspace().confirmed() != branch and SessionView(bench.laboratory()).extra == sum(
        len(c.runs) for c in confirmations(bench) if not ablates(c.why)
    ), "no limit of the session's own counts them"


def test_a_comparison_of_a_confirmed_keep_is_no_doubt_of_the_tip(tmp_path: Path) -> None:
    bench = make(tmp_path, AT_ONCE)
    bench.run(1)
    bench.task = replace(bench.task, scoring=replace(bench.task.scoring, confirm_every=1e6))
    run_until(bench, 3, now=True)
    bench.job = doubtful(bench, confirmation=len(confirmations(bench)))
    ask(bench, Asked(experiment=1, pairs=2))
    assert verdicts(bench)[-1] == ("asked", 1, 0, Outcome.UNDECIDED)
    assert "neither confirmed" not in list(bench.messages(EventKind.CONFIRMED))[-1]
    bench.run(3)
    assert verdicts(bench)[-1] == ("limit", 3, 1, Outcome.CONFIRMED)


def at_limit(bench: Bench, experiments: int) -> bool:
    """Whether `resume` has nothing left to do under a limit, so that it leaves no daemon behind."""
    session = replace(bench.store.session("t"), policy="search", limits=Limits(max_experiments=experiments))
    return reached_limit(bench.store, session) is not None


def test_what_is_left_to_be_confirmed_at_a_limit_is_left_to_a_daemon(tmp_path: Path) -> None:
    """Else `resume` would make its runs in silence, and say that nothing was started."""
    bench = left_open(tmp_path)
    assert not at_limit(bench, 3)
    bench.job = doubtful(bench, confirmation=0)
    ask(bench, Asked(experiment=1, pairs=2, budget=10.0))
    assert verdicts(bench) == [("asked", 1, 0, Outcome.UNDECIDED)] and not at_limit(bench, 3), "it was a comparison"
    bench.run(3)
    assert verdicts(bench)[1:] == [("limit", 3, 0, Outcome.CONFIRMED)] and at_limit(bench, 3)
    with pytest.raises(errors.Interrupted):
        ask(bench, Asked(budget=10.0), stopped_at(bench, true))
    assert is_open(bench) and not at_limit(bench, 3), "a confirmation that was cut off"


def test_a_chain_that_the_runs_left_in_doubt_is_nothing_to_go_on_with_at_a_limit(bench: Bench) -> None:
    bench.job = doubtful(bench)
    bench.run(2)
    assert verdicts(bench)[-1][3] is Outcome.UNDECIDED and at_limit(bench, 2)


def test_a_short_test_that_a_user_asked_for_leaves_the_whole_one_to_be_made(tmp_path: Path) -> None:
    bench = left_open(tmp_path)
    bench.job = doubtful(bench, confirmation=0)
    ask(bench, Asked(pairs=1))
    assert verdicts(bench) == [("asked", 3, 0, Outcome.UNDECIDED)] and not at_limit(bench, 3)
    bench.run(3)
    assert verdicts(bench)[1:] == [("limit", 3, 0, Outcome.CONFIRMED)]


def test_another_confirmation_that_was_cut_off_is_no_answer(tmp_path: Path) -> None:
    bench = left_open(tmp_path)
    with pytest.raises(errors.Interrupted):
        ask(bench, Asked(experiment=1), stopped_at(bench, true))
    ask(bench, Asked())
    confirmed = Outcome.CONFIRMED
    assert verdicts(bench) == [("asked", 1, 0, confirmed), ("asked", 3, 1, confirmed)]


def test_what_fails_while_only_a_confirmation_is_asked_for_is_not_given_back_to_its_policy(tmp_path: Path) -> None:
    """It would be asked, and paid, by a command that says that it asks no model."""
    bench = make(tmp_path, NEVER, job=broken)
    bench.policy = Breaking()
    with pytest.raises(errors.Interrupted):
        bench.loop(3, stopped_at(bench, broken, lambda request: "BROKEN" in program_of(request))).run()
    ask(bench, Asked())
    assert bench.policy.logs == [] and verdicts(bench) == [("asked", 1, 0, Outcome.CONFIRMED)]
    assert bench.experiment(2).decision.label is Label.ERROR  # type: ignore[union-attr]


def test_runs_that_a_user_asks_for_are_none_of_those_that_a_session_may_spend(bench: Bench) -> None:
    """Else one long comparison would keep all that is gained later off the branch for hundreds of experiments."""
    run_until(bench, 1, now=True)
    ask(bench, Asked(pairs=10, budget=10.0))
    assert len(confirmations(bench)[0].runs) == 20
    extra = bench.run(4).view.extra
    assert verdicts(bench)[1][0] == "gain"
    assert SessionView(bench.laboratory()).extra == extra == sum(len(c.runs) for c in confirmations(bench)[1:])


def test_no_policy_is_asked_where_only_a_confirmation_is(tmp_path: Path) -> None:
    """A session that was stopped while it waited for a model has an experiment without a proposal."""
    bench, asked = make(tmp_path, NEVER), list[int]()

    def waiting(state: ResearchState) -> str:
        asked.append(state.number)
        if state.number == 3:
            raise errors.EnvironmentFailure("the model does not answer", hint="wait")
        return building(state)

    bench.policy = Writing(waiting)
    lab = bench.laboratory()

    class Stopping:
        def emit(self, event: Event) -> None:
            if event.kind is EventKind.BACKING_OFF:
                lab.stop.request("stop")

    with pytest.raises(errors.Interrupted):
        bench.loop(None, replace(lab, sink=Stopping())).run()
    count = len(asked)
    ask(bench, Asked())
    assert len(asked) == count and verdicts(bench) == [("asked", 2, 0, Outcome.CONFIRMED)]


# ---------------------------------------------------------------------- at the end
def test_a_chain_is_confirmed_before_the_session_ends_for_what_models_have_cost(tmp_path: Path) -> None:
    """A confirmation asks no model. The experiment that there was no money for is closed, as the tip may fall."""
    bench = make(tmp_path, NEVER)

    def paid(state: ResearchState) -> str:
        if state.number < 3:
            return building(state)
        raise errors.SpendCapReached("the session's cap of $2.00 is reached", whole_session=True, hint="raise it")

    bench.policy = Writing(paid)
    lab = bench.laboratory()
    loop = bench.loop(None, lab)
    assert loop.run() == "the session's cap of $2.00 is reached\n  → raise it"
    assert verdicts(bench) == [("limit", 2, 0, Outcome.CONFIRMED)]
    assert bench.program().count("V") == 2
    last = bench.experiments()[-1]
    assert last.number == 3 and last.proposal is None and last.decision is not None
    assert last.decision.reason == "nothing was proposed: the session's cap of $2.00 is reached."
    with Reader(bench.state / "state.db") as reader:
        believed = [after for after, _, _ in reader.beliefs("t")]
    assert believed == [0, 1, 2, 3, 3.5], "the plot has the tip after each step and verdict"
    bench.policy = Writing(building)
    bench.run(4)
    assert kept(bench) == [1, 2, 4], "with more money it goes on"


class Waiting(Forward):
    """asked: for a confirmation, in the first wait."""

    def __init__(self, clock: Passing, *, asked: bool = False) -> None:
        super().__init__(clock)
        self._asked, self.waits = asked, 0

    def wait(self, timeout: float | None = None) -> bool:
        self.waits += 1
        if self._asked and self.waits == 1:
            self.confirm.set()
        return super().wait(timeout)


def without_model(folder: Path, error: Exception, *, asked: bool = False) -> tuple[Bench, Waiting]:
    """A session of four hours whose model can be asked for two experiments, and how it waited."""
    bench, clock = make(folder, NEVER), Passing()

    def away(state: ResearchState) -> str:
        if state.number < 3:
            return building(state)
        raise error

    bench.policy = Writing(away)
    stop = Waiting(clock, asked=asked)
    lab = replace(bench.laboratory(), clock=clock, stop=stop)
    with pytest.raises(errors.Interrupted, match="time limit") as ended:
        bench.loop(None, lab, backoff=Backoff(first=60.0), max_seconds=4 * 3600.0).run()
    assert ended.value.limit
    return bench, stop


@pytest.mark.parametrize(
    "error",
    [
        errors.SpendCapReached("the cap of the day is reached", whole_session=False),
        errors.EnvironmentFailure("the server is down"),
    ],
)
def test_a_time_limit_leaves_room_for_the_confirmation_where_no_model_can_be_asked(
    tmp_path: Path, error: errors.AutoresearchdError
) -> None:
    """It needs none."""
    bench, _ = without_model(tmp_path, error)
    assert verdicts(bench) == [("limit", 2, 0, Outcome.CONFIRMED)]
    decision = bench.experiment(3).decision
    assert decision and error.what in decision.reason


def test_a_wait_for_a_learner_leaves_room_for_the_confirmation(tmp_path: Path) -> None:
    bench, clock = make(tmp_path, NEVER), Passing()

    def learn(enough: Callable[[], object]) -> None:
        while len(bench.experiments()) == 3 and not enough():
            clock.passed += 1.0

    loop = bench.loop(None, replace(bench.laboratory(), clock=clock), max_seconds=600.0)
    loop.between = learn
    assert "time limit" in loop.run()
    assert verdicts(bench) == [("limit", 2, 0, Outcome.CONFIRMED)]


@pytest.mark.parametrize("opening", [False, True])
def test_a_wait_for_a_failing_policy_or_a_full_disk_leaves_room_for_the_confirmation(
    tmp_path: Path, opening: bool
) -> None:
    """Else it sleeps to the very end of the night, and what was kept in it is proven by nothing."""
    bench, clock = make(tmp_path, NEVER), Passing()

    def failing(state: ResearchState) -> str:
        if state.number < 3:
            return building(state)
        raise errors.PolicyError("the command ended with exit code 3")

    def full(enough: Callable[[], object]) -> None:
        if opening and len(bench.experiments()) == 3:
            raise errors.EnvironmentFailure("the disk is full")

    bench.policy = Writing(failing)
    lab = replace(bench.laboratory(), clock=clock, stop=Forward(clock))
    loop = bench.loop(None, lab, backoff=Backoff(first=60.0), max_seconds=2 * 3600.0)
    loop.between = full
    assert "time limit" in loop.run()
    assert verdicts(bench) == [("limit" if opening else "idle", 2, 0, Outcome.CONFIRMED)]


def test_a_confirmation_that_is_asked_for_is_made_while_money_is_waited_for(tmp_path: Path) -> None:
    spent = errors.SpendCapReached("the cap of the day is reached", whole_session=False)
    bench, stop = without_model(tmp_path, spent, asked=True)
    assert verdicts(bench) == [("asked", 2, 0, Outcome.CONFIRMED)]
    assert len(bench.experiments()) == 5 and stop.waits > 20, "then it is waited for again, with the next number"


def test_no_confirmation_is_begun_when_the_time_is_over(tmp_path: Path) -> None:
    """It would say that nothing is known of a tip which nobody has tested."""
    bench = make(tmp_path, NEVER)
    lab = slow(bench, true, 300.0)
    bench.loop(None, lab, max_seconds=1100.0).run()
    assert lab.clock.monotonic() >= 1100.0 and kept(bench) == [1] and verdicts(bench) == []
    bench.run(1)
    assert verdicts(bench) == [("limit", 1, 0, Outcome.CONFIRMED)], "resume makes up for it"


class Pausing(StopSwitch):
    """Waits no time; while it is paused it does, at each look, what is to be done next."""

    def __init__(self, *then: Callable[[Pausing], object]) -> None:
        super().__init__()
        self.then, self.looks = list(then), 0

    def wait(self, timeout: float | None = None) -> bool:
        self.looks += 1
        if self.then:
            self.then.pop(0)(self)
        return self.is_set()


@pytest.mark.parametrize("stops", [False, True])
def test_a_pause_holds_a_confirmation_between_two_runs_until_it_ends_or_the_session_does(
    bench: Bench, stops: bool
) -> None:
    started: list[int] = []

    def job(request: RunRequest) -> Script | str:
        if run_of(bench, request).attempt < 0:
            started.append(switch.looks)
            if len(started) == 1:
                switch.paused.set()
        return true(request)

    def end(switch: Pausing) -> None:
        switch.request("enough") if stops else switch.paused.clear()

    switch = Pausing(lambda switch: None, end)
    bench.job = job
    bench.loop(2, replace(bench.laboratory(), stop=switch)).run()
    assert started[:2] == [0, 2], "the second run waited"
    assert [c.runs[0].label for c in confirmations(bench)] == [Label.NONE], "the first was not lost"
    assert verdicts(bench) == [("limit", 2, 0, Outcome.CONFIRMED)]


def test_a_paused_session_begins_no_confirmation_at_its_limit(tmp_path: Path) -> None:
    """Whoever paused it wants the GPU."""
    bench, looks = make(tmp_path, NEVER), list[int]()

    def job(request: RunRequest) -> Script | str:
        if run_of(bench, request).attempt < 0:
            looks.append(switch.looks)
        elif request.key.startswith("t/2/"):
            switch.paused.set()
        return true(request)

    def going_on(switch: Pausing) -> None:
        assert not list(bench.messages(EventKind.UNPAUSED)) and len(list(bench.messages(EventKind.PAUSED))) == 1
        switch.paused.clear()

    switch = Pausing(lambda switch: None, lambda switch: None, going_on)
    bench.job = job
    bench.loop(2, replace(bench.laboratory(), stop=switch)).run()
    assert looks[0] == 3 and verdicts(bench) == [("limit", 2, 0, Outcome.CONFIRMED)]
    assert len(list(bench.messages(EventKind.UNPAUSED))) == 1


def is_open(bench: Bench) -> bool:
    return bench.store.open_confirmation_of(bench.session.id) is not None


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], str]:
    """Outcome and program of a session of three experiments."""
    with closing(make(tmp_path_factory.mktemp("undisturbed"))) as bench:
        bench.run(3)
        return outcome(bench), bench.program()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    "name",
    ["open_confirmation", "open_confirmation_run", "close_confirmation_run", "decide_confirmation", "open_keeps"],
)
def test_a_store_that_is_locked_for_a_while_costs_no_run_and_changes_no_verdict(
    bench: Bench, undisturbed: tuple[list[Any], str], name: str, after: bool
) -> None:
    fails(bench.store, name, LOCKED, *([] if after else [LOCKED]), after=after)
    bench.run(3)
    assert (outcome(bench), bench.program()) == undisturbed
    assert Label.INTERRUPTED not in {r.label for c in confirmations(bench) for r in c.runs} or (
        after and name == "open_confirmation_run"
    )


@pytest.mark.parametrize("kind", [errors.EnvironmentFailure("git is locked", hint="wait"), ZeroDivisionError("a bug")])
@pytest.mark.parametrize(("port", "verdict"), [("advance", Outcome.CONFIRMED), ("move_tip", Outcome.FELL)])
def test_a_verdict_that_git_could_not_follow_at_once_is_carried_out_and_not_asked_for_again(
    bench: Bench, port: str, verdict: Outcome, kind: Exception
) -> None:
    bench.policy = Writing(poison if verdict is Outcome.FELL else building)
    bench.job = poisoned(bench)
    decided = lambda: any(c.verdict for c in confirmations(bench))  # noqa: E731
    fails(bench.repository, port, kind, kind, when=decided)
    bench.run(2)
    assert verdicts(bench) == [("limit", 2, 0, verdict)]
    session = bench.store.session("t")
    assert bench.workspace().confirmed() == session.confirmed and bench.workspace().tip() == session.incumbent


def faulty(bench: Bench) -> Job:
    """A bug of the daemon's shows in each run of a confirmation."""

    def job(request: RunRequest) -> Script | str:
        if run_of(bench, request).attempt < 0:
            raise ZeroDivisionError("a bug")
        return true(request)

    return job


def test_a_fault_at_every_run_gives_a_confirmation_up_and_the_session_goes_on(bench: Bench) -> None:
    bench.job = faulty(bench)
    bench.run(4)
    assert {outcome for *_, outcome in verdicts(bench)} == {Outcome.UNDECIDED}
    assert all("ZeroDivisionError" in c.verdict.reason for c in confirmations(bench) if c.verdict)
    assert kept(bench) == [1, 2, 3, 4] and bench.program() == PROGRAM
    faults = list(bench.messages(EventKind.FAULT))
    assert len(faults) == 3 * len(confirmations(bench)) and len(confirmations(bench)) <= 3
    assert not is_open(bench)


def test_a_confirmation_that_cannot_even_be_given_up_at_once_is_not_left_open(bench: Bench) -> None:
    """Else experiments would begin beside it, and a later verdict be about another chain."""
    bench.job = faulty(bench)
    fails(bench.store, "decide_confirmation", LOCKED, ZeroDivisionError("another"))
    bench.run(4)
    assert kept(bench) == [1, 2, 3, 4] and not is_open(bench)
    first = confirmations(bench)[0]
    assert first.finished_at and bench.experiment(first.after + 1).started_at >= first.finished_at


@pytest.mark.parametrize(("ended", "label"), [("disk_full", Label.DISK_FULL), ("lost", Label.HOST_LOST)])
def test_a_full_disk_or_a_lost_host_is_waited_out_and_the_run_is_made_again(
    bench: Bench, ended: str, label: Label
) -> None:
    times: list[int] = []

    def job(request: RunRequest) -> Script | str:
        if run_of(bench, request).of is not None and len(times) < 2:
            times.append(request.seed)
            return prints("", outcome=ended)
        return true(request)

    bench.job = job
    bench.run(2)
    [c] = confirmations(bench)
    assert [r.label for r in c.runs[:4]] == [Label.NONE, label, label, Label.NONE]
    assert len({r.seed for r in c.runs[:4]}) == 1, "the same pair"
    assert c.verdict and c.verdict.outcome is Outcome.CONFIRMED


def test_a_tip_that_fills_the_disk_whenever_it_runs_again_falls(bench: Bench) -> None:
    """Else the session would wait for room that it takes itself, for ever."""

    def job(request: RunRequest) -> Script | str:
        run = run_of(bench, request)
        return prints("", outcome="disk_full") if run.attempt < 0 and run.of is None else true(request)

    bench.job = job
    bench.run(2)
    assert verdicts(bench) == [("limit", 2, 0, Outcome.FELL)] and bench.program() == PROGRAM


# ---------------------------------------------------------------------- restarts
def unlucky(state: ResearchState) -> str:
    """Edits that change nothing but the text."""
    return PROGRAM + f"V{state.number} = 1\n"


def lucky_once(bench: Bench) -> Job:
    """Experiment 1 seems to be 5σ better once; in truth all programs are alike."""

    def job(request: RunRequest) -> Script | str:
        run = run_of(bench, request)
        noise = random.Random(f"{request.seed}/{program_of(request)}/{run.experiment}").gauss(0.0, SIGMA)
        shift = -5.0 * SIGMA - noise if run.experiment == 1 else 0.0
        return f"score: {10.0 + shift + noise:.6f}\n"

    return job


def test_a_keep_that_later_runs_speak_against_is_taken_back_without_a_run(bench: Bench) -> None:
    """Else the session builds on an edit that harms, until a confirmation finds it, with all that was kept since."""
    taking_back(bench)
    view = bench.run(9).view
    first = confirmations(bench)[0]
    assert verdicts(bench)[0] == ("doubt", 1, 0, Outcome.FELL) and first.moved and first.runs == ()
    assert bench.experiment(1).confirmed is False and view.tip.number != 1
    after = bench.experiment(first.after + 1)
    assert after.parent == bench.experiment(0).commit, "what follows is built on what it was kept on"
    said = next(bench.messages(EventKind.CONFIRMED))
    assert "experiment 1 is taken back, experiment 0 is the tip again" in said and "no run was spent" in said
    assert not any("experiment 1 against" in words for words in bench.messages(EventKind.CONFIRMING))


def outcome(bench: Bench) -> list[Any]:
    """Decisions, verdicts and the runs that they rest on, whatever was interrupted on the way."""
    found = bench.experiments()
    runs = [[(r.seed, r.of, r.attempt, r.value) for r in e.runs if r.label is not Label.INTERRUPTED] for e in found]
    tested = [(c.why, c.experiment, c.against, c.after, c.verdict) for c in confirmations(bench)]
    return [*((e.number, e.decision, e.confirmed) for e in found), runs, tested]


def confirming(bench: Bench) -> None:
    bench.policy, bench.job = Writing(building), true


def falling(bench: Bench) -> None:
    bench.policy, bench.job = Writing(poison), poisoned(bench)


def exploding(bench: Bench) -> None:
    bench.policy, bench.job = Writing(bombing), sleeping(bench, 2)


def doubting(bench: Bench) -> None:
    bench.policy, bench.job = Writing(building), doubtful(bench)


def taking_back(bench: Bench) -> None:
    bench.policy, bench.job = Writing(unlucky), lucky_once(bench)


@pytest.mark.parametrize(
    ("scene", "history", "experiments"),
    [
        (confirming, "refs", 3), (falling, "refs", 4), (exploding, "refs", 6), (doubting, "refs", 3),
        (taking_back, "refs", 8),  # by day test_recovery.py does the same with reverts
        *(pytest.param(scene, "revert", n, marks=pytest.mark.nightly) for scene, n in ((confirming, 3), (falling, 4))),
    ],
)  # fmt: skip
@pytest.mark.parametrize("parts", [3, pytest.param(6, marks=pytest.mark.nightly)])
def test_death_at_any_instant_changes_nothing(
    tmp_path: Path, scene: Callable[[Bench], None], history: str, experiments: int, parts: int
) -> None:
    """Neither what is confirmed, nor what falls; and the branch has no commit that is not confirmed."""

    def made(name: str) -> Bench:
        bench = make(tmp_path / name, f"history: {history}", NEVER if scene is exploding else SOON)
        scene(bench)
        return bench

    count, reference = Doom(), made("reference")
    run_until_killed(reference, count, experiments)
    wanted, totals = outcome(reference), reference.store.totals(reference.session.id)
    assert confirmations(reference)
    for at in range(count.count // 3, count.count, max(1, count.count // parts)):
        bench = made(str(at))
        assert run_until_killed(bench, Doom(at), experiments)
        require_proven(bench)
        bench.run(experiments)
        found = bench.store.totals(bench.session.id)
        assert outcome(bench) == wanted, f"killed at instant {at}"
        assert (found.keeps, found.crashes) == (totals.keeps, totals.crashes), f"killed at instant {at}"
        assert bench.program() == reference.program(), f"killed at instant {at}"
        require_proven(bench)
        bench.close()
    reference.close()


@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    effects=st.lists(st.sampled_from([-20.0, -3.0, -1.0, -0.3, 0.0, 0.5, 3.0, 30.0]), min_size=3, max_size=9),
    luck=st.lists(st.sampled_from([-30.0, -1.0, 0.0, 1.0, 30.0]), min_size=1, max_size=4),
    every=st.sampled_from([AT_ONCE, "confirm_every: 3", "confirm_every: 25"]),
    stored=st.sampled_from([1, 2, 3, 256]),
)
def test_what_is_believed_after_a_restart_is_what_was_believed_before(
    tmp_path_factory: pytest.TempPathFactory, effects: list[float], luck: list[float], every: str, stored: int
) -> None:
    """Else the same experiment would be kept by one daemon and discarded by the next.

    stored: after how many readings the belief is stored as a whole, from which a restart goes on.
    """

    def text(state: ResearchState) -> str:
        effect = effects[(state.number - 1) % len(effects)]
        return re.sub(
            r"SCALE = (\S+)",
            lambda found: f"SCALE = {float(found[1]) + effect * SIGMA:.6f}  # {state.number}",
            state.code["train.py"].split("  #")[0] + "\n",
        )

    def job(request: RunRequest) -> Script | str:
        run = run_of(bench, request)
        if run.attempt >= 0 or run.of is not None:
            return true(request)
        shift = luck[-1 - run.attempt if -1 - run.attempt < len(luck) else -1] * SIGMA  # of each confirmation its own
        return f"score: {float(str(true(request)).split()[1]) - shift:.6f}\n"

    bench = make(tmp_path_factory.mktemp("belief"), every, text=text)
    bench.job = job
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session_view, "CHECKPOINT", stored)
        before = bench.run(len(effects)).view
    again = SessionView(bench.laboratory())
    assert (again.belief is None) == (before.belief is None)
    if before.belief is not None and again.belief is not None:
        for name in ("sigmas", "weights", "levels", "variances", "counts"):
            assert getattr(again.belief, name) == pytest.approx(getattr(before.belief, name), rel=1e-12), name
        assert again.belief.readings == before.belief.readings
    facts = lambda view: (  # noqa: E731
        view.tip.number, view.confirmed.number, view.tip_commit, view.confirmed_commit, view.best, view.sigma,
        [e.number for e in view.open_keeps], [(e.number, e.confirmed) for e in view.recent], view.undecided,
        view.extra, view.streak, view.parent,
    )  # fmt: skip
    assert facts(again) == facts(before)
    require_proven(bench)
    bench.close()
