"""The probes of the bundled evaluation, asked directly: what an honest model gets through, and what no model does."""

from __future__ import annotations

from typing import Any

import pytest

from autoresearchd.resources import bundled
from tests.templates.programs import load_program

np = pytest.importorskip("numpy")
VOCAB, POWER_VOCAB = 64, 512
evaluate = load_program(bundled("templates") / "autoresearch", "evaluate")


def windows(rng: Any, count: int = 12, rows: int = 32, width: int = 64) -> Any:
    odds = rng.dirichlet(np.full(VOCAB, 0.3))
    return rng.choice(VOCAB, size=(count, rows, width + 1), p=odds).astype(np.int32)


@pytest.mark.parametrize(("count", "rows", "probes"), [(12, 32, 1), (256, 4, 16), (1, 4, 1), (2, 1, 1), (3, 2, 2)])
def test_every_batch_is_scored_once_and_a_probe_is_answered_before_its_originals(
    count: int, rows: int, probes: int
) -> None:
    rng = np.random.default_rng(1)
    text = windows(rng, count, rows)
    for _ in range(5):
        jobs = list(evaluate.schedule(text, VOCAB, probes, rng))
        assert [job.batch for job in jobs if job.probe is None] == list(range(count))
        assert sum(job.probe is not None for job in jobs) == probes
        sent: set[int] = set()
        for job in jobs:
            if job.probe is None:
                assert (job.inputs == text[job.batch, :, :-1]).all()
                sent.add(job.batch)
                continue
            probe = job.probe
            assert not sent & set(probe.batches.tolist())
            true = text[probe.batches, probe.rows, :-1]
            for row, cut in enumerate(probe.cuts):
                same = job.inputs[row] == true[row]
                assert same[:cut].all() and not same[cut]
                assert set(probe.places[row].tolist()) <= set(range(cut)) and cut - 1 in probe.places[row]
            assert (job.inputs[probe.at[:, 0], probe.at[:, 1]] == probe.drawn).all()
            assert (probe.odds > 0).all() and (probe.odds <= 1).all()


def test_a_look_ahead_can_hide_at_no_position() -> None:
    """From width // 8 to width - 2 was all that cuts came from: what looked ahead elsewhere was kept."""
    rng = np.random.default_rng(5)
    text = windows(rng, count=12, rows=32, width=64)
    cuts, drawn = set(), np.zeros(64, dtype=int)
    for _ in range(20):
        for job in evaluate.schedule(text, VOCAB, 3, rng):
            if job.probe is not None:
                cuts |= set(job.probe.cuts.tolist())
                drawn += np.bincount(job.probe.at[:, 1], minlength=64)
    assert cuts == set(range(1, 64)), "position 0 is the one that nobody looks ahead to"
    assert drawn[1:].min() > 20 * 8, "in each evaluation"


def test_no_batch_is_left_out() -> None:
    """A model that looks ahead in one batch, known by its content, gains a 24th of everything."""
    rng = np.random.default_rng(6)
    plan = evaluate.PLANS["cpu"]
    text = windows(rng, plan.batches, plan.rows)
    for _ in range(5):
        probed = [job.probe.batches for job in evaluate.schedule(text, VOCAB, plan.probes, rng) if job.probe]
        assert set(np.concatenate(probed).tolist()) == set(range(plan.batches))


def test_the_odds_are_those_that_tokens_are_drawn_with() -> None:
    """Else the bets are not fair, and an honest model is refused one day."""
    rng = np.random.default_rng(7)
    text = evaluate.Text(windows(rng, 2, 8), VOCAB)
    likely = np.bincount(text.tokens, minlength=VOCAB) > 30
    for before, unlike in ((text.tokens[3:7], -1), (text.tokens[3:4], int(text.tokens[4])), (text.tokens[:0], 3)):
        gains = np.zeros(VOCAB)  # of who foretells one token always: what it wins on average, for a stake of 1
        for _ in range(6000):
            place, odds = text.draw(before, rng, unlike)
            assert text.tokens[place] != unlike
            gains[text.tokens[place]] += 1 / odds / 6000
        assert gains[likely].max() < 1.3
        assert len(before) or gains[likely & (np.arange(VOCAB) != unlike)] == pytest.approx(1.0, abs=0.3)


def _answers(places: Any) -> Any:
    """A model that knows nothing but what stands at some positions next."""

    def model(idx: Any) -> Any:
        logits = np.zeros((*idx.shape, POWER_VOCAB), dtype=np.float32)
        rows, at = np.nonzero(places(idx))
        logits[rows, at, np.roll(idx, -1, axis=1)[rows, at]] = 9.0
        return logits

    return model


def found(places: Any, rng: Any) -> bool:
    """Whether one evaluation in the cpu profile refuses a model that looks ahead there."""
    plan, model = evaluate.PLANS["cpu"], _answers(places)
    odds = rng.dirichlet(np.full(POWER_VOCAB, 0.1))
    text = rng.choice(POWER_VOCAB, size=(plan.batches, plan.rows, plan.window + 1), p=odds).astype(np.int32)
    wealth, probes = np.zeros((len(evaluate.SURE), len(evaluate.STAKES))), []
    scorer = evaluate.Scorer.__new__(evaluate.Scorer)
    scorer.wealth = wealth
    for job in evaluate.schedule(text, POWER_VOCAB, plan.probes, rng):
        if job.probe is None:
            continue
        answer = model(job.inputs)
        try:
            scorer.bet(job.probe, answer)
        except evaluate.ProbeFailed:
            return True
        probes.append((job.probe, answer))
    for probe, first in probes:
        second = model(text[probe.batches, probe.rows, :-1])
        if any(abs(first[row, at] - second[row, at]).max() > 1e-3 for row, at in enumerate(probe.places)):
            return True
    return False


def test_the_same_probes_stand_in_both_tasks() -> None:
    """What is fixed in one of the two has to be fixed in the other."""
    sources = [(bundled("templates") / task / "evaluate.py").read_text() for task in ("autoresearch", "parameter-golf")]
    for start, end in (("PLACES = ", "MAX_WEALTH"), ("class Text:", "def schedule("), ("def compared(", "\n\n\n")):
        first, second = (text[text.index(start) :].partition(end)[0] for text in sources)
        assert first.replace("tokens drawn", "bytes drawn").replace("Tokens", "Inputs") == second


@pytest.mark.parametrize("where", ["in the first eighth", "at the last positions", "by content", "at random"])
def test_a_look_ahead_at_one_position_in_a_hundred_is_found(where: str) -> None:
    """`benchmarks/probes.py --power` measures more, on real text."""
    rng = np.random.default_rng(8)
    at = np.arange(evaluate.PLANS["cpu"].window)
    chosen = {
        "in the first eighth": lambda idx: np.broadcast_to((at >= 10) & (at < 13), idx.shape),
        "at the last positions": lambda idx: np.broadcast_to((at >= 253) & (at < 255), idx.shape),
        "by content": lambda idx: ((idx * 7919 + np.roll(idx, -1, axis=1) * 104729) % 100 == 7) & (at < 255),
        "at random": lambda idx: (rng.random(idx.shape) < 0.01) & (at < 255),
    }[where]
    assert sum(found(chosen, rng) for _ in range(6)) == 6


def wealth_of(q: Any, probes: int, rng: Any) -> float:
    """Logarithm of what betting on a model gives; q(tokens) are its logits."""
    scorer = evaluate.Scorer.__new__(evaluate.Scorer)
    scorer.wealth = np.zeros((len(evaluate.SURE), len(evaluate.STAKES)))
    text = windows(rng, count=3)
    for job in evaluate.schedule(text, VOCAB, probes, rng):
        if job.probe is not None:
            logits = q(job.inputs)
            scorer.bet(job.probe, logits)
    return float(np.logaddexp.reduce(scorer.wealth, axis=None) - np.log(scorer.wealth.size))


@pytest.mark.parametrize("model", ["uniform", "frequencies", "confident"])
def test_a_model_that_cannot_see_the_drawn_tokens_does_not_win(model: str) -> None:
    rng = np.random.default_rng(2)
    table = {
        "uniform": np.zeros((VOCAB, VOCAB)),
        "frequencies": np.tile(rng.normal(size=VOCAB), (VOCAB, 1)),
        "confident": 20 * np.eye(VOCAB)[rng.permutation(VOCAB)],
    }[model]
    for _ in range(40):
        assert wealth_of(lambda idx: table[idx], 2, rng) < np.log(evaluate.MAX_WEALTH) / 2


@pytest.mark.parametrize("weight", [1.0, 0.5, 0.2])
def test_a_model_that_sees_them_is_caught_even_if_it_hedges(weight: float) -> None:
    rng = np.random.default_rng(3)

    def peeking(idx: Any) -> Any:
        ahead = np.eye(VOCAB)[np.roll(idx, -1, axis=1)]
        return np.log(weight * ahead + (1 - weight) / VOCAB + 1e-9)

    for _ in range(20):
        with pytest.raises(evaluate.ProbeFailed) as caught:
            wealth_of(peeking, 2, rng)
        assert (caught.value.metric, caught.value.label) == ("causal", "not_causal")


@pytest.mark.parametrize("offset", [0.0, 1e30, -1e30, 3e38])
def test_no_offset_of_the_logits_makes_a_token_more_likely(offset: float) -> None:
    targets, weights = np.arange(VOCAB, dtype=np.int32), np.ones(VOCAB)
    logits = np.full((VOCAB, VOCAB), offset, dtype=np.float32)
    assert evaluate.nll_sum(logits, targets, weights) == pytest.approx(VOCAB * np.log(VOCAB))


def test_probabilities_sum_to_one_whatever_the_logits() -> None:
    rng = np.random.default_rng(4)
    for scale in (1e-3, 1.0, 1e4, 1e30):
        row = (scale * rng.normal(size=VOCAB)).astype(np.float32)
        losses = [evaluate.nll_sum(row[None], np.array([t], dtype=np.int32), np.ones(1)) for t in range(VOCAB)]
        assert sum(np.exp(-np.array(losses))) == pytest.approx(1.0)
