"""What a commit only points to, so that git may have it or not: the files of submodules."""

from __future__ import annotations

from pathlib import Path

from autoresearchd.workspace import preflight
from autoresearchd.workspace.submodules import FETCH


def empty_submodules(root: Path, folder: Path) -> tuple[str, ...]:
    """The sentence about submodules of the last commit whose files no run will see; none where all are at hand."""
    absent = preflight.absent_submodules(root, folder)
    if not absent:
        return ()
    told = f"runs see empty folders in place of submodules that are not on this machine: {', '.join(absent)}"
    return (f"{told}; `{FETCH}` brings them",)
