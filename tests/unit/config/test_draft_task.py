"""`task init`: what the files of a project say is not asked for again, and the file that it writes is understood."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from autoresearchd.config import Overrides, check_files, detect, dump_task, parse_task, read_task_text
from autoresearchd.config.draft_task import DISTILLATION, KARPATHY, PI, Draft, recognise, render_task_yaml, write_new
from autoresearchd.domain.errors import ConfigError, UsageError
from autoresearchd.domain.task import Budget, Direction, Metric, MetricSource

FIELDS = Draft(
    name="my task", target_file=("src/model.py",), run_command='python train.py --note "a: b # c" 2>&1',
    metric="accuracy", direction="maximize", budget="5m",
)  # fmt: skip


def test_every_commented_key_of_a_new_file_is_one_that_works() -> None:
    text = re.sub(r"^( *)# (?=[a-z_]+:|  [a-z]+:)", r"\1", render_task_yaml(FIELDS), flags=re.MULTILINE)
    assert {"evaluation", "profiles", "checks"} <= yaml.safe_load(text).keys()
    assert read_task_text(text).evaluation is not None


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
        FIELDS, target_file=("a.py", "sub dir/b.txt"), protected=("measure.sh", "x, y.py"), data=("~/.cache/data",),
        metrics=("peak_mb", "total_µs"), display_metrics=("peak_mb",), checks=("bash checks.sh # all", "true"),
        system="Objective:\n  faster: much\n\n- no 'new' packages #1\n---\n", baseline=2.385,
        measured="measured: 2.385 ± 0.017\nover 3 runs", remarks=("Adopted from\nsomewhere: else",),
    )  # fmt: skip
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
    name=st.text(max_size=30), command=st.text(max_size=60), system=st.text(max_size=80), remark=st.text(max_size=40),
    budget=st.floats(0.5, 1e8),
)  # fmt: skip
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


# ---------------------------------------------------------------------- projects of other programs
TRAIN = "RATE = 1.0\nprint(f'val_bpb: {RATE}')\n"
PROMPT = """\
# Autoresearch: faster sorting

## Objective
Sort faster.

## Files in Scope
- `src/sort.py` — the algorithm
- `src/gone.py`: was removed
- train.py: and this
- `../outside.py`

## Constraints
No new packages.
"""
RUN = {"run": 1, "commit": "abc1234", "metric": 5.0, "metrics": {}, "status": "keep", "description": "baseline"}


def config(metric: str, direction: str) -> str:
    return json.dumps(
        {"type": "config", "name": "x", "metricName": metric, "metricUnit": "", "bestDirection": direction}
    )


def put(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_a_folder_of_nobody_is_not_taken_for_one(tmp_path: Path) -> None:
    assert recognise(tmp_path / "gone", "x") is None
    assert recognise(put(tmp_path / "notes", {".auto/prompt.md": PROMPT}), "x") is None, "there is no script"
    assert recognise(put(tmp_path, {"train.py": "print('loss: 1')\n", "README.md": "METRIC a=1"}), "x") is None


# ---------------------------------------------------------------------- karpathy/autoresearch
PROGRAM = """\
Mind the rules.

## Setup
Agree on a tag.

## Experimentation
**What you CANNOT do:**
- Install new packages.

```
# no heading
```

**VRAM** is a soft constraint.

**The first run**: as it is.

## The experiment loop
LOOP FOREVER.
"""


def test_a_karpathy_project_gives_its_time_and_its_results(tmp_path: Path) -> None:
    files = {"train.py": TRAIN, "prepare.py": "TIME_BUDGET = 1_20 # s\n", "program.md": PROGRAM}
    found = recognise(put(tmp_path, files), "x")
    assert found is not None and (found.kind, found.log) == (KARPATHY, None)
    draft = found.draft
    assert (draft.target_file, draft.protected) == (("train.py",), ("prepare.py", "program.md"))
    assert (draft.metric, draft.direction, draft.budget) == ("val_bpb", "minimize", 120.0)
    assert draft.run_command == "python train.py"
    assert "ends by TIME_BUDGET of prepare.py, whatever budget task.yaml names" in found.notes[0]
    assert draft.system == (
        "Mind the rules.\n\nExperimentation:\n**What you CANNOT do:**\n- Install new packages.\n\n"
        "```\n# no heading\n```\n\n**VRAM** is a soft constraint."
    ), "what is another's to do is left out"
    header = "commit\tval_bpb\tmemory_gb\tstatus\tdescription\n"
    put(tmp_path, {"results.tsv": header})
    assert (recognise(tmp_path, "x") or found).log is None, "a header alone is no history"
    put(tmp_path, {"results.tsv": header + "abc1234\t1.0\t0.0\tkeep\tbaseline\n"})
    assert (recognise(tmp_path, "x") or found).log == tmp_path / "results.tsv"


def test_a_clone_of_autoresearch_is_a_task_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    clone = put(tmp_path / "autoresearch", {"train.py": TRAIN, "prepare.py": "TIME_BUDGET = 300\n"})
    task = detect(clone)
    assert task is not None
    assert (task.name, task.editable, task.protected) == ("autoresearch", ("train.py",), ("prepare.py",))
    assert (task.metric, task.scoring.source) == (Metric("val_bpb", Direction.MINIMIZE), MetricSource.STDOUT)
    assert {"val_bpb", "peak_vram_mb", "num_params_M"} <= set(task.scoring.metrics)
    assert (task.execution.run_command, task.execution.budget) == ("python train.py", Budget(300, 60, 660))
    assert task.data == ()
    check_files(task, clone)
    assert parse_task(dump_task(task)) == task
    put(clone, {"uv.lock": ""})
    (tmp_path / "home/.cache/autoresearch").mkdir(parents=True)
    task = detect(clone, overrides=Overrides(budget=15))
    assert task is not None and task.execution.python == str(clone / ".venv/bin/python"), "a run has no uv"
    assert task.data == ("~/.cache/autoresearch",)
    assert (task.execution.budget, task.curve.check_every) == (Budget(15, 60, 90), 1.5)


def test_kernels_that_train_py_loads_from_the_hub_are_found_without_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    clone = put(tmp_path / "clone", {"train.py": f"fa3 = get_kernel(repo)\n{TRAIN}", "prepare.py": ""})
    found = recognise(clone, "x")
    assert found is not None and "run it once by hand" in found.notes[0]
    (tmp_path / "home/.cache/huggingface/hub").mkdir(parents=True)
    task, found = detect(clone), recognise(clone, "x")
    assert task is not None and found is not None and found.notes == ()
    assert task.data == ("~/.cache/huggingface/hub",), "and not the token beside it"
    assert task.execution.env == {"HF_HUB_OFFLINE": "1"}


# ---------------------------------------------------------------------- pi-autoresearch
def test_a_pi_project_gives_metric_scope_checks_and_words(tmp_path: Path) -> None:
    files = {
        ".auto/measure.sh": "python bench.py\n", ".auto/prompt.md": PROMPT, ".auto/checks.sh": "true\n",
        ".auto/ideas.md": "- radix sort\n", ".auto/config.json": '{"maxIterations": 30}',
        ".auto/log.jsonl": "\n".join([config("old", "lower"), json.dumps(RUN), config("mb_s", "higher"), "broken"]),
        "autoresearch.sh": "echo METRIC legacy=1\n", "src/sort.py": "x = 1\n", "train.py": "y = 1\n",
    }  # fmt: skip
    found = recognise(put(tmp_path, files), "x")
    assert found is not None and (found.kind, found.log) == (PI, tmp_path / ".auto/log.jsonl")
    draft = found.draft
    assert draft.run_command == "bash .auto/measure.sh"
    assert draft.target_file == ("src/sort.py", "train.py")
    assert draft.protected == (".auto/measure.sh", ".auto/checks.sh")
    assert draft.checks == ("bash .auto/checks.sh",)
    assert (draft.metric, draft.direction) == ("mb_s", "maximize"), "the last segment's"
    assert "Sort faster." in draft.system and "No new packages." in draft.system and "radix sort" in draft.system
    assert any("--max-experiments 30" in note for note in found.notes)


def test_the_older_names_work_and_the_script_tells_the_metric(tmp_path: Path) -> None:
    files = {
        "autoresearch.sh": 'echo "METRIC total_µs=$t"\n',
        "autoresearch.md": "# Files in Scope\n* `kernel.py`\n",
        "autoresearch.jsonl": config("", "lower"),
        "kernel.py": "x = 1\n",
    }
    found = recognise(put(tmp_path, files), "x")
    assert found is not None
    assert (found.draft.metric, found.draft.target_file) == ("total_µs", ("kernel.py",))
    assert found.draft.protected == ("autoresearch.sh",)


def test_a_pi_project_around_karpathy_s_keeps_its_evaluator_its_time_and_what_was_learned(tmp_path: Path) -> None:
    prompt = """\
# Session
## Goal
Lowest val_bpb.
## Files in scope
- `train.py` - model and loop, the only editable file; evaluated by `prepare.py` (never modify)
- `prepare.py` - read only
- `a.py`, `b.py` and `c.py`: helpers of `d.py`
- d.py as `e.py`
## Learnings
Wider is worse.
"""
    helpers = {f"{name}.py": "x = 1\n" for name in "abcde"}
    files = {
        "train.py": TRAIN, "prepare.py": "TIME_BUDGET = 300\n", "program.md": PROGRAM, **helpers,
        "autoresearch.sh": "python train.py\n", "autoresearch.md": prompt,
    }  # fmt: skip
    found = recognise(put(tmp_path, files), "x")
    assert found is not None and found.kind == PI
    assert found.draft.target_file == ("train.py", "a.py", "b.py", "c.py", "d.py")
    assert found.draft.protected == ("autoresearch.sh", "prepare.py", "program.md")
    assert found.draft.budget == 300 and "TIME_BUDGET" in found.notes[-1]
    assert not any("10m" in note for note in found.notes)
    for words in ("Lowest val_bpb.", "Wider is worse.", "Install new packages."):
        assert words in found.draft.system


# ---------------------------------------------------------------------- autoresearch-distillation
PITCH = """\
task:
  name: baseball-pitch
  workspace: {source_dir: pitch, target_file: model.py}
  execution: {run_command: python train.py, timeout: 60, needs_gpu: false}
  scoring: {metric: rmse_mph, direction: minimize, baseline: 2.5, metrics: [rmse_mph]}
"""


def test_files_that_are_no_tasks_keep_nobody_from_one(tmp_path: Path) -> None:
    """Ansible, say, has its own in a folder of that name."""
    put(tmp_path, {"tasks/main.yml": "- name: install\n  apt: {name: git}\n", "tasks/x.yaml": "{{ a }}: [\n"})
    (tmp_path / "tasks/latin.yaml").write_bytes(b"a: \xe9\n")
    assert recognise(tmp_path, "mine") is None
    put(tmp_path, {"tasks/pitch.yaml": PITCH, "pitch/model.py": "x = 1\n"})
    assert getattr(recognise(tmp_path, "pitch"), "kind", "") == DISTILLATION
    with pytest.raises(ConfigError, match=r"x\.yaml"):
        recognise(tmp_path, "x")


def test_a_task_of_the_distillation_is_chosen_by_its_name_or_its_file(tmp_path: Path) -> None:
    put(tmp_path, {"tasks/pitch.yaml": PITCH, "pitch/model.py": "x = 1\n", "tasks/notes.yaml": "a: 1\n"})
    found = recognise(tmp_path, "anything")
    assert found is not None and (found.kind, found.text) == (DISTILLATION, PITCH), "there is only one"
    put(tmp_path, {"tasks/voice.yaml": PITCH.replace("baseball-pitch", "voice-agent")})
    assert (recognise(tmp_path, "voice") or found).text != PITCH
    assert (recognise(tmp_path, "baseball-pitch") or found).text == PITCH
    with pytest.raises(UsageError, match="none is named 'chess'") as raised:
        recognise(tmp_path, "chess")
    assert "baseball-pitch, voice-agent" in raised.value.hint
