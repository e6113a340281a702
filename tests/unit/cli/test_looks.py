"""What ``show`` says of early abort: a run that went on to its end is not told as one that was ended."""

from __future__ import annotations

from typing import Any

from autoresearchd.cli.experiments import look_lines
from autoresearchd.cli.render import Paint

PLAIN = Paint(enabled=False)


def look(progress: float, *, abort: bool, sentence: str) -> dict[str, Any]:
    drawn = {"forecast": 2.1, "low": 2.0, "high": 2.2, "bar": 2.05}
    return {"progress": progress, "abort": abort, "sentence": sentence, **drawn}


def test_a_run_that_was_let_go_on_is_not_told_as_ended() -> None:
    seen = look(0.92, abort=False, sentence="at 92% of the budget: the loss can still drop to the bar.")
    [_, first, *chart] = look_lines([seen], PLAIN)
    assert first == (
        "  early abort  let go on; the last look, at 92% of the budget: the loss can still drop to the bar."
    )
    assert chart


def test_a_run_that_was_ended_says_when_and_why() -> None:
    before = look(0.2, abort=False, sentence="at 20% of the budget: the loss can still drop to the bar.")
    last = look(0.35, abort=True, sentence="at 35% of the budget: the loss cannot drop to the bar any more.")
    assert look_lines([before, last], PLAIN)[1] == (
        "  early abort  ended at 35% of the budget: the loss cannot drop to the bar any more."
    )


def test_without_a_look_nothing_is_said_and_without_a_sentence_no_more_than_is_known() -> None:
    assert look_lines([], PLAIN) == []
    assert look_lines([{}], PLAIN) == ["", "  early abort  let go on"]
