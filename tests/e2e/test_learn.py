"""What there is to learn from a session of a model, as a user sees it right after the session."""

from __future__ import annotations

from tests.e2e.conftest import Project
from tests.e2e.test_models import BETTER, PROSE, configure
from tests.fakes import model_turns as turns
from tests.fakes.model_server import ScriptedServer

HINTED = turns.edits("train.py", "SHIFT = half", "SHIFT = 0.9", "Hypothesis: a number, then")
BROKEN = turns.edits("train.py", "SHIFT = 0.5", "SHIFT = half", "Hypothesis: half is enough")


def test_a_session_of_a_model_can_be_looked_at_and_is_left_as_it_is(project: Project) -> None:
    with ScriptedServer([PROSE, BETTER, BROKEN, HINTED, PROSE, PROSE]) as scripted:
        configure(project, scripted.url, "repairs: 1\ntemperature: 1\n")
        project.session("local:m", 3)
    before = (project.root / ".git/autoresearchd/state.db").read_bytes()
    found = project.json("learn", "--algo", "ppo", "--dry-run", "--json")
    answers = found["answers"]
    assert answers["read"] == 6, "two were prose at the end, one at the beginning; one failed and was fixed"
    assert answers["left_out"].get("corrupt", 0) == 0
    labels = found["labels"]
    assert labels["malformed_answer"] == 3
    assert labels["error"] == 1, "the edit that was given back earned its failure"
    assert found["rewards"]["least"] == -2.0
    assert found["rewards"]["most"] > 0
    assert answers["with_feedback"] == 6
    assert (project.root / ".git/autoresearchd/state.db").read_bytes() == before
