"""``learn --dry-run`` says what would be learned from and what not, and why, before hours are spent on it."""

from __future__ import annotations

import importlib.util
import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from autoresearchd.cli.commands.learn_command import parse_options
from autoresearchd.config import dump_task
from autoresearchd.domain.errors import UsageError
from autoresearchd.domain.labels import Label
from autoresearchd.domain.task import Budget
from autoresearchd.workspace import layout
from tests.fakes.policies import make_task
from tests.unit.cli.conftest import Command
from tests.unit.learner.sessions import ONE_EACH, add_session, make_root

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


def test_a_dry_run_says_what_a_promotion_takes_beside_what_is_there(empty_repository: Path, command: Command) -> None:
    """Else hours of learning end with: too few held-out states, which was known before."""
    add_session(empty_repository, outcomes=ONE_EACH * 11, group=1)
    there = json.loads(command(*DRY, "--json").out)["promotion"]
    assert (there["states_needed"], there["states"], there["sessions"], there["more"]) == (20, 22, 1, 0)
    assert (there["proposals"], there["experiments"]) == (2 * 22 * 4, 2 * 22 * 4 + 1), "one run of the best so far, too"
    asked = ("--set", "states=10", "--set", "count=2")
    assert "40 proposals (both policies, 10 states × 2); up to 41 experiments would be run" in command(*DRY, *asked).out
    slow = replace(make_task(), execution=replace(make_task().execution, budget=Budget(60.0, 0.0, 90.0)))
    predicted = json.loads(command(*DRY, *asked, "--set", "judge=checks", "--json").out)["promotion"]
    assert (predicted["proposals"], predicted["experiments"]) == (40, 0)
    add_session(empty_repository, "apr2", ONE_EACH * 5, group=1, task_json=dump_task(slow), days=20)
    assert "none is run" in command(*DRY).out, "runs of a minute are not run, where nothing else is said"


def test_where_nothing_is_held_out_a_promotion_takes_all_of_it(empty_repository: Path, command: Command) -> None:
    add_session(empty_repository, tokens=False)
    out = command(*DRY).out
    assert "held-out states: 20; there: none; run about 80 more states first" in out
    assert "the gate has nothing to ask about yet" in out


def test_a_dry_run_says_that_it_would_start_cold(empty_repository: Path, command: Command) -> None:
    bad = ((-2.0, Label.MALFORMED_ANSWER),) * 12
    add_session(empty_repository, outcomes=((2.0, Label.NONE), *bad), group=1)
    out = command(*DRY).out
    assert "cold start: for its first steps it imitates the 1 kept answer, because only 1 of" in out


def test_the_constants_decide_what_a_dry_run_tells(empty_repository: Path, command: Command) -> None:
    add_session(empty_repository, group=1)
    told = command(*DRY, "--set", "share=0.5", "--set", "neighbours=none")
    assert "training: 4; held out: 4" in told.out
    assert "0 of 4 single answers with their neighbours" in told.out
    assert "constants: share=0.5, neighbours=none" in told.out
    found = json.loads(command(*DRY, "--json", "--set", "share=0.5", "--set", "neighbours=none").out)
    assert found["constants"] == {"share": 0.5, "neighbours": None}
    assert found["split"]["held_out"] == 4
    assert "no single answer" in found["lacking"]


def test_a_dry_run_starts_cold_where_the_constants_say_so(empty_repository: Path, command: Command) -> None:
    add_session(empty_repository)
    warm = command(*DRY, "--set", "valid_share=0.9").out
    assert "cold start: for its first steps it imitates the 2 kept answers" in warm
    assert "cold start" not in command(*DRY).out
    never = ("--set", "valid_share=0.9", "--set", "cold_start=false")
    assert "no cold start" in command(*DRY, *never).out
    assert json.loads(command(*DRY, "--json", "--set", "valid_share=0.9").out)["cold_start"] != ""
    assert json.loads(command(*DRY, "--json", *never).out)["cold_start"] == ""


def test_where_nothing_can_be_learned_the_dry_run_says_so_and_what_would_help(
    empty_repository: Path, command: Command
) -> None:
    add_session(empty_repository, tokens=False)
    done = command(*DRY)
    assert done.code == 0
    assert "       8  its tokens or their log-probabilities were not stored" in done.out
    assert "not enough: none of 8 answers can be learned from\n  → let a local model answer" in done.out


def test_a_corrupt_row_is_counted_and_loses_nothing_else(empty_repository: Path, command: Command) -> None:
    add_session(empty_repository)
    with closing(sqlite3.connect(layout.database_path(empty_repository))) as db, db:
        db.execute("UPDATE answer_body SET completion = x'00' WHERE number = 2")
    out = command(*DRY).out
    assert "7 of 8 answers can be learned from" in out
    assert "       1  it cannot be read from the database any more" in out


def test_sessions_of_another_repository_are_joined(empty_repository: Path, tmp_path: Path, command: Command) -> None:
    other = make_root(tmp_path / "other")
    add_session(empty_repository)
    add_session(other, days=1)
    done = command(*DRY, "--from", str(other), "--from", ".")
    assert "repository/mar8: 8 answers" in done.out
    assert "other/mar8: 8 answers" in done.out
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
        (("--model", "./absent"), "there is nothing at"),
        (("--set", "rate"), "is not NAME=VALUE"),
        (("--set", "learning_rat=1"), "there is no such constant"),
        (("--set", "gamma=0.9"), "grpo has no such constant"),
        (("--set", "batch=many"), "a whole number"),
        (("--set", "share=2"), "it must be a number from 0.01 to 0.5"),
        (("--export", "t.csv"), "only Parquet is written"),
        (("--export", "absent/t.parquet"), "no file can be there"),
        (("--export", f"{'x' * 243}.parquet"), "no file can be there"),
        (("--export", f"{'x' * 300}.parquet"), "no file can be there"),
        (("--algo", "sarsa"), "sarsa"),
        (("--mode", "dream"), "dream"),
        (("--steps", "0"), "--steps"),
    ],
)
def test_what_is_wrong_in_a_command_line_is_named(
    empty_repository: Path, command: Command, arguments: tuple[str, ...], words: str
) -> None:
    add_session(empty_repository)
    done = command(*DRY, *arguments)
    assert done.code == 2
    assert words in done.err
    assert done.out == ""


def test_a_session_of_a_search_holds_nothing_to_learn_from(repository: Path, command: Command) -> None:
    done = command(*DRY)
    assert done.code == 2
    assert "no model has answered in any session" in done.err
    assert "mar8 (policy search)" in done.err


def test_an_empty_repository_and_an_odd_database_are_told_apart(empty_repository: Path, command: Command) -> None:
    assert "there is no session in" in command(*DRY).err
    add_session(empty_repository)
    with closing(sqlite3.connect(layout.database_path(empty_repository))) as db, db:
        db.execute("UPDATE alembic_version SET version_num = '9999'")
    done = command(*DRY)
    assert done.code == 2
    assert "a newer version wrote it" in done.err


def test_answers_of_several_models_are_not_mixed_without_a_word(empty_repository: Path, command: Command) -> None:
    add_session(empty_repository, "one", model_hash="aa11")
    add_session(empty_repository, "two", model_hash="bb22", days=1)
    assert "answers of several models are read together (m (aa11), m (bb22))" in command(*DRY).err


def test_with_a_model_on_disk_the_answers_of_others_are_left_out(
    empty_repository: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_session(empty_repository)
    folder = empty_repository / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    words = "it comes from another base model"
    assert words in command(*DRY, "--model", "model").out
    config = Path(os.environ["AUTORESEARCHD_CONFIG"])
    config.write_text(f"local: {{model: '{folder}'}}\n")
    assert words in command(*DRY).out, "the model of config.yaml is the one that would learn"
    assert "whether the answers are its own is not looked at" in command(*DRY, "--model", "some/hub").err


def test_answers_of_a_server_that_told_no_hash_are_counted_with_what_would_help(
    empty_repository: Path, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else somebody collects answers for weeks of which none can be learned from."""
    add_session(empty_repository, model_hash="")
    folder = tmp_path / "cache/hub/models--Qwen--Qwen3-4B/snapshots" / ("a" * 40)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder.parents[1] / "refs").mkdir()
    (folder.parents[1] / "refs/main").write_text("a" * 40)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    told = command(*DRY).out
    assert "8 answers tell no hash of their model, and replay leaves them out once it is said which model" in told
    assert "`learn: {model: DIR}`" in told
    for named in (str(folder), "Qwen/Qwen3-4B"):
        told = command(*DRY, "--model", named).out
        assert "       8  nobody knows which base model it comes from: the server told no hash" in told
        assert "8 answers tell no hash of their model, and replay leaves them out\n  → name the folder" in told
        assert "not enough: none of 8 answers can be learned from\n  → name the folder of the server's model" in told
        found = json.loads(command(*DRY, "--json", "--model", named).out)["answers"]
        assert (found["left_out"], found["without_model_hash"]) == ({"unknown_model": 8}, 8)
    assert "no hash" not in command("learn", "--algo", "grpo", "--dry-run", "--mode", "live").out


def test_words_of_a_database_do_not_steer_the_terminal(empty_repository: Path, command: Command) -> None:
    add_session(empty_repository, policy="local:\x1b]0;owned\x07m")
    out = command(*DRY).out
    assert "\x1b" not in out
    assert "\x07" not in out


def test_a_dry_run_needs_neither_torch_nor_transformers_nor_the_daemon(empty_repository: Path) -> None:
    """Nobody installs gigabytes to see that there is nothing to learn from; and it should not take seconds."""
    add_session(empty_repository)
    program = (
        "import sys\n"
        "for name in ('torch', 'transformers', 'trl', 'peft', 'datasets', 'sqlalchemy.orm', 'git', 'numpy', 'scipy'):\n"
        "    sys.modules[name] = None\n"
        "from autoresearchd.cli.main import run\n"
        f"sys.exit(run({[*DRY, '--set', 'share=0.25']!r}))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "8 of 8 answers can be learned from" in done.stdout


@pytest.mark.parametrize("absent", [("peft",), ("torch", "transformers", "peft", "safetensors")])
def test_learning_without_the_extra_names_it(empty_repository: Path, absent: tuple[str, ...]) -> None:
    add_session(empty_repository)
    program = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({absent!r}))\n"
        "from autoresearchd.cli.main import run\n"
        "sys.exit(run(['learn', '--algo', 'grpo', '--model', '.']))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 5, done.stderr
    assert f"learning needs {', '.join(absent)}, which" in done.stderr
    assert "pip install 'autoresearchd[learn]'" in done.stderr
    assert "defect" not in done.stderr and "Traceback" not in done.stderr


def test_learning_where_there_is_no_session_leaves_no_database_behind(
    empty_repository: Path, tmp_path: Path, command: Command
) -> None:
    pytest.importorskip("torch", reason="pip install 'autoresearchd[learn]'")
    other = make_root(tmp_path / "other")
    add_session(other)
    for arguments in ((), ("--from", str(other))):
        done = command("learn", "--algo", "grpo", "--model", "m", *arguments)
        assert done.code == 2
        assert f"there is no session in {empty_repository}" in done.err
        assert not layout.state_dir(empty_repository).exists()


def test_an_export_holds_what_would_be_learned_from(empty_repository: Path, command: Command) -> None:
    add_session(empty_repository)
    target = empty_repository / "t.parquet"
    done = command("learn", "--algo", "ppo", "--export", str(target))
    if importlib.util.find_spec("pyarrow") is None:
        assert done.code == 5
        assert "pip install pyarrow" in done.err
        return
    import pyarrow.parquet

    assert done.code == 0, done.err
    assert f"wrote {target}: 8 answers" in done.err
    rows = pyarrow.parquet.read_table(target).to_pylist()
    assert [row["reward"] for row in rows] == [reward for reward, _ in ONE_EACH]


def test_options_are_names_and_values() -> None:
    assert parse_options(["learning_rate=1e-4", "grpo.level=sequence=1"]) == {
        "learning_rate": "1e-4",
        "grpo.level": "sequence=1",
    }
    for wrong in (["x"], ["=1"], ["Rate=1"], ["x="], ["x=1", "x=2"], ["x=\x1b[2J"], ["x=" + "1" * 201]):
        with pytest.raises(UsageError, match="--set"):
            parse_options(wrong)
