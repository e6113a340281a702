"""Where the folders that travel with the package are: ``skills``, ``templates``, ``migrations``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from autoresearchd.domain.errors import MissingCapability

Bundle = Literal["skills", "templates", "migrations"]


def bundled(name: Bundle) -> Path:
    """The folder ``name``: in a wheel inside the package, in a checkout at its root."""
    package = Path(__file__).resolve().parent
    for candidate in (package / "_bundled" / name, package.parent / name):
        if candidate.is_dir():
            return candidate
    raise MissingCapability(
        f"the folder {name!r} that belongs to autoresearchd is neither in {package / '_bundled'} nor in "
        f"{package.parent}: the installation is incomplete",
        hint="pip install --force-reinstall autoresearchd",
    )
