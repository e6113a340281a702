"""The commands skills list and skills add: the Agent Skills (https://agentskills.io) that come along."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autoresearchd.cli.command_options import JsonOption
from autoresearchd.cli.terminal_text import json_text, print_table, say
from autoresearchd.domain.errors import ConfigError, UsageError
from autoresearchd.domain.quantities import counted
from autoresearchd.resources import bundled

CLAUDE, CODEX = Path("~/.claude/skills"), Path("~/.agents/skills")
"""Where Claude Code and Codex look for skills of a user."""


def list_skills(as_json: JsonOption = False) -> None:
    """List the skills that come with autoresearchd."""
    found = skills()
    if as_json:
        print(json_text(found, indent=2))
    else:
        print_table(("name", "what it is for"), [[one["name"], one["description"]] for one in found], fits=True)


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
    places = ((claude, CLAUDE), (codex, CODEX), (directory is not None, directory or Path()))
    wanted = [place for asked, place in places if asked]
    if not wanted:
        raise UsageError("for whom?", hint="name --claude, --codex or --dir D; several are fine")
    names = ", ".join(skill["name"] for skill in skills())
    for target in wanted:
        written, same = install(target.expanduser(), force=force)
        say(f"{names} in {target}: {counted(written, 'file')} written, {same} there already")


def skills() -> list[dict[str, str]]:
    """Name, description and path of each skill that comes with the program, by name."""
    from autoresearchd.config.yaml_document import parse_yaml

    found = []
    for path in sorted(bundled("skills").glob("*/SKILL.md")):
        parts = path.read_text("utf-8").split("---\n", 2)
        if len(parts) != 3 or parts[0]:
            raise ConfigError("has no front matter", file=str(path), hint="reinstall autoresearchd")
        facts = parse_yaml(parts[1], str(path)).root
        found.append({"name": facts["name"], "description": facts["description"], "path": str(path.parent)})
    return found


def install(target: Path, *, force: bool = False) -> tuple[int, int]:
    """Copy all skills into a folder of skills: (files written, the same already).

    Nothing is written where files differ and ``force`` is not set; with it, those that were replaced are told.
    """
    top = bundled("skills")
    paths = [path for skill in skills() for path in sorted(Path(skill["path"]).rglob("*"))]
    files = [path for path in paths if path.is_file() and "__pycache__" not in path.parts]
    plan = {target / path.relative_to(top): path for path in files}
    try:
        different = [place for place, source in plan.items() if _differs(source, place)]
        if different and not force:
            raise UsageError(
                f"files that differ from those that come with autoresearchd: {', '.join(map(str, different))}",
                hint="look at them; --force replaces them, --dir puts the skills elsewhere",
            )
        wanted = [place for place in plan if place in different or not place.exists()]
        for place in wanted:
            place.parent.mkdir(parents=True, exist_ok=True)
            if place.is_symlink():
                place.unlink()
            place.write_bytes(plan[place].read_bytes())
            place.chmod(0o755 if place.suffix == ".sh" else 0o644)
            if place in different:
                say(f"replaced {place}")
    except OSError as error:
        raise UsageError(
            f"cannot write {error.filename or target}: {error.strerror or error}",
            hint="name a folder that you may write to with --dir",
        ) from error
    return len(wanted), len(plan) - len(wanted)


def _differs(source: Path, place: Path) -> bool:
    """Whether something else than the skill's own file is there; a link is the user's own, whatever it leads to."""
    if place.is_symlink():
        return True
    return place.exists() and (not place.is_file() or place.read_bytes() != source.read_bytes())
