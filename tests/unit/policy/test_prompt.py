"""The prompt of a tool says all that it needs, and the state file is JSON."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime

from autoresearchd.domain.experiment import Decision, Experiment
from autoresearchd.domain.labels import Label, Phase, Status
from autoresearchd.domain.proposal import ASI, Proposal
from autoresearchd.policy.prompt import as_json, render
from autoresearchd.testing.policies import make_state

from .synthetic import TOY

EXPERIMENT = Experiment(
    session_id=1,
    number=3,
    segment=0,
    phase=Phase.DECIDED,
    parent="0" * 40,
    started_at=datetime(2026, 1, 1, tzinfo=UTC),
    proposal=Proposal({"train.py": "x"}, "a higher rate may help", "search", "MATRIX_LR 0.04 → 0.06"),
    decision=Decision(Status.DISCARD, Label.NO_GAIN, 1.01, -0.01),
    asi=ASI(hypothesis="a higher rate may help", next_action_hint="try\nlower"),
)


def test_the_prompt_holds_goal_rules_history_notes_and_the_file() -> None:
    state = dataclasses.replace(make_state(TOY, sigma=0.01), recent=(EXPERIMENT,), notes=("try a lower rate",))
    text = render(state)
    for piece in (
        "improve val_loss (lower is better)",
        "train.py",
        "prepare.py",
        "MATRIX_LR 0.04 → 0.06: discard/no_gain, 1.01, improvement -0.01",
        "next_action_hint: try lower",
        "- try a lower rate",
        "standard deviation",
        TOY,
    ):
        assert piece in text


def test_the_state_file_is_json_with_code_and_history() -> None:
    state = dataclasses.replace(make_state(TOY), recent=(EXPERIMENT,), diagnostics={"path": object()})
    read = json.loads(json.dumps(as_json(state)))
    assert read["code"] == {"train.py": TOY}
    assert read["recent"][0]["label"] == "no_gain"
    assert read["task"]["direction"] == "minimize"
