"""What is said before a session begins, while it can still be set right."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoresearchd.app.admission import require_tunable, warn_of_unlearnable_answers
from autoresearchd.domain.settings import ModelSettings
from autoresearchd.errors import UsageError
from autoresearchd.policy.registry import parse_spec
from autoresearchd.testing.policies import make_task


@pytest.mark.parametrize(
    ("policy", "temperature", "said"),
    [
        ("local:m", 0.7, "temperature 0.7"),
        ("local:m", None, "the server's own temperature"),
        ("local:m", 1.0, ""),
        ("local:./model", 0.7, ""),
        ("local:./model", None, ""),
        ("local:./model", 0.0, "temperature 0:"),
        ("litellm:openai/m", None, ""),
        ("agent:local:m", 0.7, ""),
        ("search", 0.7, ""),
    ],
)
def test_answers_that_cannot_be_learned_from_are_told_of_before_any_is_paid_for(
    policy: str, temperature: float | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model").mkdir()
    warn_of_unlearnable_answers(parse_spec(policy), ModelSettings(temperature=temperature), tmp_path)
    told = capsys.readouterr().err
    assert said in told
    assert ("set `temperature: 1` in config.yaml" in told) == bool(said)
    assert told.count("\n") == bool(said), "one sentence"


@pytest.mark.parametrize(
    ("policy", "path", "text", "refused"),
    [
        ("search", "train.py", "print(1)\n", True),
        ("random", "prompt.txt", "Answer in one sentence.\n", True),
        ("search", "train.py", "RATE = 0.1\n", False),
        ("search", "train.py", "def (:\n", False),  # the baseline's error says more
        ("search", "train.py", "\ufeffRATE = 0.1\n", True),  # runs, but the parser drops the mark
        ("command:./tool", "prompt.txt", "Answer in one sentence.\n", False),
        ("litellm:openai/m", "train.py", "print(1)\n", False),
    ],
)
def test_a_policy_that_could_never_propose_anything_is_refused_before_a_baseline_is_measured(
    policy: str, path: str, text: str, refused: bool
) -> None:
    task, spec = make_task(editable=(path,)), parse_spec(policy)
    if not refused:
        require_tunable(spec, task, {path: text})
        return
    with pytest.raises(UsageError, match=f"the policy {policy} cannot be used: {path}") as caught:
        require_tunable(spec, task, {path: text})
    assert "polic" in str(caught.value.mend)
    assert ("LEARNING_RATE" in caught.value.mend) == (text == "print(1)\n"), "a prompt has no constants to write"
