"""A session with a model as a user has it: set up in config.yaml, started by name, read afterwards with ``show``."""

from __future__ import annotations

from tests.e2e.conftest import Project
from tests.fakes import model_turns as turns
from tests.fakes.model_server import ScriptedServer

BETTER = turns.edits("train.py", "SCALE = 1.0", "SCALE = 2.0", "Hypothesis: the bowl has its bottom at two")
PROSE = turns.says("Lower the rate, I would say.")


PRICES = "prices: {m: {input: 1000, output: 1000}}\n"


def configure(project: Project, url: str, more: str = "", *, reasks: int = 1, retries: int = 0) -> None:
    config = project.root.parent / "config.yaml"
    config.write_text(f"local: {{base_url: '{url}'}}\nretries: {retries}\nreasks: {reasks}\n{more}")
    project.environment["AUTORESEARCHD_CONFIG"] = str(config)


def test_a_local_model_proposes_and_show_tells_what_it_said(project: Project) -> None:
    with ScriptedServer([PROSE, BETTER]) as scripted:
        configure(project, scripted.url)
        project.session("local:m")
    shown = project.cli("show", "1").stdout
    assert "keep" in shown and "search_replace" in shown
    assert "the bowl has its bottom at two" in shown
    answers = project.cli("show", "1", "--answers").stdout
    assert "Lower the rate, I would say." in answers and "<<<<<<< SEARCH" in answers
    record = project.json("show", "1", "--json")
    assert [bool(a["error"]) for a in record["answers"]] == [True, False]
    status = project.status()
    assert status["cost"]["tokens_in"] == sum(a["tokens_in"] for a in record["answers"])
    assert status["policy"]["name"] == "local:m"


def test_a_spend_cap_ends_the_session_and_resume_with_more_goes_on(project: Project) -> None:
    worse = [turns.edits("train.py", "SCALE = 1.0", f"SCALE = {n}.5") for n in range(5, 12)]
    with ScriptedServer(worse) as scripted:
        configure(project, scripted.url, PRICES)
        project.session("local:m", 4, "--max-cost", "0.01")
        status = project.status()
        assert status["session"]["state"] == "stopped"
        assert "0.01" in status["session"]["reason"]
        first = status["session"]["experiments"]
        assert first < 4
        project.done("resume", "--max-cost", "1000", "--foreground")
    assert project.status()["session"]["experiments"] == 4


def test_when_the_money_is_spent_search_goes_on_if_told_so(project: Project) -> None:
    with ScriptedServer([BETTER]) as scripted:
        configure(project, scripted.url, PRICES + "spend: {when_reached: search}\n")
        project.session("local:m", 3, "--max-cost", "0.01")
    assert [e["policy"] for e in project.experiments()[1:]] == ["local:m", "search", "search"]


def test_the_notes_of_a_session_are_kept_up_and_read(project: Project) -> None:
    with ScriptedServer([BETTER, turns.edits("train.py", "SHIFT = 0.5", "SHIFT = 1.0")]) as scripted:
        configure(project, scripted.url)
        project.session("local:m")
        memo = project.root / ".autoresearchd/sessions/t/autoresearch.md"
        assert "SCALE" in memo.read_text()
        memo.write_text(memo.read_text() + "\n## Ideas\n\nMove SHIFT next.\n")
        project.done("resume", "t", "--max-experiments", "2", "--foreground")
        assert "Move SHIFT next." in str(scripted.questions[-1]["messages"])
    assert "Move SHIFT next." in memo.read_text()
