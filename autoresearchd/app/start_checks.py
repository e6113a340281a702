"""What is looked at before a session begins or goes on: refused or warned of while nothing has been changed yet."""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath

from autoresearchd import keys
from autoresearchd.app.make_policy import LOCAL, endpoint
from autoresearchd.app.project import Project
from autoresearchd.config.settings import load_settings
from autoresearchd.domain.errors import RepositoryError, SessionLocked, StoreError, UsageError
from autoresearchd.domain.experiment import Session
from autoresearchd.domain.labels import Phase
from autoresearchd.domain.limits import Reached, limit_reached
from autoresearchd.domain.model_settings import ModelSettings
from autoresearchd.domain.ports import NewSession, Store
from autoresearchd.domain.task import MetricSource, Task
from autoresearchd.evaluator.rules.program_text import about_seed
from autoresearchd.evaluator.rules.run_time import about_budget
from autoresearchd.executor.visible_files import pointers
from autoresearchd.loop.context import SystemClock
from autoresearchd.loop.measuring.run_files import RESULT_BYTES, read_sources, read_tail
from autoresearchd.loop.upkeep.session_lock import already_held, starting
from autoresearchd.policy.policy_names import PolicySpec, parse_spec
from autoresearchd.report.log_files import IMPORTED
from autoresearchd.workspace import layout, preflight
from autoresearchd.workspace.files import disk_errors
from autoresearchd.workspace.objects import FETCH

_MOST, _SHOWN = 32, 5
"""How many large files are given to jobs one by one, and how many names are shown in a sentence."""


def refuse_secret(policy: str) -> None:
    """The policy's command is stored and shown; a key in it would be, too."""
    found = keys.redactor().found(policy)
    if found:
        raise UsageError(
            f"--policy holds a secret ({found[0][2]}), and the command is stored and shown",
            hint="put the secret into an environment variable: the command sees the whole environment",
        )


def refuse_second(project: Project, tag: str | None) -> list[str]:
    """Refuse a ``start`` without a tag beside a running session; warnings of those that will share the machine."""
    beside: list[str] = []
    if not project.database.exists():
        return beside
    with project.open_store() as store:
        sessions = store.sessions()
    for session in sessions:
        pid = project.daemon(session.tag) or starting(project.lock(session.tag))
        if pid is not None and tag in (None, session.tag):
            raise already_held(session.tag, pid)
        if pid is not None:
            beside.append(
                f"warning: session {session.tag} is running here, too (process {pid}): the two share this machine, "
                "so each run gets less done in its budget and the results of both are noisier\n"
            )
    return beside


def choose_tag(project: Project, store: Store, tag: str | None) -> str:
    """The tag asked for, or today's (``nov21``, ``nov21-2``, …)."""
    known = {session.tag: session for session in store.sessions()}
    if tag is not None:
        if tag in known:
            goes_on = "" if known[tag].policy == IMPORTED else f"`autoresearchd resume {tag}` goes on with it; or "
            raise UsageError(f"session {tag!r} is there already", hint=f"{goes_on}take another tag")
        preflight.check_tag(project.root, tag)
        return tag
    today = time.strftime("%b%d", time.localtime()).lower()
    for number in itertools.count(1):
        candidate = today if number == 1 else f"{today}-{number}"
        try:
            if candidate not in known:
                preflight.check_tag(project.root, candidate)
                return candidate
        except RepositoryError:
            pass  # a branch of that name is left from elsewhere: take the next number
    raise AssertionError


def create_session(store: Store, new: NewSession) -> Session:
    """The session. Raises SessionLocked where another ``start`` took the tag a moment ago."""
    try:
        return store.create_session(new, SystemClock().now())
    except StoreError as error:
        if new.tag not in [session.tag for session in store.sessions()]:
            raise
        raise SessionLocked(
            f"another `start` began session {new.tag} at this moment",
            hint=f"`autoresearchd status --session {new.tag}` shows it; `start --tag OTHER` begins another",
        ) from error


def make_public_folder(project: Project) -> None:
    """The folder of logs and results, which nothing works without. Raises RepositoryError where it cannot be one."""
    folder = layout.public_dir(project.root)
    if os.path.lexists(folder) and not folder.is_dir():
        raise RepositoryError(f"{folder} is not a folder, and logs and results go there", hint="move it away")
    with disk_errors(f"writing to {folder}"):
        folder.mkdir(exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()  # before a session is made that could not even say why it ends


# ---------------------------------------------------------------------- notes
def who_measures(task: Task, code: Mapping[str, str]) -> tuple[str, ...]:
    """What to know where the score is the edited program's own; none where it is not. code: the editable files."""
    if task.scoring.source is MetricSource.EVALUATOR:
        return ()
    from autoresearchd.policy.search.program_constants import warnings_of  # only needed here

    return warnings_of(task, code)


def program_notes(task: Task, source: Path) -> tuple[str, ...]:
    """What the user should know of a program in a folder, its budget and its seed, before anything is run."""
    texts = {path: read_tail(source / path, RESULT_BYTES) for path in task.editable} | read_sources(task, source)
    return (*about_budget(task, texts), *about_seed(task, texts))


def learning_note(spec: PolicySpec, settings: ModelSettings, folder: Path) -> str:
    """A warning where answers will be stored with log-probabilities that the learner cannot use; else empty."""
    heat, served = settings.temperature, bool(endpoint(spec, settings, folder))
    # A model in this process tells them of any distribution.
    if spec.kind != LOCAL or heat == 1 or (heat != 0 and not served):
        return ""
    told = "the server's own temperature, which nobody tells" if heat is None else f"temperature {heat:g}"
    return (
        f"warning: answers are drawn at {told}: `learn` cannot replay them, because the log-probabilities stored with "
        "them are those of temperature 1; set `temperature: 1` in config.yaml to learn from this session\n"
    )


def empty_submodules(root: Path, folder: Path) -> tuple[str, ...]:
    """The sentence about submodules of the last commit whose files no run will see; none where all are at hand."""
    absent = preflight.absent_submodules(root, folder)
    if not absent:
        return ()
    told = f"runs see empty folders in place of submodules that are not on this machine: {', '.join(absent)}"
    return (f"{told}; `{FETCH}` brings them",)


def with_large_files(task: Task, root: Path, source: Path) -> tuple[Task, tuple[str, ...]]:
    """The task with the files of Git LFS among its data, as the commit has only pointers; sentences to show."""
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
        raise RepositoryError(f"of {listed(needed)} only the pointer of Git LFS is here", hint="git lfs pull")
    notes = [f"of {listed(absent)} only the pointer of Git LFS is here: `git lfs pull`"] if absent else []
    given = [name for name in found if name not in absent and not _is_below(name, named)]
    told = f"the commit has pointers of Git LFS in place of {listed(given)}"
    if len(given) > _MOST:
        folders = sorted({name.rpartition("/")[0] or name for name in given})
        notes.append(f"{told}, and so have runs; to give runs the files: workspace.data: [{', '.join(folders)}]")
    elif given:
        notes.append(f"{told}: runs read your files, as data")
        task = replace(task, data=(*task.data, *given))
    return task, tuple(notes)


def _is_below(name: str, places: Iterable[str]) -> bool:
    return any(PurePosixPath(name).is_relative_to(place.rstrip("/")) for place in places)


def listed(names: list[str]) -> str:
    """The first of some names, for a sentence."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"


# ---------------------------------------------------------------------- limits
def ends_when_spent(session: Session) -> bool:
    """Whether a session ends at its spend cap; else its policy goes on without a model."""
    return not parse_spec(session.policy).asks_model or load_settings(os.environ).when_spent == "stop"


def reached_limit(store: Store, session: Session) -> Reached | None:
    """The limit at which a session has ended; None when it can go on, or has something left to finish first."""
    latest, segment = store.latest(session.id), store.segment(session.id)
    if latest is None or segment is None:
        return None
    totals, limits = store.totals(session.id), session.limits
    waits_for_money = latest.phase is Phase.PROPOSING and limits.max_usd is not None and totals.usd >= limits.max_usd
    settled = latest.phase is Phase.DECIDED and latest.overhead_ms is not None
    if not settled and not waits_for_money:
        return None
    return limit_reached(
        limits if ends_when_spent(session) else replace(limits, max_usd=None),
        experiments=max(0, totals.experiments - segment.number - 1),  # one baseline for each segment
        seconds=session.active_seconds,
        usd=totals.usd,
    )
