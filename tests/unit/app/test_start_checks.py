"""What is said before a session begins, while it can still be set right."""

from __future__ import annotations

import contextlib
import json
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from autoresearchd.app.start import learning_note
from autoresearchd.app.tasks import task_folder
from autoresearchd.app.tasks.job_programs import require_bits, require_programs, require_tool
from autoresearchd.app.tasks.search_space import require_tunable
from autoresearchd.app.tasks.task_folder import needs_of, who_measures
from autoresearchd.config import read_task_text
from autoresearchd.config.settings import ModelSettings
from autoresearchd.domain.errors import ConfigError, MissingCapability, UsageError
from autoresearchd.domain.task import Check, Evaluation, MetricSource, Search, Task
from autoresearchd.policy.policy_names import parse_spec
from autoresearchd.workspace.git import GitWorkspace
from tests.fakes.policies import make_task
from tests.fakes.repositories import git, make_repository


@pytest.mark.parametrize(
    ("policy", "temperature", "said"),
    [
        ("local:m", 0.7, "temperature 0.7"),
        ("local:m", None, "the server's own temperature"),
        ("local:m", 1.0, ""),
        ("local:./model", 0.7, ""),
        ("local:./model", 0.0, "temperature 0:"),
        ("agent:local:m", 0.7, ""),
    ],
)
def test_answers_that_cannot_be_learned_from_are_told_of_before_any_is_paid_for(
    policy: str, temperature: float | None, said: str, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    told = learning_note(parse_spec(policy), ModelSettings(temperature=temperature), tmp_path)
    assert said in told
    assert ("set `temperature: 1` in config.yaml" in told) == bool(said)
    assert told.count("\n") == bool(said), "one sentence"


@pytest.mark.parametrize(
    ("policy", "path", "text", "refused"),
    [
        ("search", "train.py", "print(1)\n", True),
        ("random", "prompt.txt", "Answer in one sentence.\n", True),
        ("search", "train.py", "RATE = 0.1\nof the future ==\n", True),
        ("search", "train.py", "RATE = 0.1\n", False),
        ("search", "train.py", "\ufeffRATE = 0.1\n", False),
        ("command:./tool", "prompt.txt", "Answer in one sentence.\n", False),
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
    assert "polic" in str(caught.value.hint)
    if "future" in text:  # all night nothing could be proposed
        assert "train.py, line 2" in caught.value.what
        assert f"Python {sys.version_info[0]}.{sys.version_info[1]}, which runs autoresearchd" in caught.value.what
    assert ("LEARNING_RATE" in caught.value.hint) == (text == "print(1)\n"), "a prompt has no constants to write"


def test_what_a_score_of_its_own_does_not_protect_is_said_with_what_is_left_alone() -> None:
    """Who reads a gain in the morning should have been told that the data behind it could be edited."""
    task = make_task()
    told = " ".join(who_measures(task, {"train.py": "SEED = 1\nN_VAL = 400\nLR = 0.1\n"}))
    assert "val_loss is self-reported" in told and "an edit can change the data or the score" in told
    assert "evaluation.command" in told
    assert told.endswith("leave alone what reaches it: SEED, N_VAL")
    assert "leave alone" not in " ".join(who_measures(task, {"train.py": "LR = 0.1\n"}))
    owned = replace(task, scoring=replace(task.scoring, source=MetricSource.EVALUATOR))
    assert who_measures(owned, {"train.py": "SEED = 1\n"}) == ()


@pytest.mark.parametrize("policy", ["search", "random"])
@pytest.mark.parametrize(
    ("text", "search", "words"),
    [
        ("LR = 0.1\n", Search(fixed=("RL",)), "no constant of train.py is called 'RL'"),
        ("LR = 0.1  # range: 1..0.1\n", Search(), "train.py:1: LR: a comment gives a range"),
        ("LR = 0.1\n", Search(ranges={"train.py:LR": (1.0, 2.0)}), "0.1 is outside of the range 1..2"),
    ],
)
def test_a_night_is_not_begun_with_bounds_that_hold_nothing(policy: str, text: str, search: Search, words: str) -> None:
    task = make_task(search=search)
    with pytest.raises(ConfigError) as caught:
        require_tunable(parse_spec(policy), task, {"train.py": text})
    assert words in str(caught.value)


def test_what_is_missing_is_named_as_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("import os\ndef f():\n    from sklearn.svm import SVC\n    import numpy as np\n")
    (tmp_path / "broken.py").write_text("import torch (\n")
    monkeypatch.setattr(task_folder, "find_spec", lambda name: None if name == "sklearn" else object())
    assert needs_of(tmp_path) == (("train", "tasks"), ("scikit-learn",))
    (tmp_path / "train.py").write_text("import json\nfrom .torch import x\n")
    assert needs_of(tmp_path) == ((), ())


def test_a_bundled_task_is_not_begun_without_a_package_that_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its set-up fails once a session has begun, with advice about setup_commands."""
    monkeypatch.setattr(task_folder, "find_spec", lambda name: None if name in ("sklearn", "transformers") else name)
    folder = tmp_path / "new"
    with contextlib.ExitStack() as undo, pytest.raises(MissingCapability, match="needs scikit-learn,") as caught:
        task_folder.task_folder("baseball-pitch-synthetic", folder, undo)
    assert "pip install 'autoresearchd[train,tasks]'" in caught.value.hint
    assert not folder.exists()
    with contextlib.ExitStack() as undo:
        assert task_folder.task_folder("sft-classifier", folder, undo) == folder, "only its larger profile needs it"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tools") / "repository"
    make_repository(folder, {"train.py": "X = 1\n", "propose.sh": "true\n", "my tools/edit.py": "pass\n", "no.sh": ""})
    for name in ("propose.sh", "my tools/edit.py"):
        git(folder, "add", "--chmod=+x", name)
    git(folder, "commit", "-qm", "executable")
    return folder


def opened(root: Path) -> closing[GitWorkspace]:
    return closing(GitWorkspace(root, "t", task_folder=root, editable=("train.py",)))


def check(root: Path, command: str) -> None:
    with opened(root) as workspace:
        require_tool(command, workspace, workspace.head(), root)


@pytest.mark.parametrize(
    "command",
    [
        "./propose.sh", "sh propose.sh 2>/dev/null", "sh no.sh", "'./my tools/edit.py' --fast",
        "KEY=1 OTHER='a b' ./propose.sh", "cd 'my tools' && ./edit.py", "if true; then ./later.sh; fi",
        "(cd nowhere; ./x)", "edit() { sed -i s/1/2/ train.py; }; edit", "! true", "$HOME/propose.sh",
        "`which true`", "# a remark\ntrue", "exec ./propose.sh", "true", "python3 -m some.module",
        "env python3 x.py", f"{sys.executable} -c pass", "~nobody/x.sh", "echo 'no end",
    ],
)  # fmt: skip
def test_what_a_shell_may_find_is_let_pass(root: Path, command: str) -> None:
    check(root, command)


@pytest.mark.parametrize(
    "command", ["./Propose.sh", "./no.sh", "propose", "sh ./nope", "KEY=1 nope", "~/nope.sh", "nope; true"]
)
def test_what_no_shell_will_find_is_refused(
    root: Path, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UsageError) as caught:
        check(root, command)
    assert caught.value.hint


def task_of(command: str, **execution: object) -> Task:
    task = read_task_text(
        f"name: a\nworkspace: {{target_file: train.py}}\nexecution: {{run_command: {json.dumps(command)}}}\n"
        "scoring: {metric: loss, direction: minimize}\n"
    )
    return replace(task, execution=replace(task.execution, **execution))


COMMAND = "A=1 ./no.sh --fast"


@pytest.mark.parametrize(
    ("key", "task"),
    [
        ("evaluation.model_command", replace(task_of("true"), evaluation=Evaluation("true", model_command=COMMAND))),
        ("checks", replace(task_of("true"), checks=(Check(COMMAND),))),
    ],
)
def test_a_script_that_was_committed_without_its_executable_bit_is_named_with_its_key_before_anything_runs(
    root: Path, key: str, task: Task
) -> None:
    with opened(root) as workspace, pytest.raises(UsageError) as caught:
        require_bits(task, workspace, workspace.head())
    assert key in caught.value.what and "./no.sh may not be executed" in caught.value.what
    assert "git add --chmod=+x -- no.sh" in caught.value.hint and "sh ./no.sh" in caught.value.hint


# ---------------------------------------------------------------------- the programs of a task's own commands
@pytest.mark.parametrize(
    "command",
    [
        "python train.py", "python3 -m train", "./propose.sh", "SEED=1 sh no.sh", f"{sys.executable} train.py",
        "cd . && nothing-yet", "$PYTHON train.py", "~/env/bin/python train.py", "exec python train.py",
    ],
)  # fmt: skip
def test_a_command_that_a_job_finds_passes_the_check(root: Path, command: str) -> None:
    assert require_programs(task_of(command), root) == ()


@pytest.mark.parametrize("command", ["python9 train.py", "/opt/none/bin/python train.py", "./gone.sh", "A=1 pyhton x"])
def test_an_interpreter_that_is_nowhere_is_named_before_a_night_is_lost_to_it(root: Path, command: str) -> None:
    with pytest.raises(MissingCapability, match=r"execution\.run_command begins with") as caught:
        require_programs(task_of(command), root)
    assert caught.value.exit_code == 5 and "task.yaml" in caught.value.hint
    [note] = require_programs(task_of(command, setup_commands=("make tools",)), root)
    assert "setup" in note, "what set-up makes cannot be known before"
