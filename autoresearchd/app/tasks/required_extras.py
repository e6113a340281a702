"""Which extra of autoresearchd the programs of a bundled task need, told from what they import; nothing is imported."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

_EXTRAS = {
    "torch": ("train", "torch"),
    "numpy": ("train", "numpy"),
    "tokenizers": ("train", "tokenizers"),
    "sklearn": ("tasks", "scikit-learn"),
    "gguf": ("tasks", "gguf"),
    "transformers": ("learn", "transformers"),
}
"""What the bundled tasks import beside the standard library: the extra that brings it, and what it is called there."""


class Needs(NamedTuple):
    """extras: those that bring what is imported; missing: the packages of them that are not here."""

    extras: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def words(self) -> str:
        """``tasks (missing: scikit-learn)``."""
        named = ", ".join(self.extras) or "—"
        return f"{named} (missing: {', '.join(self.missing)})" if self.missing else named


def needs_of(folder: Path) -> Needs:
    """What the programs of a task's folder need."""
    used = {name for path in sorted(folder.rglob("*.py")) for name in _imported(path)}
    wanted = {name: _EXTRAS[name] for name in _EXTRAS if name in used}
    extras = tuple(dict.fromkeys(extra for extra, _ in wanted.values()))
    return Needs(extras, tuple(package for name, (_, package) in wanted.items() if find_spec(name) is None))


def _imported(path: Path) -> set[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, ValueError, SyntaxError):
        return set()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names
