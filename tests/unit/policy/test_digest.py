"""The digest says in a few lines what was tried, what nearly helped, what failed and why, and what nobody has tried."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autoresearchd.domain.labels import Label
from autoresearchd.policy.prompt.digest import Digest, digest_of

from .histories import experiment


def text_of(found: Digest) -> str:
    return "\n".join(line for _, lines in found.parts() for line in lines)


def test_each_constant_shows_its_values_and_how_often_they_helped() -> None:
    found = digest_of(
        [
            experiment(1, "faster", Label.NONE, value=0.99, delta=0.01, changes={"train.py:MATRIX_LR": 0.06}),
            experiment(2, "faster yet", delta=-0.01, value=1.0, changes={"train.py:MATRIX_LR": 0.09}),
            experiment(3, "both", Label.NAN_LOSS, changes={"train.py:MATRIX_LR": 0.2, "train.py:DEPTH": 6}),
        ]
    )
    assert found.tried[0] == (
        "MATRIX_LR (3 tried, 1 helped): 0.06: kept +0.01 (#1); 0.09: no_gain -0.01 (#2); "
        "0.2 with 1 other change: nan_loss (#3)"
    )
    assert found.constants == ("MATRIX_LR", "DEPTH")
    assert found.kept == ("#1 faster: kept +0.01",)


def test_near_misses_are_gains_that_were_not_kept_and_losses_within_noise() -> None:
    found = digest_of(
        [
            experiment(1, "a", delta=0.002, value=0.998),
            experiment(2, "b", delta=-0.004, value=1.004),
            experiment(3, "c", delta=-0.02, value=1.02),
            experiment(4, "d", Label.CONSTRAINT, delta=0.01, value=0.99),
            experiment(5, "e", Label.METRIC_TAMPERING, delta=0.5, value=0.5),
            experiment(6, "f", Label.NONE, delta=0.01, value=0.99),
            experiment(7, "g", Label.ABORTED_EARLY, delta=0.001),
        ],
        sigma=0.005,
    )
    assert found.near == (4, 1, 2)
    assert found.near_misses[0] == "#4 d: constraint +0.01"
    assert digest_of([experiment(2, "b", delta=-0.004, value=1.004)]).near == ()


def test_the_ledger_counts_the_whole_session_and_shows_the_latest_example() -> None:
    recent = [
        experiment(40, "DEPTH 8 → 16", Label.OOM, reason="oom: tried to allocate 2 GiB"),
        experiment(41, "DEPTH 8 → 12", Label.OOM, reason="oom: tried to allocate 1 GiB"),
    ]
    found = digest_of(recent, failures={"": 3, "no_gain": 20, "oom": 7, "timeout": 1, "aborted_early": 4, "error": 0})
    assert found.failures == ("oom ×7, last #41 DEPTH 8 → 12: tried to allocate 1 GiB", "timeout ×1")
    assert digest_of(recent).failures[0].startswith("oom ×2, last #41")


def test_a_hint_is_shown_until_an_experiment_takes_it_up() -> None:
    hinting = experiment(1, "DEPTH 8 → 12", hint="Try intermediate DEPTH=10 for better VRAM tradeoff")
    assert digest_of([hinting]).hints == ("Try intermediate DEPTH=10 for better VRAM tradeoff (#1)",)
    other = experiment(2, "WINDOW_PATTERN SSSL → L", hint="try warmup of the momentum")
    assert [h[-4:] for h in digest_of([hinting, other]).hints] == ["(#2)", "(#1)"]
    taken = experiment(3, "intermediate DEPTH 10 for a better VRAM tradeoff")
    assert digest_of([hinting, other, taken]).hints == ("try warmup of the momentum (#2)",)
    again = experiment(4, "MLP_RATIO 4 → 3", hint="Try momentum warmup")
    assert [h[-4:] for h in digest_of([other, again]).hints] == ["(#4)"]


def test_runs_that_were_ended_and_gains_within_noise_have_a_line_each() -> None:
    found = digest_of(
        [
            experiment(1, "a", Label.ABORTED_EARLY, delta=-0.1),
            experiment(2, "b", delta=0.001, value=0.999),
            experiment(3, "c", Label.NOT_CAUSAL),
        ],
        sigma=0.002,
    )
    assert found.verdicts == (
        "ended early, because their curves promised no gain: 1 (#1)",
        "measured better, but by no more than noise (σ = 0.002): 1 (#2)",
        "refused by checks, whatever they measured: 1 (#3)",
    )


HOSTILE = st.text(alphabet=st.sampled_from("aDEPTH →->:=0123.,;*[]()\x1b\n`\u202e"), max_size=400)


@given(st.lists(st.tuples(HOSTILE, HOSTILE, HOSTILE, st.sampled_from(list(Label))), max_size=12))
def test_no_words_of_a_model_can_break_it(drawn: list[tuple[str, str, str, Label]]) -> None:
    recent = [
        experiment(
            n,
            words,
            label,
            delta=0.1 * (n % 3 - 1),
            hint=hint,
            arch_change=arch * 20,
            changes={words: hint, "k": 10**30},
        )
        for n, (words, hint, arch, label) in enumerate(drawn)
    ]
    text = text_of(digest_of(recent))
    assert len(text) < 25_000
    assert all(line.isprintable() for line in text.split("\n"))
