"""The command task space: which constants of a program the policy search may tune, how far, and why no others."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autoresearchd.cli import terminal_text
from autoresearchd.cli.command_options import JsonOption
from autoresearchd.cli.commands.task_commands import find_task
from autoresearchd.cli.terminal_text import Paint, clean, json_text, tell

if TYPE_CHECKING:
    from autoresearchd.app.tasks.search_space import Found
    from autoresearchd.policy.search.find_constants import LeftOut
    from autoresearchd.policy.search.parameter import Parameter

_COLUMNS = ("constant", "value", "line", "kind", "range", "next moves")
_LEFT_COLUMNS = ("left alone", "value", "line", "why")
_WIDEST = 40


def space(
    which: Annotated[
        str | None,
        typer.Argument(metavar="[NAME|DIR]", help="A bundled task or a folder (default: here).", show_default=False),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the constants that `search` may tune.

    Each with its value, line and range, and below them those that are left alone, with the reason. A comment beside a
    constant or above it bounds it (`# range: 1e-5..1e-1`, `# one of: a, b`, `# fixed`), and so does `search:` in
    task.yaml. Exit code 1 where there is nothing to tune.
    """
    from autoresearchd.app.tasks.search_space import search_space

    folder = find_task(which)
    found = search_space(folder)
    if as_json:
        print(json_text(_facts(found), indent=2))
    else:
        _print(found)
    if not found.parameters:
        from autoresearchd.policy.search.program_constants import nothing_to_tune

        error = nothing_to_tune(found.task)
        tell(error.what, error.hint)
        raise typer.Exit(1)


def _print(found: Found) -> None:
    paint = Paint(sys.stdout)
    several = len(found.task.editable) > 1
    if found.parameters:
        rows = [_row(p, found.lines[p.name], several=several) for p in found.parameters]
        print("\n".join(terminal_text.table(_COLUMNS, rows, paint=paint, right=(1, 2))))
    if found.left_out:
        rows = [
            [_name(left, several=several), _short(left.source), str(found.lines[left.name]), clean(left.why)]
            for left in found.left_out
        ]
        print(
            "\n" * bool(found.parameters)
            + "\n".join(terminal_text.table(_LEFT_COLUMNS, rows, paint=paint, right=(1, 2)))
        )


def _row(parameter: Parameter, line: int, *, several: bool) -> list[str]:
    if not parameter.numeric:
        extent, moves = " | ".join(_value(c) for c in parameter.range.choices), ""
    else:
        low, high = parameter.range.low, parameter.range.high
        given = ", given" if parameter.range.hard else ""
        extent = f"{low:g}..{high:g} ({parameter.range.scale.value}{given})"
        moves = ", ".join(_value(move) for move in parameter.moves())
    cells = (parameter.kind.value, extent, moves)
    return [
        _name(parameter, several=several),
        _short(parameter.source),
        str(line),
        *(clean(cell, 120) for cell in cells),
    ]


def _name(one: Parameter | LeftOut, *, several: bool) -> str:
    return clean(one.name if several else one.label, 2 * _WIDEST)


def _short(source: str) -> str:
    line = " ".join(clean(source.replace("\n", " ")).split())
    return line if len(line) <= _WIDEST else line[: _WIDEST - 1] + "…"


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _facts(found: Found) -> dict[str, Any]:
    """What ``--json`` says."""
    return {
        "task": found.task.name,
        "profile": found.task.profile,
        "constants": [
            {
                "name": p.name,
                "value": p.value,
                "line": found.lines[p.name],
                "kind": p.kind.value,
                "family": p.range.family,
                **(
                    {
                        "low": p.range.low,
                        "high": p.range.high,
                        "scale": p.range.scale.value,
                        "given": p.range.hard,
                        "moves": list(p.moves()),
                    }
                    if p.numeric
                    else {"choices": list(p.range.choices)}
                ),
            }
            for p in found.parameters
        ],
        "left_out": [
            {"name": left.name, "source": left.source, "line": found.lines[left.name], "why": left.why}
            for left in found.left_out
        ],
    }
