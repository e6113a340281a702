"""What is confirmed is an improvement and no luck: the belief about the tip, and the test beside what is confirmed."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoresearchd.domain.confirmation import Verdict
from autoresearchd.domain.experiment import Decision, Experiment, Run
from autoresearchd.domain.labels import Label, Outcome, Status
from autoresearchd.domain.task import Constraint, Direction, Task
from autoresearchd.evaluator.keep.confirm import RULE, Ask, doubt, due, next_step
from autoresearchd.evaluator.keep.tip_belief import (
    Before,
    Step,
    TipBelief,
    begin,
    beside,
    dump,
    follow,
    load,
    look,
    regret,
    replay,
)
from autoresearchd.store.schema.codec import jsonable
from tests.unit.evaluator.builders import experiment, run, scoring, task

UP = task(scoring(direction=Direction.MAXIMIZE))
TIP, CONFIRMED = 9, 4
Program = Callable[[random.Random], float]


def normal(centre: float, sigma: float = 1.0) -> Program:
    return lambda source: source.gauss(centre, sigma)


def session(
    source: random.Random, edits: int, effect: Callable[[], float], noise: Callable[[], float]
) -> tuple[float, TipBelief, int]:
    """The tip's true value, what is believed of it, and the number of keeps, after some edits."""
    truth, keeps, belief = 0.0, 0, begin([noise() for _ in range(3)])
    for _ in range(edits):
        e = effect()
        found = look(belief, truth + e + noise())
        kept = found.gain > 0
        truth, keeps, belief = truth + e * kept, keeps + kept, found.kept if kept else found.discarded
    return truth, belief, keeps


class TestBelief:
    """What is believed of the tip."""

    def test_lucky_values_are_not_believed(self) -> None:
        """Of 60 edits without effect the best looks 2.3σ better: were that believed, nothing true would be kept."""
        off, errors = [], []
        for seed in range(20):
            source = random.Random(seed)
            truth, belief, _ = session(source, 60, lambda: 0.0, lambda s=source: s.gauss(0.0, 1.0))
            off.append(belief.level - truth)
            errors.append(belief.error)
        assert abs(float(np.mean(off))) < 0.5 and max(map(abs, off)) < 1.5
        assert 0.05 < float(np.mean(errors)) < 1.0

    @pytest.mark.parametrize("sigma", [1.0, 1e-6, 1e6])
    def test_true_gains_add_up_and_the_noise_is_found(self, sigma: float) -> None:
        truths, off, found = [], [], []
        for seed in range(12):
            source = random.Random(seed)
            gains = lambda s=source: sigma * s.choice([-4.0, -1.0, 0.0, 0.0, 0.0, 3.0])  # noqa: E731
            truth, belief, _ = session(source, 60, gains, lambda s=source: s.gauss(0.0, sigma))
            truths.append(truth / sigma)
            off.append((belief.level - truth) / sigma)
            found.append(belief.sigma / sigma)
        assert float(np.mean(truths)) > 22.0, "of about 30 on offer"
        assert abs(float(np.mean(off))) < 1.0 and 0.7 < float(np.median(found)) < 1.5

    def test_noise_that_falls_is_followed(self) -> None:
        """Else, once losses are small, gains of many σ would be taken for noise."""
        source = random.Random(5)
        belief = begin([source.gauss(0.0, 1.0) for _ in range(3)])
        for _ in range(60):
            belief = look(belief, source.gauss(0.0, 0.1)).discarded
        assert belief.sigma < 0.2 and look(belief, 0.5).in_sigma > 0.5 > look(begin([-1.0, 0.0, 1.0]), 0.5).in_sigma

    def test_one_far_noisier_program_changes_little(self) -> None:
        source = random.Random(6)
        belief = begin([-1.0, 0.0, 1.0])
        for k in range(40):
            belief = look(belief, source.gauss(0.0, 8.0 if k == 4 else 1.0)).discarded
        assert abs(belief.level) < 0.8 and belief.sigma < 2.0

    def test_a_metric_that_changes_its_unit_is_no_reading_of_the_tip(self) -> None:
        """Nats printed as bits, a share as percent: the noise and the level of what was there stay as they were."""
        belief = begin([0.61, 0.62, 0.63])
        for y in (61.0, -4000.0):
            found = look(belief, y)
            assert found.discarded.level == pytest.approx(0.62, abs=0.01)
            assert found.kept.level == pytest.approx(y, rel=0.01) and found.kept.sigma < 0.03
        there = look(belief, 61.0).kept
        assert look(there, 60.0).better < 0.1 < 0.9 < look(there, 62.0).better

    def test_the_same_value_to_the_last_digit_says_nothing_of_noise(self) -> None:
        belief = begin([-1.0, 0.0, 1.0])
        for _ in range(50):
            belief = look(belief, -1.0).discarded
        assert belief.sigma > 0.5 and look(belief, 0.3).better < 0.5

    @given(
        st.lists(st.floats(-20, 20).map(lambda x: round(x, 2)), min_size=4, max_size=12),
        st.floats(0.001, 1000),
        st.floats(-1000, 1000),
    )
    def test_scale_and_shift_of_the_metric_change_nothing(
        self, values: list[float], scale: float, shift: float
    ) -> None:
        base, moved = [-0.5, 0.1, 0.6], [x * scale + shift for x in (-0.5, 0.1, 0.6)]
        a, b = begin(base), begin(moved)
        for x in values:
            one, two = look(a, x), look(b, x * scale + shift)
            assert two.better == pytest.approx(one.better, abs=1e-3)
            assert two.gain == pytest.approx(one.gain * scale, rel=1e-3, abs=1e-6 * (scale + abs(shift)))
            a, b = one.discarded, two.discarded

    @given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=2, max_size=10), st.booleans())
    def test_no_values_make_it_lose_its_mind(self, values: list[float], kept: bool) -> None:
        belief = begin(values[:2])
        for x in values:
            found = look(belief, x)
            numbers = (found.gain, found.error, found.better, found.bearable)
            assert all(map(math.isfinite, numbers)) and 0.0 <= found.better <= found.bearable + 1e-9 <= 1.0 + 1e-6
            belief = found.kept if kept else found.discarded
            assert math.isfinite(belief.level) and math.isfinite(belief.error) and belief.sigma >= 0.0

    def test_a_restart_believes_what_was_believed(self) -> None:
        source, values = random.Random(3), [0.1, -0.3, 0.2]
        steps = [Step(source.gauss(0.0, 1.0), source.random() < 0.2, k % 9 == 8) for k in range(30)]
        belief = begin(values)
        for step in steps[:20]:
            belief = follow(belief, step)
        stored = json.dumps(dump(belief))
        for step in steps[20:]:
            belief = follow(belief, step)
        again = replay(values, steps)
        assert again is not None and (again.level, again.error, again.sigma) == (
            belief.level,
            belief.error,
            belief.sigma,
        )
        assert replay([1.0], steps) is None, "one run says nothing of noise"
        later = load(json.loads(stored))
        for step in steps[20:]:
            later = follow(later, step)
        assert dump(later) == dump(belief)

    def test_what_is_believed_of_a_long_chain_is_stored_whole(self) -> None:
        """Else a restart late in the night replays all of it: JSON goes 64 levels deep."""
        belief = begin([0.1, -0.3, 0.2])
        for k in range(50):
            belief = follow(belief, Step(2.0 * k, kept=True))
        assert dump(load(jsonable(dump(belief)))) == dump(belief)

    def test_after_a_fall_a_level_that_is_none_any_more_counts_for_nothing(self) -> None:
        """What an older version confirmed, or a metric that has another unit now: nothing true would be kept."""
        belief = begin([0.1, -0.3, 0.2])
        assert abs(follow(belief, Step(1.5, fell=True, runs=2)).level) < 1.0, "another seed's luck"
        for k in range(1, 11):
            belief = follow(belief, Step(2.0 * k, kept=True))
        assert abs(follow(belief, Step(20.0, fell=True, runs=2)).level - 20.0) < 1.0

    def test_a_belief_of_another_grid_is_refused(self) -> None:
        """A version with other effects must not go on from counts of these."""
        state = dump(begin([0.1, -0.3, 0.2]))
        with pytest.raises(ValueError, match="shapes"):
            load({**state, "counts": state["counts"][:-1]})

    def test_a_keep_that_what_is_built_on_it_speaks_against_is_taken_back(self) -> None:
        """Each reading of an edit that changes little is one of the tip, and so of the last keep."""
        found = stood = 0
        for k in range(40):
            source = random.Random(k)
            belief = begin([source.gauss(0.0, 1.0) for _ in range(3)])
            for _ in range(10):
                belief = follow(belief, Step(source.gauss(0.0, 1.0)))
            harm = gain = follow(belief, Step(3.0, kept=True))
            doubted = False
            for _ in range(12):
                harm, gain = (follow(b, Step(source.gauss(at, 1.0))) for b, at in ((harm, -1.5), (gain, 3.0)))
                if regret(harm) is not None:
                    harm, found = follow(harm, Step(0.0, back=True)), found + 1
                doubted |= regret(gain) is not None
            stood += not doubted
        assert found >= 34 and stood >= 38

    def test_a_simplification_that_changes_nothing_hides_no_harm_of_the_keep_below_it(self) -> None:
        """Else the harmless one would be taken back, and the harmful one could not be any more."""
        source = random.Random(1)
        belief = begin([source.gauss(0.0, 1.0) for _ in range(3)])
        for step in [Step(source.gauss(0.0, 1.0)) for _ in range(10)] + [Step(3.0, kept=True), Step(3.0, kept=True)]:
            belief = follow(belief, step)
        assert belief.before is not None and belief.before.was.before is not None, "a link for each keep"
        for _ in range(12):
            belief = follow(belief, Step(source.gauss(-1.5, 1.0)))
        assert regret(belief) is None
        below = follow(belief, Step(0.0, back=True))
        assert below.level == pytest.approx(belief.level) and regret(below) is not None

    def test_the_value_of_the_baseline_on_another_seed_is_a_value_like_any(self) -> None:
        """Of a coarse metric: else a gain that meets it would be said to change nothing."""
        belief = begin([0.5, 0.6, 0.7])
        assert look(belief, 0.7).gain > 0.0 == look(belief, 0.5).gain

    @pytest.mark.parametrize("lie", [4.0, 30.0, 1e6])
    @pytest.mark.parametrize("runs", [0, 2])
    def test_after_a_fall_gains_are_those_over_what_is_confirmed(self, lie: float, runs: int) -> None:
        """Else one edit that runs well once would have all that is better than the confirmed program discarded."""
        source = random.Random(5)
        belief = begin([source.gauss(0.0, 1.0) for _ in range(3)])
        for step in [Step(source.gauss(-1.0, 1.0)) for _ in range(4)] + [Step(lie, kept=True), Step(lie + 2.0, True)]:
            belief = follow(belief, step)
        assert belief.level > 0.5 * lie
        fallen = follow(belief, Step(0.0, fell=True, runs=runs))
        assert abs(fallen.level) < 1.0 and look(fallen, 6.0).gain > 2.0 and look(fallen, -3.0).gain < 0.0
        again = follow(follow(fallen, Step(9.0, kept=True)), Step(0.0, fell=True))
        assert abs(again.level) < 1.0, "however often"

    def test_a_run_made_beside_is_all_that_counts_of_the_tip(self) -> None:
        belief = beside(begin([0.0, 1.0, 2.0]), 50.0)
        assert look(belief, 50.1).gain < 1.0 and look(belief, 80.0).gain > 10.0


# ---------------------------------------------------------------------- confirmations
def made(ask: Ask, value: float | None, seed: int, label: Label = Label.NONE, **more: float) -> Run:
    at = seed if ask.seed is None else ask.seed
    return replace(run(value, label, metrics=more), experiment=TIP, seed=at, of=None if ask.of_tip else CONFIRMED)


def confirm(
    tip: Program,
    confirmed: Program,
    belief: TipBelief | None,
    seed: int = 0,
    *,
    machine: Callable[[], float] = lambda: 0.0,
    t: Task = UP,
    figures: Callable[[random.Random, bool], Mapping[str, float]] = lambda source, of_tip: {},
    simpler: bool = False,
    level: bool = True,
) -> tuple[Verdict, list[Run]]:
    """A whole confirmation of simulated programs."""
    source, runs = random.Random(seed), list[Run]()
    while True:
        step = next_step(t, runs, belief, simpler=simpler, level=level)
        if isinstance(step, Verdict):
            return step, runs
        value = (tip if step.of_tip else confirmed)(source) + machine()
        runs.append(made(step, value, 100 + len(runs), **figures(source, step.of_tip)))


@cache
def believed(seed: int, drift: float = 0.0) -> TipBelief:
    """After a baseline at 0 with σ = 1, and 30 edits that changed nothing. drift: share of the machine."""
    source, machine = random.Random(1000 + seed), drifting(seed, drift)
    noise = lambda: source.gauss(0.0, math.sqrt(1.0 - drift)) + machine()  # noqa: E731
    belief = begin([noise() for _ in range(3)])
    for _ in range(30):
        belief = look(belief, noise()).discarded
    return belief


def drifting(seed: int, drift: float) -> Callable[[], float]:
    """What the machine adds to one run after the other: correlated over a dozen of them."""
    source = random.Random(2000 + seed)
    state = [source.gauss(0.0, 1.0)]

    def machine() -> float:
        state[0] = 0.92 * state[0] + 0.39 * source.gauss(0.0, 1.0)
        return math.sqrt(drift) * state[0]

    return machine


def share(outcome: Outcome, times: int, tip: Program, **more: bool) -> float:
    found = [confirm(tip, normal(0.0), believed(s), s, **more)[0].outcome for s in range(times)]
    return found.count(outcome) / times


class TestConfirmation:
    """The tip beside the confirmed program."""

    def test_runs_come_in_pairs_on_one_seed_and_the_order_alternates(self) -> None:
        _, runs = confirm(normal(0.8, 1e-3), normal(0.0), believed(1), 3)
        assert [r.of for r in runs[:8]] == [None, CONFIRMED, None, CONFIRMED, CONFIRMED, None, CONFIRMED, None]
        assert all(a.seed == b.seed for a, b in zip(runs[::2], runs[1::2], strict=True))
        assert len({r.seed for r in runs}) == len(runs) // 2
        assert len(runs) <= 2 * RULE.limit

    def test_true_gains_are_confirmed_soon_and_explained(self) -> None:
        assert share(Outcome.CONFIRMED, 60, normal(8.0)) >= 0.95
        verdict, runs = confirm(normal(8.0), normal(0.0), believed(0))
        assert len(runs) <= 6 and verdict.gain == pytest.approx(8.0, abs=2.0) and (verdict.error or 9.0) < 4.0
        assert (verdict.probability or 0.0) >= RULE.at
        assert f"Experiment {TIP} is" in verdict.reason and f"better than experiment {CONFIRMED} over" in verdict.reason

    def test_what_brings_nothing_is_hardly_ever_confirmed(self) -> None:
        assert share(Outcome.CONFIRMED, 150, normal(0.0)) <= 0.05
        assert share(Outcome.CONFIRMED, 150, normal(-1.0)) <= 0.02

    def test_what_only_raises_the_noise_is_hardly_ever_confirmed(self) -> None:
        for factor in (3.0, 10.0, 30.0):
            assert share(Outcome.CONFIRMED, 150, normal(0.0, factor)) <= 0.06

    def test_a_lucky_seed_of_the_programs_own_is_no_gain_however_often_it_runs(self) -> None:
        """What is far better may well be as much steadier."""
        for luck, left in ((1.5, 0.0), (3.0, 0.0), (1.5, 0.1)):  # left: of its noise, as on a GPU
            assert share(Outcome.CONFIRMED, 60, normal(luck, left)) <= 0.15
        assert share(Outcome.CONFIRMED, 40, normal(20.0, 0.0)) >= 0.95
        assert "as if it had one of its own" in confirm(normal(3.0, 0.0), normal(0.0), believed(0))[0].reason

    def test_an_accuracy_that_is_always_right_is_not_called_luck(self) -> None:
        """Nothing can be better than 1, so it says nothing that the program gives it on every seed."""
        belief = begin([0.97, 0.96, 0.98])
        verdict, _ = confirm(normal(1.0, 0.0), normal(0.97, 0.01), belief)
        assert verdict.outcome is Outcome.UNDECIDED and "its program tells" in verdict.reason
        verdict, _ = confirm(normal(0.6, 0.0), normal(0.57, 0.01), begin([0.57, 0.56, 0.58]))
        assert verdict.outcome is Outcome.FELL

    def test_a_program_that_does_worse_when_it_runs_again_falls(self) -> None:
        assert share(Outcome.FELL, 40, normal(-3.0)) >= 0.95

    def test_the_drift_of_the_machine_confirms_nothing(self) -> None:
        same, drift = normal(0.0, math.sqrt(0.3)), 0.7
        found = [confirm(same, same, believed(s, drift), s, machine=drifting(s, drift))[0].outcome for s in range(150)]
        assert found.count(Outcome.CONFIRMED) <= 6

    def test_seeds_on_which_programs_differ_more_than_on_that_of_the_experiments(self) -> None:
        """On one seed edits that do little change nothing, so that the noise seems to be none."""
        belief = begin([-1.0, 0.2, 1.0])
        for k in range(60):
            belief = look(belief, 0.2 + 1e-3 * (k % 7)).discarded
        assert belief.sigma < 0.1
        found = [confirm(normal(0.0), normal(0.0), belief, s)[0].outcome for s in range(150)]
        assert found.count(Outcome.CONFIRMED) <= 12

    def test_without_noise_two_pairs_must_show_the_gain_again(self) -> None:
        exact = look(begin([1.0, 1.0, 1.0]), 1.2).kept
        verdict, runs = confirm(normal(1.2, 0.0), normal(1.0, 0.0), exact)
        assert verdict.outcome is Outcome.CONFIRMED and len(runs) == 4 and "no noise" in verdict.reason
        for tip in (1.0, 0.9, 1.00001):
            other = look(begin([1.0, 1.0, 1.0]), tip).kept
            assert confirm(normal(tip, 0.0), normal(1.0, 0.0), other)[0].outcome is Outcome.FELL
        other_budget, runs = confirm(normal(7.2, 0.0), normal(5.0, 0.0), exact, level=False)
        assert (other_budget.outcome, other_budget.error, len(runs)) == (Outcome.CONFIRMED, 0.0, 4)
        liar, runs = confirm(normal(0.9, 0.0), normal(1.0, 0.0), exact)
        assert liar.outcome is Outcome.FELL and len(runs) <= 2 * RULE.limit

    def test_a_coarse_metric_that_gave_one_value_three_times_confirms_no_luck(self) -> None:
        """An accuracy on 50 examples: three equal values say that there is no noise, and there is."""
        accuracy = lambda source: round(source.gauss(0.8, 0.03) * 50) / 50  # noqa: E731
        exact = look(begin([0.8, 0.8, 0.8]), 0.86).kept
        found = [confirm(accuracy, accuracy, exact, s)[0].outcome for s in range(200)]
        assert found.count(Outcome.CONFIRMED) <= 10
        one_more = look(begin([0.8, 0.8, 0.8]), 0.82).kept  # a step of one example, which is half a σ or two
        for sigma in (0.01, 0.02, 0.04):
            accuracy = lambda source, s=sigma: round(source.gauss(0.8, s) * 50) / 50  # noqa: E731
            found = [confirm(accuracy, accuracy, one_more, s)[0].outcome for s in range(200)]
            assert found.count(Outcome.CONFIRMED) <= 14
        better = lambda source: round(source.gauss(0.95, 0.01) * 50) / 50  # noqa: E731
        found = [confirm(better, accuracy, exact, s)[0].outcome for s in range(40)]
        assert found.count(Outcome.CONFIRMED) >= 32

    def test_where_nothing_is_known_of_noise_the_pairs_themselves_tell(self) -> None:
        found = [confirm(normal(0.0), normal(0.0), None, s)[0].outcome for s in range(200)]
        assert found.count(Outcome.CONFIRMED) <= 10
        found = [confirm(normal(10.0), normal(0.0), None, s)[0].outcome for s in range(40)]
        assert found.count(Outcome.CONFIRMED) >= 36
        assert confirm(normal(2.0, 0.0), normal(1.0, 0.0), None)[0].outcome is Outcome.CONFIRMED

    def test_a_program_without_noise_says_nothing_of_another_one_s(self) -> None:
        """An edit that brings chance into a program that had none is lucky in half of its runs."""
        for belief in (None, begin([0.0, 0.0, 0.0])):
            found = [confirm(normal(0.0), normal(0.0, 0.0), belief, s, level=False)[0].outcome for s in range(300)]
            assert found.count(Outcome.CONFIRMED) <= 15

    def test_a_tie_with_a_simpler_program_is_confirmed_and_a_loss_is_not(self) -> None:
        assert share(Outcome.CONFIRMED, 60, normal(0.0), simpler=True) >= 0.45
        assert share(Outcome.CONFIRMED, 60, normal(-2.0), simpler=True) <= 0.1

    @pytest.mark.parametrize("direction", Direction)
    def test_the_direction_of_the_metric_decides_what_is_better(self, direction: Direction) -> None:
        sign = 1.0 if direction is Direction.MAXIMIZE else -1.0
        t = task(scoring(direction=direction))
        up, _ = confirm(normal(sign * 9.0), normal(0.0), believed(0), t=t)
        down, _ = confirm(normal(-sign * 9.0), normal(0.0), believed(0), t=t)
        assert (up.outcome, down.outcome) == (Outcome.CONFIRMED, Outcome.FELL)
        assert (up.gain or 0.0) > 0 > (down.gain or 0.0)

    def test_huge_values_are_judged_as_well(self) -> None:
        for huge in (1e99, 1e150, 1.5e308):
            verdict, _ = confirm(normal(huge, 0.0), normal(1.0), believed(0))
            assert verdict.outcome is Outcome.CONFIRMED and math.isfinite(verdict.gain or 0.0)

    def test_it_ends_undecided_where_its_pairs_do_not_tell(self) -> None:
        found = [confirm(normal(0.9), normal(0.0), believed(s), s) for s in range(20)]
        undecided = [(v, r) for v, r in found if v.outcome is Outcome.UNDECIDED]
        assert undecided and all(len(r) == 2 * RULE.limit and "not sure enough" in v.reason for v, r in undecided)

    def test_an_interrupted_run_is_asked_for_again_whenever_that_was(self) -> None:
        """Whatever run a kill -9 cuts off, the confirmation goes on as without."""
        whole, runs = confirm(normal(3.0), normal(0.0), believed(2), 5)
        for k in range(len(runs)):
            asked = next_step(UP, runs[:k], believed(2))
            lost = replace(runs[k], label=Label.INTERRUPTED, value=None)
            under_way = replace(runs[k], finished_at=None, value=None)
            for cut in (lost, under_way):
                assert next_step(UP, [*runs[:k], cut], believed(2)) == asked
                again = [*runs[:k], cut, *runs[k:]]
                assert next_step(UP, again, believed(2)) == whole

    @pytest.mark.parametrize(("of_tip", "outcome"), [(True, Outcome.FELL), (False, Outcome.UNDECIDED)])
    def test_a_program_that_fails_twice_ends_it(self, of_tip: bool, outcome: Outcome) -> None:
        runs: list[Run] = []
        while not isinstance(step := next_step(UP, runs, believed(0)), Verdict):
            bad = step.of_tip is of_tip
            label = Label.OOM if bad else Label.NONE
            runs.append(made(step, None if bad else 1.0, 100 + len(runs), label))
            assert len(runs) < 9
        assert step.outcome is outcome and "failed 2 times" in step.reason and "oom" in step.reason

    def test_where_nothing_runs_any_more_no_chain_falls(self) -> None:
        """A driver that is gone, data that is not mounted: a night of keeps would be lost for it."""
        runs: list[Run] = []
        while not isinstance(step := next_step(UP, runs, believed(0)), Verdict):
            runs.append(made(step, None, 100 + len(runs), Label.ERROR))
            assert len(runs) <= 4
        assert step.outcome is Outcome.UNDECIDED and f"Experiment {CONFIRMED}, beside it, failed 2 times" in step.reason

    def test_a_run_that_failed_once_is_bad_luck(self) -> None:
        runs = [made(Ask(True, None), None, 100, Label.OOM)]
        while len(runs) < 4:
            step = next_step(UP, runs, believed(0))
            assert isinstance(step, Ask)
            runs.append(made(step, 20.0 if step.of_tip else 0.1, 200 + len(runs)))
        verdict = next_step(UP, runs, believed(0))
        assert isinstance(verdict, Verdict) and verdict.outcome is Outcome.CONFIRMED


GATED = task(scoring(direction=Direction.MAXIMIZE, constraints=(Constraint("accuracy", min=0.96),)))


class TestGates:
    """A bound on a metric that varies is held with a confidence limit, not by luck."""

    @staticmethod
    def verdict(centre: float, spread: float = 0.001) -> Verdict:
        def figures(source: random.Random, of_tip: bool) -> Mapping[str, float]:
            return {"accuracy": source.gauss(centre if of_tip else 0.97, spread)}

        return confirm(normal(9.0), normal(0.0), believed(0), 1, t=GATED, figures=figures)[0]

    def test_a_better_program_well_inside_its_bound_is_confirmed(self) -> None:
        assert self.verdict(0.965).outcome is Outcome.CONFIRMED

    def test_one_that_hangs_about_its_bound_is_not(self) -> None:
        for centre in (0.9601, 0.9595):
            found = self.verdict(centre)
            assert found.outcome is Outcome.FELL and "accuracy" in found.reason

    def test_one_that_breaks_it_falls_at_once(self) -> None:
        found = self.verdict(0.9)
        assert found.outcome is Outcome.FELL and "below its limit of 0.96" in found.reason


def kept(number: int, gain: float, sigma: float | None = 1.0) -> Experiment:
    return experiment(number=number, decision=Decision(Status.KEEP, Label.NONE, 1.0, delta=gain, sigma=sigma))


class TestDue:
    """When a confirmation begins."""

    def test_enough_gain_must_be_believed(self) -> None:
        chain = [kept(3, 10.0), kept(5, -1.0), kept(8, 16.0)]
        assert due(chain, [], every=25.0, runs=50, extra=0) and not due(chain[:2], [], every=25.0, runs=50, extra=0)
        assert not due([], [], every=0.0, runs=50, extra=0)

    def test_each_keep_is_confirmed_at_once_where_a_user_wants_it(self) -> None:
        assert due([kept(3, 0.1)], [], every=0.0, runs=50, extra=40)
        assert not due([kept(3, 0.1)], [7], every=0.0, runs=50, extra=40), "but the same chain not over and over"

    def test_runs_spent_on_confirmations_are_bounded(self) -> None:
        sure = [kept(3, 100.0)]
        assert due(sure, [], every=25.0, runs=100, extra=7) and not due(sure, [], every=25.0, runs=100, extra=8)

    def test_what_was_tested_without_a_verdict_counts_half(self) -> None:
        chain = [kept(3, 30.0), kept(9, 5.0)]
        assert not due(chain, [4], every=25.0, runs=100, extra=0)
        assert due([*chain, kept(11, 6.0)], [4], every=25.0, runs=100, extra=0)

    def test_without_noise_any_gain_is_enough(self) -> None:
        assert due([kept(3, 1e-3, 0.0)], [], every=25.0, runs=9, extra=0)
        assert due([kept(3, 1e-3, None)], [], every=25.0, runs=9, extra=0)


def test_a_keep_that_is_taken_back_is_not_said_to_be_worse_by_less_than_nothing() -> None:
    """Two hypotheses of σ: a loss of two σ under the small one weighs more than a small gain under the large one."""
    none = np.zeros(2)
    was = replace(begin([0.0, 1.0, 2.0]), sigmas=np.array([0.01, 1.0]), weights=np.array([0.5, 0.5]), levels=none)
    before = Before(was, np.array([0.02, -0.1]), none, none, none, none)
    belief = replace(was, variances=none, before=before)
    verdict = doubt(experiment(number=TIP), experiment(number=CONFIRMED), belief)
    assert verdict is not None and verdict.outcome is Outcome.FELL
    assert f"experiment {TIP} is believed to be no better than experiment {CONFIRMED} ± " in verdict.reason
