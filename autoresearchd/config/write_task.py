"""A commented task.yaml to start from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from autoresearchd.config.load_task import read_task_text
from autoresearchd.config.task_schema import DEFAULT_BUDGET, DEFAULT_GRACE
from autoresearchd.domain.cleaning import one_line, printable
from autoresearchd.domain.errors import UsageError
from autoresearchd.domain.quantities import parse_duration
from autoresearchd.domain.task import Budget

_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})

_END = """\
# An evaluation of its own makes the metric more than the job's word: it runs after training, on data that no job reads.
# evaluation:
#   command: python evaluate.py
#   private: [data/val.bin]
"""

_PROFILES = """\
# profiles:                     # what differs by machine: cuda where there is an NVIDIA GPU, else cpu
#   cpu: {execution: {budget: 60}}
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
    try:
        wall = Budget.usual_wall(parse_duration(budget), DEFAULT_GRACE)
    except ValueError:  # the file is refused for it
        wall = DEFAULT_BUDGET
    python = f"python: {_quoted(draft.python)}" if draft.python else "# python: /home/me/work/.venv/bin/python"
    baseline = f"baseline: {draft.baseline!r}"
    reads = "what the job may read beside the repository; also /absolute or ~/paths"
    rows = [
        "# What to optimise, how to run it, which number counts. `autoresearchd task check` says what is wrong here.",
        *(f"# {one_line(remark)}" for remark in draft.remarks),
        "",
        f"name: {_quoted(draft.name)}",
        "",
        "workspace:",
        _line(
            f"target_file: {_quoted(targets[0]) if len(targets) == 1 else _listed(targets)}",
            "the file that may be edited; a list for several",
        ),
        _given("protected", draft.protected, "[prepare.py]", "files that no edit may touch"),
        _given("data", draft.data, "[data/train.bin]", reads),
        "",
        "execution:",
        f"  run_command: {_quoted(draft.run_command or 'python train.py')}",
        _line(python, "the interpreter that `python` is; that of autoresearchd unless given"),
        _line(
            f"budget: {_quoted(budget) if isinstance(budget, str) else _seconds(budget)}",
            "training time: seconds, or a text like 5m; the job reads $AUTORESEARCHD_TIME_BUDGET",
        ),
        _line(f"# startup_grace: {DEFAULT_GRACE:g}", "for loading and compiling, on top of the budget"),
        _line(f"# timeout: {_seconds(wall)}", "hard end of the whole run; 2 × budget + startup_grace unless given"),
        _line(
            "# training_time: auto", "or budget, or baseline: the program's own time and a quarter, where it reads none"
        ),
        _line("# setup_commands: [pip install -r requirements.txt]", "once, with network"),
        "  # memory_mb: 8192",
        "",
        "scoring:",
        _line(
            f"metric: {_quoted(draft.metric or 'val_loss')}",
            "printed as `name: value` or `METRIC name=value`; the last one counts",
        ),
        _line(f"direction: {_quoted(draft.direction or 'minimize')}", "minimize or maximize"),
        _given("metrics", draft.metrics, "[peak_vram_mb]", "further numbers to keep"),
        *([f"  display_metrics: {_listed(draft.display_metrics)}"] if draft.display_metrics else []),
        *([] if draft.baseline is None else [_line(baseline, f"{one_line(draft.measured)}: a reference, no rule")]),
        "  # constraints: [{metric: peak_vram_mb, max_increase: 0.25}]",
        "",
        _END,
        *_checks(draft.checks),
        *_system(draft.system),
        _PROFILES,
    ]
    return "\n".join(rows)


def _checks(commands: tuple[str, ...]) -> Iterator[str]:
    if not commands:
        yield "# checks: [{command: pytest -q tests, timeout: 300}]    # a result is kept only when these succeed"
    else:
        yield "checks:                         # a result is kept only when these succeed"
        yield from (f"  - {{command: {_quoted(command)}, timeout: 300}}" for command in commands)
    yield ""


def _system(text: str) -> Iterator[str]:
    """The task's own words, as a block of lines; nothing where there is none."""
    rows = [printable(row, instead=" ").rstrip() for row in text.splitlines()]
    if lines := "\n".join(rows).strip().splitlines():  # the first row says how far the block is indented
        yield "prompt:"
        yield "  system: |-                    # beside what every policy is told"
        yield from (f"    {row}" if row else "" for row in lines)
        yield ""


def _given(key: str, values: tuple[str, ...], example: str, comment: str) -> str:
    return _line(f"{key}: {_listed(values)}" if values else f"# {key}: {example}", comment)


def _line(text: str, comment: str) -> str:
    return f"  {text:<30}  # {comment}"


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
