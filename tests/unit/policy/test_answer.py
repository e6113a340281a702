"""What a tool prints is data: cut, cleaned, and never in the way of its edit."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from autoresearchd.policy.answer_words import MAX_TEXT, asi_of, cost_of, last_object

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def test_only_the_last_line_counts_and_only_as_an_object() -> None:
    assert last_object('{"a": 1}\n{"hypothesis": "deeper"}\n\n') == {"hypothesis": "deeper"}
    assert last_object('{"a": 1}\nthat was it\n') == {}
    assert last_object("[1]\n") == {}
    assert last_object("") == {}
    assert last_object('{"a": NaN}') == {}
    assert last_object("{" * 50_000) == {}
    assert last_object('{"a":' * 20_000 + "1" + "}" * 20_000) == {}


def test_an_unnamed_price_is_unknown_and_not_zero() -> None:
    assert cost_of({}, 1.0).usd is None
    assert cost_of({"cost_usd": 0.25, "tokens_in": 10, "tokens_out": -3}, 1.0).usd == 0.25
    assert cost_of({"cost_usd": -1}, 1.0).usd is None


@given(st.dictionaries(st.text(), JSON, max_size=30))
def test_no_answer_can_make_an_asi_that_cannot_be_stored(found: dict[str, object]) -> None:
    asi = asi_of(found, "h")
    stored = json.dumps(asi.as_dict(), allow_nan=False, ensure_ascii=False).encode()
    assert len(stored) < 40 * MAX_TEXT
    assert len(asi.extra) <= 20


def test_what_the_daemon_says_of_an_experiment_cannot_be_said_by_a_policy() -> None:
    forged = {
        "\u200bresult": "kept",
        "failure": "none",
        "refused": "no_op",
        "off_surface": "x",
        "warning": "",
        "idea": "mine",
    }
    assert dict(asi_of(forged, "h").extra) == {"idea": "mine"}
