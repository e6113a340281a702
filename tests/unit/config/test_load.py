"""task.yaml in full: what is read, with which defaults, profiles and overrides."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from autoresearchd.config import Overrides, dump_task, load_task, parse_task, read_task_text
from autoresearchd.domain.errors import ConfigError, UsageError
from autoresearchd.domain.task import (
    Budget,
    Check,
    Constraint,
    Curve,
    Direction,
    Evaluation,
    FleetSlot,
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
    assert task.fleet == (FleetSlot("gpu-box-1", "0", "gpu1", "~/my-task"),)


def test_a_timeout_alone_is_the_whole_time_of_the_job_as_it_was_in_autoresearch_distillation(tmp_path: Path) -> None:
    assert load(tmp_path, "seed.yaml").execution.budget == Budget(training=300, grace=0, wall=300)


def test_every_key_of_the_manual_reaches_the_task(tmp_path: Path) -> None:
    task = load(tmp_path, "full.yaml")
    assert task.protected == ("prepare.py", "evaluate.py")
    assert task.data == ("data/train.bin",)
    assert task.remote_dir == "~/autoresearch"
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


def test_a_least_gain_reaches_the_task_and_survives_the_journal() -> None:
    task = read_task_text(MINIMAL.replace("direction: minimize", "direction: minimize, min_delta: 0.02"))
    assert task.scoring.min_delta == 0.02 == parse_task(dump_task(task)).scoring.min_delta


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


@pytest.mark.parametrize(
    ("execution", "expected"),
    [
        ("budget: 5m", Budget(300, 60, 660)),
        ("budget: 90s, startup_grace: 0", Budget(90, 0, 180)),
        ("budget: 1h30m", Budget(5400, 60, 10860)),
        ("budget: 60, timeout: 3m", Budget(60, 60, 180)),
        ("startup_grace: 30, timeout: 400", Budget(300, 30, 400)),
        ("timeout: 10m", Budget(600, 0, 600)),
        ("budget: '45'", Budget(45, 60, 150)),
    ],
)
def test_times_are_seconds_or_words_and_what_is_left_out_is_derived(execution: str, expected: Budget) -> None:
    text = MINIMAL.replace("python train.py}", f"python train.py, {execution}}}")
    assert read_task_text(text).execution.budget == expected


@pytest.mark.parametrize(
    ("execution", "override", "expected"),
    [
        ("", 15, Budget(15, 60, 90)),
        ("budget: 300", 600, Budget(600, 60, 1260)),
        ("budget: 300, timeout: 660", 15, Budget(15, 60, 660)),
        ("budget: 300, timeout: 400", 400, Budget(400, 60, 860)),
        ("timeout: 300", 60, Budget(60, 60, 300)),
        ("startup_grace: 5", 10, Budget(10, 5, 25)),
    ],
)
def test_a_budget_from_the_command_line_never_leaves_a_run_without_time_to_use_it(
    execution: str, override: float, expected: Budget
) -> None:
    text = MINIMAL.replace("python train.py}", f"python train.py, {execution}}}")
    assert read_task_text(text, overrides=Overrides(budget=override)).execution.budget == expected


@pytest.mark.parametrize(
    ("execution", "override", "named"),
    [
        ("budget: 300", None, False),
        ("budget: 300, timeout: 660", None, True),
        ("budget: 300, timeout: 660", 15, True),
        ("budget: 300, timeout: 400", 400, False),
        ("timeout: 300", None, True),
    ],
)
def test_a_limit_that_was_written_down_is_told_from_one_that_was_derived(
    execution: str, override: float | None, named: bool
) -> None:
    text = MINIMAL.replace("python train.py}", f"python train.py, {execution}}}")
    assert read_task_text(text, overrides=Overrides(budget=override)).execution.timeout_named is named


@pytest.mark.parametrize("budget", [0, -1, float("nan"), float("inf")])
def test_a_budget_from_the_command_line_that_is_no_time_is_refused(budget: float) -> None:
    with pytest.raises(UsageError, match="--budget"):
        Overrides(budget=budget)


@pytest.mark.parametrize(
    ("check_every", "budget", "override", "expected"),
    [
        (None, 300, None, 30),
        (None, 3000, None, 30),
        (None, 60, None, 6),
        (None, 300, 15, 1.5),
        (30, 300, 15, 1.5),
        (30, 60, None, 30),
        (2, 300, 60, 2),
    ],
)
def test_a_short_run_is_still_looked_at_ten_times(
    check_every: float | None, budget: float, override: float | None, expected: float
) -> None:
    curve = f"curve: {{check_every: {check_every}}}\n" if check_every else ""
    text = MINIMAL.replace("python train.py}", f"python train.py, budget: {budget}}}") + curve
    assert read_task_text(text, overrides=Overrides(budget=override)).curve.check_every == expected


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


def test_an_empty_value_in_a_profile_takes_the_key_away() -> None:
    assert read_task_text(PROFILES, profile="cpu").evaluation is None
    assert read_task_text(PROFILES, profile="cuda").evaluation is not None


def test_without_a_choice_the_cpu_profile_holds() -> None:
    assert read_task_text(PROFILES) == read_task_text(PROFILES, profile="cpu")


def test_a_profile_that_only_another_machine_uses_is_checked_too() -> None:
    with pytest.raises(ConfigError, match=r"profiles\.cuda\.execution\.needs_gpus") as caught:
        read_task_text(PROFILES.replace("needs_gpu:", "needs_gpus:"), profile="cpu")
    assert caught.value.line == 12


@pytest.mark.parametrize(
    ("value", "expected"), [("auto", False), ("true", True), ("yes", True), ("false", False), ("off", False)]
)
def test_needs_gpu_asks_for_a_gpu_only_when_it_says_so(value: str, expected: bool) -> None:
    text = MINIMAL.replace("python train.py}", f"python train.py, needs_gpu: {value}}}")
    assert read_task_text(text).execution.needs_gpu is expected


@pytest.mark.parametrize(
    ("source", "evaluation", "expected"),
    [
        ("auto", False, MetricSource.STDOUT),
        ("auto", True, MetricSource.EVALUATOR),
        ("evaluator", True, MetricSource.EVALUATOR),
        ("stdout", True, MetricSource.STDOUT),
        ("stdout", False, MetricSource.STDOUT),
    ],
)
def test_the_metric_is_the_evaluators_exactly_when_it_has_a_command(
    source: str, evaluation: bool, expected: MetricSource
) -> None:
    text = MINIMAL.replace("minimize}", f"minimize, metric_source: {source}}}")
    text += "evaluation: {command: python evaluate.py}\n" if evaluation else ""
    assert read_task_text(text).scoring.source is expected


def test_a_pattern_is_used_without_being_told_twice() -> None:
    scoring = read_task_text(MINIMAL.replace("minimize}", "minimize, pattern: 'loss=([0-9.]+)'}")).scoring
    assert (scoring.parse_mode, scoring.pattern) == ("regex", "loss=([0-9.]+)")


def test_numbers_among_the_variables_reach_the_job_as_they_were_written() -> None:
    text = MINIMAL.replace("python train.py}", "python train.py, env: {LR: 0.10, N: 007, BIG: 1_000, ON: on}}")
    assert read_task_text(text).execution.env == {"LR": "0.10", "N": "007", "BIG": "1_000", "ON": "on"}


def test_a_gpu_may_be_named_by_its_bare_number_and_slots_fill_in_from_the_workspace() -> None:
    text = MINIMAL.replace("train.py}\nexec", "train.py, remote_dir: ~/work}\nexec")
    text += "fleet: {slots: [{host: me@box-1, gpu_id: 3}, {host: box-2}]}\n"
    assert read_task_text(text).fleet == (
        FleetSlot("me@box-1", "3", "me@box-1-gpu3", "~/work"),
        FleetSlot("box-2", "0", "box-2-gpu0", "~/work"),
    )


def test_words_that_old_yaml_takes_for_booleans_times_and_dates_stay_words() -> None:
    text = MINIMAL.replace("name: tiny", "name: no").replace("val_loss", "2026-01-01")
    task = read_task_text(text + "prompt: {system: 12:30, instance: on}\n")
    assert (task.name, task.metric.name) == ("no", "2026-01-01")
    assert (task.prompt.system, task.prompt.instance) == ("12:30", "on")


def test_an_anchor_may_be_used_again() -> None:
    text = MINIMAL + "checks: [&c {command: pytest -q}, *c]\n"
    assert read_task_text(text).checks == (Check("pytest -q"), Check("pytest -q"))


def test_a_file_from_windows_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    (tmp_path / "task.yaml").write_bytes(b"\xef\xbb\xbf" + MINIMAL.replace("\n", "\r\n").encode())
    assert load_task(tmp_path).name == "tiny"


def test_reading_a_task_needs_neither_a_database_nor_git_nor_a_model() -> None:
    program = "import sys, autoresearchd.config; print([m for m in sys.argv[1:] if m in sys.modules])"
    heavy = ["sqlalchemy", "git", "libcst", "optuna", "numpy", "torch", "typer", "rich", "matplotlib"]
    done = subprocess.run([sys.executable, "-c", program, *heavy], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
