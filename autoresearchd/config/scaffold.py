"""A commented task.yaml to start from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

from autoresearchd.config.load import read_task_text
from autoresearchd.domain.duration import parse_duration
from autoresearchd.errors import UsageError

_TEMPLATE = """\
# What to optimise, how to run it and which number counts. `autoresearchd task check` says what is wrong with it.

name: {name}

workspace:
  target_file: {target_file}    # the file that may be edited; a list for several
  # protected: [prepare.py]     # files that no edit may touch
  # data: [data/train.bin]      # what the job may read beside the repository; also /absolute or ~/paths

execution:
  run_command: {run_command}
  budget: {budget}              # training time: seconds, or a text like 5m; the job reads $AUTORESEARCHD_TIME_BUDGET
  # startup_grace: 60           # for loading and compiling, on top of the budget
  # timeout: 660                # hard end of the whole run; 2 × budget + startup_grace unless given
  # setup_commands: [pip install -r requirements.txt]    # once, with network
  # memory_mb: 8192

scoring:
  metric: {metric}              # printed as `name: value` or `METRIC name=value`; the last one counts
  direction: {direction}        # minimize or maximize
  # metrics: [peak_vram_mb]     # further numbers to keep
  # constraints: [{{metric: peak_vram_mb, max_increase: 0.25}}]

# An evaluation of its own makes the metric more than the job's word: it runs after training, on data that no job reads.
# evaluation:
#   command: python evaluate.py
#   private: [data/val.bin]

# checks: [{{command: pytest -q tests, timeout: 300}}]    # a result is kept only when these succeed

# profiles:                     # what differs by machine: cuda where there is an NVIDIA GPU, else cpu
#   cpu: {{execution: {{budget: 60}}}}
"""


@dataclass(frozen=True, slots=True)
class TaskFields:
    """What a new task.yaml says. budget: seconds, or a text like ``5m``."""

    name: str
    target_file: str = "train.py"
    run_command: str = "python train.py"
    metric: str = "val_loss"
    direction: str = "minimize"
    budget: float | str = 300


def render_task_yaml(fields: TaskFields) -> str:
    """Text of a commented task.yaml."""
    return _TEMPLATE.format(
        name=_quoted(fields.name),
        target_file=_quoted(fields.target_file),
        run_command=_quoted(fields.run_command),
        metric=_quoted(fields.metric),
        direction=_quoted(fields.direction),
        budget=_budget(fields.budget),
    )


def write_task_yaml(path: Path, fields: TaskFields) -> None:
    """Write a commented task.yaml that loads back to ``fields``.

    Raises:
        ConfigError: a field is not valid; nothing is written.
        UsageError: there is such a file already, or it cannot be written.
    """
    text = render_task_yaml(fields)
    read_task_text(text, file=str(path))
    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise UsageError(f"{path} is there already", mend="edit it, or move it away first") from None
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}", mend="check the folder and its permissions"
        ) from None


def _quoted(text: str) -> str:
    """A text as YAML: plain where that is safe, else in double quotes, on one line in any case."""
    plain = text.isascii() and text.replace("_", "").replace(".", "").replace("-", "").replace(" ", "").isalnum()
    if plain and text[0].isalpha() and text == text.strip() and text.lower() not in _WORDS:
        return text
    return yaml.dump(text, Dumper=yaml.SafeDumper, default_style='"', allow_unicode=True, width=2**20).strip()


_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})


def _budget(budget: float | str) -> str:
    try:
        seconds = parse_duration(budget)
    except ValueError:
        return _quoted(str(budget))
    return _quoted(budget) if isinstance(budget, str) else repr(seconds).removesuffix(".0")
