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

_COLUMN = 34
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
class TaskFields:
    """What a new task.yaml says. budget: seconds, or a text like ``5m``.

    target_file: a path, or several. checks: commands that must succeed. system: the task's own words to a policy.
    baseline: the measured one, as a reference line, with the words that say how it was measured. remarks: comments at
    the top. What is empty stands there as a commented example.
    """

    name: str
    target_file: str | tuple[str, ...] = "train.py"
    run_command: str = "python train.py"
    python: str | None = None
    metric: str = "val_loss"
    direction: str = "minimize"
    budget: float | str = 300
    protected: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    display_metrics: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    system: str = ""
    baseline: float | None = None
    measured: str = ""
    remarks: tuple[str, ...] = ()


def render_task_yaml(fields: TaskFields) -> str:
    """Text of a commented task.yaml."""
    return "\n".join(_lines(fields)) + "\n"


def write_task_yaml(path: Path, fields: TaskFields) -> None:
    """Write a commented task.yaml that loads back to ``fields``.

    Raises:
        ConfigError: a field is not valid; nothing is written.
        UsageError: there is such a file already, or it cannot be written.
    """
    write_new(path, render_task_yaml(fields))


def write_new(path: Path, text: str) -> None:
    """Write the text of a task.yaml where there is none yet; raises as ``write_task_yaml``."""
    read_task_text(text, file=str(path))
    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise UsageError(f"{path} is there already", hint="edit it, or move it away first") from None
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}", hint="check the folder and its permissions"
        ) from None


# ---------------------------------------------------------------------- the lines of the file
def _lines(fields: TaskFields) -> Iterator[str]:
    targets = (fields.target_file,) if isinstance(fields.target_file, str) else fields.target_file
    target = _quoted(targets[0]) if len(targets) == 1 else _listed(targets)
    yield "# What to optimise, how to run it, which number counts. `autoresearchd task check` says what is wrong here."
    yield from (f"# {one_line(remark)}" for remark in fields.remarks)
    yield ""
    yield f"name: {_quoted(fields.name)}"
    yield ""
    yield "workspace:"
    yield _line(f"target_file: {target}", "the file that may be edited; a list for several")
    yield _given("protected", fields.protected, "[prepare.py]", "files that no edit may touch")
    comment = "what the job may read beside the repository; also /absolute or ~/paths"
    yield _given("data", fields.data, "[data/train.bin]", comment)
    yield ""
    yield "execution:"
    yield f"  run_command: {_quoted(fields.run_command)}"
    python = f"python: {_quoted(fields.python)}" if fields.python else "# python: /home/me/work/.venv/bin/python"
    yield _line(python, "the interpreter that `python` is; that of autoresearchd unless given")
    yield _line(
        f"budget: {_budget(fields.budget)}",
        "training time: seconds, or a text like 5m; the job reads $AUTORESEARCHD_TIME_BUDGET",
    )
    yield _line(f"# startup_grace: {DEFAULT_GRACE:g}", "for loading and compiling, on top of the budget")
    yield _line(
        f"# timeout: {_wall(fields.budget)}", "hard end of the whole run; 2 × budget + startup_grace unless given"
    )
    yield _line(
        "# training_time: auto", "or budget, or baseline: the program's own time and a quarter, where it reads none"
    )
    yield _line("# setup_commands: [pip install -r requirements.txt]", "once, with network")
    yield "  # memory_mb: 8192"
    yield ""
    yield "scoring:"
    yield _line(
        f"metric: {_quoted(fields.metric)}", "printed as `name: value` or `METRIC name=value`; the last one counts"
    )
    yield _line(f"direction: {_quoted(fields.direction)}", "minimize or maximize")
    yield _given("metrics", fields.metrics, "[peak_vram_mb]", "further numbers to keep")
    if fields.display_metrics:
        yield f"  display_metrics: {_listed(fields.display_metrics)}"
    if fields.baseline is not None:
        yield _line(f"baseline: {fields.baseline!r}", f"{one_line(fields.measured)}: a reference, no rule")
    yield "  # constraints: [{metric: peak_vram_mb, max_increase: 0.25}]"
    yield ""
    yield _END
    yield from _checks(fields.checks)
    if any(c.isprintable() and not c.isspace() for c in fields.system):
        yield from _system(fields.system)
    yield _PROFILES.rstrip("\n")


def _checks(commands: tuple[str, ...]) -> Iterator[str]:
    if not commands:
        yield "# checks: [{command: pytest -q tests, timeout: 300}]    # a result is kept only when these succeed"
    else:
        yield "checks:                         # a result is kept only when these succeed"
        yield from (f"  - {{command: {_quoted(command)}, timeout: 300}}" for command in commands)
    yield ""


def _system(text: str) -> Iterator[str]:
    """The task's own words, as a block of lines."""
    yield "prompt:"
    yield "  system: |-                    # beside what every policy is told"
    rows = [printable(row, instead=" ").rstrip() for row in text.splitlines()]
    for row in "\n".join(rows).strip().splitlines():  # the first row says how far the block is indented
        yield f"    {row}" if row else ""
    yield ""


def _given(key: str, values: tuple[str, ...], example: str, comment: str) -> str:
    return _line(f"{key}: {_listed(values)}" if values else f"# {key}: {example}", comment)


def _line(text: str, comment: str) -> str:
    return f"  {text:<{_COLUMN - 4}}  # {comment}"


def _listed(values: Iterable[str]) -> str:
    return f"[{', '.join(_quoted(value) for value in values)}]"


def _quoted(text: str) -> str:
    """A text as YAML: plain where that is safe, else in double quotes, on one line in any case."""
    plain = text.isascii() and text.replace("_", "").replace(".", "").replace("-", "").replace(" ", "").isalnum()
    if plain and text[0].isalpha() and text == text.strip() and text.lower() not in _WORDS:
        return text
    return yaml.dump(text, Dumper=yaml.SafeDumper, default_style='"', allow_unicode=True, width=2**20).strip()


def _budget(budget: float | str) -> str:
    return _quoted(budget) if isinstance(budget, str) else _seconds(float(budget))


def _wall(budget: float | str) -> str:
    """The hard end that this budget has where none is named."""
    try:
        training = parse_duration(budget)
    except ValueError:  # the file is refused for it
        training = DEFAULT_BUDGET
    return _seconds(Budget.usual_wall(training, DEFAULT_GRACE))


def _seconds(seconds: float) -> str:
    return repr(seconds).removesuffix(".0")
