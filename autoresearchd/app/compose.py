"""Adapters for ports: from a session's row to a laboratory that can run it."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from autoresearchd import keys
from autoresearchd.app.make_policy import LOCAL, Offer, make_policy, model_secrets
from autoresearchd.app.project import Project
from autoresearchd.app.start_checks import ends_when_spent
from autoresearchd.config import parse_task
from autoresearchd.config.settings import load_settings
from autoresearchd.domain.errors import MissingCapability, UsageError
from autoresearchd.domain.events import Event, EventKind
from autoresearchd.domain.experiment import Session, Trial
from autoresearchd.domain.ports import EventSink, Executor, Store
from autoresearchd.domain.redaction import secrets_of_environment
from autoresearchd.executor.local import LocalExecutor
from autoresearchd.learner.learner_process import schedule_of
from autoresearchd.learner.versions.adapter_shelf import AdapterShelf
from autoresearchd.learner.versions.live_versions import LiveVersions
from autoresearchd.loop.context import Context, Site, StopSwitch, SystemClock
from autoresearchd.loop.daemon import Fanout, FileSink
from autoresearchd.loop.proposing.session_memo import Memo
from autoresearchd.loop.upkeep.housekeeping import note_reason
from autoresearchd.policy.policy_names import parse_spec
from autoresearchd.sandbox.tiers import AUTO, check_name
from autoresearchd.store.repository import SqlStore
from autoresearchd.workspace import layout
from autoresearchd.workspace.git import open_workspace, setup_dir


@dataclass(frozen=True, slots=True)
class SessionTrials:
    """The trials of one session, for policies that search."""

    store: Store
    session_id: int

    def trials(self, after: int = -1) -> Sequence[Trial]:
        return self.store.trials(self.session_id, after)


def make_executor(spec: str) -> Executor:
    """The executor of ``--executor``."""
    kind, _, argument = spec.partition(":")
    if kind == "local":
        return LocalExecutor(tier=argument or AUTO)
    if kind in ("ssh", "ray", "cloud"):
        raise MissingCapability(f"executor {kind!r} is not part of this version", hint="use --executor local")
    raise UsageError(f"unknown executor {spec!r}", hint="this version has: local")


def executor_spec(spec: str, sandbox: str | None) -> str:
    """The spec that a session remembers: ``local`` with the ``--sandbox`` that was asked for, ``local:none``."""
    if sandbox is None:
        return spec
    kind = spec.partition(":")[0]
    if kind != "local":
        raise UsageError(f"--sandbox goes with --executor local, not {kind}", hint="leave one of them out")
    return kind if check_name(sandbox) == AUTO else f"{kind}:{sandbox}"


def require_sandbox(executor: Executor) -> None:
    """Raise MissingCapability where an executor of this machine can isolate no job and was not told to do without."""
    if isinstance(executor, LocalExecutor):
        _ = executor.tier


def laboratory(
    project: Project, session: Session, store: Store, folder: Path, sinks: Sequence[EventSink], executor: Executor
) -> Context:
    """Everything that the loop of this session works with. folder: the task's folder in the user's checkout."""
    task = parse_task(session.task_json)
    workspace = open_workspace(project.root, session.tag, task, folder)
    settings = load_settings(os.environ)
    secrets = (*secrets_of_environment(task.execution.env), *model_secrets(settings))
    redactor = keys.redactor(folder=project.root).with_values(secrets)
    if isinstance(store, SqlStore):
        store.hide(redactor)
    clock = SystemClock()
    sink = Fanout([FileSink(layout.daemon_log(project.root), session.tag), *sinks], redactor)
    site = Site(
        source=folder,
        pristine=workspace.pristine(session.base_commit),
        setup=setup_dir(project.root, workspace, session.base_commit, task),
        runs=layout.public_dir(project.root) / "runs" / session.tag,
    )
    spec, stop = parse_spec(session.policy), StopSwitch()

    def tell(kind: EventKind, text: str) -> None:
        sink.emit(Event(kind, clock.now(), text))

    warn = partial(tell, EventKind.WARNING)
    # A server may call its model as it likes: the user says which folder has the same.
    named = (folder / Path(settings.learn.model).expanduser()).resolve() if settings.learn.model else None
    adapters = None
    if spec.kind == LOCAL:  # an agent asks the plain model: what is learned and compared is one answer to one question
        adapters = LiveVersions(AdapterShelf.of(project.root, store), store, session.id, str(spec), warn, place=named)
        adapters.sweep()
    offer = Offer(
        session_id=session.id,
        task=task,
        store=store,
        workspace=workspace,
        executor=executor,
        clock=clock,
        trials=SessionTrials(store, session.id),
        pristine=site.pristine,
        setup=site.setup,
        source=folder,
        settings=settings,
        warn=warn,
        max_usd=session.limits.max_usd,
        environment=os.environ,
        ending=stop,
        adapters=adapters,
    )

    def waits(reason: str) -> None:
        note_reason(store, session.tag, clock.now(), reason)

    return Context(
        session_id=session.id,
        tag=session.tag,
        seed=session.seed,
        task=task,
        store=store,
        workspace=workspace,
        executor=executor,
        policy=make_policy(spec, offer),
        clock=clock,
        sink=sink,
        stop=stop,
        site=site,
        restore=lambda: workspace.pristine(session.base_commit),
        redactor=redactor,
        memo=Memo(layout.memo_path(project.root, session.tag)),
        ends_when_spent=ends_when_spent(session),
        ended=lambda: _call_all(offer.ended),
        learning=schedule_of(
            project.root,
            session,
            store,
            settings,
            executor,
            stopping=stop,
            tell=tell,
            waits=waits,
            free=lambda: _call_all(offer.unloads),
        ),
    )


def _call_all(actions: Sequence[Callable[[], None]]) -> None:
    for action in actions:
        action()


def _digest(*facts: object) -> str:
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def segment_fingerprint(lab: Context, workspace_fingerprint: str) -> tuple[str, str]:
    """(fingerprint of what makes results comparable, hardware in words)."""
    facts, task = lab.facts(), lab.task
    hardware = f"{facts.get('device', 'cpu')} · {facts.get('cpu', platform.machine())}"
    fingerprint = _digest(
        asdict(task.execution.budget),
        workspace_fingerprint,
        task.execution.run_command,
        task.evaluation.command if task.evaluation else None,
        task.metric.name,
        dict(task.execution.env),
        facts.get("python"),
        hardware,
    )
    return fingerprint, hardware


def ensure_segment(lab: Context, protected_fingerprint: str) -> bool:
    """Open a segment at the start, and a new one when results would no longer be comparable; whether one was opened."""
    fingerprint, hardware = segment_fingerprint(lab, protected_fingerprint)
    segment = lab.store.segment(lab.session_id)
    if segment is not None and segment.fingerprint == fingerprint:
        return False
    reason = "start"
    if segment is not None:
        known = f"{hardware}, Python {lab.facts().get('python', '')}"
        reason = f"the machine, Python, environment or task is another one than before ({known})"
    lab.store.open_segment(lab.session_id, fingerprint, reason, hardware, lab.clock.now())
    if segment is not None:
        lab.emit(EventKind.WARNING, f"{reason}; the incumbent is measured again")
    return True
