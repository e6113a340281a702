"""Training and validation text of Python sources: those of the installed `sympy` and `networkx`. Protected.

The validation text comes from the folders of tests in `HELD_OUT` only, which nothing imports and which the sandbox
hides from a job. Lines of it that stand in any other source of the two packages as well are dropped, unless they are
very short.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

PACKAGES = ("sympy", "networkx")
HELD_OUT = (
    "sympy/core/tests",
    "sympy/polys/tests",
    "networkx/algorithms/tests",
    "networkx/classes/tests",
)
MAX_FILE_BYTES = 200_000  # larger sources are mostly generated tables
SHORT = 12  # bytes: lines that are no longer are everybody's
TRAIN_BYTES, VAL_BYTES = 16_000_000, 600_000
END = b"\0"


class PrepareError(Exception):
    """Something that the user has to fix; its text is one line."""


def sources(package: str) -> dict[str, bytes]:
    """The package's Python files by their path below site-packages; it is not imported."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise PrepareError(f"package {package!r} is not installed: pip install sympy networkx (torch brings both)")
    root = Path(spec.submodule_search_locations[0])
    paths = {f"{package}/{path.relative_to(root).as_posix()}": path for path in root.rglob("*.py")}
    return {name: paths[name].read_bytes().replace(b"\r\n", b"\n").replace(END, b"") for name in sorted(paths)}


def chosen(texts: dict[str, bytes], most: int) -> list[bytes]:
    """Texts in a fixed order that does not follow the alphabet, until there are enough."""
    taken, size = [], 0
    for name in sorted(texts, key=lambda name: hashlib.sha256(name.encode()).digest()):
        if 200 <= len(texts[name]) <= MAX_FILE_BYTES and size < most:
            taken.append(texts[name][: most - size])
            size += len(taken[-1])
    return taken


def held_out(name: str) -> bool:
    """Whether a file belongs to the validation text."""
    return any(name.startswith(f"{folder}/") for folder in HELD_OUT)


def offline() -> tuple[list[bytes], list[bytes], dict[str, Any]]:
    """Training and validation documents from the installed sources, and what meta.json says of them."""
    every = {name: text for package in PACKAGES for name, text in sources(package).items()}
    for folder in HELD_OUT:
        if not any(name.startswith(f"{folder}/") for name in every):
            raise PrepareError(f"{folder} is missing: reinstall {folder.split('/', 1)[0]} with its tests")
    seen = {line.strip() for name, text in every.items() if not held_out(name) for line in text.split(b"\n")}
    own = {
        name: b"".join(
            line for line in text.splitlines(keepends=True) if len(line.strip()) <= SHORT or line.strip() not in seen
        )
        for name, text in every.items()
        if held_out(name)
    }
    train = chosen({name: text for name, text in every.items() if not held_out(name)}, TRAIN_BYTES)
    versions = {package: importlib.metadata.version(package) for package in PACKAGES}
    return train, chosen(own, VAL_BYTES), {"corpus": "python-sources", "versions": versions}


def write_facts(out: Path, names: Iterable[str], meta: dict[str, Any]) -> None:
    """Print hashes and sizes of the files in a folder, and write them into its meta.json beside what that tells."""
    for name in names:
        with (out / name).open("rb") as file:
            digest, size = hashlib.file_digest(file, "sha256").hexdigest(), file.tell()
        meta[name] = {"sha256": digest, "bytes": size}
        print(f"{digest}  {out.name}/{name}  {size:,} bytes")
    (out / "meta.json").write_text(json.dumps(meta, indent=1, sort_keys=True) + "\n")
