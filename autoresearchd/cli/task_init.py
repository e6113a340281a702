"""The command task init: a copy of a bundled task, a project of another program adopted, or a task of one's own."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autoresearchd.cli.failure import say
from autoresearchd.cli.options import SandboxOption, read_duration
from autoresearchd.cli.render import is_terminal
from autoresearchd.cli.task import TASK_FILE, bundled_tasks
from autoresearchd.domain.quantities import format_duration
from autoresearchd.errors import AutoresearchdError, RepositoryError, UsageError

if TYPE_CHECKING:
    from autoresearchd.config.layouts import Draft, Layout

_LARGER = re.compile(
    r"acc|f1|auc|reward|score|recall|precision|bleu|rouge|r2|throughput|per_sec|tok_s|mfu", re.IGNORECASE
)
"""Names of metrics of which more is better."""
_PRINTED = re.compile(r"""METRIC\s+([A-Za-z_][\w.]*)=|["']([A-Za-z_]\w*):\s""")
_READ_CHARACTERS = 200_000


class DirectionName(StrEnum):
    """Values of --direction."""

    MINIMIZE = "minimize"
    MAXIMIZE = "maximize"


def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A bundled task; else the name of the new one.")],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to, or where the program is.")],
    file: Annotated[
        list[str] | None,
        typer.Option("--file", metavar="PATH", help="The file that may be edited; may be given several times."),
    ] = None,
    command: Annotated[str | None, typer.Option("--command", metavar="CMD", help="What runs one experiment.")] = None,
    metric: Annotated[str | None, typer.Option("--metric", help="The metric that CMD prints.")] = None,
    direction: Annotated[
        DirectionName | None, typer.Option("--direction", help="What is better (default: minimize).")
    ] = None,
    budget: Annotated[
        str | None, typer.Option("--budget", metavar="DUR", help="Training time of a run (default: 5m).")
    ] = None,
    measure: Annotated[
        bool | None,
        typer.Option(
            "--measure/--no-measure", help="Run the baseline three times for its noise (default).", show_default=False
        ),
    ] = None,
    sandbox: SandboxOption = None,
) -> None:
    """Make a task.

    A copy of a bundled one, whose README has its baseline; or a task.yaml for a program that is in DIR, whose baseline
    is then measured. Projects of karpathy/autoresearch, pi-autoresearch and autoresearch-distillation are known by
    their layout and adopted with their experiments; for any other it takes --file, --command and --metric, or asks for
    them on a terminal.
    """
    given = any(value is not None for value in (file, command, metric, direction, budget))
    bundled = {folder.name: folder for folder in bundled_tasks()}
    empty = not directory.exists() or (directory.is_dir() and not any(directory.iterdir()))
    if name in bundled and not given and empty:
        from autoresearchd.app.scaffolding import copy_template

        copy_template(bundled[name], directory)
        say(f"wrote {directory / TASK_FILE}")
        _say_next(directory, whole=True)
        return
    if (directory / TASK_FILE).exists():
        if name in bundled and not given:
            raise UsageError(f"{directory} is there already and not an empty folder", mend="name a new folder")
        raise UsageError(f"{directory / TASK_FILE} is there already", mend="edit it, or move it away first")
    from autoresearchd.app import init as making
    from autoresearchd.config.layouts import recognise, with_answers

    layout = recognise(directory, name)
    if layout is not None:
        say(f"{directory.resolve()} is laid out as a project of {layout.kind}")
    draft = _draft(layout)
    whole = layout is not None and layout.text is not None
    if whole and given:
        raise UsageError(
            f"{layout.kind if layout else ''} has a file for this task, which is taken as it is",
            mend="leave --file, --command, --metric, --direction and --budget out, and edit task.yaml afterwards",
        )
    draft = with_answers(
        draft,
        target_file=tuple(file) if file else None,
        run_command=command,
        metric=metric,
        direction=direction.value if direction else None,
        budget=budget,
    )
    if not whole:
        draft = _completed(draft, name, directory, bundled=tuple(bundled), adopted=layout is not None)
        if isinstance(draft.budget, str):
            read_duration("--budget", draft.budget)
    draft, told = (draft, "") if whole else making.in_its_environment(draft, directory)
    making.write_task(directory, name, layout, draft)
    say(f"wrote {directory / TASK_FILE}")
    notes = making.notes_of(directory)
    for note in (*([told] if told else ()), *(layout.notes if layout else ()), *notes):
        say(f"note: {note}")
    try:
        told = making.bring_history(directory, layout)
    except RepositoryError as error:
        told = f"its experiments were not imported ({error.what}): `autoresearchd import` does it later"
    if told:
        say(told)
    if measure is not False:
        _measure(directory, name, layout, draft, sandbox, notes, sure=measure is True)
    _say_constants(directory)
    _say_next(directory)


def _say_constants(directory: Path) -> None:
    """What ``search`` may turn; whatever is wrong with it, the task.yaml has been written."""
    from autoresearchd.cli.task_check import constants

    try:
        lines = constants(directory)
    except AutoresearchdError as error:
        lines = (error.what,)
    for line in lines:
        say(line)


def _say_next(directory: Path, *, whole: bool = False) -> None:
    from autoresearchd.app.init import next_commands

    for number, line in enumerate(next_commands(directory, whole=whole)):
        say(f"  {'next:' if number == 0 else 'then:'} {line}")


def _draft(layout: Layout | None) -> Draft:
    from autoresearchd.config.layouts import Draft

    return layout.draft if layout is not None else Draft()


def _completed(draft: Draft, name: str, directory: Path, *, bundled: tuple[str, ...], adopted: bool) -> Draft:
    """The draft with nothing missing; what is missing is asked for on a terminal."""
    from autoresearchd.config.layouts import with_answers

    missing = [
        option
        for option, value in (
            ("--file", draft.target_file),
            ("--command", draft.run_command),
            ("--metric", draft.metric),
        )
        if not value
    ]
    if missing and not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        raise _incomplete(draft, name, directory, missing, bundled, adopted=adopted)
    if missing and not directory.is_dir():
        raise UsageError(f"there is no folder {directory}", mend="name the folder that the program is in")
    if not draft.target_file:
        answer = _ask("File that may be edited (several: with commas)", _only_program(directory))
        draft = with_answers(draft, target_file=tuple(part.strip() for part in answer.split(",") if part.strip()))
    if not draft.run_command:
        usual = f"python {draft.target_file[0]}" if draft.target_file else ""
        draft = with_answers(draft, run_command=_ask("Command that runs one experiment", usual))
    if not draft.metric:
        draft = with_answers(draft, metric=_ask("Metric that it prints, as `name: value`", _printed(directory, draft)))
    if missing and not draft.direction:
        usual = "maximize" if _LARGER.search(draft.metric or "") else "minimize"
        draft = with_answers(draft, direction=_choice("What is better", usual, tuple(DirectionName)))
    if missing and draft.budget is None:
        draft = with_answers(draft, budget=_ask("Training time of a run", "5m"))
    return with_answers(draft, budget=draft.budget or "5m", direction=draft.direction or "minimize")


def _incomplete(
    draft: Draft, name: str, directory: Path, missing: list[str], bundled: tuple[str, ...], *, adopted: bool
) -> UsageError:
    if draft.target_file or draft.run_command or draft.metric or adopted:
        return UsageError(
            f"a task for this program needs {' and '.join(missing)}",
            mend=f"autoresearchd task init {name} {directory} --file train.py --command 'python train.py' "
            "--metric loss",
        )
    if name in bundled:
        return UsageError(f"{directory} is there already and not an empty folder", mend="name a new folder")
    return UsageError(
        f"there is no bundled task {name!r}, and {directory} is no project that is known by its layout",
        mend=f"one of {', '.join(bundled)}; or --file, --command and --metric for a program of your own",
    )


# ---------------------------------------------------------------------- questions
def _ask(question: str, usual: str) -> str:
    return str(typer.prompt(question, default=usual or None, err=True)).strip()


def _choice(question: str, usual: str, choices: tuple[str, ...]) -> str:
    while True:
        answer = _ask(f"{question} ({' or '.join(choices)})", usual)
        found = [choice for choice in choices if answer and choice.startswith(answer.lower())]
        if len(found) == 1:
            return str(found[0])


def _only_program(directory: Path) -> str:
    """The file that is most likely meant, empty where none is."""
    if (directory / "train.py").is_file():
        return "train.py"
    found = sorted(path.name for path in directory.glob("*.py"))
    return found[0] if len(found) == 1 else ""


def _printed(directory: Path, draft: Draft) -> str:
    """The first name that the program seems to print with a value."""
    for path in draft.target_file:
        if (directory / path).is_file():
            text = (directory / path).read_text("utf-8", "replace")[:_READ_CHARACTERS]
            if found := _PRINTED.search(text):
                return found[1] or found[2]
    return ""


def _measure(
    directory: Path,
    name: str,
    layout: Layout | None,
    draft: Draft,
    sandbox: str | None,
    notes: Sequence[str],
    *,
    sure: bool,
) -> None:
    """Measure the baseline, but first say how long that may take; on a terminal ask whether to, unless it is sure.

    notes: those that the user has been told.
    """
    from autoresearchd.app import init as making

    reason = making.not_measurable(directory)
    if reason:
        say(f"not measured: {reason}; afterwards `task check --run` measures it, as every session does")
        return
    most = f"{making.RUNS} runs, up to {format_duration(making.longest(directory))}"
    if not sure and is_terminal(sys.stdin) and is_terminal(sys.stderr):
        if not typer.confirm(f"Measure the baseline and its noise now ({most})?", default=True, err=True):
            return
    else:
        say(f"measuring the baseline and its noise: {most} (--no-measure leaves it out)")
    try:
        measured = making.measure_baseline(directory, sandbox=sandbox)
    except RepositoryError as error:
        say(f"not measured: {error.what}")
        return
    except AutoresearchdError:
        say(f"{directory / TASK_FILE} stays as it is: correct it, or the program, and `task check --run` tries again")
        raise
    making.note_baseline(directory, name, layout, draft, measured)
    say(f"baseline: {measured.metric} {measured.words}")
    for note in (note for note in measured.notes if note not in notes):
        say(f"note: {note}")
