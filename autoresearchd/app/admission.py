"""What is looked at before a session begins or goes on, and refused or warned of while nothing has been changed yet."""

from __future__ import annotations

import ast
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from pathlib import Path

from autoresearchd import keys
from autoresearchd.app.importing import IMPORTED
from autoresearchd.app.policies import LOCAL, endpoint
from autoresearchd.app.project import Project
from autoresearchd.config.settings import load_settings
from autoresearchd.domain.experiment import Session
from autoresearchd.domain.labels import Label, Phase
from autoresearchd.domain.limits import Reached, limit_reached
from autoresearchd.domain.settings import ModelSettings
from autoresearchd.domain.task import MetricSource, Task
from autoresearchd.errors import PolicyError, RepositoryError, SessionLocked, StoreError, UsageError
from autoresearchd.evaluator.pace import about_budget
from autoresearchd.evaluator.program_text import about_seed
from autoresearchd.loop.artifacts import RESULT_BYTES, read_sources, read_tail
from autoresearchd.loop.clock import SystemClock
from autoresearchd.loop.lock import already_held, starting
from autoresearchd.policy.reachable import unreachable
from autoresearchd.policy.registry import PolicySpec, parse_spec
from autoresearchd.ports import NewSession, Store
from autoresearchd.workspace import layout, preflight
from autoresearchd.workspace.files import disk_errors


def require_folder(directory: Path) -> None:
    """Refuse a folder that is named but not there."""
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"{directory} is not a folder", mend="name the folder that holds the task")
    if not directory.exists():
        raise UsageError(f"the folder {directory} does not exist", mend="make it, or correct --dir")


def refuse_secret(policy: str) -> None:
    """The policy's command is stored and shown; a key in it would be, too."""
    found = keys.redactor().found(policy)
    if found:
        raise UsageError(
            f"--policy holds a secret ({found[0][2]}), and the command is stored and shown",
            mend="put the secret into an environment variable: the command sees the whole environment",
        )


def refuse_second(project: Project, tag: str | None) -> tuple[str, ...]:
    """A plain ``start`` beside a running session is a mistake; a second session has to be named.

    What to warn of, once the start is certain: the sessions that it will share the machine with.
    """
    if not project.database.exists():
        return ()
    beside = []
    store = project.open_store()
    try:
        for session in store.sessions():
            pid = project.daemon(session.tag) or starting(project.lock(session.tag))
            if pid is not None and tag in (None, session.tag):
                raise already_held(session.tag, pid)
            if pid is not None:
                beside.append(
                    f"warning: session {session.tag} is running here, too (process {pid}): the two share this machine, "
                    "so each run gets less done in its budget and the results of both are noisier\n"
                )
    finally:
        store.close()
    return tuple(beside)


def choose_tag(project: Project, store: Store, tag: str | None) -> str:
    """The tag asked for, or today's (``nov21``, ``nov21-2``, …)."""
    known = {session.tag: session for session in store.sessions()}
    if tag is not None:
        if tag in known:
            raise _there_already(known[tag])
        preflight.check_tag(project.root, tag)
        return tag
    today = time.strftime("%b%d", time.localtime()).lower()
    number = 1
    while True:
        candidate = today if number == 1 else f"{today}-{number}"
        try:
            if candidate not in known:
                preflight.check_tag(project.root, candidate)
                return candidate
        except RepositoryError:
            pass  # a branch of that name is left from elsewhere: take the next number
        number += 1


def _there_already(session: Session) -> UsageError:
    own = session.policy != IMPORTED
    mend = f"`autoresearchd resume {session.tag}` goes on with it; or take another tag" if own else "take another tag"
    return UsageError(f"session {session.tag!r} is there already", mend=mend)


def create_session(store: Store, new: NewSession, *, named: bool) -> Session:
    """The session; refused where another ``start`` took the tag a moment ago: SessionLocked, or UsageError.

    named: whether the user asked for the tag.
    """
    try:
        return store.create_session(new, SystemClock().now())
    except StoreError as error:
        there = next((session for session in store.sessions() if session.tag == new.tag), None)
        if there is None:
            raise
        if named:
            raise _there_already(there) from error
        raise SessionLocked(
            f"another `start` began session {new.tag} at this moment",
            mend=f"`autoresearchd status --session {new.tag}` shows it; `start --tag OTHER` begins another",
        ) from error


def make_public_folder(project: Project) -> None:
    """The folder of logs and results, which nothing works without. Raises RepositoryError where it cannot be one."""
    folder = layout.public_dir(project.root)
    if os.path.lexists(folder) and not folder.is_dir():
        raise RepositoryError(f"{folder} is no folder, and logs and results go there", mend="move it away")
    with disk_errors(f"writing to {folder}"):
        folder.mkdir(exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()  # before a session is made that could not even say why it ends


def require_tunable(spec: PolicySpec, task: Task, code: Mapping[str, str], file: Path = Path("task.yaml")) -> None:
    """Refuse a policy that turns constants where it finds none: no proposal of it could ever be made.

    Args:
        spec: the policy.
        task: the task. Names in its ``search`` that no constant has are refused, and so are bounds that make no sense.
        code: text of the editable files. A program that is no valid Python is left to the baseline, whose error says
            more.
        file: the task.yaml, to say the line of what is wrong in it.
    """
    if spec.kind not in ("search", "random"):
        return
    from autoresearchd.app.bounds import require_followable
    from autoresearchd.policy.program import Program, spaces  # its parser is only needed here

    try:
        require_followable(task, spaces(task, code), file)
        Program().tunable(task, code)
    except PolicyError as error:
        if error.label is Label.NO_OP or all(_is_python(path, text) for path, text in code.items()):
            raise UsageError(f"the policy {spec} cannot be used: {error.what}", mend=error.mend) from error


def _is_python(path: str, text: str) -> bool:
    """Whether Python would run a file; one that is no program at all is in nobody's way."""
    if not path.endswith(".py"):
        return True
    with warnings.catch_warnings(action="ignore"):
        try:
            compile(text.encode(), path, "exec", flags=ast.PyCF_ONLY_AST, dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return False
    return True


def say_who_measures(task: Task, code: Mapping[str, str]) -> None:
    """Say so when the score is what the edited program says of itself, and what is left alone for it.

    code: text of the editable files.
    """
    if task.scoring.source is not MetricSource.EVALUATOR:
        from autoresearchd.policy.measured_constants import warnings_of  # only needed here

        sys.stderr.writelines(f"note: {note}\n" for note in warnings_of(task, code))


def program_notes(task: Task, source: Path) -> tuple[str, ...]:
    """What the user should know of a program in a folder, its budget and its seed, before anything is run."""
    editable = {path: read_tail(source / path, RESULT_BYTES) for path in task.editable}
    texts = {**editable, **read_sources(task, source)}
    return (*about_budget(task, texts), *about_seed(task, texts))


def warn_of_absent_server(spec: PolicySpec, settings: ModelSettings, folder: Path) -> None:
    """Say so when no server answers where the policy's model should be: that shows only after the baseline."""
    url = endpoint(spec, settings, folder)
    why = unreachable(url) if url else ""
    if why:
        then = "the models under fallbacks are asked in its place" if settings.fallbacks else "the daemon waits for it"
        sys.stderr.write(
            f"warning: no model server answers at {url} ({why}): the baseline is measured all the same, then {then}\n"
            "  → `autoresearchd serve MODEL` starts one here; local.base_url in config.yaml says where it is\n"
        )


def warn_of_unlearnable_answers(spec: PolicySpec, settings: ModelSettings, folder: Path) -> None:
    """Say so when the answers will be stored with log-probabilities that the learner cannot use."""
    if spec.kind != LOCAL:
        return
    heat, served = settings.temperature, bool(endpoint(spec, settings, folder))
    if heat == 1 or (heat != 0 and not served):  # a model in this process tells them of any distribution
        return
    told = "the server's own temperature, which nobody tells" if heat is None else f"temperature {heat:g}"
    sys.stderr.write(
        f"warning: answers are drawn at {told}: `learn` cannot replay them, because the log-probabilities stored with "
        "them are those of temperature 1; set `temperature: 1` in config.yaml to learn from this session\n"
    )


def ends_when_spent(session: Session) -> bool:
    """Whether a session ends at its spend cap; else its policy goes on without a model."""
    return not parse_spec(session.policy).asks_model or load_settings(os.environ).when_spent == "stop"


def reached_limit(store: Store, session: Session) -> Reached | None:
    """The limit at which a session has ended; None when it can go on, or has something left to finish first."""
    latest = store.latest(session.id)
    segment = store.segment(session.id)
    if latest is None or segment is None:
        return None
    totals, limits = store.totals(session.id), session.limits
    waits_for_money = latest.phase is Phase.PROPOSING and limits.max_usd is not None and totals.usd >= limits.max_usd
    settled = latest.phase is Phase.DECIDED and latest.overhead_ms is not None
    if not settled and not waits_for_money:
        return None
    return limit_reached(
        max_experiments=limits.max_experiments,
        max_seconds=limits.max_seconds,
        max_usd=limits.max_usd if ends_when_spent(session) else None,
        experiments=max(0, totals.experiments - segment.number - 1),  # one baseline for each segment
        seconds=session.active_seconds,
        usd=totals.usd,
    )
