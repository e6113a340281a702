"""What is said before a session begins, while it can still be set right."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoresearchd.app.admission import warn_of_unlearnable_answers
from autoresearchd.domain.settings import ModelSettings
from autoresearchd.policy.registry import parse_spec


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
