"""``start`` and ``resume``: from a folder and options to a daemon at work, every check before anything is changed."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from autoresearchd.app.compose import (
    ensure_segment,
    executor_spec,
    laboratory,
    make_executor,
    require_sandbox,
)
from autoresearchd.app.make_policy import ask_models, require_model
from autoresearchd.app.project import Project
from autoresearchd.app.repairs.repair import check_database, check_journal
from autoresearchd.app.repairs.restore_session import ends_after
from autoresearchd.app.session_requests import discard_session
from autoresearchd.app.start_checks import (
    choose_tag,
    create_session,
    empty_submodules,
    learning_note,
    make_public_folder,
    program_notes,
    reached_limit,
    refuse_second,
    refuse_secret,
    who_measures,
    with_large_files,
)
from autoresearchd.app.tasks.job_programs import require_bits, require_programs, require_tool
from autoresearchd.app.tasks.search_space import require_tunable
from autoresearchd.app.tasks.task_folder import TASK_FILE, read_task, task_folder
from autoresearchd.config import Overrides, check_files, dump_task, parse_task
from autoresearchd.config.settings import load_settings
from autoresearchd.domain.errors import BaselineError, LimitReached, MissingCapability, PolicyError, UsageError
from autoresearchd.domain.events import EventKind
from autoresearchd.domain.experiment import Limits, Session
from autoresearchd.domain.model_settings import ModelSettings
from autoresearchd.domain.ports import EventSink, NewSession
from autoresearchd.domain.quantities import counted, format_duration
from autoresearchd.domain.task import Task
from autoresearchd.loop.context import BASELINE_RUNS, Context
from autoresearchd.loop.daemon import serve
from autoresearchd.loop.measuring.run_files import clean_logs
from autoresearchd.loop.upkeep.session_lock import SessionLock, already_held, announce
from autoresearchd.policy.policy_names import PolicySpec, parse_spec
from autoresearchd.policy.roles import preset
from autoresearchd.report.log_files import IMPORTED
from autoresearchd.sandbox.launch import end_abandoned
from autoresearchd.store.repository import SqlStore
from autoresearchd.workspace import layout, preflight
from autoresearchd.workspace.files import disk_errors, remove_tree
from autoresearchd.workspace.git import GitWorkspace, open_workspace
from autoresearchd.workspace.layout import require_tag

_LOOK_EVERY = 0.1
_SILENT_S = 5.0
"""How long nothing is said while a daemon looks at what the last one left."""


@dataclass(frozen=True, slots=True)
class StartOptions:
    """What ``start`` was asked for.

    Budget in seconds; task: a bundled name, a folder, None for the folder itself; sandbox: a tier, None for the best;
    seed: of all that is drawn at random in the session, None: a new one. group, parents, turns: see ``Proposing``.
    roles: whether those that come with the daemon take turns where the task has none; None: as config.yaml says.
    preflight: whether the policy's models are asked first, see ``ask_models``.
    """

    task: str | None
    directory: Path
    tag: str | None = None
    policy: str = "auto"
    executor: str = "local"
    sandbox: str | None = None
    budget: float | None = None
    limits: Limits = field(default_factory=Limits)
    foreground: bool = False
    wait: bool = True
    seed: int | None = None
    group: int | None = None
    parents: str | None = None
    turns: str | None = None
    roles: bool | None = None
    preflight: bool = True


def start(options: StartOptions, sinks: Sequence[EventSink] = ()) -> int:
    """Begin a session; the exit code: in the foreground of its end, else once the daemon is at work."""
    with contextlib.ExitStack() as undo:
        return _start(options, sinks, undo)


def _start(options: StartOptions, sinks: Sequence[EventSink], undo: contextlib.ExitStack) -> int:
    preflight.require_git()
    settings = load_settings(os.environ)
    policy = parse_spec(options.policy)
    if policy.kind == "auto":  # the model that the user has set up, else search
        policy = parse_spec(settings.policy) if settings.policy else PolicySpec("search")
    refuse_secret(options.policy)
    executor = executor_spec(options.executor, options.sandbox)
    _end_abandoned()
    require_sandbox(make_executor(executor))
    if options.tag is not None:
        require_tag(options.tag)
    overrides = _overrides(options, settings)
    folder = task_folder(options.task, options.directory, undo)
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}", hint="name the folder that holds the task")
    file = folder / TASK_FILE
    if file.exists():
        read_task(folder, overrides=overrides)  # its mistakes are told before it is to be committed
    project = Project.at(folder)
    preflight.check_repository(project.root)
    if file.exists():
        preflight.check_committed(project.root, file)
    beside = refuse_second(project, options.tag)
    task = _with_roles(read_task(folder, overrides=overrides), options, settings)
    source = folder / task.source_dir
    require_model(policy, settings, source, os.environ)
    check_files(task, source, file)
    notes = list(require_programs(task, source))
    proposes = options.limits.max_experiments != 0  # else the baseline is all that is wanted
    with project.open_store() as store:
        tag = choose_tag(project, store, options.tag)
        workspace = open_workspace(project.root, tag, task, source)
        base = workspace.head()
        workspace.check_tracked(base, [*task.editable, *task.protected])
        require_bits(task, workspace, base)
        task, large = with_large_files(task, project.root, source)
        notes += [*empty_submodules(project.root, source), *large]
        if policy.kind == "command":
            require_tool(policy.argument, workspace, base, source)
        code = {path: workspace.read(base, path) for path in task.editable}
        if proposes:
            require_tunable(policy, task, code, file)
        notes += [*program_notes(task, source), *who_measures(task, code)]
        _say("".join((*beside, *(f"note: {note}\n" for note in notes))))
        if options.preflight and proposes:
            ask_models(policy, settings, source, os.environ, _say)
        _say(learning_note(policy, settings, source))
        make_public_folder(project)
        session = create_session(
            store,
            NewSession(
                tag=tag,
                branch=workspace.branch,
                task_json=dump_task(task),
                policy=str(policy),
                executor=executor,
                base_commit=base,
                seed=secrets.randbelow(2**31) if options.seed is None else options.seed,
                limits=options.limits,
                folder=source.resolve().relative_to(project.root.resolve()).as_posix(),
            ),
        )
        undo.pop_all()
        if options.foreground:
            return run(project, store, session, sinks)
    return detach(project, tag, wait=options.wait)


def _end_abandoned() -> None:
    """End what killed commands and daemons of this user have left running, in whatever repository."""
    if found := end_abandoned():
        _say(f"note: ended what killed commands had left running: {counted(found, 'process tree')}\n")


def _say(text: str) -> None:
    """To whoever starts a session, at once: asking models takes seconds."""
    sys.stderr.write(text)
    sys.stderr.flush()


def resume(
    directory: Path,
    tag: str | None,
    foreground: bool,
    sinks: Sequence[EventSink] = (),
    *,
    sandbox: str | None = None,
    limits: Limits | None = None,
) -> int:
    """Go on with a session, wherever it was; the exit code.

    sandbox: a tier from now on, None for what the session remembers; limits: those that are not None hold from now on,
    for the whole session. One that has reached its limit already is only brought in order, here and now.
    """
    preflight.require_git()
    project = Project.of_session(directory)
    with project.existing_store() as store:
        session = project.pick(store, tag)
        if session.policy == IMPORTED:
            raise UsageError(
                f"session {session.tag} was imported: there is nothing to go on with", hint="start a new one"
            )
        pid = project.daemon(session.tag)
        if pid is not None:
            raise already_held(session.tag, pid)
        executor = executor_spec(session.executor, sandbox)
        _end_abandoned()
        require_sandbox(make_executor(executor))
        if executor != session.executor:
            store.set_executor(session.id, executor)
        named = {name: value for name, value in asdict(limits or Limits()).items() if value is not None}
        wanted = replace(store.session(session.tag), limits=replace(session.limits, **named))
        if reached := reached_limit(store, wanted):  # a limit that nothing can be done under is not remembered
            with contextlib.suppress(PolicyError):  # that nothing came of it was said when it ended
                run(project, store, wanted, ())  # what a crash left unfinished is still finished
            _say(
                f"session {session.tag} is at its limit, so nothing was started: {reached.reason}\n"
                f"  → autoresearchd resume {session.tag} {reached.more}   goes on\n"
            )
            return 0
        if wanted.limits != session.limits:
            store.set_limits(session.id, wanted.limits)
        if foreground:
            return run(project, store, store.session(session.tag), sinks)
    return detach(project, session.tag, wait=False)


# ---------------------------------------------------------------------- running
def run(project: Project, store: SqlStore, session: Session, sinks: Sequence[EventSink]) -> int:
    """Run a session in this process, holding its lock."""
    with SessionLock(project.lock(session.tag), session.tag, starts=True) as lock:
        unchecked = check_database(project.database)
        store.take_controls(session.id)  # what was asked of a daemon that is dead is not meant for this one
        preflight.check_not_checked_out(project.root, session.branch)
        folder = project.root / session.folder
        if not folder.is_dir():
            raise UsageError(f"the task's folder {folder} is gone", hint="put it back, or start a new session")
        require_model(parse_spec(session.policy), load_settings(os.environ), folder, os.environ)
        lab = laboratory(project, session, store, folder, sinks, make_executor(session.executor))
        workspace = lab.workspace
        assert isinstance(workspace, GitWorkspace)
        check_journal(store, workspace, session)
        if unchecked:
            lab.emit(EventKind.WARNING, unchecked)
        try:
            return serve(
                lab,
                session.limits,
                active_seconds=session.active_seconds,
                backup=project.backups,
                database=project.database,
                refuse=store.refuse,
                prepare=lambda: _prepare(lab, workspace, session),
                conditions=lambda: ensure_segment(lab, workspace.fingerprint(session.base_commit, lab.task.protected)),
                ready=lock.ready,
                begun=lock.begun,
                waits=lock.waits,
            )
        except (BaselineError, LimitReached, MissingCapability) as error:
            discard_session(project, store, workspace, session, error)
            raise


def _prepare(lab: Context, workspace: GitWorkspace, session: Session) -> None:
    """What must be there before the first experiment; all of it may be repeated."""
    resumed = lab.store.latest(session.id) is not None
    if not lab.store.totals(session.id).experiments:  # also where a daemon died while it took the session away
        workspace.begin(session.base_commit)
    if not resumed:
        # Runs of an earlier session of this tag, whose baseline failed: their results must not be taken for ours.
        remove_tree(lab.site.runs)
    lab.emit(
        EventKind.SESSION_RESUMED if resumed else EventKind.SESSION_STARTED,
        f"session {session.tag} on {session.branch}: {lab.task.name}, {lab.task.metric.name} "
        f"({lab.task.metric.direction.value}), policy {session.policy}{ends_after(session.limits)}",
        root=str(workspace.root),
        tag=session.tag,
    )
    for warning in lab.executor.warnings(lab.task):
        lab.emit(EventKind.WARNING, warning)
    if lab.task.execution.setup_commands:
        lab.emit(EventKind.SETUP, "set-up: " + "; ".join(lab.task.execution.setup_commands))
        log = lab.site.runs / "setup.log"
        try:
            lab.executor.setup(lab.task, lab.site.pristine, lab.site.setup, log, lab.stop.now)
        finally:
            clean_logs(log.parent, lab.redactor)


# ---------------------------------------------------------------------- in the background
def detach(project: Project, tag: str, *, wait: bool) -> int:
    """Leave a daemon behind; the exit code, with ``wait`` once the first run has been measured."""
    log = layout.daemon_log(project.root)
    errors = log.with_name(f"daemon-{tag}.err")
    with disk_errors(f"writing {errors}"):
        log.parent.mkdir(parents=True, exist_ok=True)
        stderr = errors.open("wb")
    with stderr:
        daemon = subprocess.Popen(
            [sys.executable, "-P", "-m", "autoresearchd", "resume", tag, "--foreground", "--quiet"],
            cwd=project.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
        )
    announce(project.lock(tag), daemon.pid)
    try:
        code = _wait_for_daemon(project, tag, daemon, ready=not wait)
        if code is None:
            sys.stderr.write(
                f"session {tag}: the daemon is process {daemon.pid}\n"
                f"  watch  autoresearchd status --watch   (in {project.root})\n"
                f"  log    {log}\n  stop   autoresearchd stop\n"
            )
            code = _wait_for_first_result(project, tag, daemon) if wait else None
    except KeyboardInterrupt:
        sys.stderr.write("left running in the background\n")
        return 0
    if code is not None and code != 0:
        sys.stderr.write(errors.read_text("utf-8", "replace"))
    return code or 0


def _wait_for_daemon(project: Project, tag: str, daemon: subprocess.Popen[bytes], *, ready: bool) -> int | None:
    """Until the daemon holds the session, with ``ready`` until all is in order; its exit code if it ended instead."""
    patient_until = time.monotonic() + _SILENT_S
    while (code := daemon.poll()) is None:
        if project.daemon(tag, ready=ready) == daemon.pid:
            return None
        if time.monotonic() > patient_until:
            sys.stderr.write(f"process {daemon.pid} is bringing session {tag} in order; Ctrl-C leaves it at that\n")
            patient_until = math.inf
        time.sleep(_LOOK_EVERY)
    return code


def _wait_for_first_result(project: Project, tag: str, daemon: subprocess.Popen[bytes]) -> int | None:
    """Until the daemon is at work and its first run is measured; its exit code if it ended."""
    said, over = "", False
    while (code := daemon.poll()) is None:
        if project.daemon(tag) == daemon.pid:
            words, over = _first_step(project, tag)
            if words != said:
                leave = "" if said or over else "; Ctrl-C leaves it running in the background"
                sys.stderr.write(f"{words}{leave}\n")
                said = words
            if over:
                return None
        time.sleep(_LOOK_EVERY)
    return code


def _first_step(project: Project, tag: str) -> tuple[str, bool]:
    measuring = "measuring the baseline", False
    try:
        with project.open_store() as store:
            session = store.session(tag)
            latest = store.latest(session.id)
    except KeyError:  # a baseline that failed takes its session with it
        return measuring
    task = parse_task(session.task_json)
    if latest is None:
        setup = "; ".join(task.execution.setup_commands)
        return (session.reason or f"setting up: {setup}", False) if session.reason or setup else measuring
    if latest.number == 0 and latest.good_runs:
        run = latest.good_runs[0]
        metric = f"{task.metric.name} {run.value:.4g} ({format_duration(run.duration_s)})"
        return f"first of {BASELINE_RUNS} baseline runs: {metric}", True
    return measuring if latest.number == 0 else ("the baseline is measured", True)


# ---------------------------------------------------------------------- the task, as it was asked for
def _overrides(options: StartOptions, settings: ModelSettings) -> Overrides:
    """What the command line says, else what the user has set up where that is not the usual."""
    usual = ModelSettings()
    group = settings.group if settings.group != usual.group else None
    parents = settings.parents if settings.parents != usual.parents else None
    return Overrides(
        options.budget,
        group if options.group is None else options.group,
        parents if options.parents is None else options.parents,
        options.turns,
    )


def _with_roles(task: Task, options: StartOptions, settings: ModelSettings) -> Task:
    if options.roles is False:
        return replace(task, roles=())
    wanted = settings.roles if options.roles is None else options.roles
    return replace(task, roles=preset(task)) if wanted else task
