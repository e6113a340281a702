"""The commands task list, task check, task init and task space."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from autoresearchd.cli.command_options import JsonOption, SandboxOption, read_duration
from autoresearchd.cli.repository_here import here
from autoresearchd.cli.terminal_text import Paint, clean, is_terminal, json_text, print_table, say, tell
from autoresearchd.domain.errors import AutoresearchdError, MissingCapability, PolicyError, RepositoryError, UsageError
from autoresearchd.domain.quantities import counted, format_duration
from autoresearchd.domain.task import Direction

if TYPE_CHECKING:
    from autoresearchd.app.tasks.check_task import Held, Tried
    from autoresearchd.app.tasks.search_space import SearchSpace
    from autoresearchd.config.foreign_layouts import Layout
    from autoresearchd.config.write_task import Draft
    from autoresearchd.domain.task import Task
    from autoresearchd.policy.search.find_constants import LeftOut
    from autoresearchd.policy.search.parameter import Parameter

WhichArgument = Annotated[
    str | None,
    typer.Argument(metavar="[NAME|DIR]", help="A bundled task or a folder (default: here)."),
]


def bundled_tasks() -> list[Path]:
    """Folders of the bundled tasks, by name."""
    from autoresearchd.app.tasks.task_folder import bundled_tasks

    return bundled_tasks()


def _folder(which: str | None) -> Path:
    from autoresearchd.app.tasks.task_folder import named_folder

    return here() if which is None else named_folder(which)


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
    print_table(("name", "metric", "direction", "profiles", "needs", "path"), rows)


def _facts(folder: Path) -> dict[str, Any]:
    from autoresearchd.app.tasks.task_folder import TASK_FILE, needs_of
    from autoresearchd.config.yaml_document import parse_yaml, read_text

    needs, path = needs_of(folder), folder / TASK_FILE
    root = parse_yaml(read_text(path), str(path)).root
    task: dict[str, Any] = root.get("task", root)
    return {
        "name": str(task.get("name") or folder.name),
        "metric": str(task["scoring"].get("metric") or ""),
        "direction": str(task["scoring"].get("direction") or "minimize"),
        "path": str(folder),
        "profiles": sorted(task.get("profiles") or ()),
        "needs": {**needs._asdict(), "words": needs.words},
    }


# ---------------------------------------------------------------------- check
def check(
    which: WhichArgument = None,
    every: Annotated[bool, typer.Option("--all", help="All bundled tasks.")] = False,
    run: Annotated[bool, typer.Option("--run", help="Also run it and measure it.")] = False,
    short: Annotated[
        bool,
        typer.Option("--short", help="With --run: one run (or --runs) of the program, one edit and two cheats."),
    ] = False,
    profile: Annotated[
        Literal["cpu", "cuda"] | None,
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
    if thorough and (short or not every):
        raise UsageError("--thorough goes with --all, and not with --short", hint="one task is held to all that it has")
    asked = _Asked(run, short, profile, runs, sandbox, every and not thorough, every)
    folders = bundled_tasks() if every else [_folder(which)]
    checked = [_check(folder, asked, quiet=as_json) for folder in folders]
    if as_json:
        facts = [
            {"task": c.name, "ok": c.code == 0, **(asdict(c.held) if c.held else {}), "faults": list(c.faults)}
            for c in checked
        ]
        print(json_text(facts, indent=2))
    elif every and run:
        print()
        headers = ("task", "baseline ± σ", "documented", "s/run", "evaluation", "edits", "cheats caught", "seconds")
        rows = [[clean(c.name), *(_cells(c.held) if c.held else ["—"] * 7)] for c in checked]
        print_table(headers, rows, right=range(1, 8))
    raise typer.Exit(max((c.code for c in checked), default=0))


@dataclass(frozen=True, slots=True)
class _Asked:
    """What was asked for. few: of many tasks, a part of each; every: all bundled tasks."""

    run: bool
    short: bool
    profile: str | None
    runs: int | None
    sandbox: str | None
    few: bool
    every: bool


@dataclass(slots=True)
class _Checked:
    """What came of it. name: the folder's until its file has been read; held: how it stood up to its check.yaml."""

    name: str
    code: int = 0
    held: Held | None = None
    faults: tuple[str, ...] = ()


def _check(folder: Path, asked: _Asked, *, quiet: bool) -> _Checked:
    checked, stream = _Checked(folder.resolve().name), sys.stderr if quiet else sys.stdout
    paint = Paint(stream)
    try:
        words, notes = _look(folder, asked, checked)
    except AutoresearchdError as error:
        checked.faults, checked.code = (error.what,), error.exit_code
        print(f"{paint('✗', 'red')} {clean(checked.name)}", file=stream, flush=True)
        tell(f"{checked.name}: {error.what}" if isinstance(error, MissingCapability) else error.what, error.hint)
        return checked
    checked.faults = checked.held.faults if checked.held else ()
    checked.code = 1 if checked.faults else 0
    mark = paint("✗", "red") if checked.faults else paint("✓", "green")
    print(f"{mark} {clean(checked.name)}: {clean(words, 400)}", file=stream, flush=True)
    for fault in checked.faults:
        tell(f"{checked.name}: {fault}")
    _say_notes(notes)
    return checked


def _look(folder: Path, asked: _Asked, checked: _Checked) -> tuple[str, Sequence[str]]:
    """(what it is and what it gave, notes)."""
    from autoresearchd.app.start_checks import program_notes, who_measures
    from autoresearchd.app.tasks.check_task import ALL, MANY_TASKS, PROFILE, SHORT, check_held
    from autoresearchd.app.tasks.job_programs import require_programs
    from autoresearchd.app.tasks.task_folder import TASK_FILE, read_task
    from autoresearchd.config import check_files
    from autoresearchd.config.load_task import load_check

    task = read_task(folder)
    source = folder / task.source_dir
    checked.name = task.name
    check_files(task, source, folder / TASK_FILE)
    notes = require_programs(task, source)
    wanted = load_check(folder)
    words = f"{task.metric.name} ({task.metric.direction.value}), edits {', '.join(task.editable)}"
    measures = who_measures(task, {path: (source / path).read_text("utf-8", "replace") for path in task.editable})
    if not asked.run:
        constants = () if asked.every else _constants(folder)
        return words, (*notes, *measures, *_of_repository(folder, task), *program_notes(task, source), *constants)
    extent = SHORT if asked.short else MANY_TASKS if asked.few else ALL
    if wanted is None and not (asked.short or asked.profile):
        extent = replace(extent, runs=1)
    extent = replace(extent, runs=asked.runs or extent.runs)
    parts = ""
    if wanted is not None:
        parts = f", edits ({len(wanted.edits[: extent.edits])}) and cheats ({len(wanted.cheats[: extent.cheats])})"
    say(f"running the baseline of {task.name}{parts or _how_often(task, extent.runs or 3)}")
    profile = asked.profile or (PROFILE if wanted is not None else None)
    held = checked.held = check_held(folder, extent=extent, profile=profile, sandbox=asked.sandbox)
    over = f"over {counted(len(held.values), 'run')} of {format_duration(held.run_s)}"
    told = f"{words}; {held.metric} {_figures(held)} {over} ({held.tier}, {held.source})"
    if wanted is None:
        return told, (*measures, *held.notes)
    cells = _cells(held)
    return (
        f"{told}, documented {cells[1]}, evaluation {cells[3]} of it; {cells[4].replace('/', ' of ', 1)} edits "
        f"accepted, {cells[5].replace('/', ' of ', 1)} cheats caught; {cells[6]} s in all"
    ), held.notes


def _cells(held: Held) -> list[str]:
    return [
        _figures(held),
        held.documented.text if held.documented else "—",
        f"{held.run_s:.1f}",
        f"{held.evaluation:.0%}",
        _share(held.edits, held.known_edits),
        _share(held.cheats, held.known_cheats),
        f"{held.seconds:.0f}",
    ]


def _figures(held: Held) -> str:
    centre = sum(held.values) / len(held.values)
    return f"{centre:.6g}" if held.sigma is None else f"{centre:.5g} ± {held.sigma:.2g}"


def _share(tried: Sequence[Tried], known: int) -> str:
    """How many of those that were tried ended as they had to, and of how many that there are."""
    of = f"{len(tried)}" if len(tried) == known else f"{len(tried)} (of {known})"
    return f"{sum(one.right for one in tried)}/{of}"


def _how_often(task: Task, runs: int) -> str:
    """How long trial runs may take, so that nobody waits in doubt."""
    often = "once" if runs == 1 else f"{runs} times"
    after = ", after its set-up" if task.execution.setup_commands else ""
    return f" {often}: up to {format_duration(runs * task.execution.budget.wall)}{after}"


def _constants(folder: Path) -> tuple[str, ...]:
    """A line or two on what ``search`` may turn; a program that cannot be searched is told of, and is no error here."""
    from autoresearchd.app.tasks.search_space import summary

    try:
        return summary(folder)
    except PolicyError as error:
        return (error.what,)


def _of_repository(folder: Path, task: Task) -> tuple[str, ...]:
    """What would keep ``start`` from a task that is in order itself."""
    from autoresearchd.app.start_checks import with_large_files
    from autoresearchd.app.tasks.check_task import repository_notes
    from autoresearchd.app.tasks.task_folder import is_bundled

    if is_bundled(folder):
        return ()
    try:
        notes = repository_notes(folder)
    except RepositoryError as error:
        return (f"`autoresearchd start` needs a git repository: {error.what}; {error.hint}",)
    return (*notes, *with_large_files(task, folder, folder / task.source_dir)[1])


def _say_notes(notes: Sequence[str]) -> None:
    for note in notes:
        say(f"note: {note}")


# ---------------------------------------------------------------------- init
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
    from autoresearchd.app.start_checks import program_notes
    from autoresearchd.app.tasks import init_task as making
    from autoresearchd.app.tasks.task_folder import TASK_FILE, copy_template, read_task
    from autoresearchd.config.foreign_layouts import recognise, with_answers
    from autoresearchd.config.write_task import Draft

    given = any(value is not None for value in (file, command, metric, direction, budget))
    bundled = {folder.name: folder for folder in bundled_tasks()}
    empty = not directory.exists() or (directory.is_dir() and not any(directory.iterdir()))
    if name in bundled and not given and empty:
        copy_template(bundled[name], directory)
        say(f"wrote {directory / TASK_FILE}")
        _say_next(directory, whole=True)
        return
    if (directory / TASK_FILE).exists():
        raise UsageError(f"{directory / TASK_FILE} is there already", hint="edit it, or name another folder")
    layout, told = recognise(directory, name), ""
    if layout is not None:
        say(f"{directory.resolve()} is laid out as a project of {layout.kind}")
    if layout is not None and layout.text is not None:
        if given:
            raise UsageError(
                f"{layout.kind} has a file for this task, which is taken as it is",
                hint="leave --file, --command, --metric, --direction and --budget out, and edit task.yaml afterwards",
            )
        draft = layout.draft
    else:
        draft = with_answers(
            layout.draft if layout is not None else Draft(),
            target_file=tuple(file) if file else None,
            run_command=command,
            metric=metric,
            direction=direction.value if direction else None,
            budget=budget,
        )
        draft = _completed(draft, name, directory, bundled=bundled, adopted=layout is not None)
        if isinstance(draft.budget, str):
            read_duration("--budget", draft.budget)
        draft, told = making.in_its_environment(draft, directory)
    making.write_task(directory, name, layout, draft)
    say(f"wrote {directory / TASK_FILE}")
    task = read_task(directory)
    notes = program_notes(task, directory / task.source_dir)
    _say_notes((*([told] if told else ()), *(layout.notes if layout else ()), *notes))
    if told := making.bring_history(directory, layout):
        say(told)
    if measure is not False:
        _measure(directory, name, layout, draft, sandbox, notes, sure=measure is True)
    try:  # whatever is wrong with the constants, the task.yaml has been written
        lines = _constants(directory)
    except AutoresearchdError as error:
        lines = (error.what,)
    for line in lines:
        say(line)
    _say_next(directory)


def _say_next(directory: Path, *, whole: bool = False) -> None:
    from autoresearchd.app.tasks.init_task import next_commands

    for number, line in enumerate(next_commands(directory, whole=whole)):
        say(f"  {'next:' if number == 0 else 'then:'} {line}")


def _completed(draft: Draft, name: str, directory: Path, *, bundled: dict[str, Path], adopted: bool) -> Draft:
    options = ("--file", draft.target_file), ("--command", draft.run_command), ("--metric", draft.metric)
    missing = [option for option, value in options if not value]
    if missing and not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        if len(missing) < len(options) or adopted:
            raise UsageError(
                f"a task for this program needs {' and '.join(missing)}",
                hint=f"autoresearchd task init {name} {directory} --file train.py --command 'python train.py' "
                "--metric loss",
            )
        if name in bundled:
            raise UsageError(f"{directory} is not an empty folder", hint="name a new folder")
        raise UsageError(
            f"there is no bundled task {name!r}, and {directory} is no project that is known by its layout",
            hint=f"one of {', '.join(bundled)}; or --file, --command and --metric for a program of your own",
        )
    if missing and not directory.is_dir():
        raise UsageError(f"there is no folder {directory}", hint="name the folder that the program is in")
    if not draft.target_file:
        answer = _ask("File that may be edited (several: with commas)", _only_program(directory))
        draft = replace(draft, target_file=tuple(part.strip() for part in answer.split(",") if part.strip()))
    if not draft.run_command:
        usual = f"python {draft.target_file[0]}" if draft.target_file else ""
        draft = replace(draft, run_command=_ask("Command that runs one experiment", usual))
    if not draft.metric:
        draft = replace(draft, metric=_ask("Metric that it prints, as `name: value`", _printed(directory, draft)))
    if missing and not draft.direction:
        usual, better = "maximize" if _LARGER.search(draft.metric) else "minimize", ""
        while better not in tuple(Direction):  # the beginning of one is enough where it tells them apart
            answer = _ask(f"What is better ({' or '.join(Direction)})", usual).lower()
            meant = [each.value for each in Direction if answer and each.startswith(answer)]
            better = meant[0] if len(meant) == 1 else ""
        draft = replace(draft, direction=better)
    if missing and draft.budget is None:
        draft = replace(draft, budget=_ask("Training time of a run", "5m"))
    return replace(draft, budget=draft.budget or "5m", direction=draft.direction or "minimize")


def _ask(question: str, usual: str) -> str:
    return str(typer.prompt(question, default=usual or None, err=True)).strip()


def _only_program(directory: Path) -> str:
    """The file that is most likely meant, empty where none is."""
    found = [path.name for path in directory.glob("*.py")]
    return "train.py" if "train.py" in found else found[0] if len(found) == 1 else ""


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
    from autoresearchd.app.tasks.task_folder import TASK_FILE, read_task

    task = read_task(directory)
    if reason := making.not_measurable(directory, task):
        say(f"not measured: {reason}; afterwards `task check --run` measures it, as every session does")
        return
    most = f"{making.RUNS} runs, up to {format_duration(making.RUNS * task.execution.budget.wall)}"
    if not sure and is_terminal(sys.stdin) and is_terminal(sys.stderr):
        if not typer.confirm(f"Measure the baseline and its noise now ({most})?", default=True, err=True):
            return
    else:
        say(f"measuring the baseline and its noise: {most} (--no-measure leaves it out)")
    try:
        held = making.measure_baseline(directory, name, layout, draft, sandbox)
    except RepositoryError as error:
        say(f"not measured: {error.what}")
        return
    except AutoresearchdError:
        say(f"{directory / TASK_FILE} stays as it is: correct it, or the program, and `task check --run` tries again")
        raise
    say(f"baseline: {held.metric} {making.baseline_words(held)}")
    _say_notes([note for note in held.notes if note not in notes])


# ---------------------------------------------------------------------- space
_WIDEST = 40


def space(which: WhichArgument = None, as_json: JsonOption = False) -> None:
    """Show the constants that `search` may tune.

    Each with its value, line and range, and below them those that are left alone, with the reason. A comment beside a
    constant or above it bounds it (`# range: 1e-5..1e-1`, `# one of: a, b`, `# fixed`), and so does `search:` in
    task.yaml. Exit code 1 where there is nothing to tune.
    """
    from autoresearchd.app.tasks.search_space import search_space

    found = search_space(_folder(which))
    if as_json:
        print(json_text(_space_facts(found), indent=2))
    else:
        _print_space(found)
    if not found.parameters:
        from autoresearchd.policy.search.program_constants import nothing_to_tune

        error = nothing_to_tune(found.task)
        tell(error.what, error.hint)
        raise typer.Exit(1)


def _print_space(found: SearchSpace) -> None:
    several = len(found.task.editable) > 1

    def head(one: Parameter | LeftOut) -> list[str]:
        name = clean(one.name if several else one.label, 2 * _WIDEST)
        return [name, clean(one.source, _WIDEST), str(found.lines[one.name])]

    if found.parameters:
        rows = [[*head(p), *_extent(p)] for p in found.parameters]
        print_table(("constant", "value", "line", "kind", "range", "next moves"), rows, right=(1, 2))
    if found.parameters and found.left_out:
        print()
    if found.left_out:
        rows = [[*head(left), clean(left.why)] for left in found.left_out]
        print_table(("left alone", "value", "line", "why"), rows, right=(1, 2))


def _extent(parameter: Parameter) -> list[str]:
    span = parameter.range
    if not parameter.numeric:
        return [parameter.kind.value, clean(" | ".join(map(_value, span.choices)), 120), ""]
    given = ", given" if span.hard else ""
    moves = ", ".join(map(_value, parameter.moves()))
    return [parameter.kind.value, f"{span.low:g}..{span.high:g} ({span.scale.value}{given})", clean(moves, 120)]


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _space_facts(found: SearchSpace) -> dict[str, Any]:
    constants = []
    for p in found.parameters:
        facts: dict[str, Any] = {"name": p.name, "value": p.value, "line": found.lines[p.name], "kind": p.kind.value}
        facts["family"] = p.range.family
        if p.numeric:
            facts |= {"low": p.range.low, "high": p.range.high, "scale": p.range.scale.value, "given": p.range.hard}
            facts["moves"] = list(p.moves())
        else:
            facts["choices"] = list(p.range.choices)
        constants.append(facts)
    left_out = [
        {"name": left.name, "source": left.source, "line": found.lines[left.name], "why": left.why}
        for left in found.left_out
    ]
    return {
        "task": found.task.name,
        "profile": found.task.profile,
        "constants": constants,
        "left_out": left_out,
    }
