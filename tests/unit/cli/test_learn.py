"""``learn --dry-run`` says what would be learned from and what not, and why, before hours are spent on it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Command
from tests.unit.learner.sessions import ONE_EACH, add_session, make_root

PYARROW = importlib.util.find_spec("pyarrow") is not None
WITH_PYARROW = pytest.mark.skipif(not PYARROW, reason="pip install pyarrow")
DRY = ("learn", "--algo", "grpo", "--dry-run")


@pytest.fixture(autouse=True)
def no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings of whoever runs the tests are not theirs."""
    config = tmp_path / "config.yaml"
    config.write_text("")
    monkeypatch.setenv("AUTORESEARCHD_CONFIG", str(config))


def test_a_dry_run_tells_what_is_there_and_what_grpo_would_do_with_it(empty_repository: Path, command: Command) -> None:
    add_session(empty_repository)
    done = command(*DRY)
    assert done.code == 0, done.err
    assert done.out.splitlines() == [
        "mar8: 8 answers, 8 experiments, policy local:m, task toy",
        "",
        "8 of 8 answers can be learned from; sessions: 1, 2026-03-08 20:01 to 2026-03-08 20:08 UTC",
        "groups: 4; of one answer: 0; of several: 4, with equal rewards (no signal): 1",
        "rewards: mean -0.275, standard deviation 1.48, from -2 to 2.5; resting on a forecast: 1",
        "outcomes: kept 2, no_gain 2, malformed_answer 1, error 1, aborted_early 1, duplicate 1",
        "answered by: base model 8",
        "stored tokens: 24; answers with feedback: 8",
        "training: 6; held out: 2 (what was made last); left out of both, since their prompt is held out: 0",
        "",
        "GRPO compares within 2 of 3 groups of several answers, and 0 of 0 single answers with their neighbours, which "
        "is an approximation",
        "",
        "a promotion takes, beside a new policy that earns surely more:",
        "  held-out states: 20; there: 1 state of 1 session; run about 76 more states first",
        "  decided proposals in them: 2; the gate asks for 8 proposals (both policies, 1 state × 4); up to 9 "
        "experiments would be run",
        "  base model: none is named: --model DIR, a folder with config.json, tokenizer and safetensors",
    ]
    assert done.err == ""


def test_a_script_reads_the_same_as_one_json_document(empty_repository: Path, command: Command) -> None:
    add_session(empty_repository, tokens=False)
    add_session(empty_repository, "apr2", days=20)
    found = json.loads(command(*DRY, "--json").out)
    assert found["answers"]["left_out"] == {"no_tokens": 8}
    assert (found["answers"]["read"], found["answers"]["kept"]) == (16, 8)
    assert found["split"] == {"by": "time", "train": 6, "held_out": 2, "leaked": 0}
    assert (found["signal"]["groups"], found["signal"]["informative"]) == (3, 2)
    assert (found["cold_start"], found["lacking"], found["problem"]) == ("", "", "")
    assert [session["name"] for session in found["sessions"]] == ["mar8", "apr2"]
    assert found["model"] is None


def test_sessions_of_another_repository_are_joined(empty_repository: Path, tmp_path: Path, command: Command) -> None:
    other = make_root(tmp_path / "other")
    add_session(empty_repository)
    add_session(other, days=1)
    done = command(*DRY, "--from", str(other), "--from", ".")
    assert "repository/mar8: 8 answers" in done.out and "other/mar8: 8 answers" in done.out
    assert "(what was made last)" in done.out, "experiments may be run for what is held out"
    predicted = command(*DRY, "--from", str(other), "--set", "judge=checks")
    assert "(whole sessions)" in predicted.out
    assert "which is read once" in done.err
    assert "other/mar8: 8 answers, 8 experiments, policy local:m, task toy, foreign" in done.out
    assert "foreign sessions are learned from; their experiments are not run" in done.out
    assert "are run, too" in command(*DRY, "--from", str(other), "--set", "run_foreign=true").out
    told = json.loads(command(*DRY, "--from", str(other), "--json").out)["sessions"]
    assert [session["foreign"] for session in told] == [False, True]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--from", "/nowhere"), "there is no such folder"),
        (("--set", "rate"), "is not NAME=VALUE"),
        (("--set", "learning_rat=1"), "there is no such constant"),
        (("--set", "batch=many"), "a whole number"),
        (("--export", "t.csv"), "only Parquet is written"),
        pytest.param(("--export", "absent/t.parquet"), "cannot write absent/t.parquet", marks=WITH_PYARROW),
        (("--algo", "sarsa"), "sarsa"),
    ],
)
def test_what_is_wrong_in_a_command_line_is_named(
    empty_repository: Path, command: Command, arguments: tuple[str, ...], words: str
) -> None:
    add_session(empty_repository)
    done = command(*DRY, *arguments)
    assert done.code == 2 and words in done.err
    assert done.out == ""


def test_a_session_of_a_search_holds_nothing_to_learn_from(repository: Path, command: Command) -> None:
    done = command(*DRY)
    assert done.code == 2
    assert "no model has answered in any session" in done.err and "mar8 (policy search)" in done.err


def learn_without(modules: tuple[str, ...], *words: str) -> subprocess.CompletedProcess[str]:
    """Learn where some modules cannot be imported."""
    program = (
        f"import sys\nsys.modules.update(dict.fromkeys({modules!r}))\nfrom autoresearchd.cli.main import run\n"
        f"sys.exit(run({list(words)!r}))\n"
    )
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)


def test_a_dry_run_needs_neither_torch_nor_transformers_nor_the_daemon(empty_repository: Path) -> None:
    """Nobody installs gigabytes to see that there is nothing to learn from; and it should not take seconds."""
    add_session(empty_repository)
    heavy = ("torch", "transformers", "trl", "peft", "datasets", "sqlalchemy.orm", "git", "numpy", "scipy")
    done = learn_without(heavy, *DRY, "--set", "share=0.25")
    assert done.returncode == 0, done.stderr
    assert "8 of 8 answers can be learned from" in done.stdout


def test_learning_without_the_extra_names_it(empty_repository: Path) -> None:
    add_session(empty_repository)
    done = learn_without(("peft",), "learn", "--algo", "grpo", "--model", ".")
    assert done.returncode == 5, done.stderr
    assert "learning needs peft, which" in done.stderr and "pip install 'autoresearchd[learn]'" in done.stderr


def test_an_export_holds_what_would_be_learned_from(empty_repository: Path, command: Command) -> None:
    add_session(empty_repository)
    target = empty_repository / "t.parquet"
    done = command("learn", "--algo", "ppo", "--export", str(target))
    if not PYARROW:
        assert done.code == 5 and "pip install pyarrow" in done.err
        return
    import pyarrow.parquet

    assert done.code == 0, done.err
    assert f"wrote {target}: 8 answers" in done.err
    rows = pyarrow.parquet.read_table(target).to_pylist()
    assert [row["reward"] for row in rows] == [reward for reward, _ in ONE_EACH]
