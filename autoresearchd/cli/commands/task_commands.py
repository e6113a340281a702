"""The commands task list, task check and task init."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autoresearchd.cli import terminal_text
from autoresearchd.cli.command_options import JsonOption, SandboxOption, read_duration
from autoresearchd.cli.repository_here import here
from autoresearchd.cli.terminal_text import Paint, clean, is_terminal, json_text, say, tell
from autoresearchd.domain.errors import (
    AutoresearchdError,
    ConfigError,
    MissingCapability,
    PolicyError,
    RepositoryError,
    UsageError,
)
from autoresearchd.domain.quantities import format_duration
from autoresearchd.domain.task import Direction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autoresearchd.app.tasks.check_task import Held, Tried
    from autoresearchd.config.foreign_layouts import Layout
    from autoresearchd.config.write_task import Draft
    from autoresearchd.domain.task import Task

TASK_FILE = "task.yaml"


def list_tasks(as_json: JsonOption = False) -> None:
    """List the bundled tasks, with the extra of autoresearchd that each needs, and what of it is missing here."""
    found = [_facts(folder) for folder in bundled_tasks()]
    if as_json:
        print(json_text(found, indent=2))
        return
    rows = [
        [f["name"], f["metric"], f["direction"], ", ".join(f["profiles"]) or "—", f["needs"]["words"], f["path"]]
        for f in found
    ]
    headers = ("name", "metric", "direction", "profiles", "needs", "path")
    print("\n".join(terminal_text.table(headers, rows, paint=Paint(sys.stdout))))


def bundled_tasks() -> list[Path]:
    """Folders of the bundled tasks, by name."""
    from autoresearchd.resources import bundled

    return sorted(path.parent for path in bundled("templates").glob(f"*/{TASK_FILE}"))


def find_task(which: str | None) -> Path:
    """The folder of a bundled task by name, else a folder. Raises UsageError when it is neither."""
    if which is None:
        return here()
    for folder in bundled_tasks():
        if folder.name == which:
            return folder
    folder = Path(which).expanduser()
    if folder.is_dir():
        return folder
    names = ", ".join(path.name for path in bundled_tasks())
    raise UsageError(f"{which!r} is neither a bundled task nor a folder", hint=f"bundled tasks: {names}")


def _facts(folder: Path) -> dict[str, Any]:
    """What ``task list --json`` says of a task, read from its file as it is written."""
    from autoresearchd.app.tasks.required_extras import needs_of
    from autoresearchd.config.yaml_document import parse_yaml, read_text

    needs = needs_of(folder)
    path = folder / TASK_FILE
    root = parse_yaml(read_text(path), str(path)).root
    inner = root.get("task")
    task: dict[str, Any] = inner if isinstance(inner, dict) else root
    scoring, profiles = task.get("scoring"), task.get("profiles")
    if not isinstance(scoring, dict):
        raise ConfigError(
            "is missing", file=str(path), key="scoring", hint="scoring: {metric: loss, direction: minimize}"
        )
    return {
        "name": str(task.get("name") or folder.name),
        "metric": str(scoring.get("metric") or ""),
        "direction": str(scoring.get("direction") or "minimize"),
        "path": str(folder),
        "profiles": sorted(profiles) if isinstance(profiles, dict) else [],
        "needs": {"extras": list(needs.extras), "missing": list(needs.missing), "words": needs.words},
    }


_PROFILES = ("cpu", "cuda")


def check(
    which: Annotated[
        str | None,
        typer.Argument(metavar="[NAME|DIR]", help="A bundled task or a folder (default: here).", show_default=False),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All bundled tasks.")] = False,
    run: Annotated[bool, typer.Option("--run", help="Also run it and measure it.")] = False,
    short: Annotated[
        bool,
        typer.Option("--short", help="With --run: one run (or --runs) of the program, one edit and two cheats."),
    ] = False,
    profile: Annotated[
        str | None,
        typer.Option("--profile", metavar="cpu|cuda", help="With --run: which profile is held to check.yaml (cpu)."),
    ] = None,
    thorough: Annotated[
        bool,
        typer.Option("--thorough", help="With --all --run: each task's every edit and cheat, not one and three."),
    ] = False,
    runs: Annotated[
        int | None,
        typer.Option("--runs", metavar="N", min=2, max=100, help="With --run: how often the baseline is run (3)."),
    ] = None,
    sandbox: SandboxOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check a task and its files.

    With --run it is also run, to see that it gives its metric: the files of the last commit, as `start` would run them,
    with task.yaml as it lies there. A task with a check.yaml, as the bundled ones have it, is held to that: its
    documented baseline and noise over several runs, honest edits that must be accepted, and cheats of which none may
    pay. With --all it is an edit and three cheats of each task, which takes minutes; every one of them (--thorough)
    takes the better part of an hour.
    """
    if every and which is not None:
        raise UsageError("--all checks the bundled tasks, a name only one", hint="use one of them")
    about_running = ("--sandbox", sandbox), ("--short", short), ("--profile", profile), ("--runs", runs)
    for option, given in (*about_running, ("--thorough", thorough)):
        if given and not run:
            raise UsageError(f"{option} is about running", hint=f"add --run, or leave {option} out")
    if thorough and not every:
        raise UsageError("--thorough is about --all", hint="leave it out: one task is held to all that it has")
    if thorough and short:
        raise UsageError("--thorough tries everything and --short next to nothing", hint="leave one of them out")
    if profile is not None and profile not in _PROFILES:
        raise UsageError(f"--profile {profile!r} is not known", hint=f"take {' or '.join(_PROFILES)}")
    folders = bundled_tasks() if every else [find_task(which)]
    wanted = _Wanted(run, short, profile, runs, sandbox, every and not thorough, every)
    checks = [_Check(folder, wanted, quiet=as_json) for folder in folders]
    worst = max([one.code() for one in checks], default=0)
    if as_json:
        print(json_text([one.facts() for one in checks], indent=2))
    elif every and run:
        rows = [_row(one.name, one.held) for one in checks]
        print()
        print("\n".join(terminal_text.table(_COLUMNS, rows, paint=Paint(sys.stdout), right=range(1, len(_COLUMNS)))))
    raise typer.Exit(worst)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What was asked for. few: of many tasks, a part of each; every: all bundled tasks."""

    run: bool
    short: bool
    profile: str | None
    runs: int | None
    sandbox: str | None
    few: bool
    every: bool

    @property
    def more(self) -> bool:
        """Whether more than a single run was asked for."""
        return self.short or self.runs is not None or self.profile is not None


class _Check:
    """One task's check. name: the folder's until its file has been read; held: how it stood up to its check.yaml."""

    def __init__(self, folder: Path, wanted: _Wanted, *, quiet: bool) -> None:
        self._folder, self._wanted, self._quiet = folder, wanted, quiet
        self.name, self.exit_code = folder.resolve().name, 0
        self.held: Held | None = None
        self._wrong: tuple[str, ...] = ()

    def code(self) -> int:
        """Check it, say what came of it, and give the exit code."""
        paint = Paint(sys.stderr if self._quiet else sys.stdout)
        try:
            words, notes = self._looked_at()
        except MissingCapability as error:
            tell(f"{self._folder}: {error.what}", error.hint)
            self._wrong, self.exit_code = (error.what,), error.exit_code
            return self.exit_code
        except AutoresearchdError as error:
            self._print(f"{paint('✗', 'red')} {clean(self.name)}")
            tell(error.what, error.hint)
            self._wrong, self.exit_code = (error.what,), error.exit_code
            return self.exit_code
        self._wrong = self.held.faults if self.held else ()
        self.exit_code = 1 if self._wrong else 0
        mark = paint("✗", "red") if self._wrong else paint("✓", "green")
        self._print(f"{mark} {clean(self.name)}: {clean(words, 400)}")
        for fault in self._wrong:
            tell(f"{self.name}: {fault}")
        for note in notes:
            say(f"note: {note}")
        return self.exit_code

    def facts(self) -> dict[str, Any]:
        """What ``--json`` says of it."""
        held = asdict(self.held) if self.held else {}
        return {"task": self.name, "ok": self.exit_code == 0, **held, "faults": list(self._wrong)}

    def _print(self, line: str) -> None:
        print(line, file=sys.stderr if self._quiet else sys.stdout, flush=True)

    def _looked_at(self) -> tuple[str, tuple[str, ...]]:
        """(what it is and what it gave, notes)."""
        from autoresearchd.app.start import read_task
        from autoresearchd.app.start_checks import require_programs
        from autoresearchd.config import check_files
        from autoresearchd.config.check_file import load_check

        folder = self._folder
        task = read_task(folder, None)
        self.name = task.name
        check_files(task, folder / task.source_dir, folder / TASK_FILE)
        unmade = require_programs(task, folder / task.source_dir)
        held, asked = load_check(folder), self._wanted
        words = f"{task.metric.name} ({task.metric.direction.value}), edits {', '.join(task.editable)}"
        if not asked.run:
            from autoresearchd.app.start_checks import program_notes

            return words, (
                *unmade,
                *_who_measures(task, folder / task.source_dir),
                *_notes(folder, task),
                *program_notes(task, folder / task.source_dir),
                *(() if asked.every else constants(folder)),
            )
        if held is None and not asked.more:
            from autoresearchd.app.tasks.check_task import check_run

            say(f"running the baseline of {task.name} once: {_longest(task)}")
            checked = check_run(folder, sandbox=asked.sandbox)
            notes = _who_measures(task, folder / task.source_dir)
            return f"{words}; {checked.measured}", (*notes, *checked.notes)
        from autoresearchd.app.tasks.check_task import ALL, MANY_TASKS, PROFILE, SHORT, check_held

        extent = SHORT if asked.short else MANY_TASKS if asked.few else ALL
        edits, cheats = (held.edits[: extent.edits], held.cheats[: extent.cheats]) if held else ((), ())
        say(f"running the baseline of {task.name}, edits ({len(edits)}) and cheats ({len(cheats)})")
        extent = replace(extent, runs=asked.runs or extent.runs)
        self.held = check_held(folder, extent=extent, profile=asked.profile or PROFILE, sandbox=asked.sandbox)
        return f"{words}; {_sentence(self.held)}", self.held.notes


_COLUMNS = ("task", "baseline ± σ", "documented", "s/run", "evaluation", "edits", "cheats caught", "seconds")


def _row(name: str, held: Held | None) -> list[str]:
    if held is None:
        return [clean(name), *["—"] * (len(_COLUMNS) - 1)]
    return [
        clean(name),
        _figures(held),
        held.documented.text if held.documented else "—",
        f"{held.run_s:.1f}",
        f"{held.evaluation:.0%}",
        f"{_accepted(held)}/{_tried(held.edits, held.known_edits)}",
        f"{held.caught}/{_tried(held.cheats, held.known_cheats)}",
        f"{held.seconds:.0f}",
    ]


def _figures(held: Held) -> str:
    """Mean and spread of the baseline's runs."""
    centre = sum(held.values) / len(held.values)
    return f"{centre:.5g}" if held.sigma is None else f"{centre:.5g} ± {held.sigma:.2g}"


def _sentence(held: Held) -> str:
    runs = f"{len(held.values)} runs" if len(held.values) > 1 else "one run"
    documented = f" (documented {held.documented.text})" if held.documented else ""
    return (
        f"{held.metric} {_figures(held)}{documented} over {runs} of {held.run_s:.1f} s, evaluation "
        f"{held.evaluation:.0%} of it; {_accepted(held)} of {_tried(held.edits, held.known_edits)} edits accepted, "
        f"{held.caught} of {_tried(held.cheats, held.known_cheats)} cheats caught; {held.seconds:.0f} s in all"
    )


def _accepted(held: Held) -> int:
    return sum(edit.right for edit in held.edits)


def _tried(tried: Sequence[Tried], known: int) -> str:
    """How many were tried, and of how many."""
    return f"{len(tried)}" if len(tried) == known else f"{len(tried)} (of {known})"


def _longest(task: Task) -> str:
    """How long a trial run may take, so that nobody waits in doubt."""
    wall = task.execution.budget.wall
    most = f"up to {math.ceil(wall / 60)} min" if wall > 90 else f"up to {wall:.0f} s"
    return f"{most}, after its set-up" if task.execution.setup_commands else most


def constants(folder: Path) -> tuple[str, ...]:
    """A line or two on what ``search`` may turn; a program that cannot be searched is told of, and is no error here."""
    from autoresearchd.app.tasks.search_space import summary

    try:
        return summary(folder)
    except PolicyError as error:
        return (error.what,)


def _who_measures(task: Task, source: Path) -> tuple[str, ...]:
    """What nothing protects where the score is the program's own."""
    from autoresearchd.policy.search.measured_constants import warnings_of

    texts = {path: source / path for path in task.editable if (source / path).is_file()}
    return warnings_of(task, {path: file.read_text("utf-8", "replace") for path, file in texts.items()})


def _notes(folder: Path, task: Task) -> tuple[str, ...]:
    """What would keep ``start`` from a task that is in order itself."""
    from autoresearchd.app.tasks.pinned_files import with_large_files
    from autoresearchd.app.tasks.trial_bench import is_bundled, repository_notes

    if is_bundled(folder):
        return ()
    try:
        notes = repository_notes(folder)
    except RepositoryError as error:
        return (f"`autoresearchd start` needs a git repository: {error.what}; {error.hint}",)
    return (*notes, *with_large_files(task, folder, folder / task.source_dir)[1])


_LARGER = re.compile(
    r"acc|f1|auc|reward|score|recall|precision|bleu|rouge|r2|throughput|per_sec|tok_s|mfu", re.IGNORECASE
)
"""Names of metrics of which more is better."""
_PRINTED = re.compile(r"""METRIC\s+([A-Za-z_][\w.]*)=|["']([A-Za-z_]\w*):\s""")
_READ_CHARACTERS = 200_000


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
        Direction | None, typer.Option("--direction", help="What is better (default: minimize).")
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
        from autoresearchd.app.tasks.scaffold import copy_template

        copy_template(bundled[name], directory)
        say(f"wrote {directory / TASK_FILE}")
        _say_next(directory, whole=True)
        return
    if (directory / TASK_FILE).exists():
        if name in bundled and not given:
            raise UsageError(f"{directory} is there already and not an empty folder", hint="name a new folder")
        raise UsageError(f"{directory / TASK_FILE} is there already", hint="edit it, or move it away first")
    from autoresearchd.app.tasks import init_task as making
    from autoresearchd.config.foreign_layouts import recognise, with_answers
    from autoresearchd.config.write_task import Draft

    layout = recognise(directory, name)
    if layout is not None:
        say(f"{directory.resolve()} is laid out as a project of {layout.kind}")
    draft = layout.draft if layout is not None else Draft()
    whole = layout is not None and layout.text is not None
    if whole and given:
        raise UsageError(
            f"{layout.kind if layout else ''} has a file for this task, which is taken as it is",
            hint="leave --file, --command, --metric, --direction and --budget out, and edit task.yaml afterwards",
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
    from autoresearchd.cli.commands.task_commands import constants

    try:
        lines = constants(directory)
    except AutoresearchdError as error:
        lines = (error.what,)
    for line in lines:
        say(line)


def _say_next(directory: Path, *, whole: bool = False) -> None:
    from autoresearchd.app.tasks.init_task import next_commands

    for number, line in enumerate(next_commands(directory, whole=whole)):
        say(f"  {'next:' if number == 0 else 'then:'} {line}")


def _completed(draft: Draft, name: str, directory: Path, *, bundled: tuple[str, ...], adopted: bool) -> Draft:
    """The draft with nothing missing; what is missing is asked for on a terminal."""
    from autoresearchd.config.foreign_layouts import with_answers

    options = ("--file", draft.target_file), ("--command", draft.run_command), ("--metric", draft.metric)
    missing = [option for option, value in options if not value]
    if missing and not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        raise _incomplete(draft, name, directory, missing, bundled, adopted=adopted)
    if missing and not directory.is_dir():
        raise UsageError(f"there is no folder {directory}", hint="name the folder that the program is in")
    if not draft.target_file:
        answer = _ask("File that may be edited (several: with commas)", _only_program(directory))
        draft = with_answers(draft, target_file=tuple(part.strip() for part in answer.split(",") if part.strip()))
    if not draft.run_command:
        usual = f"python {draft.target_file[0]}" if draft.target_file else ""
        draft = with_answers(draft, run_command=_ask("Command that runs one experiment", usual))
    if not draft.metric:
        draft = with_answers(draft, metric=_ask("Metric that it prints, as `name: value`", _printed(directory, draft)))
    if missing and not draft.direction:
        usual = "maximize" if _LARGER.search(draft.metric) else "minimize"
        draft = with_answers(draft, direction=_choice("What is better", usual, tuple(Direction)))
    if missing and draft.budget is None:
        draft = with_answers(draft, budget=_ask("Training time of a run", "5m"))
    return with_answers(draft, budget=draft.budget or "5m", direction=draft.direction or "minimize")


def _incomplete(
    draft: Draft, name: str, directory: Path, missing: list[str], bundled: tuple[str, ...], *, adopted: bool
) -> UsageError:
    if draft.target_file or draft.run_command or draft.metric or adopted:
        return UsageError(
            f"a task for this program needs {' and '.join(missing)}",
            hint=f"autoresearchd task init {name} {directory} --file train.py --command 'python train.py' "
            "--metric loss",
        )
    if name in bundled:
        return UsageError(f"{directory} is there already and not an empty folder", hint="name a new folder")
    return UsageError(
        f"there is no bundled task {name!r}, and {directory} is no project that is known by its layout",
        hint=f"one of {', '.join(bundled)}; or --file, --command and --metric for a program of your own",
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
    from autoresearchd.app.tasks import init_task as making

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
