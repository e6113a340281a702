"""Learning curves are read out of the logs that people's programs print, however the log arrives."""

from __future__ import annotations

import math
from itertools import cycle, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoresearchd.evaluator.measure.log_text import MAX_NON_FINITE, MAX_POINTS, CurveParser, read_curve

KARPATHY = (
    "\rstep {step:05d} ({percent:.1f}%) | loss: {loss:.6f} | lrm: 1.00 | dt: 300ms | tok/sec: 1,700,000 | mfu: 39.8% "
    "| epoch: 1 | remaining: 297s    "
)


def karpathy(*rows: tuple[int, float, float]) -> str:
    return "".join(KARPATHY.format(step=s, percent=p, loss=x) for s, p, x in rows)


def test_karpathys_rewritten_line_gives_steps_and_progress() -> None:
    log = "Vocab size: 8,192\nloss: 3\n" + karpathy((12, 0.3, 6.12), (13, 0.6, 6.0)) + "\n---\nval_bpb: 0.99\n"
    first, second = read_curve(log, "auto", 300.0).points
    assert (first.step, first.loss, first.validation) == (12.0, 6.12, False)
    assert first.progress == pytest.approx(0.003) and first.seconds == pytest.approx(0.9)
    assert second.progress == pytest.approx(0.006)


def test_nanogpt_gives_training_and_validation_points() -> None:
    log = "step 0: train loss 4.3, val loss 4.4\n"
    log += "iter 0: loss 4.2774, time 112.3ms, mfu -100.00%\niter 10: loss 3.2, time 12ms\n"
    points = read_curve(log).points
    assert [(p.step, p.loss, p.validation) for p in points] == [(0, 4.4, True), (0, 4.2774, False), (10, 3.2, False)]
    assert all(p.progress is None for p in points)


@pytest.mark.parametrize("quote", ["", "'"])
def test_hugging_face_dictionaries_give_points_but_not_their_summary(quote: str) -> None:
    q = quote
    log = (
        f"{{'loss': {q}2.1{q}, 'grad_norm': {q}1.5{q}, 'learning_rate': {q}1e-05{q}, 'epoch': {q}0.4{q}}}\n"
        f"  3%|▎ | 1/30 [00:01<00:30]\r{{'eval_loss': {q}2.0{q}, 'eval_runtime': {q}1.0{q}, 'epoch': {q}1.0{q}}}\n"
        f"{{'train_runtime': {q}9.0{q}, 'train_loss': {q}1.0{q}, 'epoch': {q}1.0{q}}}\n"
    )
    assert [(p.step, p.loss, p.validation) for p in read_curve(log).points] == [(0.4, 2.1, False), (1.0, 2.0, True)]


def test_a_pattern_of_the_task_names_its_groups() -> None:
    pattern = r"ep (?P<step>\d+) (?P<progress>[\d.]+)% L=(?P<loss>\S+)"
    assert [(p.step, p.loss, p.progress) for p in read_curve("ep 3 50% L=1.5\nep x\n", pattern, 10).points] == [
        (3, 1.5, 0.5)
    ]
    by_time = read_curve("L=2 t=5s\nL=1 t=6s\n", r"L=(?P<loss>\S+) t=(?P<seconds>[\d.]+)s", 10).points
    assert [(p.step, p.progress) for p in by_time] == [(0, 0.5), (1, 0.6)]


def test_a_loss_that_is_not_finite_is_a_signal_and_no_part_of_the_curve() -> None:
    parser = read_curve(karpathy((1, 1.0, 5.0), (2, 2.0, math.nan)), "auto", 300)
    assert [p.loss for p in parser.points] == [5.0]
    assert parser.diverged and parser.non_finite[0].step == 2
    parser = read_curve(karpathy(*((i, 1.0, math.inf) for i in range(500)), (501, 1.0, 2.0)), "auto", 300)
    assert len(parser.non_finite) == MAX_NON_FINITE and not parser.diverged


def test_a_validation_loss_that_was_not_computed_is_no_sign_of_divergence() -> None:
    """Else each crash of such a program would be a loss that is no number, which nobody repairs."""
    parser = read_curve('{"step": 7, "loss": 2.9, "val_loss": null}\n', "auto", 300)
    assert [(p.step, p.loss) for p in parser.points] == [(7, 2.9)] and not parser.diverged
    assert read_curve('{"step": 7, "loss": null}\n', "auto", 300).diverged


def test_a_job_that_prints_without_end_costs_bounded_memory() -> None:
    parser = CurveParser("auto", 300)
    for i in range(60_001):
        parser.feed(f"iter {i}: loss {i / 10}, time 1ms\n")
    points = parser.points
    assert MAX_POINTS / 2 - 2 <= len(points) <= MAX_POINTS
    assert points[0].step == 0 and points[-1].step == 60_000
    gaps = {b.step - a.step for a, b in pairwise(points[:-1])}
    assert len(gaps) == 1, "thinned evenly"
    parser.feed("x" * 10_000_000)
    assert len(parser._rest) < 10_000


LINES = ["iter 5: loss 2.5, time 1ms", "step 5: train loss 1.0, val loss 2.0", "{'loss': 2.1, 'epoch': 0.4}"]
LINES += ['{"step": 1, "loss": 2.5}', "\x1b[32miter 6: loss 1\x1b[0m", "loss", "\r", "\n", "\r\n", "\0"]
LINES += karpathy((1, 0.1, 5.5), (7, 0.2, math.nan), (2, 99.9, 4.0)).split("\r")
piece = st.text(max_size=10) | st.sampled_from(LINES)


@settings(max_examples=200)
@given(st.lists(piece, max_size=30), st.lists(st.integers(1, 50), min_size=1, max_size=20), st.booleans())
def test_where_chunks_are_cut_never_changes_the_curve(pieces: list[str], cuts: list[int], lines: bool) -> None:
    text = ("\n" if lines else "").join(pieces)
    whole = read_curve(text, "auto", 300)
    parser = CurveParser("auto", 300)
    rest, sizes = text, cycle(cuts)
    while rest:
        size = next(sizes)
        parser.feed(rest[:size])
        rest = rest[size:]
    parser.feed("\n")
    assert parser.points == whole.points
    assert (len(parser.non_finite), parser.diverged) == (len(whole.non_finite), whole.diverged)
    assert all(math.isfinite(p.loss) and math.isfinite(p.step) for p in whole.points)


@given(st.text(max_size=200), st.sampled_from(["auto", r"(?P<loss>[^ ]+)", r"(?P<step>\w+)\W+(?P<loss>.*)"]))
def test_no_text_makes_the_curve_reader_raise(text: str, pattern: str) -> None:
    read_curve(text + "\n" + text[::-1], pattern, 5)
