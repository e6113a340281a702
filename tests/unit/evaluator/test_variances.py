"""Programs that differ in their noise: one noisy program hides no gain of another, and equal ones stay equal."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoresearchd.domain.experiment import Decision, Experiment, Run
from autoresearchd.domain.labels import Status
from autoresearchd.evaluator.decide import NextRun, decide
from autoresearchd.evaluator.keep import Action, KeepRule, look
from autoresearchd.evaluator.noise import Squares, VariancePrior, alike, weighed_priors
from autoresearchd.evaluator.noise_data import NoiseData, Sample
from tests.unit.evaluator.builders import experiment, incumbent, run, task

squares = st.lists(st.builds(Squares, st.floats(0.0, 1e3), st.integers(1, 9)), min_size=1, max_size=8)
NUMBER = 16
EARLY = {
    0: (4.15, 4.20, 4.25),
    3: (3.94, 4.30, 4.04, 4.36, 3.99, 4.21),
    5: (3.50, 3.60),
    8: (1.00, 1.03),
    14: (0.1850, 0.2075, 0.2294),
}
"""Losses of the programs that ran more than once, by number; the last of them is the incumbent."""
BETTER = (0.1256, 0.130, 0.141, 0.119, 0.135, 0.128, 0.132, 0.124, 0.130)
BESIDE = (0.205, 0.230, 0.190, 0.222, 0.213, 0.240, 0.200, 0.215)


def simulated(*sigmas: float, runs: int = 5) -> list[Squares]:
    """What runs of programs with these σ show."""
    source, found = random.Random(3), []
    for sigma in sigmas:
        values = [source.gauss(0.0, sigma) for _ in range(runs)]
        centre = sum(values) / runs
        found.append(Squares(sum((v - centre) ** 2 for v in values), runs - 1))
    return found


class TestPriors:
    """How much programs differ is learnt from their runs."""

    def test_one_noisy_program_moves_the_centre_little_and_the_pool_much(self) -> None:
        quiet = simulated(*[0.02] * 5)
        noisy = [*quiet, *simulated(0.5)]
        before, after = (next(p for p in weighed_priors(x) if p.freedom == 2.0).centre for x in (quiet, noisy))
        assert after < 3.0 * before
        assert alike(noisy).centre > 30.0 * alike(quiet).centre

    def test_a_program_without_a_repeat_is_as_noisy_as_the_one_that_it_was_made_from(self) -> None:
        prior, once = VariancePrior(1.0, 4.0, 1.0), (Squares(), 1)
        calm, noisy = (prior.compare([once, (Squares(9 * v, 9), 10)], 99)[0] for v in (0.01, 100.0))
        assert calm == pytest.approx(math.sqrt(prior.variance(Squares(0.09, 9))))
        assert noisy == pytest.approx(math.sqrt(prior.variance(Squares(900.0, 9))))

    def test_repeats_that_are_equal_by_chance_do_no_harm(self) -> None:
        priors = weighed_priors([Squares(0.0, 1), Squares(0.0, 2), Squares(3.0, 2)])
        assert sum(p.weight for p in priors) == pytest.approx(1.0)
        assert all(p.centre > 0 for p in priors)

    @given(squares.filter(lambda x: sum(p.total for p in x) > 1e-3), st.floats(1e-6, 1e6))
    def test_the_unit_of_the_metric_changes_nothing(self, programs: list[Squares], unit: float) -> None:
        priors = weighed_priors(programs)
        scaled = weighed_priors([Squares(p.total * unit, p.freedom) for p in programs])
        for a, b in zip(priors, scaled, strict=True):
            assert b.weight == pytest.approx(a.weight, rel=1e-6, abs=1e-9)
            assert b.centre == pytest.approx(a.centre * unit, rel=1e-6)


class TestNoise:
    """σ of the programs that are compared."""

    @staticmethod
    def noise_data(*sigmas: float) -> NoiseData:
        source, found = random.Random(7), NoiseData()
        for n, sigma in enumerate(sigmas):
            found.take([Sample(n, n, 10 * n + k, source.gauss(-1.0, sigma)) for k in range(5)])
        return found

    def test_it_is_that_of_the_programs_own_runs_where_programs_differ(self) -> None:
        noise_data = self.noise_data(0.02, 0.03, 0.5, 0.01, 0.05)
        noise = [noise_data.noise(p) for p in range(5)]
        pooled = noise_data.noise()
        assert pooled is not None and pooled.sigma > 0.15
        assert all(n is not None and n.sigma < 0.07 for p, n in enumerate(noise) if p != 2)
        assert noise[2] is not None and noise[2].sigma > 0.2

    def test_it_is_hardly_another_one_where_they_do_not(self) -> None:
        noise_data = self.noise_data(*[1.0] * 12)
        pooled = noise_data.noise()
        assert pooled is not None
        for p in range(12):
            own = noise_data.noise(p)
            assert own is not None and own.sigma == pytest.approx(pooled.sigma, rel=0.2)


class TestSession:
    """A session whose loss fell from 4.2 to 0.2 while one early program was ten times as noisy as the incumbent."""

    def noise_data(self) -> NoiseData:
        noise_data = NoiseData()
        for n in range(NUMBER):
            losses = EARLY.get(n, (4.5 if n < 14 else 0.5,))
            samples = [Sample(n, n, 100 * n + k, -x) for k, x in enumerate(losses)]
            beside = [Sample(0, n, 100 * n, -4.23)] if n == 2 else []
            noise_data.take([*samples, *beside])
        return noise_data

    def before(self) -> Experiment:
        return replace(incumbent(*EARLY[14]), number=14)

    def decided(self, own: tuple[float, ...], beside: tuple[float, ...]) -> tuple[Decision, int]:
        """The decision on an experiment whose runs, and the incumbent's beside it, give these values one by one."""
        left: dict[int | None, list[float]] = {None: list(own), 14: list(beside)}
        asked, runs = NextRun(None, None, ""), list[Run]()
        while True:
            seed = 100 * NUMBER + len(runs) if asked.seed is None else asked.seed
            value = left[asked.of].pop(0)
            runs.append(replace(run(value), experiment=NUMBER, index=len(runs), seed=seed, of=asked.of))
            tried = replace(experiment(*runs), number=NUMBER)
            found = decide(task(), tried, self.before(), self.noise_data())
            if isinstance(found, Decision):
                return found, len(runs)
            asked = found

    def test_with_one_noise_for_all_programs_a_gain_of_a_third_was_not_even_run_again(self) -> None:
        noise_data = self.noise_data()
        samples = [Sample(NUMBER, NUMBER, 4100, -BETTER[0])]
        now = noise_data.with_samples(samples)
        pooled, noise = now.noise(), now.noise(NUMBER, 14)
        assert pooled is not None and noise is not None
        assert pooled.sigma == pytest.approx(0.12, abs=0.005) and pooled.freedom == 12
        readings, price = now.readings(14, samples), KeepRule().price(noise_data.experiments, noise_data.extra)
        assert look(readings, pooled, KeepRule(), price=price).action is Action.DISCARD
        verdict = look(readings, noise, KeepRule(), price=price)
        assert verdict.action is Action.AGAIN and verdict.gain == pytest.approx(0.0817, abs=0.001)

    def test_it_is_run_again_and_kept(self) -> None:
        decision, runs = self.decided(BETTER, BESIDE)
        assert decision.status is Status.KEEP, decision.reason
        assert 2 <= runs <= 9
        assert decision.sigma is not None and decision.sigma < 0.06

    def test_a_program_that_was_lucky_once_is_not(self) -> None:
        decision, runs = self.decided((BETTER[0], *BESIDE), BESIDE[::-1])
        assert decision.status is Status.DISCARD and runs > 1, decision.reason
