"""A commented task.yaml to start from."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent

import yaml

from autoresearchd.config.load_task import read_task_text
from autoresearchd.config.task_schema import DEFAULT_BUDGET, DEFAULT_GRACE
from autoresearchd.domain.cleaning import one_line, printable
from autoresearchd.domain.errors import UsageError
from autoresearchd.domain.quantities import parse_duration
from autoresearchd.domain.task import Budget

_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})

_FORM = """\
# What to optimise, how to run it, which number counts. `autoresearchd task check` says what is wrong here.
{remarks}
name: {name}

workspace:
  {target_file:<30}  # the file that may be edited; a list for several
  {protected:<30}  # files that no edit may touch
  {data:<30}  # what the job may read beside the repository; also /absolute or ~/paths

execution:
  run_command: {run_command}
  {python:<30}  # the interpreter that `python` is; that of autoresearchd unless given
  {budget:<30}  # training time: seconds, or a text like 5m; the job reads $AUTORESEARCHD_TIME_BUDGET
  {grace:<30}  # for loading and compiling, on top of the budget
  {timeout:<30}  # hard end of the whole run; 2 × budget + startup_grace unless given
  # training_time: auto           # or budget, or baseline: the program's own time and a quarter, where it reads none
  # setup_commands: [pip install -r requirements.txt]  # once, with network
  # memory_mb: 8192

scoring:
  {metric:<30}  # printed as `name: value` or `METRIC name=value`; the last one counts
  {direction:<30}  # minimize or maximize
  {metrics:<30}  # further numbers to keep
{shown}  # constraints: [{{metric: peak_vram_mb, max_increase: 0.25}}]

# An evaluation of its own makes the metric more than the job's word: it runs after training, on data that no job reads.
# evaluation:
#   command: python evaluate.py
#   private: [data/val.bin]

{checks}
{system}# profiles:                     # what differs by machine: cuda where there is an NVIDIA GPU, else cpu
#   cpu: {{execution: {{budget: 60}}}}
"""


@dataclass(frozen=True, slots=True)
class Draft:
    """What a new task.yaml says; what is empty or None is not known yet.

    budget: seconds, or a text like ``5m``. checks: commands that must succeed. system: the task's own words to a
    policy. baseline: the measured one, as a reference line; measured: how it was. remarks: comments at the top.
    """

    name: str = ""
    target_file: tuple[str, ...] = ()
    run_command: str = ""
    python: str | None = None
    metric: str = ""
    direction: str = ""
    budget: float | str | None = None
    protected: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    display_metrics: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    system: str = ""
    baseline: float | None = None
    measured: str = ""
    remarks: tuple[str, ...] = ()


def write_new(path: Path, text: str) -> None:
    """Write the text of a task.yaml where there is none yet.

    Raises ConfigError: it is not valid, and nothing is written; UsageError: there is one, or it cannot be written.
    """
    read_task_text(text, file=str(path))
    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise UsageError(f"{path} is there already", hint="edit it, or move it away first") from None
    except OSError as error:
        what = f"{path} cannot be written: {error.strerror}"
        raise UsageError(what, hint="check the folder and its permissions") from None


def render_task_yaml(draft: Draft) -> str:
    """Text of a commented task.yaml: what is not known has the usual value, or stands there as an example."""
    targets = draft.target_file or ("train.py",)
    budget = DEFAULT_BUDGET if draft.budget is None else draft.budget
    wall = DEFAULT_BUDGET
    with suppress(ValueError):  # else the file is refused for it
        wall = Budget.usual_wall(parse_duration(budget), DEFAULT_GRACE)
    shown = f"  display_metrics: {_listed(draft.display_metrics)}\n" if draft.display_metrics else ""
    if draft.baseline is not None:
        shown += f"  {f'baseline: {draft.baseline!r}':<30}  # {one_line(draft.measured)}: a reference, no rule\n"
    return _FORM.format(
        remarks="".join(f"# {one_line(remark)}\n" for remark in draft.remarks),
        name=_quoted(draft.name),
        target_file=f"target_file: {_quoted(targets[0]) if len(targets) == 1 else _listed(targets)}",
        protected=_given("protected", draft.protected, "prepare.py"),
        data=_given("data", draft.data, "data/train.bin"),
        run_command=_quoted(draft.run_command or "python train.py"),
        python=f"python: {_quoted(draft.python)}" if draft.python else "# python: /home/me/work/.venv/bin/python",
        budget=f"budget: {_quoted(budget) if isinstance(budget, str) else _seconds(budget)}",
        grace=f"# startup_grace: {DEFAULT_GRACE:g}",
        timeout=f"# timeout: {_seconds(wall)}",
        metric=f"metric: {_quoted(draft.metric or 'val_loss')}",
        direction=f"direction: {_quoted(draft.direction or 'minimize')}",
        metrics=_given("metrics", draft.metrics, "peak_vram_mb"),
        shown=shown,
        checks=_checks(draft.checks),
        system=_system(draft.system),
    )


def _checks(commands: tuple[str, ...]) -> str:
    if not commands:
        return "# checks: [{command: pytest -q tests, timeout: 300}]    # a result is kept only when these succeed\n"
    rows = "".join(f"  - {{command: {_quoted(command)}, timeout: 300}}\n" for command in commands)
    return f"checks:                         # a result is kept only when these succeed\n{rows}"


def _system(text: str) -> str:
    """The task's own words, as a block of lines; nothing where there is none."""
    block = "\n".join(printable(row, instead=" ").rstrip() for row in text.splitlines()).strip()
    head = "prompt:\n  system: |-                    # beside what every policy is told\n"
    return f"{head}{indent(block, '    ')}\n\n" if block else ""


def _given(key: str, values: tuple[str, ...], example: str) -> str:
    return f"{key}: {_listed(values)}" if values else f"# {key}: [{example}]"


def _listed(values: Iterable[str]) -> str:
    return f"[{', '.join(_quoted(value) for value in values)}]"


def _quoted(text: str) -> str:
    """A text as YAML: plain where that is safe, else in double quotes, on one line in any case."""
    plain = text.isascii() and text.replace("_", "").replace(".", "").replace("-", "").replace(" ", "").isalnum()
    if plain and text[0].isalpha() and text == text.strip() and text.lower() not in _WORDS:
        return text
    return yaml.dump(text, Dumper=yaml.SafeDumper, default_style='"', allow_unicode=True, width=2**20).strip()


def _seconds(seconds: float) -> str:
    return repr(float(seconds)).removesuffix(".0")
