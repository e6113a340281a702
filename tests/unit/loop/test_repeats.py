"""Runs made again to be sure: asked for by the evaluator, kept in the journal, never lost and never doubled."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autoresearchd.domain.experiment import Run
from autoresearchd.domain.labels import Label, Status
from autoresearchd.domain.ports import Cancel, ResearchState, RunRequest
from autoresearchd.domain.proposal import Proposal
from autoresearchd.loop.session_view import SessionView
from tests.fakes.bench import PROGRAM, TASK, Bench, Doom, run_until_killed
from tests.fakes.executors import Script, prints


def noisy(request: RunRequest) -> Script | str:
    """A bowl with its bottom at 2 and noise that is a function of program and seed."""
    found = re.search(r"SCALE = (.*)", text_of(request))
    luck = random.Random(f"{request.seed}/{found[1]}").gauss(0.0, 0.1)
    return f"score: {(float(found[1]) - 2.0) ** 2 + luck:.6f}\n"


def run_of(bench: Bench, request: RunRequest) -> Run:
    """The run that a request is for."""
    number, index = (int(part) for part in request.key.split("/")[1:])
    return bench.experiment(number).runs[index]


def text_of(request: RunRequest) -> str:
    return (request.workspace / "train.py").read_text()


def outcome(bench: Bench) -> list[Any]:
    """Decisions and the runs that they rest on, whatever was interrupted on the way."""
    found = bench.experiments()
    return [(e.number, e.decision, [(r.seed, r.of, r.value) for r in e.runs if r.label is Label.NONE]) for e in found]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path)
    made.job = noisy
    return made


def test_a_would_be_keep_is_compared_side_by_side_with_the_incumbent(bench: Bench) -> None:
    bench.run()
    kept = [e for e in bench.experiments()[1:] if e.decision and e.decision.status is Status.KEEP]
    assert kept
    for e in kept:
        control = e.control_runs
        assert control and {r.of for r in control} < set(range(e.number)), "runs of an earlier program"
        assert {r.seed for r in control} & {r.seed for r in e.good_runs}, "on a seed of its own"
        assert "beside it" in e.decision.reason
        assert e.decision.value == pytest.approx(sum(r.value or 0 for r in e.good_runs) / len(e.good_runs))


def test_runs_of_the_incumbent_run_its_program_and_leave_the_branch_alone(bench: Bench) -> None:
    programs: dict[str, str] = {}

    def watched(request: RunRequest) -> Script | str:
        programs[request.key] = text_of(request)
        return noisy(request)

    bench.job = watched
    bench.run()
    for e in bench.experiments()[1:]:
        for r in e.control_runs:
            assert programs[f"t/{e.number}/{r.index}"] == programs[f"t/{r.of}/0"] != programs[f"t/{e.number}/0"]


def test_noise_and_the_incumbents_value_are_the_same_after_a_restart(bench: Bench) -> None:
    before, again = bench.run().view, SessionView(bench.laboratory())
    assert again.noise_data.noise() == before.noise_data.noise()
    assert (again.best, again.sigma) == (before.best, before.sigma)
    assert again.noise_data.extra == before.noise_data.extra > 0, "with repeats, or the test proves little"


def test_a_run_of_the_incumbent_that_fails_is_not_the_experiments_fault(bench: Bench) -> None:
    def failing(request: RunRequest) -> Script | str:
        return noisy(request) if run_of(bench, request).of is None else prints("", exit_code=1)

    bench.job = failing
    bench.run()
    found = bench.experiments()[1:]
    assert any(r.of is not None for e in found for r in e.runs)
    assert {e.decision.status for e in found if e.decision} == {Status.DISCARD}
    for e in found:
        assert sum(r.of is not None for r in e.runs) <= 2, "it is made again once, and not tried for ever"


class Writing:
    """Proposes the program that a function of the state gives."""

    name, repairs = "scripted", 0

    def __init__(self, text: Callable[[ResearchState], str]) -> None:
        self.text = text

    def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
        return Proposal({"train.py": self.text(state)}, "It may be better", self.name)


def changing(state: ResearchState) -> str:
    """A new value for each experiment, so that no program is a duplicate."""
    return f"SCALE = {state.number}.5\n"


def held_back(bench: Bench, slower: frozenset[int] = frozenset()) -> Callable[[RunRequest], Script | str]:
    """All edits are equally good, and whatever was kept does worse beside a later experiment.

    slower: experiments during which every program does as badly: the machine is to blame.
    """

    def job(request: RunRequest) -> Script | str:
        run, text = run_of(bench, request), text_of(request)
        number, own = run.experiment, run.of is None
        score = 2.0 if text == PROGRAM else 1.0
        score += 1.0 if number in slower or not (own or slower or text == PROGRAM) else 0.0
        score -= 1.0 if number in slower and own and text == "SCALE = 3.5\n" else 0.0
        return f"score: {score + random.Random(f'{request.seed}/{text}').gauss(0.0, 0.02):.6f}\n"

    return job


def kept(bench: Bench) -> list[int]:
    found = bench.experiments()[1:]
    return [e.number for e in found if e.decision and e.decision.status is Status.KEEP]


def test_a_kept_program_that_does_worse_when_it_runs_again_does_not_get_its_equals_kept(bench: Bench) -> None:
    bench.policy, bench.job = Writing(changing), held_back(bench)
    bench.run(6)
    assert kept(bench) == [1]
    told = [e for e in bench.experiments()[2:] if any(r.of == 0 for r in e.runs)]
    assert told, "the baseline was run beside an experiment"
    for e in told:
        assert sum(r.of == 0 for r in e.runs) == 1 and {r.of for r in e.control_runs} == {1}
        assert "the baseline, run beside it" in e.decision.reason
    assert any("the baseline (experiment 0) again" in event.message for event in bench.events.events)
    assert SessionView(bench.laboratory()).best == pytest.approx(1.5, abs=0.6), "its later runs count for its value"


def test_an_improvement_on_a_machine_that_has_become_slower_is_kept_once_the_baseline_says_so(bench: Bench) -> None:
    bench.policy, bench.job = Writing(changing), held_back(bench, slower=frozenset({2, 3, 4}))
    bench.run(4)
    assert kept(bench) == [1, 3]
    assert bench.experiment(3).decision.value == pytest.approx(1.0, abs=0.1)


def poison(state: ResearchState) -> str:
    """A poisoner, and then edits of whatever is the best that are better by 0.5 each."""
    return "# POISON\nSCALE = 0.3\n" if state.number == 1 else f"SCALE = {0.5 * state.number - 0.3}\n"


def poisoned(bench: Bench, how: str = "crash") -> Callable[[RunRequest], Script | str]:
    """Scores of 10 − SCALE with σ 0.03; what is poisoned fails when it runs again beside a later experiment."""

    def job(request: RunRequest) -> Script | str:
        text = text_of(request)
        if "POISON" in text and run_of(bench, request).of is not None:
            return prints("score: nan\n") if how == "nan" else prints("", exit_code=1)
        scale = 0.0 if text == PROGRAM else float(text.split("SCALE = ")[1])
        return f"score: {10.0 - scale + random.Random(f'{request.seed}/{text}').gauss(0.0, 0.03):.6f}\n"

    return job


@pytest.mark.parametrize("how", ["crash", "nan"])
def test_a_poisoned_incumbent_loses_its_place_and_stops_no_later_gain(bench: Bench, how: str) -> None:
    """Five programs better by 0.5 each were all discarded, since the incumbent failed whenever it ran again."""
    bench.policy, bench.job = Writing(poison), poisoned(bench, how)
    bench.run(5)
    assert kept(bench) == [2, 3, 4, 5]
    first, second = (bench.experiment(n) for n in (1, 2))
    assert (first.decision.status, first.decision.value) == (Status.CRASH, None)
    assert "twice when it ran again beside experiment 2" in first.decision.reason and first.decision.reward == -2.0
    assert second.fallen == (1,) and {r.of for r in second.control_runs} == {0}
    assert "Compared without experiment 1" in second.decision.reason
    assert any("lost its place: experiment 0 is the incumbent again" in e.message for e in bench.events.events)
    commits = [e.commit for e in bench.experiments() if e.number in (2, 3, 4, 5)]
    assert bench.line()[1:] == commits, "nothing of the poisoner"
    session, totals = bench.store.session("t"), bench.store.totals(bench.session.id)
    assert (session.incumbent_experiment, totals.keeps, totals.crashes) == (5, 5, 1)
    assert bench.store.label_counts(bench.session.id)[first.decision.label] == 1


@pytest.mark.parametrize("history", ["refs", "revert"])
def test_the_branch_falls_back_where_the_experiment_that_showed_the_poison_is_no_gain(
    tmp_path: Path, history: str
) -> None:
    def worse(state: ResearchState) -> str:
        # enough like the best to be compared with it, and no better than the baseline
        return "AGAIN = 1\nSCALE = 0.0\n" if state.number == 2 else poison(state)

    def job(request: RunRequest) -> Script | str:
        run = run_of(bench, request)
        if run.experiment == 2 and run.of is None and run.index == 0:
            return "score: 9.6\n"  # luck
        return plain(request)

    bench = Bench(tmp_path, task=f"history: {history}\n{TASK}")
    bench.policy, plain = Writing(worse), poisoned(bench)
    bench.job = job
    bench.run(2)
    second = bench.experiment(2)
    assert second.fallen == (1,) and second.decision is not None and second.decision.status is Status.DISCARD
    assert kept(bench) == [] and bench.store.session("t").incumbent_experiment == 0
    assert bench.program() == PROGRAM, "the branch holds the baseline again"
    bench.run(3)
    assert kept(bench) == [3], "and the session goes on from there, also after a restart"
    bench.close()


def building(state: ResearchState) -> str:
    """Edits of the code that there is, each better by 0.5; the first of them brings a time bomb with it."""
    text = re.sub("SCALE = .*", f"SCALE = {1.0 - 0.5 * state.number}", state.code["train.py"])
    return text + "# BOMB\n" * (state.number == 1)


def bombed(goes_off: int, label: Label = Label.ERROR) -> Callable[[RunRequest], Script | str]:
    """All that holds the bomb fails from an experiment on."""

    def job(request: RunRequest) -> Script | str:
        text = text_of(request)
        if "BOMB" in text and int(request.key.split("/")[1]) >= goes_off:
            nan = label is Label.NON_FINITE
            return prints("score: nan\n") if nan else prints("too late\n", exit_code=1, outcome="failed")
        scale = float(text.split("SCALE = ")[1].split()[0])
        return f"score: {10.0 + scale + random.Random(f'{request.seed}/{text}').gauss(0.0, 0.03):.6f}\n"

    return job


@pytest.mark.parametrize(("goes_off", "label"), [(2, Label.ERROR), (2, Label.NON_FINITE), (3, Label.ERROR)])
def test_a_time_bomb_costs_four_experiments_and_not_the_night(tmp_path: Path, goes_off: int, label: Label) -> None:
    """All that was built on it failed first, so it never ran again beside any of them, and kept its place for ever."""
    bench, found = Bench(tmp_path), goes_off + 3
    bench.policy, bench.job = Writing(building), bombed(goes_off, label)
    bench.run(found + 2)
    experiments = bench.experiments()
    assert kept(bench) == [found + 1, found + 2], "built on the program as it was"
    labels = [e.decision.label for e in experiments if e.decision is not None]
    assert labels[1 : found + 1] == [label] * found, "also those that held the bomb and were kept"
    assert [e.number for e in experiments[goes_off : found + 1] if len(e.runs) > 1] == [found]
    assert experiments[found].fallen == tuple(range(goes_off - 1, 0, -1)), "one after the other, all in one experiment"
    assert len(experiments[found].runs) == 1 + 2 * (goes_off - 1)
    bench.close()


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


def broken(request: RunRequest) -> Script | str:
    if "BROKEN" in text_of(request):
        return prints("NameError: name 'x' is not defined\n", outcome="failed", exit_code=1)
    return bombed(100)(request)


def test_an_incumbent_runs_once_for_each_three_crashes_and_keeps_its_place_where_it_runs_well(bench: Bench) -> None:
    """More would cost a user the night; and what is to be fixed is still the edit, with its own log."""
    bench.policy, bench.job = Breaking(), broken
    bench.run(10)
    experiments = bench.experiments()[2:]
    assert kept(bench) == [1]
    assert experiments[1].decision.label is Label.ILLEGAL_EDIT
    again = [(e.number, r.of, r.attempt) for e in experiments for r in e.runs if r.of is not None]
    assert again == [(6, 1, 0), (10, 1, 0)], "after three failed, the illegal edit not counted"
    ran = [e for e in experiments if e.runs]
    assert {e.decision.label for e in ran if e.decision} == {Label.ERROR}
    assert all("NameError" in e.asi.extra["failure"] for e in ran)
    assert [n for n, _ in bench.policy.logs] == [e.number for e in ran], "each was given back to be fixed, once"
    assert all("NameError" in log for _, log in bench.policy.logs)


def repeating(bench: Bench) -> None:
    bench.job = noisy


def beside_the_baseline(bench: Bench) -> None:
    bench.policy, bench.job = Writing(changing), held_back(bench)


def failing_beside(bench: Bench) -> None:
    job = held_back(bench)

    def failing(request: RunRequest) -> Script | str:
        run = run_of(bench, request)
        return prints("", exit_code=1) if run.of == 0 and run.experiment > 1 else job(request)

    bench.policy, bench.job = Writing(changing), failing


def poisoning(bench: Bench) -> None:
    bench.policy, bench.job = Writing(poison), poisoned(bench)


def bombing(bench: Bench) -> None:
    bench.policy, bench.job = Writing(building), bombed(2)


@pytest.mark.parametrize(
    ("scene", "history", "experiments", "keeps"),
    [
        (repeating, "refs", 3, None), (beside_the_baseline, "refs", 3, [1]), (failing_beside, "refs", 3, [1]),
        (poisoning, "refs", 3, [2, 3]), (poisoning, "revert", 3, [2, 3]), (bombing, "refs", 6, [6]),
    ],
)  # fmt: skip
def test_death_at_any_instant_changes_nothing(
    tmp_path: Path, scene: Callable[[Bench], None], history: str, experiments: int, keeps: list[int] | None
) -> None:
    """Neither what is run again, nor what loses its place."""

    def made(name: str) -> Bench:
        bench = Bench(tmp_path / name, task=f"history: {history}\n{TASK}")
        scene(bench)
        return bench

    count, reference = Doom(), made("reference")
    run_until_killed(reference, count, experiments)
    wanted, totals = outcome(reference), reference.store.totals(reference.session.id)
    assert keeps is None or kept(reference) == keeps
    for at in range(count.count // 3, count.count, max(1, count.count // 8)):
        bench = made(str(at))
        assert run_until_killed(bench, Doom(at), experiments)
        bench.run(experiments)
        found = bench.store.totals(bench.session.id)
        assert outcome(bench) == wanted, f"killed at instant {at}"
        assert (found.keeps, found.crashes) == (totals.keeps, totals.crashes), f"killed at instant {at}"
        assert bench.program() == reference.program(), f"killed at instant {at}"
        bench.close()
    reference.close()
