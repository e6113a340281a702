"""What there is to learn from a session of a model, as a user sees it right after the session."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.conftest import Project
from tests.e2e.test_models import configure
from tests.fakes import model_turns as turns
from tests.fakes.model_server import ScriptedServer

BETTER = turns.edits("train.py", "SCALE = 1.0", "SCALE = 2.0", "Hypothesis: the bowl has its bottom at two")
HINTED = turns.edits("train.py", "SHIFT = half", "SHIFT = 0.9", "Hypothesis: a number, then")
SHIFTED = turns.edits("train.py", "SHIFT = 0.5", "SHIFT = 0.9", "Hypothesis: and at one")
BROKEN = turns.edits("train.py", "SHIFT = 0.5", "SHIFT = half", "Hypothesis: half is enough")
PROSE = turns.says("Lower the rate, I would say.")


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


def test_answers_of_a_server_can_be_learned_from_once_the_user_has_said_which_model_it_has(
    project: Project, tmp_path: Path
) -> None:
    """llama.cpp, or vLLM by the name of a hub: neither tells where its model lies."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"weights")
    look = ("learn", "--algo", "grpo", "--dry-run", "--json", "--model", str(model))
    with ScriptedServer([PROSE, BETTER, SHIFTED, PROSE]) as scripted:
        configure(project, scripted.url, "temperature: 1\n", reasks=0)
        project.session("local:m", 2)
        assert project.json(*look)["answers"]["left_out"] == {"unknown_model": 2}
        configure(project, scripted.url, f"temperature: 1\nlearn: {{model: '{model}'}}\n", reasks=0)
        project.done("resume", "--max-experiments", "4", "--foreground")
    answers = project.json(*look)["answers"]
    assert (answers["kept"], answers["left_out"]) == (2, {"unknown_model": 2})
