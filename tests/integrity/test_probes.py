"""The probes of the bundled evaluation, asked directly: what an honest model gets through, and what no model does."""

from __future__ import annotations

from typing import Any

import pytest

from autoresearchd.resources import bundled
from tests.templates.programs import load_programs

np = pytest.importorskip("numpy")
VOCAB, POWER_VOCAB = 64, 512
TEMPLATE = bundled("templates") / "autoresearch"
evaluate, probes = load_programs(TEMPLATE, "evaluate", "probes")
PLAN = evaluate.PLANS["cpu"]


def windows(rng: Any, count: int = 12, rows: int = 32, width: int = 64) -> Any:
    odds = rng.dirichlet(np.full(VOCAB, 0.3))
    return rng.choice(VOCAB, size=(count, rows, width + 1), p=odds).astype(np.int32)


def without_decoys(text: Any) -> Any:
    return probes.Batches(text, np.ones(text.shape[:2], bool), [probes.Draws() for _ in text])


@pytest.mark.parametrize(("count", "rows", "number"), [(12, 32, 1), (256, 4, 16), (1, 4, 1), (2, 1, 1), (3, 2, 2)])
def test_every_batch_is_scored_once_and_a_probe_is_answered_before_its_originals(
    count: int, rows: int, number: int
) -> None:
    rng = np.random.default_rng(1)
    text = windows(rng, count, rows)
    for _ in range(5):
        jobs = list(probes.schedule(without_decoys(text), VOCAB, number, rng))
        assert [job for job in jobs if isinstance(job, int)] == list(range(count))
        assert len(jobs) == count + number
        sent: set[int] = set()
        for job in jobs:
            if isinstance(job, int):
                sent.add(job)
                continue
            assert not sent & set(job.batches.tolist())
            true = text[job.batches, job.rows, :-1]
            for row, cut in enumerate(job.cuts):
                same = job.inputs[row] == true[row]
                assert same[:cut].all() and not same[cut]
                assert set(job.places[row].tolist()) <= set(range(cut)) and cut - 1 in job.places[row]
            assert (np.array(job.draws.odds) > 0).all() and (np.array(job.draws.odds) <= 1).all()


def test_decoys_stand_among_what_is_scored_and_nothing_of_that_is_lost() -> None:
    """A model that remembers which rows it was asked looked ahead in all the others, and was kept."""
    rng = np.random.default_rng(9)
    text = rng.choice(VOCAB, size=210_000).astype(np.int32)
    rows, between = probes.read_windows(text, PLAN.window, PLAN.rows, PLAN.batches)
    assert len(rows) == PLAN.rows * PLAN.batches
    places = np.zeros((PLAN.batches + PLAN.decoys, PLAN.rows), int)
    for _ in range(40):
        batches = probes.add_decoys(rows, probes.Text(between, VOCAB), PLAN.rows, PLAN.decoys, rng)
        assert (batches.windows[batches.counted] == rows).all(), "in their order"
        decoys = ~batches.counted
        assert decoys.sum() == PLAN.decoys * PLAN.rows and decoys.any(axis=1).all(), "in every batch"
        places += decoys
        drawn = [len(draws.rows) for draws in batches.draws]
        assert 5 < sum(drawn) / decoys.sum() < 10
        for draws, decoy in zip(batches.draws, decoys, strict=True):
            assert set(draws.rows) == set(np.flatnonzero(decoy).tolist()) and min(draws.places) > 0
    assert places.sum(axis=0).min() > 40, "at any place of a batch"


def test_a_look_ahead_can_hide_at_no_position() -> None:
    """From width // 8 to width - 2 was all that cuts came from: what looked ahead elsewhere was kept."""
    rng = np.random.default_rng(5)
    text = windows(rng, count=12, rows=32, width=64)
    cuts, drawn = set(), np.zeros(64, dtype=int)
    for _ in range(20):
        for job in probes.schedule(without_decoys(text), VOCAB, 3, rng):
            if isinstance(job, probes.Probe):
                cuts |= set(job.cuts.tolist())
                drawn += np.bincount(job.draws.places, minlength=64)
    assert cuts == set(range(1, 64)), "position 0 is the one that nobody looks ahead to"
    assert drawn[1:].min() > 20 * 8, "in each evaluation"


def test_no_batch_is_left_out() -> None:
    """A model that looks ahead in one batch, known by its content, gains a 24th of everything."""
    rng = np.random.default_rng(6)
    count = PLAN.batches + PLAN.decoys
    text = without_decoys(windows(rng, count, PLAN.rows))
    for _ in range(5):
        jobs = probes.schedule(text, VOCAB, PLAN.probes, rng)
        probed = [job.batches for job in jobs if isinstance(job, probes.Probe)]
        assert set(np.concatenate(probed).tolist()) == set(range(count))


def test_the_odds_are_those_that_tokens_are_drawn_with() -> None:
    """Else the bets are not fair, and an honest model is refused one day."""
    rng = np.random.default_rng(7)
    text = probes.Text(windows(rng, 2, 8), VOCAB)
    likely = np.bincount(text.symbols, minlength=VOCAB) > 30
    for before, unlike in ((text.symbols[3:7], -1), (text.symbols[3:4], int(text.symbols[4])), (text.symbols[:0], 3)):
        gains = np.zeros(VOCAB)  # of who foretells one token always: what it wins on average, for a stake of 1
        for _ in range(6000):
            place, odds = text.draw(before, rng, unlike)
            assert text.symbols[place] != unlike
            gains[text.symbols[place]] += 1 / odds / 6000
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
    model = _answers(places)
    odds = rng.dirichlet(np.full(POWER_VOCAB, 0.1))
    text = rng.choice(POWER_VOCAB, size=(PLAN.batches, PLAN.rows, PLAN.window + 1), p=odds).astype(np.int32)
    bets, asked = probes.Bets(), []
    for job in probes.schedule(without_decoys(text), POWER_VOCAB, PLAN.probes, rng):
        if isinstance(job, probes.Probe):
            answer = model(job.inputs)
            if bets.foreseen(job.inputs, job.draws, answer):
                return True
            asked.append((job, answer))
    for probe, first in asked:
        second = model(text[probe.batches, probe.rows, :-1])
        if any(abs(first[row, at] - second[row, at]).max() > 1e-3 for row, at in enumerate(probe.places)):
            return True
    return False


def test_a_model_that_looks_ahead_in_all_but_the_probes_is_found() -> None:
    """It can tell a probe from a batch, and no row of the latter from a decoy."""
    rng = np.random.default_rng(10)
    text = rng.choice(POWER_VOCAB, size=210_000, p=rng.dirichlet(np.full(POWER_VOCAB, 0.1))).astype(np.int32)
    rows, between = probes.read_windows(text, PLAN.window, PLAN.rows, PLAN.batches)
    model = _answers(lambda idx: np.arange(idx.shape[1])[None] + 0 * idx < idx.shape[1] - 1)
    for _ in range(10):
        batches = probes.add_decoys(rows, probes.Text(between, POWER_VOCAB), PLAN.rows, PLAN.decoys, rng)
        bets = probes.Bets()
        jobs = range(len(batches.windows))
        assert any(bets.foreseen(*request, model(request[0])) for request in map(batches.request, jobs))


@pytest.mark.parametrize("where", ["in the first eighth", "at the last positions", "by content", "at random"])
def test_a_look_ahead_at_one_position_in_a_hundred_is_found(where: str) -> None:
    """`benchmarks/probes.py --power` measures more, on real text."""
    rng = np.random.default_rng(8)
    at = np.arange(PLAN.window)
    chosen = {
        "in the first eighth": lambda idx: np.broadcast_to((at >= 10) & (at < 13), idx.shape),
        "at the last positions": lambda idx: np.broadcast_to((at >= 253) & (at < 255), idx.shape),
        "by content": lambda idx: ((idx * 7919 + np.roll(idx, -1, axis=1) * 104729) % 100 == 7) & (at < 255),
        "at random": lambda idx: (rng.random(idx.shape) < 0.01) & (at < 255),
    }[where]
    assert sum(found(chosen, rng) for _ in range(6)) == 6


def betting(q: Any, rng: Any) -> Any:
    """The bets after two probes of a model; q(tokens) are its logits."""
    bets = probes.Bets()
    for job in probes.schedule(without_decoys(windows(rng, count=3)), VOCAB, 2, rng):
        if isinstance(job, probes.Probe):
            bets.foreseen(job.inputs, job.draws, q(job.inputs))
    return bets


@pytest.mark.parametrize("model", ["uniform", "frequencies", "confident"])
def test_a_model_that_cannot_see_the_drawn_tokens_does_not_win(model: str) -> None:
    rng = np.random.default_rng(2)
    table = {
        "uniform": np.zeros((VOCAB, VOCAB)),
        "frequencies": np.tile(rng.normal(size=VOCAB), (VOCAB, 1)),
        "confident": 20 * np.eye(VOCAB)[rng.permutation(VOCAB)],
    }[model]
    for _ in range(40):
        assert betting(lambda idx: table[idx], rng).total < np.log(probes.MAX_WEALTH) / 2


@pytest.mark.parametrize("weight", [1.0, 0.5, 0.2])
def test_a_model_that_sees_them_is_caught_even_if_it_hedges(weight: float) -> None:
    rng = np.random.default_rng(3)

    def peeking(idx: Any) -> Any:
        ahead = np.eye(VOCAB)[np.roll(idx, -1, axis=1)]
        return np.log(weight * ahead + (1 - weight) / VOCAB + 1e-9)

    for _ in range(20):
        assert betting(peeking, rng).total > np.log(probes.MAX_WEALTH)


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
