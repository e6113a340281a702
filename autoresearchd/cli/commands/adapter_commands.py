"""The commands adapters list, promote, rollback and prune: which version of the policy answers, and what is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from autoresearchd.cli.command_options import JsonOption
from autoresearchd.cli.repository_here import find_place, here
from autoresearchd.cli.terminal_text import clean, json_text, print_table, say
from autoresearchd.domain.errors import AdapterDamaged
from autoresearchd.domain.quantities import counted
from autoresearchd.workspace import layout

_COLOURS = {"promoted": "green", "candidate": "yellow", "refused": "grey", "retired": "grey"}
_REASON = 100
_NAME = 32
"""Characters of a model's name that are shown."""


def list_versions(as_json: JsonOption = False) -> None:
    """List the versions of the local policy, oldest first.

    The promoted one answers; a candidate has not been judged; a refused one was no better, or was rolled back; a
    retired one was in use until another took its place.
    """
    place = find_place(here())
    folder = layout.adapters_dir(place.root)
    found = [{**version, **_files_of(folder, version)} for version in place.reader.versions()]
    if as_json:
        print(json_text(found, indent=2))
    elif found:
        _print_versions(found)
    else:
        say("there is no version yet: the plain model answers; `autoresearchd learn` makes one")


def promote(
    version: Annotated[str, typer.Argument(metavar="VERSION", help="Its name, or its number: v3-1f2e3d4c, v3 or 3.")],
) -> None:
    """Have a version answer from the next experiment on.

    Its files are checked first. The one that was in use is retired; `adapters rollback` brings it back.
    """
    from autoresearchd.app.learning import promote as promote_version

    say(promote_version(here(), version))


def rollback() -> None:
    """Go back to the version before, or to the plain model."""
    from autoresearchd.app.learning import roll_back

    say(roll_back(here()))


def prune(
    keep: Annotated[
        int, typer.Option("--keep", metavar="N", min=0, help="Keep the last N of each model that were in use.")
    ] = 3,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be removed, and remove nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove files of versions that nothing needs.

    Those that were refused, or were in use long ago. Kept are the version in use, candidates, what an experiment under
    way was proposed by, the last that were in use, and the parents that would answer in their place. All of them stay
    in the list.
    """
    from autoresearchd.app.learning import prune as prune_versions

    found = prune_versions(here(), keep, dry_run=dry_run)
    total = sum(each.bytes for each in found)
    if as_json:
        removed = [
            {"version": each.version.version, "status": each.version.status.value, "bytes": each.bytes}
            for each in found
        ]
        print(json_text({"removed": removed, "bytes": total, "dry_run": dry_run}, indent=2))
        return
    for each in found:
        say(f"{each.version.version} ({each.version.status.value}): {each.bytes / 1e6:.1f} MB")
    files = f"files of {counted(len(found), 'version')} {'would be removed' if dry_run else 'removed'}"
    say(f"{files}, {total / 1e6:.1f} MB" if found else "there is nothing to remove")


def _print_versions(records: Sequence[Mapping[str, Any]]) -> None:
    rows, colours = [], []
    for record in records:
        status, damaged, pruned = str(record["status"]), record.get("damage"), record.get("pruned")
        reason = f"damaged: {damaged}" if damaged else str(record.get("reason") or "")
        if pruned:
            reason = f"files removed {str(pruned)[:10]}" + (f"; {reason}" if reason else "")
        made = str(record["created_at"] or "")[:16].replace("T", " ")
        names = [clean(record[key] or "") or "—" for key in ("algo", "parent")]
        rows.append([clean(record["version"]), status, *names, made, _model(record), clean(reason, _REASON)])
        colours.append({1: _COLOURS.get(status, ""), len(rows[-1]) - 1: "red" if damaged else ""})
    print_table(("version", "status", "by", "from", "made (UTC)", "model", "why"), rows, colours=colours, fits=True)


def _model(record: Mapping[str, Any]) -> str:
    """The model that a version was learned on: the end of its name, which tells more than the beginning, and hash."""
    name, known = clean(record.get("base") or "").rstrip("/"), str(record.get("model_hash") or "")[:8]
    short = name if len(name) <= _NAME else f"…{name[1 - _NAME :]}"
    return f"{short} {known}".strip() or "—"


def _files_of(folder: Path, version: Mapping[str, Any]) -> dict[str, str | None]:
    """What the folder of a version tells, at a glance: which files are there, and how long.

    damage: what is wrong with them, empty: nothing. pruned: when they were removed, None: they were not. base: what the
    model was called that it was learned on.
    """
    from autoresearchd.learner.versions import adapter_shelf

    name = str(version["folder"])
    found: dict[str, str | None] = {"damage": "", "pruned": None, "base": ""}
    if adapter_shelf.number_of(name) is None:
        return {**found, "damage": "the database names no folder of ours"}
    try:
        known = adapter_shelf.read_manifest(folder / name)
        found["base"] = known.base.name
        if known.pruned is not None:
            return {**found, "pruned": known.pruned.isoformat()}
        adapter_shelf.check_files(folder / name, known, contents=False)
    except AdapterDamaged as error:
        found["damage"] = error.what
    return found
