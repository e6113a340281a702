"""task.yaml and check.yaml: what is read, with which defaults, profiles and overrides; and tasks in the store."""

from __future__ import annotations

import dataclasses
import enum
import json
import shutil
import subprocess
import sys
import types
import typing
from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoresearchd.config import Overrides, dump_task, load_task, parse_task, read_task_text
from autoresearchd.config.load_task import CHECK_FILE, load_check
from autoresearchd.config.task_schema import Step
from autoresearchd.domain.errors import ConfigError, StoreError
from autoresearchd.domain.labels import Label
from autoresearchd.domain.task import (
    Budget,
    Check,
    Cloud,
    Constraint,
    Curve,
    Direction,
    Evaluation,
    Metric,
    MetricSource,
    Prompt,
    Role,
    Task,
)

HERE = Path(__file__).parent
MINIMAL = """\
name: tiny
workspace: {target_file: train.py}
execution: {run_command: python train.py}
scoring: {metric: val_loss, direction: minimize}
"""


def load(tmp_path: Path, source: str, **options: object) -> Task:
    shutil.copy(HERE / source, tmp_path / "task.yaml")
    return load_task(tmp_path, **options)  # type: ignore[arg-type]


def test_a_task_file_of_autoresearch_distillation_loads_unchanged(tmp_path: Path) -> None:
    task = load(tmp_path, "seed.yaml")
    assert (task.name, task.editable, task.source_dir) == ("my-task", ("model.py",), "my_source")
    assert task.execution.run_command == "python3 train.py 2>&1"
    assert task.execution.setup_commands == ("pip install -r requirements.txt",)
    assert task.execution.needs_gpu is True
    assert task.metric == Metric("val_loss", Direction.MINIMIZE)
    assert task.scoring.parse_mode == "key_value"
    assert task.scoring.reference == 1.0
    assert task.scoring.metrics == ("val_loss", "train_time_s")
    assert task.scoring.display_metrics == ("train_time_s",)
    assert task.scoring.source is MetricSource.STDOUT
    assert task.prompt.instance == "## Current {target_file}\n```{code_lang}\n{file_content}\n```"
    assert task.execution.budget == Budget(training=300, grace=0, wall=300), "a timeout alone is the job's whole time"


def test_every_key_of_the_manual_reaches_the_task(tmp_path: Path) -> None:
    task = load(tmp_path, "full.yaml")
    assert task.protected == ("prepare.py", "evaluate.py")
    assert task.data == ("data/train.bin",)
    assert task.execution.budget == Budget(300, 60, 660)
    assert task.execution.python is None and task.execution.memory_mb is None
    assert task.evaluation == Evaluation("python evaluate.py", private=("data/val.bin",))
    assert task.scoring.source is MetricSource.EVALUATOR
    assert task.checks == (Check("pytest -q tests", 300),)
    assert task.scoring.constraints == (
        Constraint("artifact_bytes", max=16_000_000),
        Constraint("peak_vram_mb", max_increase=0.25),
    )
    assert task.curve == Curve("auto", 30, True)
    assert task.prompt == Prompt("…", "…")
    assert set(task.feedback) == {"success", "failure", "crash", "duplicate", "no_change", "degradation"}
    assert task.roles == (Role("optimizer", "…", "…"),)


def test_four_keys_are_enough_and_the_rest_has_the_defaults_of_the_manual() -> None:
    task = read_task_text(MINIMAL)
    assert task.execution.budget == Budget(300, 60, 660)
    assert task.curve == Curve("auto", 30, True)
    assert task.scoring.degradation_threshold == 0.05
    assert task.scoring.min_delta is None
    assert task.scoring.source is MetricSource.STDOUT
    assert task.execution.needs_gpu is False
    assert (task.history, task.source_dir, task.profile) == ("refs", ".", "cpu")
    assert task.evaluation is None


def with_keys(execution: str = "", scoring: str = "", more: str = "") -> str:
    return MINIMAL.replace("train.py}\nsc", f"train.py, {execution}}}\nsc").replace("ize}", f"ize, {scoring}}}") + more


@pytest.mark.parametrize(
    ("execution", "override", "expected", "named"),
    [
        ("budget: 5m", None, Budget(300, 60, 660), False),
        ("budget: 90s, startup_grace: 0", None, Budget(90, 0, 180), False),
        ("budget: '45'", None, Budget(45, 60, 150), False),
        ("budget: 60, timeout: 3m", None, Budget(60, 60, 180), True),
        ("startup_grace: 30, timeout: 400", None, Budget(300, 30, 400), True),
        ("timeout: 1h30m", None, Budget(5400, 0, 5400), True),
        ("", 15, Budget(15, 60, 90), False),
        ("budget: 300, timeout: 660", 15, Budget(15, 60, 660), True),
        ("budget: 300, timeout: 400", 400, Budget(400, 60, 860), False),
        ("timeout: 300", 60, Budget(60, 60, 300), True),
        ("startup_grace: 5", 10, Budget(10, 5, 25), False),
    ],
)
def test_what_is_left_out_of_a_runs_times_is_derived_and_none_is_too_short_for_the_budget(
    execution: str, override: float | None, expected: Budget, named: bool
) -> None:
    found = read_task_text(with_keys(execution), overrides=Overrides(budget=override)).execution
    assert (found.budget, found.timeout_named) == (expected, named)


@pytest.mark.parametrize(
    ("given", "budget", "override", "expected"),
    [("", 3000, None, 30), ("", 60, None, 6), ("", 300, 15, 1.5), ("30", 300, 15, 1.5), ("30", 60, None, 30)],
)
def test_a_short_run_is_still_looked_at_ten_times(
    given: str, budget: float, override: float | None, expected: float
) -> None:
    text = with_keys(f"budget: {budget}", more=f"curve: {{check_every: {given}}}\n")
    assert read_task_text(text, overrides=Overrides(budget=override)).curve.check_every == expected


EVALUATED = "evaluation: {command: python evaluate.py}\n"


@pytest.mark.parametrize(
    ("text", "key", "expected"),
    [
        (with_keys(scoring="min_delta: 0.02"), "scoring.min_delta", 0.02),
        (with_keys(scoring="pattern: 'loss=([0-9.]+)'"), "scoring.parse_mode", "regex"),
        (with_keys(scoring="metric_source: auto"), "scoring.source", MetricSource.STDOUT),
        (with_keys(scoring="metric_source: auto", more=EVALUATED), "scoring.source", MetricSource.EVALUATOR),
        (with_keys(scoring="metric_source: stdout", more=EVALUATED), "scoring.source", MetricSource.STDOUT),
        (with_keys("needs_gpu: auto"), "execution.needs_gpu", False),
        (with_keys("needs_gpu: yes"), "execution.needs_gpu", True),
        (with_keys("env: {LR: 0.10, N: 007, ON: on}"), "execution.env", {"LR": "0.10", "N": "007", "ON": "on"}),
        (with_keys(more="checks: [&c {command: pytest}, *c]"), "checks", (Check("pytest"), Check("pytest"))),
        (with_keys(more="fleet: {slots: [{host: me@box-1, gpu_id: 3}]}"), "name", "tiny"),
        (with_keys(more="fleet: {cloud: {accelerators: 'H100:8', cpus: 16}}"), "cloud", Cloud(1, "H100:8", cpus="16")),
        (with_keys(more="fleet: {cloud: {setup: apt install x, use_spot: yes}}"), "cloud.setup", ("apt install x",)),
        (MINIMAL.replace("tiny", "no"), "name", "no"),
        (MINIMAL.replace("val_loss", "2026-01-01"), "metric.name", "2026-01-01"),
        (with_keys(more="prompt: {system: 12:30}"), "prompt.system", "12:30"),
    ],
)
def test_what_is_written_is_what_the_task_has(text: str, key: str, expected: object) -> None:
    assert attrgetter(key)(read_task_text(text)) == expected


PROFILES = (
    MINIMAL
    + """\
evaluation: {command: python evaluate.py, private: [val.bin]}
profiles:
  cpu:
    execution: {budget: 60, env: {A: 1}}
    workspace: {target_file: [train.py, model.py]}
    evaluation:
  cuda:
    execution: {needs_gpu: true}
"""
)


def test_a_profile_is_laid_over_the_file_and_leaves_the_rest_of_a_section_alone() -> None:
    cpu, cuda = (read_task_text(PROFILES, profile=name) for name in ("cpu", "cuda"))
    assert cpu.execution.budget.training == 60 and cuda.execution.budget.training == 300
    assert cpu.execution.run_command == cuda.execution.run_command == "python train.py"
    assert cpu.editable == ("train.py", "model.py") and cuda.editable == ("train.py",)
    assert (cpu.execution.needs_gpu, cuda.execution.needs_gpu) == (False, True)
    assert (cpu.profile, cuda.profile) == ("cpu", "cuda")
    assert cpu.evaluation is None and cuda.evaluation is not None, "an empty value takes the key away"
    assert read_task_text(PROFILES) == cpu


def test_a_profile_that_only_another_machine_uses_is_checked_too() -> None:
    with pytest.raises(ConfigError, match=r"profiles\.cuda\.execution\.needs_gpus") as caught:
        read_task_text(PROFILES.replace("needs_gpu:", "needs_gpus:"), profile="cpu")
    assert caught.value.line == 12


def test_reading_a_task_needs_neither_a_database_nor_git_nor_a_model() -> None:
    program = "import sys, autoresearchd.config; print([m for m in sys.argv[1:] if m in sys.modules])"
    heavy = ["sqlalchemy", "git", "libcst", "optuna", "numpy", "torch", "typer", "rich", "matplotlib"]
    done = subprocess.run([sys.executable, "-c", program, *heavy], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# ---------------------------------------------------------------------- check.yaml
WHOLE = """\
baseline:
  cpu: {value: 73.40, sigma: 1.9, budget: 1.5s, within: 0.15}
budget: 1s
edits:
  - name: half the rate
    change: [{search: "RATE = 0.001", replace: "RATE = 0.0005"}]
cheats:
  - name: reads the answers
    change: [{file: train.py, search: "import os\\n", after: "open('@PRIVATE@')\\n"}, {append: "# end\\n"}]
    expect: error
  - name: prints the metric
    change: [{prepend: "print('METRIC loss=0')\\n"}]
  - name: does both
    change: [{text: "print(1)\\n"}]
    expect: [error, metric_missing]
"""


def test_a_task_without_one_is_held_to_nothing(tmp_path: Path) -> None:
    assert load_check(tmp_path) is None


def test_the_whole_of_it_is_read(tmp_path: Path) -> None:
    (tmp_path / CHECK_FILE).write_text(WHOLE)
    check = load_check(tmp_path)
    assert check is not None
    figures = check.baseline["cpu"]
    assert (figures.value, figures.sigma, figures.budget, figures.within) == (73.4, 1.9, 1.5, 0.15)
    assert figures.text == "73.40 ± 1.9", "as it is written, for it stands so in the README"
    assert check.budget == 1
    assert check.edits[0].change == (Step(search="RATE = 0.001", replace="RATE = 0.0005"),)
    first, second, third = check.cheats
    assert first.change == (
        Step(file="train.py", search="import os\n", after="open('@PRIVATE@')\n"),
        Step(append="# end\n"),
    )
    assert first.expect == (Label.ERROR,)
    assert second.expect == (Label.NO_GAIN,), "unless it says otherwise, a cheat is worthless"
    assert third.expect == (Label.ERROR, Label.METRIC_MISSING)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("baseline: {gpu: {value: 1, sigma: 0}}\n", "there is no such profile"),
        ("cheats: [{name: a, change: [{search: x, replace: y, append: z}]}]\n", "replace and append"),
        ("cheats: [{name: a, change: [{replace: y}]}]\n", "replace needs it"),
        ("cheats: [{name: a, change: [{append: x}], expect: wrong}]\n", "'wrong' is not an outcome's label"),
        ("edits: [{name: a, change: [{append: x}]}]\ncheats: [{name: a, change: [{append: y}]}]\n", "named 'a'"),
    ],
)
def test_a_slip_is_told_with_what_would_be_right(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / CHECK_FILE).write_text(text)
    with pytest.raises(ConfigError) as raised:
        load_check(tmp_path)
    assert words in str(raised.value)
    assert f"{CHECK_FILE}:" in raised.value.what


# ---------------------------------------------------------------------- in the store
SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(max_size=8), float: st.floats(allow_nan=False, allow_infinity=False), int: st.integers(),
    bool: st.booleans(), type(None): st.none(),
}  # fmt: skip


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Any values of a type of the domain."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if kind in SCALARS:
        return SCALARS[kind]
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return st.sampled_from(list(kind))
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return st.builds(kind, **{name: values_of(hint) for name, hint in typing.get_type_hints(kind).items()})
    if origin is tuple and Ellipsis not in parts:
        return st.tuples(*(values_of(part) for part in parts))
    if origin is tuple:
        return st.lists(values_of(parts[0]), max_size=2).map(tuple)
    if origin is Mapping:
        return st.dictionaries(values_of(parts[0]), values_of(parts[1]), max_size=2)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([values_of(part) for part in parts])
    if origin is typing.Literal:
        return st.sampled_from(typing.get_args(kind))
    raise AssertionError(f"no values for {kind}")


@settings(max_examples=150, deadline=None, derandomize=True)
@given(values_of(Task))
def test_a_task_comes_back_from_the_store_as_it_was(task: Task) -> None:
    assert parse_task(dump_task(task)) == task


def test_a_task_stored_before_a_key_existed_has_its_default() -> None:
    values = json.loads(dump_task(read_task_text(MINIMAL)))
    for key in ("source_dir", "history", "checks", "roles", "prompt", "curve", "evaluation"):
        del values[key]
    values |= {"fleet": [{"host": "gpu-box-1"}], "remote_dir": "~"}  # as earlier versions wrote them
    assert parse_task(json.dumps(values)) == read_task_text(MINIMAL)


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"name": "x"}', pytest.param("[" * 200_000, id="nested without end"),
     '{"name": "x", "scoring": {"metric": "m", "direction": "minimize", "source": "s"}, "execution": 1e999}',
     '{"name": "log", "scoring": {"metric": "a"}, "execution": {"budget": null}}'],
)  # fmt: skip
def test_a_session_without_a_program_says_so_when_it_is_resumed(text: str) -> None:
    with pytest.raises(StoreError, match="cannot be read"):
        parse_task(text)
