"""Where a command stands: the repository, its database opened for reading, and the session that is meant."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from autoresearchd.app.place import Place as Place
from autoresearchd.app.project import Project
from autoresearchd.domain.errors import UsageError


def shown_path(path: Path) -> str:
    """A path, relative to here where that is shorter."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def way_to(folder: Path) -> str:
    """``cd FOLDER`` for a shell, empty where this is within it: most commands are about the repository here."""
    within = here().resolve().is_relative_to(folder.resolve())
    return "" if within else f"cd {shlex.quote(str(folder))}"


def find_place(directory: Path) -> Place:
    """The repository that ``directory`` stands in. Raises NoSession, StoreDamaged."""
    project = Project.of_session(directory)
    project.require_database()
    return Place(project)


def here() -> Path:
    """The current folder. Raises UsageError when it was deleted."""
    try:
        return Path.cwd()
    except FileNotFoundError as error:
        raise UsageError("the current folder does not exist any more", hint="cd to a folder that does") from error
