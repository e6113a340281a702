"""The commands adapters list, adapters promote and adapters rollback: which version of the local policy answers."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from autoresearchd.cli import render
from autoresearchd.cli.failure import say
from autoresearchd.cli.options import JsonOption
from autoresearchd.cli.render import Paint, clean, json_text
from autoresearchd.cli.session import here
from autoresearchd.errors import AdapterDamaged

_COLOURS = {"promoted": "green", "candidate": "yellow", "refused": "grey", "retired": "grey"}
_REASON = 100


def list_versions(as_json: JsonOption = False) -> None:
    """List the versions of the local policy, oldest first.

    The promoted one answers; a candidate has not been judged; a refused one was no better, or was rolled back; a
    retired one was in use until another took its place.
    """
    from autoresearchd.cli.place import find_place
    from autoresearchd.workspace import layout

    place = find_place(here())
    folder = layout.adapters_dir(place.root)
    found = [{**version, "damage": damage(folder, version)} for version in place.reader.versions()]
    if as_json:
        print(json_text(found, indent=2))
    elif found:
        print("\n".join(version_table(found, Paint(sys.stdout))))
    else:
        say("there is no version yet: the plain model answers; `autoresearchd learn` makes one")


def promote(
    version: Annotated[str, typer.Argument(metavar="VERSION", help="Its name, or its number: v3-1f2e3d4c, v3 or 3.")],
) -> None:
    """Have a version answer from the next experiment on.

    Its files are checked first. The one that was in use is retired; `adapters rollback` brings it back.
    """
    from autoresearchd.app.adapters import promote as promote_version

    say(promote_version(here(), version))


def rollback() -> None:
    """Go back to the version that was in use before, or to the plain model."""
    from autoresearchd.app.adapters import roll_back

    say(roll_back(here()))


def version_table(records: Sequence[Mapping[str, Any]], paint: Paint) -> list[str]:
    """Versions as a table: name, status, algorithm, parent, when it was made, why it stands as it does."""
    rows, colours = [], []
    for record in records:
        status, damaged = str(record["status"]), record.get("damage")
        reason = f"damaged: {damaged}" if damaged else record.get("reason")
        rows.append(
            [
                clean(record["version"]),
                status,
                clean(record["algo"]) or "—",
                clean(record["parent"] or "") or "—",
                str(record["created_at"] or "")[:16].replace("T", " "),
                clean(reason or "", _REASON),
            ]
        )
        colours.append({1: _COLOURS.get(status, ""), 5: "red" if damaged else ""})
    total = render.terminal_width() if render.is_terminal(sys.stdout) else None
    headers = ("version", "status", "by", "from", "made (UTC)", "why")
    return render.table(headers, rows, paint=paint, colours=colours, total=total)


def damage(folder: Path, version: Mapping[str, Any]) -> str:
    """What is wrong with the files of a version, at a glance: which are there, and how long; empty: nothing."""
    from autoresearchd.learner import manifest

    name = str(version["folder"])
    if manifest.number_of(name) is None:
        return "the database names no folder of ours"
    try:
        manifest.check(folder / name, manifest.read(folder / name), contents=False)
    except AdapterDamaged as error:
        return error.what
    return ""
