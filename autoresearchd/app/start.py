"""``start`` and ``resume``: from a folder and options to a daemon at work, every check before anything is changed."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from autoresearchd import keys
from autoresearchd.app import compose
from autoresearchd.app.observers import targets_of
from autoresearchd.app.project import Project
from autoresearchd.app.repair import check_database, check_journal, ends_after
from autoresearchd.app.session_requests import discard_session, forget_requests, reached_limit, request
from autoresearchd.app.tasks.job_programs import require_bits, require_programs, require_tool
from autoresearchd.app.tasks.search_space import require_tunable
from autoresearchd.app.tasks.task_folder import (
    TASK_FILE,
    empty_submodules,
    nested_in,
    program_notes,
    read_task,
    task_folder,
    who_measures,
    with_large_files,
)
from autoresearchd.config import Overrides, check_files, dump_task, parse_task
from autoresearchd.config.settings import ModelSettings, for_elsewhere, load_settings
from autoresearchd.domain import errors
from autoresearchd.domain.experiment import Limits, Session
from autoresearchd.domain.labels import IMPORTED
from autoresearchd.domain.ports import EventKind, EventSink, NewSession
from autoresearchd.domain.quantities import counted, format_duration
from autoresearchd.executor.local import LocalExecutor
from autoresearchd.loop.confirming import Asked
from autoresearchd.loop.context import BASELINE_RUNS, Context, SystemClock
from autoresearchd.loop.daemon import serve
from autoresearchd.loop.measuring.run_files import clean_logs
from autoresearchd.loop.messages import is_baseline
from autoresearchd.loop.upkeep.housekeeping import note_reason
from autoresearchd.loop.upkeep.service_manager import notify, serves
from autoresearchd.loop.upkeep.session_lock import SessionLock, already_held, announce, starting
from autoresearchd.policy.policy_names import PolicySpec, parse_spec
from autoresearchd.policy.roles import preset
from autoresearchd.sandbox.launch import end_abandoned
from autoresearchd.store.repository import SqlStore
from autoresearchd.workspace import layout, preflight
from autoresearchd.workspace.files import disk_errors, remove_tree
from autoresearchd.workspace.git import GitWorkspace, open_workspace

_LOOK_EVERY = 0.1
_MOST_A_DAY = 1000
"""Sessions that get the day as their tag."""
_SILENT_S = 5.0
"""How long nothing is said while a daemon looks at what the last one left."""


@dataclass(frozen=True, slots=True)
class StartOptions:
    """What ``start`` was asked for; None: the usual.

    task: a bundled name or a folder. roles: whether those that come with the daemon take turns where the task has none;
    preflight: whether the policy's models are asked first. seed: what all random choices of the session follow from.
    slots: how many runs at once.
    """

    task: str | None
    directory: Path
    tag: str | None = None
    policy: str = "auto"
    executor: str = "local"
    sandbox: str | None = None
    overrides: Overrides = field(default_factory=Overrides)
    limits: Limits = field(default_factory=Limits)
    foreground: bool = False
    seed: int | None = None
    roles: bool | None = None
    preflight: bool = True
    slots: int | None = None


def start(options: StartOptions, sinks: Sequence[EventSink] = ()) -> int:
    """Begin a session; the exit code: in the foreground of its end, else once the daemon is at work."""
    with contextlib.ExitStack() as undo:
        return _start(options, sinks, undo)


def _start(options: StartOptions, sinks: Sequence[EventSink], undo: contextlib.ExitStack) -> int:
    preflight.require_git()
    settings = load_settings(os.environ)
    policy = parse_spec(options.policy)
    if policy.kind == "auto":  # the model that the user has set up, else search
        policy = compose.usual_policy(settings, os.environ)
    refuse_secret(options.policy)
    targets_of(settings.notify)  # raises where an address cannot be read
    executor = _usable_executor(options.executor, options.sandbox, options.slots)
    if options.tag is not None:
        layout.require_tag(options.tag)
    overrides = _overrides(options.overrides, settings)
    folder = task_folder(options.task, options.directory, undo)
    if options.task is not None and (around := nested_in(folder)) is not None:
        own = f"note: {folder} is a repository of its own inside of {around}"
        _say(f"{own}: `status`, `web` and the others see this session from {folder} (cd) alone\n")
    if not folder.is_dir():
        raise errors.UsageError(f"there is no folder {folder}", hint="name the folder that holds the task")
    file, device = folder / TASK_FILE, None
    if file.exists():
        device = compose.remote_device(executor, folder, _say, options.limits.max_usd)
        read_task(folder, overrides=overrides, device=device)  # its mistakes are told before it is to be committed
    project = Project.at(folder)
    preflight.check_repository(project.root)
    if file.exists():
        preflight.check_committed(project.root, file)
    beside = refuse_second(project, options.tag)
    task = read_task(folder, overrides=overrides, device=device)
    if task.history == "revert" and (options.slots or 1) > 1:
        what = f"--slots {options.slots}: `history: revert` is one line of commits, one experiment after the other"
        raise errors.UsageError(what, hint="take `history: refs`, or one slot")
    if options.roles is False:
        task = replace(task, roles=())
    elif options.roles or settings.roles:
        task = replace(task, roles=preset(task))
    source = folder / task.source_dir
    compose.require_model(policy, settings, source, os.environ)
    check_files(task, source, file)
    notes = list(require_programs(task, source)) if device is None else []  # on a fleet each host says it
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
        if device is None:
            notes += program_notes(task, source)
        notes += [*who_measures(task, code), *project.notes()]
        _say("".join((*beside, *(f"note: {note}\n" for note in notes))))
        if options.preflight and proposes:
            compose.ask_models(policy, settings, source, os.environ, _say)
        _say(learning_note(policy, settings, source))
        make_public_folder(project)
        new = NewSession(
            tag=tag,
            branch=workspace.branch,
            task_json=dump_task(task),
            policy=str(policy),
            executor=executor,
            base_commit=base,
            seed=secrets.randbelow(2**31) if options.seed is None else options.seed,
            limits=options.limits,
            folder=source.resolve().relative_to(project.root.resolve()).as_posix(),
        )
        session = create_session(store, new)
        undo.pop_all()
        if options.foreground:
            return run(project, store, session, sinks)
    if device is None:  # the daemon's own are in its log, where nobody looks who has just started it
        _say("".join(f"warning: {text}\n" for text in compose.make_executor(executor).warnings(task)))
    return detach(project, tag, wait=True)


# ---------------------------------------------------------------------- what is looked at first
def refuse_secret(policy: str) -> None:
    """The policy's command is stored and shown; a key in it would be, too."""
    found = keys.redactor().found(policy)
    if found:
        raise errors.UsageError(
            f"--policy holds a secret ({found[0][2]}), and the command is stored and shown",
            hint="put the secret into an environment variable: the command sees the whole environment",
        )


def refuse_second(project: Project, tag: str | None) -> list[str]:
    """Refuse a ``start`` without a tag beside a running session; warnings of those that will share the machine."""
    beside: list[str] = []
    if not project.is_shared and not project.database.exists():
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


def choose_tag(project: Project, store: SqlStore, tag: str | None) -> str:
    """The tag asked for, or today's (``nov21``, ``nov21-2``, …)."""
    known = {session.tag: session.policy for session in store.sessions()}
    if tag is not None:
        if tag in known:
            goes_on = "" if known[tag] == IMPORTED else f"`autoresearchd resume {tag}` goes on with it; or "
            raise errors.UsageError(f"session {tag!r} is there already", hint=f"{goes_on}take another tag")
        preflight.check_tag(project.root, tag)
        return tag
    preflight.check_branches(project.root)
    today = time.strftime("%b%d", time.localtime()).lower()
    for candidate in (today, *(f"{today}-{number}" for number in range(2, _MOST_A_DAY + 1))):
        if candidate not in known:
            with contextlib.suppress(errors.RepositoryError):  # a branch of that name is left from elsewhere
                preflight.check_tag(project.root, candidate)
                return candidate
    what = f"every tag of today is taken, from {today} to {today}-{_MOST_A_DAY}"
    raise errors.UsageError(what, hint="name another: --tag TAG")


def create_session(store: SqlStore, new: NewSession) -> Session:
    """The session. Raises SessionLocked where another ``start`` took the tag a moment ago."""
    try:
        return store.create_session(new, SystemClock().now())
    except errors.StoreError as error:
        if new.tag not in [session.tag for session in store.sessions()]:
            raise
        hint = f"`autoresearchd status --session {new.tag}` shows it; `start --tag OTHER` begins another"
        raise errors.SessionLocked(f"another `start` began session {new.tag} at this moment", hint=hint) from error


def make_public_folder(project: Project) -> None:
    """The folder of logs and results, which nothing works without. Raises RepositoryError where it is none."""
    folder = layout.public_dir(project.root)
    with disk_errors(f"writing to {folder}"):
        folder.mkdir(exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()  # before a session is made that could not even say why it ends


def learning_note(spec: PolicySpec, settings: ModelSettings, folder: Path) -> str:
    """A warning where answers will be stored with log-probabilities that the learner cannot use; else empty."""
    heat, served = settings.temperature, bool(compose.endpoint(spec, settings, folder))
    # A model in this process tells them of any distribution.
    if spec.kind != compose.LOCAL or heat == 1 or (heat != 0 and not served):
        return ""
    drawn = "the server's own temperature, which nobody tells" if heat is None else f"temperature {heat:g}"
    return (
        f"warning: answers are drawn at {drawn}: `learn` cannot replay them, because the log-probabilities stored with "
        "them are those of temperature 1; set `temperature: 1` in config.yaml to learn from this session\n"
    )


def _overrides(asked: Overrides, settings: ModelSettings) -> Overrides:
    """What the command line says, else what the user has set up where that is not the usual."""
    missing = [name for name in ("group", "parents") if getattr(asked, name) is None]
    usual = ModelSettings.model_fields
    own = {name: value for name in missing if (value := getattr(settings, name)) != usual[name].default}
    return replace(asked, **own)


def _usable_executor(spec: str, sandbox: str | None, slots: int | None = None) -> str:
    """The executor as a session remembers it; what killed daemons of this user have left running is ended."""
    executor = compose.executor_spec(spec, sandbox, slots)
    if found := end_abandoned():
        _say(f"note: ended what killed commands had left running: {counted(found, 'process tree')}\n")
    if compose.executor_kind(executor) not in (compose.SSH, compose.RAY, compose.CLOUD):
        made = compose.make_executor(executor)
        if isinstance(made, LocalExecutor):
            _ = made.tier  # refused where nothing isolates here
    return executor


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
    """Go on with a session, wherever it was; the exit code. sandbox, limits: what holds from now on, where given.

    One that has reached its limit already is only brought in order, here and now.
    """
    preflight.require_git()
    project = Project.of_session(directory)
    with project.existing_store() as store:
        session = project.pick_own(store, tag)
        project.refuse_held(store, session.tag)
        executor = _usable_executor(session.executor, sandbox)
        if executor != session.executor:
            store.set_executor(session.id, executor)
        named = {name: value for name, value in asdict(limits or Limits()).items() if value is not None}
        wanted = replace(store.session(session.tag), limits=replace(session.limits, **named))
        if reached := reached_limit(store, wanted):  # a limit that nothing can be done under is not remembered
            with contextlib.suppress(errors.PolicyError):  # that nothing came of it was said when it ended
                run(project, store, wanted, ())  # what a crash left unfinished is still finished
            _say(
                f"session {session.tag} is at its limit, so nothing was started: {reached.reason}\n"
                f"  → autoresearchd resume {session.tag} {reached.more}   goes on\n"
            )
            notify(READY="1", STATUS=reached.reason)  # else a service that has nothing left to do counts as failed
            return 0
        if wanted.limits != session.limits:
            store.set_limits(session.id, wanted.limits)
        if foreground:
            return run(project, store, store.session(session.tag), sinks)
    return detach(project, session.tag, wait=False)


def confirm(directory: Path, tag: str | None, asked: Asked, sinks: Sequence[EventSink] = ()) -> int | str:
    """Confirm the tip, or compare another experiment, now: the exit code, or what a daemon was asked for instead."""
    preflight.require_git()
    project = Project.of_session(directory)
    with project.existing_store() as store:
        session = project.pick(store, tag)
        if project.daemon(session.tag) is not None or store.holder(session.tag) is not None:
            if asked != Asked():
                what = f"session {session.tag} runs: its daemon can only confirm its tip"
                hint = "`autoresearchd confirm` alone asks it to; `autoresearchd stop` first for anything else"
                raise errors.UsageError(what, hint=hint)
            return request(directory, session.tag, "confirm")
        _check_asked(store, session, asked)
        if asked.budget == parse_task(session.task_json).execution.budget.training:
            asked = replace(asked, budget=None)
        return run_asked(project, store, session, asked, sinks)


def run_asked(project: Project, store: SqlStore, session: Session, asked: Asked, sinks: Sequence[EventSink]) -> int:
    """Run two programs of a session side by side in this process, as asked, and nothing else; the exit code."""
    executor = _usable_executor(session.executor, None)
    return run(project, store, replace(session, executor=executor), sinks, asked)


def _check_asked(store: SqlStore, session: Session, asked: Asked) -> None:
    """Refuse a confirmation that could tell nothing."""
    latest, segment = store.latest(session.id), store.segment(session.id)
    if latest is None or segment is None or session.policy == IMPORTED or not store.totals(session.id).keeps:
        raise errors.UsageError(
            f"session {session.tag} has no result that could be confirmed",
            hint="`autoresearchd sessions list` shows those that have some; name one with --session",
        )
    number = session.incumbent_experiment if asked.experiment is None else asked.experiment
    if not 0 <= number <= latest.number:
        raise errors.UsageError(
            f"session {session.tag} has no experiment {number}", hint=f"its experiments are 0 to {latest.number}"
        )
    e = store.experiment(session.id, number)
    decision = e.decision
    if decision is None or decision.value is None or e.commit is None:
        label = f"{decision.status.value}/{decision.label.value}" if decision else e.phase.value
        what = f"experiment {number} gave no result that could be confirmed ({label})"
        raise errors.UsageError(what, hint="`autoresearchd experiments` shows those that have a metric")
    if is_baseline(e) or e.segment != segment.number:
        why = "it was measured under other conditions" if e.segment != segment.number else "it is the baseline"
        if asked.experiment is None and is_baseline(e):
            why = "it is the baseline, and nothing that was kept since is left"
        hint = "name a later one of `autoresearchd experiments`" if latest.number > number else "there is no later one"
        hint = f"{hint}; `autoresearchd resume {session.tag}` goes on"
        raise errors.UsageError(f"experiment {number} cannot be confirmed: {why}", hint=hint)


# ---------------------------------------------------------------------- running
def run(
    project: Project, store: SqlStore, session: Session, sinks: Sequence[EventSink], asked: Asked | None = None
) -> int:
    """Run a session in this process, holding its lock. asked: a confirmation is all that is to be done."""
    with SessionLock(project.lock(session.tag), session.tag, starts=True) as lock, store.leased(session.tag):
        shared = project.is_shared  # then its server is who keeps the database
        unchecked = "" if shared else check_database(project.database)
        last = store.last_control(session.id, ("pause", "unpause"))
        paused = asked is None and last is not None and last.kind == "pause"
        if paused and not serves():  # whoever resumes it by hand wants it to go on
            store.add_control(session.id, "unpause", SystemClock().now())
        forget_requests(store, session)
        preflight.check_not_checked_out(project.root, session.branch)
        folder = project.root / session.folder
        if not folder.is_dir():
            raise errors.UsageError(f"the task's folder {folder} is gone", hint="put it back, or start a new session")
        with _discarded(project, store, session):
            if asked is None:  # a confirmation asks no model
                compose.require_model(parse_spec(session.policy), load_settings(os.environ), folder, os.environ)
            lab = compose.laboratory(project, session, store, folder, sinks)
            workspace, base = lab.workspace, session.base_commit
            assert isinstance(workspace, GitWorkspace)
            check_journal(store, workspace, session)
        if paused and serves():  # a restart by the service is nobody's wish to go on
            lab.stop.paused.set()
        if unchecked:
            lab.emit(EventKind.WARNING, unchecked)
        with _discarded(project, store, session, errors.BaselineError, errors.LimitReached, errors.MissingCapability):
            return serve(
                lab,
                session.limits,
                lock,
                active_seconds=session.active_seconds,
                backup=None if shared else project.backups,
                database=None if shared else project.database,
                refuse=store.refuse,
                prepare=lambda: _prepare(lab, workspace, session, asked),
                conditions=lambda: compose.ensure_segment(lab, workspace.fingerprint(base, lab.task.protected)),
                asked=asked,
            )


@contextlib.contextmanager
def _discarded(
    project: Project, store: SqlStore, session: Session, *final: type[errors.AutoresearchdError]
) -> Iterator[None]:
    """Discard a session that cannot begin, or that one of ``final`` ends before its baseline."""
    try:
        yield
    except errors.AutoresearchdError as error:
        # It quotes what a set-up command printed, who may have been given secrets.
        error.what, error.hint = store.redactor.text(error.what), store.redactor.text(error.hint)
        unfit = isinstance(error, (errors.UsageError, errors.MissingCapability))
        if isinstance(error, final) or (unfit and store.latest(session.id) is None):
            discard_session(project, store, session, error)
        raise


def _prepare(lab: Context, workspace: GitWorkspace, session: Session, asked: Asked | None) -> None:
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
    # At a limit nothing is run any more: no machine is to be rented for that.
    if lab.task.execution.setup_commands and (asked is not None or reached_limit(lab.store, session) is None):
        words = "set-up: " + "; ".join(lab.task.execution.setup_commands)
        lab.emit(EventKind.SETUP, words)
        note_reason(lab.store, session.tag, lab.clock.now(), words)
        log = lab.site.runs / "setup.log"
        try:
            lab.executor.setup(lab.task, lab.site.pristine, lab.site.setup, log, lab.stop.now)
        finally:
            clean_logs(log.parent, lab.redactor)
            note_reason(lab.store, session.tag, lab.clock.now(), "")


# ---------------------------------------------------------------------- in the background
def detach(project: Project, tag: str, *, wait: bool) -> int:
    """Leave a daemon behind; the exit code, with ``wait`` once the first run has been measured."""
    log = layout.daemon_log(project.root)
    complaints = log.with_name(f"daemon-{tag}.err")
    with disk_errors(f"writing {complaints}"):
        log.parent.mkdir(parents=True, exist_ok=True)
        stderr = complaints.open("wb")
    with stderr:
        daemon = subprocess.Popen(
            [sys.executable, "-P", "-m", "autoresearchd", "resume", tag, "--foreground", "--quiet"],
            cwd=project.root,
            env=for_elsewhere(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
        )
    announce(project.lock(tag), daemon.pid)
    try:
        code = _wait_for_daemon(project, tag, daemon, ready=not wait)
        if code is None:
            _say(
                f"session {tag}: the daemon is process {daemon.pid}\n"
                f"  watch  autoresearchd status --watch   (in {project.root})\n"
                f"  log    {log}\n  stop   autoresearchd stop\n"
            )
            code = _wait_for_first_result(project, tag, daemon) if wait else 0
    except KeyboardInterrupt:
        _say("left running in the background\n")
        return 0
    if code:
        _say(complaints.read_text("utf-8", "replace"))
    if code and code < 0:
        _say(f"the daemon was killed by {signal.Signals(-code).name}; `autoresearchd resume {tag}` goes on\n")
        code = 128 - code
    return code


def _wait_for_daemon(project: Project, tag: str, daemon: subprocess.Popen[bytes], *, ready: bool) -> int | None:
    """Until the daemon holds the session, with ``ready`` until all is in order; its exit code if it ended instead."""
    patient_until = time.monotonic() + _SILENT_S
    while (code := daemon.poll()) is None and project.daemon(tag, ready=ready) != daemon.pid:
        if time.monotonic() > patient_until:
            _say(f"process {daemon.pid} is bringing session {tag} in order; Ctrl-C leaves it at that\n")
            patient_until = math.inf
        time.sleep(_LOOK_EVERY)
    return code


def _wait_for_first_result(project: Project, tag: str, daemon: subprocess.Popen[bytes]) -> int:
    """Until the daemon, which holds the session, has measured its first run; its exit code if it ended, else 0."""
    said, over = "", False
    with project.open_store() as store:
        while (code := daemon.poll()) is None and not over:
            words, over = _first_step(store, tag)
            if words != said:
                _say(f"{words}{'' if said or over else '; Ctrl-C leaves it running in the background'}\n")
                said = words
            time.sleep(_LOOK_EVERY)
    return code or 0


def _first_step(store: SqlStore, tag: str) -> tuple[str, bool]:
    """(what a daemon is at, whether the first result is there)."""
    measuring = "measuring the baseline", False
    try:
        session = store.session(tag)
        latest = store.latest(session.id)
    except (KeyError, errors.EnvironmentFailure):  # a baseline that failed takes its session with it
        return measuring
    task = parse_task(session.task_json)
    if latest is None:
        return session.reason or measuring[0], False
    if latest.number:
        return "the baseline is measured", True
    if not latest.good_runs:
        return measuring
    run = latest.good_runs[0]
    metric = f"{task.metric.name} {run.value:.4g} ({format_duration(run.duration_s)})"
    return f"first of {BASELINE_RUNS} baseline runs: {metric}", True
