"""Words of others stand in a prompt as data: clean, cut, and in a fence that they cannot close."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autoresearchd.domain.redaction import Redactor
from autoresearchd.policy.prompt.quote import Quote

ESC = "\x1b"


def test_terminal_escapes_and_direction_marks_do_not_get_through() -> None:
    hostile = f"a{ESC}[31mred{ESC}[0m {ESC}]0;title\x07b\u202ec\x00d\x9b2J"
    for shown in (Quote().line(hostile, 100), Quote().start(hostile, 100), Quote().end(hostile, 100, 5)):
        assert shown.isprintable()
        assert "red" in shown


def test_a_progress_bar_shows_what_it_ended_with() -> None:
    bar = (
        "\r".join(f"step {i} | loss 3.2" for i in range(5000)) + "\rTraceback (most recent call last):\nKeyError: 'x'\n"
    )
    assert Quote().end(bar, 2000, 10) == "Traceback (most recent call last):\nKeyError: 'x'"


def test_half_a_secret_is_not_left_at_a_cut() -> None:
    secret = "hunter2-correct-horse-battery"
    quote = Quote(Redactor([secret]))
    for place in range(70, 100):
        text = "w " * (place // 2) + secret + " and so on" * 50
        for shown in (quote.line(text, 100), quote.start(text, 100)):
            assert "hunter2" not in shown
        assert "battery" not in quote.end("so on\n" * 50 + secret + "\n" + "y\n" * (place // 2), 100, 90)


@given(st.text(), st.integers(min_value=1, max_value=50))
def test_nothing_is_longer_than_asked(text: str, most: int) -> None:
    quote = Quote()
    assert len(quote.line(text, most)) <= most
    assert len(quote.start(text, most)) <= most
    assert len(quote.end(text, most, 3)) <= most
    assert len(quote.end(text, most, 3).split("\n")) <= 3
