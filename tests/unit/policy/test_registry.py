"""What ``--policy`` takes, and what it says to what it does not take."""

from __future__ import annotations

import pytest

from autoresearchd.errors import MissingCapability, UsageError
from autoresearchd.policy.registry import PolicySpec, parse_spec


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("search", PolicySpec("search")),
        (" Random ", PolicySpec("random")),
        ("auto", PolicySpec("auto")),
        ("command:./x.sh --a b:c", PolicySpec("command", "./x.sh --a b:c")),
    ],
)
def test_known_policies_are_parsed(text: str, spec: PolicySpec) -> None:
    assert parse_spec(text) == spec
    assert parse_spec(str(spec)) == spec


@pytest.mark.parametrize("text", ["", "command", "command:", "search:x", "nonsense", "command: \0"])
def test_wrong_policies_are_usage_errors_with_a_way_out(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_spec(text)
    assert caught.value.mend


def test_a_typing_error_gets_a_suggestion() -> None:
    with pytest.raises(UsageError, match="did you mean search"):
        parse_spec("serach")


@pytest.mark.parametrize("text", ["litellm:gpt-5", "local", "agent:claude"])
def test_policies_with_a_model_are_named_as_missing(text: str) -> None:
    with pytest.raises(MissingCapability, match="model"):
        parse_spec(text)
