"""The state file that a tool is given is JSON, and holds all that is known."""

from __future__ import annotations

import dataclasses
import json

from autoresearchd.domain.labels import Label
from autoresearchd.domain.proposal import Repair
from autoresearchd.domain.redaction import Redactor
from autoresearchd.policy.command_policy import as_json
from tests.fakes.policies import make_state

from .histories import experiment
from .synthetic import TOY


def test_the_state_file_is_json_without_secrets() -> None:
    secret = "hunter2-correct-horse-battery"
    state = dataclasses.replace(
        make_state(TOY),
        recent=(experiment(3, "MATRIX_LR 0.04 → 0.06", Label.NO_GAIN, value=1.01, delta=-0.01),),
        diagnostics={"path": object()},
        memo="- idea\n",
        streak=8,
        failures={"oom": 2},
        incumbent="1" * 40,
        repair=Repair(1, {"train.py": f"k = '{secret}'\n"}, "error", secret, f"{secret}\n" * 2000, secret),
        redactor=Redactor([secret]),
    )
    text = json.dumps(as_json(state))
    assert "hunter2" not in text
    read = json.loads(text)
    assert read["code"] == {"train.py": TOY}
    assert read["recent"][0]["label"] == "no_gain"
    assert read["task"]["direction"] == "minimize"
    assert (read["memo"], read["streak"], read["stuck"], read["failures"]) == ("- idea\n", 8, "radical", {"oom": 2})
    assert read["incumbent_commit"] == "1" * 40
    assert set(read["repair"]["files"]) == {"train.py"}
