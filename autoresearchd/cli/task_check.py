"""The command task check."""

from __future__ import annotations

import math
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autoresearchd.cli import render
from autoresearchd.cli.failure import say, tell
from autoresearchd.cli.options import JsonOption, SandboxOption
from autoresearchd.cli.render import Paint, clean, json_text
from autoresearchd.cli.task import TASK_FILE, bundled_tasks, find_task
from autoresearchd.errors import AutoresearchdError, MissingCapability, PolicyError, RepositoryError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autoresearchd.app.check import Held, Tried
    from autoresearchd.domain.task import Task

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
        raise UsageError("--all checks the bundled tasks, a name only one", mend="use one of them")
    about_running = {
        "--sandbox": sandbox,
        "--short": short,
        "--profile": profile,
        "--runs": runs,
        "--thorough": thorough,
    }
    for option, given in about_running.items():
        if given and not run:
            raise UsageError(f"{option} is about running", mend=f"add --run, or leave {option} out")
    if thorough and not every:
        raise UsageError("--thorough is about --all", mend="leave it out: one task is held to all that it has")
    if thorough and short:
        raise UsageError("--thorough tries everything and --short next to nothing", mend="leave one of them out")
    if profile is not None and profile not in _PROFILES:
        raise UsageError(f"--profile {profile!r} is not known", mend=f"take {' or '.join(_PROFILES)}")
    folders = bundled_tasks() if every else [find_task(which)]
    wanted = _Wanted(run, short, profile, runs, sandbox, every and not thorough, every)
    checks = [_Check(folder, wanted, quiet=as_json) for folder in folders]
    worst = max([one.code() for one in checks], default=0)
    if as_json:
        print(json_text([one.facts() for one in checks], indent=2))
    elif every and run:
        rows = [_row(one.name, one.held) for one in checks]
        print()
        print("\n".join(render.table(_COLUMNS, rows, paint=Paint(sys.stdout), right=range(1, len(_COLUMNS)))))
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
            tell(f"{self._folder}: {error.what}", error.mend)
            self._wrong, self.exit_code = (error.what,), error.exit_code
            return self.exit_code
        except AutoresearchdError as error:
            self._print(f"{paint('✗', 'red')} {clean(self.name)}")
            tell(error.what, error.mend)
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
        from autoresearchd.app.tools import require_programs
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
            from autoresearchd.app.admission import program_notes

            return words, (
                *unmade,
                *_who_measures(task, folder / task.source_dir),
                *_notes(folder, task),
                *program_notes(task, folder / task.source_dir),
                *(() if asked.every else constants(folder)),
            )
        if held is None and not asked.more:
            from autoresearchd.app.check import check_run

            say(f"running the baseline of {task.name} once: {_longest(task)}")
            checked = check_run(folder, sandbox=asked.sandbox)
            notes = _who_measures(task, folder / task.source_dir)
            return f"{words}; {checked.measured}", (*notes, *checked.notes)
        from autoresearchd.app.check import ALL, MANY_TASKS, PROFILE, SHORT, check_held

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
    from autoresearchd.app.space import summary

    try:
        return summary(folder)
    except PolicyError as error:
        return (error.what,)


def _who_measures(task: Task, source: Path) -> tuple[str, ...]:
    """What nothing protects where the score is the program's own."""
    from autoresearchd.policy.measured_constants import warnings_of

    texts = {path: source / path for path in task.editable if (source / path).is_file()}
    return warnings_of(task, {path: file.read_text("utf-8", "replace") for path, file in texts.items()})


def _notes(folder: Path, task: Task) -> tuple[str, ...]:
    """What would keep ``start`` from a task that is in order itself."""
    from autoresearchd.app.bench import is_bundled, repository_notes
    from autoresearchd.app.pinned import with_large_files

    if is_bundled(folder):
        return ()
    try:
        notes = repository_notes(folder)
    except RepositoryError as error:
        return (f"`autoresearchd start` needs a git repository: {error.what}; {error.mend}",)
    return (*notes, *with_large_files(task, folder, folder / task.source_dir)[1])
