"""What a commit only points to, so that it may be there or not: the files of submodules, and those of Git LFS."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path, PurePosixPath

from autoresearchd.domain.errors import RepositoryError
from autoresearchd.domain.task import Task
from autoresearchd.executor.visible_files import pointers
from autoresearchd.workspace import preflight
from autoresearchd.workspace.objects import FETCH


def empty_submodules(root: Path, folder: Path) -> tuple[str, ...]:
    """The sentence about submodules of the last commit whose files no run will see; none where all are at hand."""
    absent = preflight.absent_submodules(root, folder)
    if not absent:
        return ()
    told = f"runs see empty folders in place of submodules that are not on this machine: {', '.join(absent)}"
    return (f"{told}; `{FETCH}` brings them",)


_MOST, _SHOWN = 32, 5
"""How many large files are given to jobs one by one, and how many are named in a sentence."""


def with_large_files(task: Task, root: Path, source: Path) -> tuple[Task, tuple[str, ...]]:
    """The task with the files of Git LFS among its data, as the commit has only pointers; sentences to show.

    Raises RepositoryError: a pointer is to be edited; or what the task names is not on this machine.
    """
    found = preflight.lfs_pointers(root, source)
    edited = [name for name in found if name in task.editable]
    if edited:
        raise RepositoryError(
            f"{edited[0]} is in the commit as a pointer of Git LFS, and not as text",
            hint=f"git lfs untrack {edited[0]} && git add --renormalize -- {edited[0]} && git commit",
        )
    named = (*task.data, *(task.evaluation.private if task.evaluation else ()))
    absent = [name for name in found if not (source / name).is_file() or pointers(source / name)]
    needed = [name for name in absent if _is_below(name, (*named, *task.protected))]
    if needed:
        raise RepositoryError(f"of {_listed(needed)} only the pointer of Git LFS is here", hint="git lfs pull")
    notes = [f"of {_listed(absent)} only the pointer of Git LFS is here: `git lfs pull`"] if absent else []
    given = [name for name in found if name not in absent and not _is_below(name, named)]
    if len(given) > _MOST:
        folders = sorted({name.rpartition("/")[0] or name for name in given})
        told = f"the commit has pointers of Git LFS in place of {_listed(given)}, and so have runs"
        notes.append(f"{told}; to give runs the files: workspace.data: [{', '.join(folders)}]")
    elif given:
        notes.append(f"the commit has pointers of Git LFS in place of {_listed(given)}: runs read your files, as data")
        task = replace(task, data=(*task.data, *given))
    return task, tuple(notes)


def _is_below(name: str, places: Iterable[str]) -> bool:
    return any(PurePosixPath(name).is_relative_to(place.rstrip("/")) for place in places)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"
