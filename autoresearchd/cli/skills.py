"""The commands skills list and skills add."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from autoresearchd.cli import render
from autoresearchd.cli.failure import say
from autoresearchd.cli.options import JsonOption
from autoresearchd.cli.render import Paint, json_text
from autoresearchd.domain.quantities import counted
from autoresearchd.errors import UsageError


def list_skills(as_json: JsonOption = False) -> None:
    """List the skills that come with autoresearchd."""
    from autoresearchd.app.skills import skills

    found = [{"name": one.name, "description": one.description, "path": str(one.folder)} for one in skills()]
    if as_json:
        print(json_text(found, indent=2))
        return
    rows = [[one["name"], one["description"]] for one in found]
    print("\n".join(render.table(("name", "what it is for"), rows, paint=Paint(sys.stdout), total=_columns())))


def add(
    claude: Annotated[bool, typer.Option("--claude", help="For Claude Code: into ~/.claude/skills.")] = False,
    codex: Annotated[bool, typer.Option("--codex", help="For Codex: into ~/.agents/skills.")] = False,
    directory: Annotated[
        Path | None, typer.Option("--dir", metavar="D", help="Into D, e.g. .claude/skills of a project.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that differ.")] = False,
) -> None:
    """Install the skills for a coding agent.

    An agent that reads them can set up, start, watch and finish a session. Files that differ from those that come with
    autoresearchd are named and left alone, unless --force says to replace them.
    """
    from autoresearchd.app import skills

    places = ((claude, skills.CLAUDE), (codex, skills.CODEX), (directory is not None, directory or Path()))
    wanted = [place for asked, place in places if asked]
    if not wanted:
        raise UsageError("for whom?", mend="name --claude, --codex or --dir D; several are fine")
    for target in wanted:
        added = skills.add(target.expanduser(), force=force)
        for place in added.replaced:
            say(f"replaced {place}")
        count = len(added.written) + len(added.replaced)
        names = ", ".join(skill.name for skill in skills.skills())
        say(f"{names} in {target}: {counted(count, 'file')} written, {len(added.same)} there already")


def _columns() -> int | None:
    return render.terminal_width() if render.is_terminal(sys.stdout) else None
