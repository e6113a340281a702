"""What ``--policy`` takes, and what it says to what it does not take."""

from __future__ import annotations

import pytest

from autoresearchd.domain.errors import UsageError
from autoresearchd.policy.policy_names import PolicySpec, parse_spec


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("search", PolicySpec("search")),
        (" Random ", PolicySpec("random")),
        ("auto", PolicySpec("auto")),
        ("command:./x.sh --a b:c", PolicySpec("command", "./x.sh --a b:c")),
        ("litellm:openai/gpt-5:free", PolicySpec("litellm", "openai/gpt-5:free")),
        ("local", PolicySpec("local")),
        ("local:./smollm", PolicySpec("local", "./smollm")),
        ("agent:local", PolicySpec("agent", "local")),
    ],
)
def test_known_policies_are_parsed(text: str, spec: PolicySpec) -> None:
    assert parse_spec(text) == spec
    assert parse_spec(str(spec)) == spec


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *((text, ".") for text in ("", "command", "command:", "search:x", "nonsense", "command: \0")),
        ("serach", "did you mean search"),
        *(
            (text, "model")
            for text in ("litellm", "litellm:", "agent", "litellm:-x", "local:a\nb", "agent:" + "x" * 300)
        ),
    ],
)
def test_wrong_policies_are_usage_errors_with_a_way_out(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        parse_spec(text)
    assert caught.value.hint
