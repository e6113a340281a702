"""``start`` and ``resume``.

From a folder and options to a daemon at work, with every check before anything is changed.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from autoresearchd.app.background import detach
from autoresearchd.app.compose import (
    ensure_segment,
    executor_spec,
    laboratory,
    make_executor,
    open_workspace,
    require_sandbox,
)
from autoresearchd.app.make_policy import require_model
from autoresearchd.app.models.ask_models import ask_models
from autoresearchd.app.project import Project
from autoresearchd.app.repairs.journal_check import check_database, check_journal
from autoresearchd.app.repairs.restore_session import ends_after
from autoresearchd.app.session_requests import discard_session
from autoresearchd.app.start_checks import (
    choose_tag,
    create_session,
    make_public_folder,
    program_notes,
    reached_limit,
    refuse_second,
    refuse_secret,
    require_bits,
    require_folder,
    require_programs,
    require_tool,
    require_tunable,
    say_who_measures,
    warn_of_absent_server,
    warn_of_unlearnable_answers,
)
from autoresearchd.app.tasks.import_log import IMPORTED
from autoresearchd.app.tasks.pinned_files import empty_submodules, with_large_files
from autoresearchd.app.tasks.scaffold import TASK_FILE, Scaffold
from autoresearchd.config import Overrides, check_files, detect, dump_task, load_task
from autoresearchd.config.settings import load_settings
from autoresearchd.domain.errors import (
    BaselineError,
    ConfigError,
    LimitReached,
    MissingCapability,
    PolicyError,
    UsageError,
)
from autoresearchd.domain.events import EventKind
from autoresearchd.domain.experiment import Limits, Session
from autoresearchd.domain.limits import Reached
from autoresearchd.domain.model_settings import ModelSettings
from autoresearchd.domain.ports import EventSink, NewSession
from autoresearchd.domain.quantities import counted
from autoresearchd.domain.task import Task
from autoresearchd.evaluator.measure.log_text import compile_pattern
from autoresearchd.executor.devices import find_devices
from autoresearchd.loop.context import Context
from autoresearchd.loop.daemon import serve
from autoresearchd.loop.measuring.run_files import clean_logs
from autoresearchd.loop.upkeep.session_lock import SessionLock, already_held
from autoresearchd.policy.policy_names import PolicySpec, parse_spec
from autoresearchd.policy.roles import preset
from autoresearchd.sandbox.launch import end_abandoned
from autoresearchd.store.repository import SqlStore
from autoresearchd.workspace import preflight
from autoresearchd.workspace.files import remove_tree
from autoresearchd.workspace.git import GitWorkspace
from autoresearchd.workspace.layout import require_tag


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
    slots: str = "auto"
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
    """Begin a session; the exit code.

    In the foreground it returns when the session ends, else once the daemon is at work.
    """
    with Scaffold(options.task, options.directory) as scaffold:
        return _start(options, sinks, scaffold)


def _start(options: StartOptions, sinks: Sequence[EventSink], scaffold: Scaffold) -> int:
    preflight.require_git()
    policy = _policy(options.policy)
    refuse_secret(options.policy)
    executor = executor_spec(options.executor, options.sandbox)
    _end_abandoned()
    require_sandbox(make_executor(executor))
    if options.slots not in ("auto", "1"):
        raise UsageError(
            f"--slots {options.slots}: this version runs one experiment at a time", hint="use --slots auto"
        )
    if options.tag is not None:
        require_tag(options.tag)
    settings = load_settings(os.environ)
    overrides = _overrides(options, settings)
    folder = scaffold.folder()
    require_folder(folder)
    if (folder / TASK_FILE).exists():
        read_task(folder, options.budget, overrides=overrides)  # its mistakes are told before it is to be committed
    project = Project.at(folder)
    preflight.check_repository(project.root)
    if (folder / TASK_FILE).exists():
        preflight.check_committed(project.root, folder / TASK_FILE)
    beside = refuse_second(project, options.tag)
    task = _with_roles(read_task(folder, options.budget, overrides=overrides), options, settings)
    source = folder / task.source_dir
    require_model(policy, settings, source, os.environ)
    check_files(task, source, folder / TASK_FILE)
    notes = require_programs(task, source)
    store = project.open_store()
    try:
        tag = choose_tag(project, store, options.tag)
        workspace = open_workspace(project, tag, task, source)
        base = workspace.head()
        workspace.check_tracked(base, [*task.editable, *task.protected])
        require_bits(task, workspace, base)
        task, large = with_large_files(task, project.root, source)
        notes = (*notes, *empty_submodules(project.root, source), *large)
        if policy.kind == "command":
            require_tool(policy.argument, workspace, base, source)
        code = {path: workspace.read(base, path) for path in task.editable}
        if options.limits.max_experiments != 0:  # else the baseline is all that is wanted, and nobody proposes
            require_tunable(policy, task, code, folder / TASK_FILE)
        notes = (*notes, *program_notes(task, source))
        sys.stderr.write("".join((*beside, *(f"note: {note}\n" for note in notes))))
        say_who_measures(task, code)
        if options.preflight and options.limits.max_experiments != 0:
            ask_models(policy, settings, source, os.environ, _say)
        else:
            warn_of_absent_server(policy, settings, source)
        warn_of_unlearnable_answers(policy, settings, source)
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
            named=options.tag is not None,
        )
        scaffold.keep()
        if options.foreground:
            return run(project, store, session, sinks)
    finally:
        store.close()
    return detach(project, tag, wait=options.wait)


def _end_abandoned() -> None:
    """End what killed commands and daemons of this user have left running, in whatever repository."""
    found = end_abandoned()
    if found:
        sys.stderr.write(f"note: ended what killed commands had left running: {counted(found, 'process tree')}\n")


def _say(text: str) -> None:
    """To whoever starts a session, at once: asking takes seconds."""
    sys.stderr.write(text)
    sys.stderr.flush()


def _policy(text: str) -> PolicySpec:
    """What ``--policy`` means here; ``auto`` is the model that the user has set up, else ``search``."""
    spec = parse_spec(text)
    if spec.kind != "auto":
        return spec
    named = load_settings(os.environ).policy
    return parse_spec(named) if named else PolicySpec("search")


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
    store = project.existing_store()
    try:
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
            session = store.session(session.tag)
        wanted = _with_limits(session, limits or Limits())
        reached = reached_limit(store, wanted)
        if reached is not None:  # a limit that nothing can be done under is not remembered
            return _nothing_left(project, store, wanted, reached)
        if wanted.limits != session.limits:
            store.set_limits(session.id, wanted.limits)
            session = store.session(session.tag)
        if foreground:
            return run(project, store, session, sinks)
    finally:
        store.close()
    return detach(project, session.tag, wait=False)


def _with_limits(session: Session, limits: Limits) -> Session:
    """The session as it would be with the limits that were named anew."""
    named = {name: value for name, value in asdict(limits).items() if value is not None}
    return replace(session, limits=replace(session.limits, **named))


def _nothing_left(project: Project, store: SqlStore, session: Session, reached: Reached) -> int:
    """Say that a session has reached its limit, and how it goes on; what a crash left unfinished is still finished."""
    with contextlib.suppress(PolicyError):  # that nothing came of it was said when it ended
        run(project, store, session, ())
    sys.stderr.write(
        f"session {session.tag} is at its limit, so nothing was started: {reached.reason}\n"
        f"  → autoresearchd resume {session.tag} {reached.more}   goes on\n"
    )
    return 0


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
    kind = EventKind.SESSION_RESUMED if resumed else EventKind.SESSION_STARTED
    facts = lab.facts()
    lab.emit(
        kind,
        f"session {session.tag} on {session.branch}: {lab.task.name}, {lab.task.metric.name} "
        f"({lab.task.metric.direction.value}), policy {session.policy}{ends_after(session.limits)}",
        root=str(workspace.root),
        tag=session.tag,
        task=lab.task.name,
        metric=lab.task.metric.name,
        direction=lab.task.metric.direction.value,
        policy=session.policy,
        branch=session.branch,
        tier=facts.get("tier", ""),
        source=lab.task.scoring.source.value,
        budget_s=lab.task.execution.budget.training,
        max_experiments=session.limits.max_experiments,
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


# ---------------------------------------------------------------------- the task, as it was asked for
def _overrides(options: StartOptions, settings: ModelSettings) -> Overrides:
    """What the command line says, else what the user has set up where that is not the usual."""
    usual = ModelSettings()
    return Overrides(
        options.budget,
        (settings.group if settings.group != usual.group else None) if options.group is None else options.group,
        (settings.parents if settings.parents != usual.parents else None)
        if options.parents is None
        else options.parents,
        options.turns,
    )


def _with_roles(task: Task, options: StartOptions, settings: ModelSettings) -> Task:
    wanted = settings.roles if options.roles is None else options.roles
    if options.roles is False:
        return replace(task, roles=())
    return replace(task, roles=preset(task)) if wanted else task


def read_task(
    folder: Path, budget: float | None, profile: str | None = None, *, overrides: Overrides | None = None
) -> Task:
    """The task of a folder: its task.yaml, or what its layout says. Checks what this machine must have."""
    device = str(find_devices())
    profile = profile or ("cuda" if device.startswith("cuda") else "cpu")
    overrides = overrides or Overrides(budget=budget)
    if (folder / TASK_FILE).exists():
        task = load_task(folder, profile=profile, overrides=overrides)
    else:
        found = detect(folder, overrides=overrides)
        if found is None:
            raise ConfigError(
                "there is no such file",
                file=str(folder / TASK_FILE),
                hint="`autoresearchd task init` writes one; `start --task autoresearch` uses the bundled task",
            )
        task = found
    if task.execution.needs_gpu and not device.startswith("cuda"):
        raise MissingCapability(
            "execution.needs_gpu is true, but no NVIDIA GPU was found",
            hint="set needs_gpu: auto, or use a machine with one",
        )
    if task.scoring.pattern is not None:
        compile_pattern(task.scoring.pattern, key="scoring.pattern")
    if task.curve.pattern != "auto":
        compile_pattern(task.curve.pattern, key="curve.pattern")
    return task
