"""The commands task list, task check, task init and task space."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO

import typer

from autoresearchd.cli.command_options import JsonOption, SandboxOption, read_duration
from autoresearchd.cli.repository_here import here
from autoresearchd.cli.terminal_text import Paint, clean, is_terminal, json_text, print_table, say, tell
from autoresearchd.domain.errors import AutoresearchdError, MissingCapability, PolicyError, RepositoryError, UsageError
from autoresearchd.domain.quantities import counted, format_duration
from autoresearchd.domain.task import Direction
from autoresearchd.workspace.files import read_tail

if TYPE_CHECKING:
    from autoresearchd.app.tasks.check_task import Extent, Held, Tried
    from autoresearchd.app.tasks.search_space import SearchSpace
    from autoresearchd.config.draft_task import Draft
    from autoresearchd.domain.task import Task
    from autoresearchd.policy.search.find_constants import LeftOut
    from autoresearchd.policy.search.parameter import Parameter

    Trial = Callable[[Path, Task], tuple[str, Sequence[str], Held]]

WhichArgument = Annotated[
    str | None,
    typer.Argument(metavar="[NAME|DIR]", help="A bundled task or a folder (default: here)."),
]


def _folder(which: str | None) -> Path:
    from autoresearchd.app.tasks.task_folder import named_folder

    return here() if which is None else named_folder(which)


def list_tasks(as_json: JsonOption = False) -> None:
    """List the bundled tasks, with the extra of autoresearchd that each needs, and what of it is missing here."""
    from autoresearchd.app.tasks.task_folder import TASK_FILE, bundled_tasks, needs_of
    from autoresearchd.config.yaml_document import parse_yaml, read_text

    found: list[dict[str, Any]] = []
    for folder in bundled_tasks():
        (extras, missing), path = needs_of(folder), folder / TASK_FILE
        task = parse_yaml(read_text(path), str(path)).root
        scoring, profiles = task["scoring"], sorted(task.get("profiles", ()))
        facts = {"name": task["name"], "metric": scoring["metric"], "direction": scoring["direction"]}
        words = (", ".join(extras) or "—") + (f" (missing: {', '.join(missing)})" if missing else "")
        needs = {"extras": extras, "missing": missing, "words": words}
        found.append({**facts, "path": str(folder), "profiles": profiles, "needs": needs})
    if as_json:
        print(json_text(found, indent=2))
        return
    rows = [
        [f["name"], f["metric"], f["direction"], ", ".join(f["profiles"]) or "—", f["needs"]["words"], f["path"]]
        for f in found
    ]
    print_table(("name", "metric", "direction", "profiles", "needs", "path"), rows)


# ---------------------------------------------------------------------- check
def check(
    which: WhichArgument = None,
    every: Annotated[bool, typer.Option("--all", help="All bundled tasks.")] = False,
    run: Annotated[bool, typer.Option("--run", help="Also run it and measure it.")] = False,
    short: Annotated[
        bool, typer.Option("--short", help="With --run: one run (or --runs), one edit and two cheats.")
    ] = False,
    profile: Annotated[
        Literal["cpu", "cuda"] | None,
        typer.Option("--profile", metavar="cpu|cuda", help="With --run: which profile is held to check.yaml (cpu)."),
    ] = None,
    thorough: Annotated[
        bool, typer.Option("--thorough", help="With --all --run: every edit and cheat, not one and three.")
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
    from autoresearchd.app.tasks.check_task import ALL, MANY_TASKS, SHORT
    from autoresearchd.app.tasks.task_folder import bundled_tasks

    extent = SHORT if short else MANY_TASKS if every and not thorough else ALL
    extent = replace(extent, runs=runs or extent.runs)
    once = not (short or profile or runs)  # where nothing is documented that it is to be held to
    trial = partial(_run_task, extent=extent, profile=profile, sandbox=sandbox, once=once) if run else None
    stream = sys.stderr if as_json else sys.stdout
    folders = bundled_tasks() if every else [_folder(which)]
    checked = [_check(folder, trial, stream, constants=not every) for folder in folders]
    if as_json:
        facts = [
            {"task": name, "ok": code == 0, **(_facts(held) if held else {}), "faults": list(faults)}
            for name, code, held, faults in checked
        ]
        print(json_text(facts, indent=2))
    elif every and run:
        print()
        headers = ("task", "baseline ± σ", "documented", "s/run", "evaluation", "edits", "cheats caught", "seconds")
        rows = [[clean(name), *(_cells(held) if held else ["—"] * 7)] for name, _, held, _ in checked]
        print_table(headers, rows, right=range(1, 8))
    raise typer.Exit(max((code for _, code, *_ in checked), default=0))


def _check(
    folder: Path, trial: Trial | None, stream: TextIO, *, constants: bool
) -> tuple[str, int, Held | None, Sequence[str]]:
    """(name of the task, exit code, how it stood up to its check.yaml, faults); all of it is told as well."""
    from autoresearchd.app.tasks.job_programs import require_programs
    from autoresearchd.app.tasks.task_folder import TASK_FILE, program_notes, read_task, who_measures
    from autoresearchd.config import check_files

    name, paint = folder.resolve().name, Paint(stream)
    held: Held | None = None
    try:
        task = read_task(folder)
        name, source = task.name, folder / task.source_dir
        check_files(task, source, folder / TASK_FILE)
        programs: Sequence[str] = require_programs(task, source)
        words = f"{task.metric.name} ({task.metric.direction.value}), edits {', '.join(task.editable)}"
        code = {path: (source / path).read_text("utf-8", "replace") for path in task.editable}
        notes: Sequence[str] = who_measures(task, code)
        if trial is not None:
            told, more, held = trial(folder, task)
            words, notes = f"{words}; {told}", (*notes, *more)
        else:
            notes = (*programs, *notes, *_of_repository(folder, task), *program_notes(task, source))
            notes = (*notes, *(_constants(folder) if constants else ()))
    except AutoresearchdError as error:
        print(f"{paint('✗', 'red')} {clean(name)}", file=stream, flush=True)
        tell(f"{name}: {error.what}" if isinstance(error, MissingCapability) else error.what, error.hint)
        return name, error.exit_code, None, (error.what,)
    faults = held.faults if held is not None else ()
    mark = paint("✗", "red") if faults else paint("✓", "green")
    print(f"{mark} {clean(name)}: {clean(words, 400)}", file=stream, flush=True)
    for fault in faults:
        tell(f"{name}: {fault}")
    for note in notes:
        say(f"note: {note}")
    return name, 1 if faults else 0, held, faults


def _run_task(
    folder: Path, task: Task, *, extent: Extent, profile: str | None, sandbox: str | None, once: bool
) -> tuple[str, Sequence[str], Held]:
    """(what it gave, notes, how it stood up to its check.yaml). once: one run where it has none."""
    from autoresearchd.app.tasks.check_task import PROFILE, RUNS, check_held
    from autoresearchd.config.load_task import load_check

    wanted = load_check(folder)
    if wanted is not None:
        parts = f", edits ({len(wanted.edits[: extent.edits])}) and cheats ({len(wanted.cheats[: extent.cheats])})"
    else:
        extent = replace(extent, runs=1) if once else extent
        runs, after = extent.runs or RUNS, ", after its set-up" if task.execution.setup_commands else ""
        often = "once" if runs == 1 else counted(runs, "time")
        parts = f" {often}: up to {format_duration(runs * task.execution.budget.wall)}{after}"
    say(f"running the baseline of {task.name}{parts}")
    profile = profile or (PROFILE if wanted is not None else None)
    held = check_held(folder, extent=extent, profile=profile, sandbox=sandbox)
    told = f"{held.metric} {_figures(held)} {held.over} ({held.tier}, {held.source})"
    if wanted is not None:
        _, documented, _, share, edits, cheats, seconds = _cells(held)
        edits, cheats = (cell.replace("/", " of ", 1) for cell in (edits, cheats))
        told += f", documented {documented}, evaluation {share} of it; {edits} edits accepted, {cheats} cheats caught"
        told += f"; {seconds} s in all"
    return told, held.notes, held


def _facts(held: Held) -> dict[str, Any]:
    known = held.documented
    return asdict(held) | {"documented": known and {**dict(known), "text": known.text}}


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


def _constants(folder: Path) -> tuple[str, ...]:
    """A line or two on what ``search`` may turn; a program that cannot be searched is told of, and is no error here."""
    from autoresearchd.app.tasks.search_space import summary

    try:
        return summary(folder)
    except PolicyError as error:
        return (error.what,)


def _of_repository(folder: Path, task: Task) -> tuple[str, ...]:
    """What would keep ``start`` from a task that is in order itself."""
    from autoresearchd.app.tasks.check_task import repository_notes
    from autoresearchd.app.tasks.task_folder import is_bundled, with_large_files

    if is_bundled(folder):
        return ()
    try:
        notes = repository_notes(folder)
    except RepositoryError as error:
        return (f"`autoresearchd start` would refuse this folder: {error.what}; {error.hint}",)
    return (*notes, *with_large_files(task, folder, folder / task.source_dir)[1])


# ---------------------------------------------------------------------- init
_LARGER = re.compile(
    r"acc|f1|auc|reward|score|recall|precision|bleu|rouge|r2|throughput|per_sec|tok_s|mfu", re.IGNORECASE
)
"""Names of metrics of which more is better."""
_PRINTED = re.compile(r"""METRIC\s+([A-Za-z_][\w.]*)=|["']([A-Za-z_]\w*):\s""")
_READ_BYTES = 200_000


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
        bool | None, typer.Option("--measure/--no-measure", help="Run the baseline three times for its noise.")
    ] = None,
    sandbox: SandboxOption = None,
) -> None:
    """Make a task.

    A copy of a bundled one, whose README has its baseline; or a task.yaml for a program that is in DIR, whose baseline
    is then measured. Projects of karpathy/autoresearch, pi-autoresearch and autoresearch-distillation are known by
    their layout and adopted with their experiments; for any other it takes --file, --command and --metric, or asks for
    them on a terminal.
    """
    from autoresearchd.app.tasks import init_task as making
    from autoresearchd.app.tasks.task_folder import TASK_FILE, bundled_tasks, copy_template, program_notes, read_task
    from autoresearchd.config.draft_task import Draft, recognise

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
    layout = recognise(directory, name)
    draft, notes = layout.draft if layout is not None else Draft(), list(layout.notes if layout is not None else ())
    if layout is not None:
        say(f"{directory.resolve()} is laid out as a project of {layout.kind}")
    if layout is None or layout.text is None:
        answers: dict[str, Any] = {
            "target_file": tuple(file or ()),
            "run_command": command,
            "metric": metric,
            "budget": budget,
        }
        answers["direction"] = direction.value if direction else None
        draft = replace(draft, **{key: value for key, value in answers.items() if value})
        draft = _completed(draft, name, directory, bundled)
        if isinstance(draft.budget, str):
            read_duration("--budget", draft.budget)
        draft, environment = making.in_its_environment(draft, directory)
        notes[:0] = [environment] if environment else []
    elif given:
        raise UsageError(
            f"{layout.kind} has a file for this task, which is taken as it is",
            hint="leave --file, --command, --metric, --direction and --budget out, and edit task.yaml afterwards",
        )
    making.write_task(directory, name, layout, draft)
    say(f"wrote {directory / TASK_FILE}")
    task = read_task(directory)
    notes += program_notes(task, directory / task.source_dir)
    for note in notes:
        say(f"note: {note}")
    if history := making.bring_history(directory, layout):
        say(history)
    if measure is not False and _may_measure(directory, task, sure=measure is True):
        try:
            held = making.measure_baseline(directory, name, layout, draft, sandbox)
            say(f"baseline: {held.metric} {making.baseline_words(held)}")
            for note in [note for note in held.notes if note not in notes]:
                say(f"note: {note}")
        except RepositoryError as error:
            say(f"not measured: {error.what}")
        except AutoresearchdError:
            say(f"{directory / TASK_FILE} stays as it is: correct it, or the program; `task check --run` tries again")
            raise
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


def _completed(draft: Draft, name: str, directory: Path, bundled: Iterable[str]) -> Draft:
    options = ("--file", draft.target_file), ("--command", draft.run_command), ("--metric", draft.metric)
    missing = [option for option, value in options if not value]
    if missing and not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        raise UsageError(
            f"a task for this program needs {' and '.join(missing)}",
            hint=f"autoresearchd task init {name} {directory} --file train.py --command 'python train.py' --metric "
            f"loss; a bundled task ({', '.join(bundled)}) takes an empty folder",
        )
    if missing and not directory.is_dir():
        raise UsageError(f"there is no folder {directory}", hint="name the folder that the program is in")
    if not draft.target_file:
        programs = [path.name for path in directory.glob("*.py")]
        usual = "train.py" if "train.py" in programs else programs[0] if len(programs) == 1 else ""
        answer = _ask("File that may be edited (several: with commas)", usual)
        draft = replace(draft, target_file=tuple(part.strip() for part in answer.split(",") if part.strip()))
    if not draft.run_command:
        usual = f"python {draft.target_file[0]}" if draft.target_file else ""
        draft = replace(draft, run_command=_ask("Command that runs one experiment", usual))
    if not draft.metric:
        draft = replace(draft, metric=_ask("Metric that it prints, as `name: value`", _printed(directory, draft)))
    if missing and not draft.direction:
        usual = "maximize" if _LARGER.search(draft.metric) else "minimize"
        draft = replace(draft, direction=_ask(f"What is better ({' or '.join(Direction)})", usual))
    if missing and draft.budget is None:
        draft = replace(draft, budget=_ask("Training time of a run", "5m"))
    return replace(draft, budget=draft.budget or "5m", direction=draft.direction or "minimize")


def _ask(question: str, usual: str) -> str:
    return str(typer.prompt(question, default=usual or None, err=True)).strip()


def _printed(directory: Path, draft: Draft) -> str:
    """The first name that the program seems to print with a value."""
    for path in draft.target_file:
        if found := _PRINTED.search(read_tail(directory / path, _READ_BYTES)):
            return found[1] or found[2]
    return ""


def _may_measure(directory: Path, task: Task, *, sure: bool) -> bool:
    """Whether to measure the baseline: it is said how long that may take; on a terminal asked, unless it is sure."""
    from autoresearchd.app.tasks.check_task import RUNS
    from autoresearchd.app.tasks.init_task import not_measurable

    if reason := not_measurable(directory, task):
        say(f"not measured: {reason}; afterwards `task check --run` measures it, as every session does")
        return False
    most = f"{RUNS} runs, up to {format_duration(RUNS * task.execution.budget.wall)}"
    if not sure and is_terminal(sys.stdin) and is_terminal(sys.stderr):
        return typer.confirm(f"Measure the baseline and its noise now ({most})?", default=True, err=True)
    say(f"measuring the baseline and its noise: {most} (--no-measure leaves it out)")
    return True


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
        from autoresearchd.policy.search.find_constants import nothing_to_tune

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
        span, line = p.range, found.lines[p.name]
        facts = {"name": p.name, "value": p.value, "line": line, "kind": p.kind.value, "family": span.family}
        bounds = {"low": span.low, "high": span.high, "scale": span.scale.value, "given": span.hard}
        constants.append({**facts, **({**bounds, "moves": p.moves()} if p.numeric else {"choices": span.choices})})
    left_out = [
        {"name": left.name, "source": left.source, "line": found.lines[left.name], "why": left.why}
        for left in found.left_out
    ]
    return {"task": found.task.name, "profile": found.task.profile, "constants": constants, "left_out": left_out}
