"""What is kept is an improvement and no luck: the sequential test, and the noise that it rests on."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoresearchd.evaluator.keep import (
    Action,
    KeepRule,
    Program,
    Reading,
    believe,
    estimate,
    look,
    passes,
)
from autoresearchd.evaluator.noise import Noise
from autoresearchd.evaluator.noise_data import NoiseData, Sample

E, I = Program.EXPERIMENT, Program.INCUMBENT  # noqa: E741
RULE = KeepRule()
SURE = Noise(1.0, 200)
BEFORE = [Reading(I, 0, seed, value) for seed, value in ((1, -0.5), (2, 0.0), (3, 0.5))]
value = st.floats(-50, 50).map(lambda x: round(x, 3))
noises = st.builds(Noise, st.floats(0.01, 10), st.integers(2, 40), test=st.floats(0, 0.6), seed=st.floats(0, 0.35))


@st.composite
def runs_of_two(draw: st.DrawFn) -> list[Reading]:
    """Runs of an incumbent, and a test of some pairs and single runs."""
    earlier = [Reading(I, 0, k, draw(value)) for k in range(draw(st.integers(1, 4)))]
    own = [Reading(E, 1, 10, draw(value))]
    own += [Reading(draw(st.sampled_from([E, I])), 1, draw(st.integers(10, 13)), draw(value)) for _ in range(3)]
    return earlier + own


def first(gain: float, noise: Noise = SURE, **more: object) -> Action:
    return look([*BEFORE, Reading(E, 1, 9, gain)], noise, RULE, **more).action  # type: ignore[arg-type]


def keeps(gain: float, noise: Noise = SURE) -> bool:
    """Whether two runs of the experiment and one of the incumbent beside them are enough."""
    here = [Reading(E, 1, 9, gain), Reading(I, 1, 9, 0.0), Reading(E, 1, 10, gain)]
    return look([*BEFORE, *here], noise, RULE, spent=2).action is Action.KEEP


class TestLook:
    """One look at what was measured."""

    def test_a_clear_loss_costs_one_run_and_a_clear_win_is_kept(self) -> None:
        assert first(-1.0) is Action.DISCARD and first(0.0) is Action.DISCARD
        assert keeps(8.0)

    def test_nothing_is_kept_on_one_run_of_its_own(self) -> None:
        """How noisy a new program is, one run does not tell: a far noisier one looks certain when it is lucky."""
        verdict = look([*BEFORE, Reading(E, 1, 9, 50.0), Reading(I, 1, 9, 0.0)], SURE, RULE, spent=1)
        assert (verdict.action, verdict.program, verdict.seed) == (Action.AGAIN, E, None)
        spent = look([*BEFORE, Reading(E, 1, 9, 50.0), Reading(I, 1, 9, 0.0)], SURE, RULE, spent=RULE.most)
        assert spent.action is Action.KEEP

    def test_two_standard_deviations_alone_are_never_enough(self) -> None:
        """Most edits change nothing: of results this good, many would be luck."""
        assert first(2.0 * math.sqrt(1 + 1 / 3)) is Action.AGAIN

    def test_the_extra_runs_of_one_experiment_are_bounded(self) -> None:
        assert first(2.0, spent=RULE.most) is Action.DISCARD

    def test_runs_that_do_not_hold_up_end_in_a_discard_and_those_that_do_in_a_keep(self) -> None:
        runs = [*BEFORE, Reading(E, 1, 9, 2.2)]
        bad = [*runs, Reading(E, 1, 10, -0.4), Reading(I, 1, 10, 0.1)]
        good = [*runs, Reading(E, 1, 10, 3.4), Reading(I, 1, 10, 0.1)]
        assert look(bad, SURE, RULE, spent=2).action is Action.DISCARD
        assert look(good, SURE, RULE, spent=2).action is Action.KEEP

    @pytest.mark.parametrize(
        ("gain", "simpler", "action"),
        [
            (1e-12, False, Action.AGAIN),
            (0.0, False, Action.DISCARD),
            (0.0, True, Action.SIMPLER),
            (-1e-12, True, Action.DISCARD),
        ],
    )
    def test_a_metric_without_noise_is_decided_by_its_sign(self, gain: float, simpler: bool, action: Action) -> None:
        runs = [Reading(I, 0, 1, 0.0), Reading(E, 1, 2, gain)]
        assert look(runs, Noise(0.0, 2), RULE, simpler=simpler).action is action

    def test_a_gain_without_noise_is_kept_once_a_second_run_has_the_same_value(self) -> None:
        readings = [Reading(I, 0, 1, 0.0), Reading(E, 3, 9, 1e-12)]
        for recheck in (False, True):
            asked = look(readings, Noise(0.0, 2), RULE, recheck=recheck)
            assert (asked.action, asked.program, asked.seed) == (Action.AGAIN, E, None)
            twice = [*readings, Reading(E, 3, 10, 1e-12)]
            assert look(twice, Noise(0.0, 3), RULE, spent=1, recheck=recheck).action is Action.KEEP
        assert look(readings, Noise(0.0, 2), replace(RULE, most=0)).action is Action.KEEP

    def test_ties_of_simpler_programs_share_the_extra_runs_that_a_session_may_make(self) -> None:
        tie = -0.3
        assert first(tie, simpler=True) is Action.AGAIN and first(tie) is Action.DISCARD
        for spent_by_session, action in ((25, Action.AGAIN), (60, Action.DISCARD)):
            assert first(tie, simpler=True, price=RULE.price(100, spent_by_session)) is action
        assert first(tie, simpler=True, price=RULE.price(100, 60), spent=1) is Action.AGAIN, "it has begun"

    def test_a_simpler_program_that_is_worse_is_not_kept(self) -> None:
        assert first(-3.0, simpler=True) is Action.DISCARD

    @given(runs_of_two(), noises, st.floats(0.001, 1000), st.floats(-1000, 1000))
    def test_scale_and_shift_of_the_metric_change_nothing(
        self, runs: list[Reading], noise: Noise, scale: float, shift: float
    ) -> None:
        moved = [Reading(r.program, r.test, r.seed, r.value * scale + shift) for r in runs]
        wide = Noise(noise.sigma * scale, noise.freedom, noise.test, noise.seed)
        a, b = look(runs, noise, RULE), look(moved, wide, RULE)
        assert b.better == pytest.approx(a.better, abs=1e-3)
        assert b.gain == pytest.approx(a.gain * scale, rel=1e-3, abs=1e-6 * (scale + abs(shift)))

    @given(runs_of_two(), noises, st.randoms())
    def test_the_order_in_which_runs_came_does_not_change_what_is_known(
        self, runs: list[Reading], noise: Noise, shuffler: random.Random
    ) -> None:
        other = list(runs)
        shuffler.shuffle(other)
        a, b = estimate(runs, noise), estimate(other, noise)
        assert b == pytest.approx(a, rel=1e-6, abs=1e-6)

    @given(st.floats(-5, 5), st.floats(0.01, 3), st.floats(0.05, 2), noises)
    def test_a_larger_gain_is_never_believed_less(
        self, gain: float, more: float, variance: float, noise: Noise
    ) -> None:
        less, greater = (believe(g * noise.sigma, variance, noise, RULE) for g in (gain, gain + more))
        assert greater.better >= less.better - 1e-9
        assert 0 <= less.material <= less.better + 1e-12 <= less.bearable + 1e-9 <= 1 + 1e-8


class TestEstimate:
    """Generalised least squares."""

    def test_what_a_pair_has_in_common_cancels(self) -> None:
        """The machine was slow by ten while the pair ran: unpaired it would look like a loss of nine."""
        runs = [Reading(I, 0, 1, 0.0), Reading(E, 1, 9, -9.0), Reading(I, 1, 9, -10.0)]
        gain, _ = estimate(runs, Noise(1.0, 20, test=0.6, seed=0.35))
        assert gain == pytest.approx(1.0, abs=0.5)
        assert estimate(runs, SURE)[0] == pytest.approx(-4.0)

    def test_a_gate_is_passed_with_a_margin_that_shrinks_with_runs(self) -> None:
        noise = Noise(1.0, 10)
        assert passes(0.5, 1, noise) < passes(0.5, 9, noise) < passes(2.0, 9, noise) <= 1
        assert passes(0.0, 4, noise) == pytest.approx(0.5)
        assert passes(0.0, 1, Noise(0.0, 3)) == 1.0 and passes(-1e-9, 1, Noise(0.0, 3)) == 0.0


class TestLedger:
    """σ from all repeats."""

    @staticmethod
    def simulated(test: float, seed: float, programs: int = 60) -> NoiseData:
        """Pairs of runs of two programs under known shares of the variance (the incumbent is program 0)."""
        source = random.Random(5)
        own = 1 - test - seed

        def run(program: int, at: int, shared: float, luck: dict[int, float], s: int) -> Sample:
            noise = math.sqrt(test) * shared + math.sqrt(seed) * luck[s] + math.sqrt(own) * source.gauss(0, 1)
            return Sample(program, at, s, 3.0 * noise)

        noise_data = NoiseData()
        for at in range(programs):
            shared, luck = source.gauss(0, 1), {s: source.gauss(0, 1) for s in range(4)}
            mine = [run(at, at, shared, luck, s) for s in range(4)]
            noise_data.take([*mine, *(run(0, at, shared, luck, s) for s in range(4) if at)])
        return noise_data

    @pytest.mark.parametrize(("test", "seed"), [(0.0, 0.0), (0.6, 0.0), (0.0, 0.6), (0.3, 0.4)])
    def test_the_parts_of_the_noise_are_found(self, test: float, seed: float) -> None:
        noise = self.simulated(test, seed).noise()
        assert noise is not None
        assert noise.sigma == pytest.approx(3.0, rel=0.2)
        assert noise.test == pytest.approx(test, abs=0.15) and noise.seed == pytest.approx(seed, abs=0.15)

    def test_equal_repeats_mean_that_there_is_no_noise_until_one_differs(self) -> None:
        noise_data = NoiseData([Sample(0, 0, s, 1.0) for s in range(3)])
        assert noise_data.noise() == Noise(0.0, 2)
        later = noise_data.with_samples([Sample(1, 1, 5, 2.0), Sample(0, 1, 5, 1.25)]).noise()
        assert later is not None and later.sigma > 0.05

    def test_a_ledger_read_back_after_a_restart_is_the_one_that_was_kept_up(self) -> None:
        samples = [Sample(0, 0, 1, 1.0), Sample(0, 0, 2, 2.0), Sample(1, 1, 5, 2.0), Sample(0, 1, 5, 1.0)]
        kept = NoiseData()
        kept.take(samples[:2])
        kept.take(samples[2:])
        again = NoiseData(samples)
        assert again.noise() == kept.noise() and (again.experiments, again.extra) == (kept.experiments, kept.extra)

    def test_the_noise_of_another_metric_is_known_as_well(self) -> None:
        noise_data = NoiseData([Sample(0, 0, s, 1.0, {"accuracy": a}) for s, a in enumerate((0.9, 0.92, 0.94))])
        for program in (0, 1):
            noise = noise_data.noise_of("accuracy", program)
            assert noise is not None and noise.sigma == pytest.approx(0.02) and noise.freedom == 2
        assert noise_data.noise_of("speed", 0) is None


@pytest.mark.parametrize("drift", [0.0, 0.7])
def test_of_a_hundred_edits_that_change_nothing_hardly_one_is_kept(drift: float) -> None:
    """The promise in small: 8 sessions of 60 edits without any effect, noise independent or mostly drift."""
    source, kept, extra = random.Random(11), 0, 0
    for _ in range(8):
        machine, seed = 0.0, 3

        def run() -> float:
            nonlocal machine
            machine = 0.92 * machine + 0.39 * source.gauss(0, 1)
            return math.sqrt(drift) * machine + math.sqrt(1 - drift) * source.gauss(0, 1)

        noise_data = NoiseData([Sample(0, 0, s, run()) for s in range(3)])
        for number in range(1, 61):
            seed += 1
            samples, verdict = [Sample(number, number, seed, run())], None
            price = RULE.price(noise_data.experiments, noise_data.extra)
            while verdict is None or verdict.action is Action.AGAIN:
                now = noise_data.with_samples(samples)
                noise = now.noise(number, 0)
                assert noise is not None
                verdict = look(now.readings(0, samples), noise, RULE, spent=len(samples) - 1, price=price)
                if verdict.action is Action.AGAIN:
                    seed += verdict.seed is None
                    program = number if verdict.program is E else 0
                    samples.append(Sample(program, number, verdict.seed or seed, run()))
            noise_data.take(samples)
            kept += verdict.action is Action.KEEP
            extra += len(samples) - 1
    assert kept <= 8
    assert extra <= 0.25 * 480 + 8 * (RULE.burst + RULE.most)


class TestRecheck:
    """A machine that was idle is faster at first: the baseline is run once more when it is warm."""

    def noise_data(self, tests: int) -> NoiseData:
        baseline = [Sample(0, 0, seed, 10.0 + seed / 10) for seed in (1, 2, 3)]
        return NoiseData([*baseline, *(Sample(n, n, 10 + n, 5.0) for n in range(1, tests + 1))])

    def test_it_is_due_after_two_experiments_and_once(self) -> None:
        assert [self.noise_data(tests).unchecked(0) for tests in (0, 1, 2, 3)] == [False, False, True, True]
        checked = self.noise_data(2).with_samples([Sample(3, 3, 13, 5.0), Sample(0, 3, 13, 5.1)])
        assert not checked.unchecked(0)

    def test_the_run_is_made_beside_an_experiment_that_would_have_been_discarded(self) -> None:
        readings = [*BEFORE, Reading(E, 3, 9, -4.0)]
        verdict = look(readings, SURE, RULE, recheck=True)
        assert (verdict.action, verdict.program, verdict.seed) == (Action.AGAIN, I, 9)
        after = look([*readings, Reading(I, 3, 9, 0.0)], SURE, RULE, spent=1, recheck=True)
        assert after.action is Action.DISCARD

    @pytest.mark.parametrize(("again", "sigma_is_zero"), [(0.75, True), (0.8, False)])
    def test_a_metric_that_seems_to_have_no_noise_is_checked_as_well(self, again: float, sigma_is_zero: bool) -> None:
        """An accuracy on few examples may agree three times by luck; then any other value would be an improvement."""
        noise_data = NoiseData([Sample(0, 0, seed, 0.75) for seed in (1, 2, 3)])
        for n in (1, 2):
            noise_data.take([Sample(n, n, 10 + n, 0.7)])
        samples = [Sample(3, 3, 13, 0.7)]
        exact = noise_data.with_samples(samples).noise(3, 0)
        assert exact is not None and exact.sigma == 0.0
        verdict = look(noise_data.readings(0, samples), exact, RULE, recheck=noise_data.unchecked(0))
        assert (verdict.action, verdict.program, verdict.seed) == (Action.AGAIN, I, 13)
        samples.append(Sample(0, 3, 13, again))
        now = noise_data.with_samples(samples)
        noise = now.noise(3, 0)
        assert noise is not None and (noise.sigma == 0.0) is sigma_is_zero
        after = look(now.readings(0, samples), noise, RULE, spent=1, recheck=noise_data.unchecked(0))
        assert after.action is Action.DISCARD

    def test_what_looked_hopeless_beside_a_rested_machine_gets_its_chance(self) -> None:
        noise_data = NoiseData([Sample(0, 0, seed, value) for seed, value in ((1, 9.9), (2, 10.0), (3, 10.1))])
        for n in (1, 2):
            noise_data.take([Sample(n, n, 10 + n, 8.9)])
        samples = [Sample(3, 3, 13, 9.6)]  # better than the incumbent is by now, worse than it was
        noise = noise_data.with_samples(samples).noise()
        assert noise is not None
        assert look(noise_data.readings(0, samples), noise, RULE).action is Action.DISCARD
        samples.append(Sample(0, 3, 13, 9.0))
        now = noise_data.with_samples(samples)
        noise = now.noise()
        assert noise is not None
        verdict = look(now.readings(0, samples), noise, RULE, spent=1, recheck=True)
        assert verdict.action is Action.AGAIN and verdict.gain > 0
