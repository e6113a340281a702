"""`task init`: the file that it writes is understood, whatever it was given."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from autoresearchd.config import read_task_text
from autoresearchd.config.draft_task import Draft, render_task_yaml, write_new
from autoresearchd.domain.errors import ConfigError, UsageError
from autoresearchd.domain.task import Direction, Metric

FIELDS = Draft(
    name="my task",
    target_file=("src/model.py",),
    run_command='python train.py --note "a: b # c" 2>&1',
    metric="accuracy",
    direction="maximize",
    budget="5m",
)


def test_every_commented_key_of_a_new_file_is_one_that_works() -> None:
    text = re.sub(r"^( *)# (?=[a-z_]+:|  [a-z]+:)", r"\1", render_task_yaml(FIELDS), flags=re.MULTILINE)
    assert {"evaluation", "profiles", "checks"} <= yaml.safe_load(text).keys()
    assert read_task_text(text).evaluation is not None


@pytest.mark.parametrize("budget", [2, "15s", 300, "8h", 0.5])
def test_the_commented_timeout_is_the_one_that_holds_without_it(budget: float | str) -> None:
    text = render_task_yaml(replace(FIELDS, budget=budget))
    named = read_task_text(text.replace("# timeout:", "timeout:"))
    assert named.execution.timeout_named, "else the comment was not found, or makes no room for the budget"
    assert named.execution.budget == read_task_text(text).execution.budget


def test_a_file_that_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "task.yaml").write_text("mine\n")
    with pytest.raises(UsageError, match="there already"):
        write_new(tmp_path / "task.yaml", render_task_yaml(FIELDS))
    assert (tmp_path / "task.yaml").read_text() == "mine\n"
    with pytest.raises(UsageError, match="cannot be written"):
        write_new(tmp_path / "none" / "task.yaml", render_task_yaml(FIELDS))


def test_a_field_that_is_not_valid_leaves_no_file_behind(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"scoring\.direction"):
        write_new(tmp_path / "task.yaml", render_task_yaml(Draft("a", direction="up")))
    with pytest.raises(ConfigError, match=r"execution\.budget"):
        write_new(tmp_path / "task.yaml", render_task_yaml(Draft("a", budget="soon")))
    assert not (tmp_path / "task.yaml").exists()


def test_all_that_was_found_in_a_project_loads_back() -> None:
    fields = replace(
        FIELDS,
        target_file=("a.py", "sub dir/b.txt"),
        protected=("measure.sh", "x, y.py"),
        data=("~/.cache/data",),
        metrics=("peak_mb", "total_µs"),
        display_metrics=("peak_mb",),
        checks=("bash checks.sh # all", "true"),
        system="Objective:\n  faster: much\n\n- no 'new' packages #1\n---\n",
        baseline=2.385,
        measured="measured: 2.385 ± 0.017\nover 3 runs",
        remarks=("Adopted from\nsomewhere: else",),
    )
    task = read_task_text(render_task_yaml(fields))
    assert task.editable == ("a.py", "sub dir/b.txt") and task.protected == ("measure.sh", "x, y.py")
    assert task.data == ("~/.cache/data",) and task.scoring.metrics == ("peak_mb", "total_µs")
    assert [check.command for check in task.checks] == ["bash checks.sh # all", "true"]
    assert task.prompt.system == "Objective:\n  faster: much\n\n- no 'new' packages #1\n---"
    assert task.scoring.reference == 2.385
    assert (task.name, task.execution.run_command) == ("my task", FIELDS.run_command)
    assert (task.metric, task.execution.budget.training) == (Metric("accuracy", Direction.MAXIMIZE), 300)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    name=st.text(max_size=30),
    command=st.text(max_size=60),
    system=st.text(max_size=80),
    remark=st.text(max_size=40),
    budget=st.floats(0.5, 1e8),
)
def test_no_words_break_out_of_their_place(name: str, command: str, system: str, remark: str, budget: float) -> None:
    fields = Draft(name, run_command=command, system=system, remarks=(remark,), measured=remark, baseline=1.0)
    fields = replace(fields, checks=(command,), budget=budget)
    try:
        task = read_task_text(render_task_yaml(fields))
    except ConfigError as error:
        assert error.key.startswith(("name", "execution.run_command", "checks"))
        return
    assert (task.name, task.editable, task.checks[0].command) == (name.strip(), ("train.py",), command)
    assert (task.execution.run_command, task.execution.budget.training) == (command, budget)
    assert task.prompt.system.split() == "".join(c if c.isprintable() else " " for c in system).split()
