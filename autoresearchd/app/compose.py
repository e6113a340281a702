"""Adapters for ports: from a session's row to a laboratory that can run it, with the policy and its models."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from autoresearchd.app.known_secrets import session_redactor
from autoresearchd.app.models.spending import AWAY_S, Roomy, SessionAnswers, UsersDay, daily_spend
from autoresearchd.app.observers import Hooks, Notifier, Observed, targets_of
from autoresearchd.app.project import Project
from autoresearchd.config import load_task, parse_task
from autoresearchd.config.settings import ModelSettings, load_settings, settings_path
from autoresearchd.config.task_paths import line_in
from autoresearchd.domain.errors import (
    AutoresearchdError,
    ConfigError,
    EnvironmentFailure,
    MissingCapability,
    UsageError,
)
from autoresearchd.domain.experiment import Session, Trial
from autoresearchd.domain.ports import Adapters, Event, EventKind, EventSink, Executor, Policy, ResearchState
from autoresearchd.domain.proposal import Cost
from autoresearchd.domain.quantities import counted
from autoresearchd.domain.task import Cloud, RemoteSlot, Task
from autoresearchd.executor.local import LocalExecutor
from autoresearchd.learner.learner_process import schedule_of
from autoresearchd.learner.versions.adapter_shelf import AdapterShelf
from autoresearchd.learner.versions.live_versions import LiveVersions
from autoresearchd.loop.context import Context, Site, StopSwitch, SystemClock
from autoresearchd.loop.daemon import Fanout, FileSink
from autoresearchd.loop.proposing.proposals import EditCheck
from autoresearchd.loop.proposing.session_memo import Memo
from autoresearchd.loop.upkeep.housekeeping import note_reason
from autoresearchd.loop.upkeep.service_manager import ServiceStatus
from autoresearchd.models.client import FINAL, BrokeOff, ModelClient, ModelError, Question, Reply, Trouble, absent_key
from autoresearchd.models.spend import CapFallbackPolicy, Caps, WatchedAnswers, priced
from autoresearchd.policy.exchange import Failure
from autoresearchd.policy.policy_names import PolicySpec, parse_spec
from autoresearchd.sandbox.tiers import AUTO, check_name
from autoresearchd.store.repository import SqlStore
from autoresearchd.workspace import layout
from autoresearchd.workspace.git import GitWorkspace, open_workspace, setup_dir

if TYPE_CHECKING:
    from autoresearchd.executor.cloud.rental import Terms
    from autoresearchd.executor.ray.wanted import Wanted
    from autoresearchd.executor.remote.executor import RemoteExecutor
    from autoresearchd.policy.search.search_policies import SearchPolicy
    from autoresearchd.sandbox.agent_shell import SandboxedShell, Surroundings

LOCAL, SSH, RAY, CLOUD = "local", "ssh", "ray", "cloud"
_TIMES = "*"
_PLACED_WITHIN_S = 900.0
"""For a cluster that has to grow first."""
_MOST_TOKENS = 16
"""Of the answer to the first question, whatever it is: some providers refuse to be asked for fewer."""
_PATIENCE_S, _LOOK_EVERY_S = 30.0, 1.0
_HOPELESS = FINAL | {Trouble.UNREACHABLE, Trouble.NO_QUESTIONS}
_ENDED = (
    "the server ended, or hung up, under the question: its log tells why "
    "('Illegal instruction' from a build of llama.cpp: it was built for another processor)"
)


def executor_kind(spec: str) -> str:
    """What an executor's spec begins with."""
    return re.split(r"[:*?]", spec, maxsplit=1)[0]


def make_executor(spec: str, task: Task | None = None, terms: Terms | None = None) -> Executor:
    """The executor that a session remembers (``executor_spec``); ``ssh`` and ``cloud`` run on the fleet of a task."""
    kind = executor_kind(spec)
    if kind not in (LOCAL, SSH, RAY, CLOUD):
        raise UsageError(f"unknown executor {spec!r}", hint="this version has: local, ssh, ray, cloud")
    where, _, slots = spec.partition(_TIMES)
    argument = where.partition(":")[2]
    if kind == LOCAL:
        return LocalExecutor(tier=argument or AUTO, slots=int(slots) if slots else None)
    if task is None:
        what = "experiments that ran on a fleet are not run again for a learner"
        raise MissingCapability(what, hint="add --set judge=checks")
    if kind == CLOUD:
        assert terms is not None
        from autoresearchd.executor.cloud.executor import CloudExecutor
        from autoresearchd.executor.cloud.skypilot import SkyPilot

        return CloudExecutor(SkyPilot(terms.folder / "skypilot.log"), _to_rent(task), terms, tier=argument or AUTO)
    if kind == RAY:
        from autoresearchd.executor.ray.executor import RayExecutor

        return RayExecutor(_wanted(spec))
    from autoresearchd.executor.ssh.executor import SshExecutor

    return SshExecutor(task.remote_slots, tier=argument or AUTO)


def _may_compute_here(spec: PolicySpec, settings: ModelSettings) -> bool:
    """Whether a policy's model may be on this machine's GPUs in a process that is not ours: Ollama, a tool, vLLM."""
    here = urlsplit(settings.local.base_url).hostname in ("127.0.0.1", "localhost", "::1")
    return spec.kind == "command" or "ollama" in spec.argument or (spec.kind == LOCAL and here)


def _wanted(spec: str) -> Wanted:
    from autoresearchd.executor.ray.wanted import Wanted

    return Wanted.read(spec.removeprefix(RAY).removeprefix(":"))


def _to_rent(task: Task, file: str = "task.yaml") -> Cloud:
    if task.cloud is None:
        what, hint = "--executor cloud needs this key", 'write for instance `fleet: {cloud: {accelerators: "H100:1"}}`'
        raise ConfigError(what, file=file, key="fleet.cloud", hint=hint)
    return task.cloud


def remote_device(spec: str, folder: Path, tell: Callable[[str], None], cap: float | None = None) -> str | None:
    """What the machines of a fleet or cluster compute on, which are tried for that; None: runs run on this machine.

    A cluster that has to grow for the first slot is waited for, which is told. Machines to be rented are only asked
    for: MissingCapability: they cannot be had; UsageError: the session's cap does not pay for an hour of them.
    """
    kind = executor_kind(spec)
    if kind == CLOUD:
        from autoresearchd.executor.cloud.executor import cap_too_low
        from autoresearchd.executor.cloud.skypilot import SkyPilot
        from autoresearchd.executor.ssh.executor import SshExecutor

        want = _to_rent(load_task(folder), str(folder / "task.yaml"))
        hourly = (want.max_hourly_cost or 0.0) * want.machines
        if cap is not None and hourly > cap:
            raise UsageError(cap_too_low(cap, hourly), hint="raise --max-cost, or rent less: fleet.cloud")
        SshExecutor([RemoteSlot("rented", "0", "rented", "~")])  # raises where a program is missing
        SkyPilot().check(want)
        return "cuda" if want.gpus else "cpu"
    if kind not in (SSH, RAY):
        return None
    from autoresearchd.executor.remote.executor import RemoteExecutor

    executor = make_executor(spec, load_task(folder))
    assert isinstance(executor, RemoteExecutor)
    deadline, told = time.monotonic() + _PLACED_WITHIN_S, False
    with contextlib.closing(executor):
        while True:
            try:
                return executor.describe()["device"]
            except EnvironmentFailure as error:
                if not executor.waits or time.monotonic() > deadline:
                    raise
                if not told:
                    tell(f"waiting: {error.what}\n")
                    told = True
                time.sleep(_LOOK_EVERY_S)


def examine_fleet(folder: Path) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """The hosts of a folder's task and the nodes at RAY_ADDRESS, as `RemoteExecutor.examine` has them."""
    executors: list[RemoteExecutor] = []
    if (folder / "task.yaml").is_file() and (fleet := load_task(folder).remote_slots):
        from autoresearchd.executor.ssh.executor import SshExecutor

        executors.append(SshExecutor(fleet))
    if os.environ.get("RAY_ADDRESS"):
        from autoresearchd.executor.ray.executor import RayExecutor

        executors.append(RayExecutor(_wanted(RAY)))
    found = []
    for executor in executors:
        with contextlib.closing(executor):
            found += executor.examine()
    return found


def examine_cloud(folder: Path) -> tuple[str, str] | None:
    """What a folder's task would rent, and with what it could; None: nothing. Raises MissingCapability."""
    if not (folder / "task.yaml").is_file() or (want := load_task(folder).cloud) is None:
        return None
    from autoresearchd.executor.cloud.skypilot import SkyPilot

    what = want.accelerators or want.instance_type or "no GPU"
    return f"{counted(want.machines, 'machine')}, each with {what}", SkyPilot().check(want)


def executor_spec(spec: str, sandbox: str | None, slots: int | None = None) -> str:
    """The spec that a session remembers: the executor and what was asked for, ``local:none*4``; None: as it was."""
    kind = executor_kind(spec)
    if kind == RAY:
        wanted = _wanted(spec)
        sandbox = wanted.sandbox if sandbox is None else check_name(sandbox)
        text = str(replace(wanted, sandbox=sandbox, slots=slots or wanted.slots))
        return f"{RAY}:{text}" if text else RAY
    where, _, before = spec.partition(_TIMES)
    kind, _, tier = where.partition(":")
    if sandbox is not None:
        if kind not in (LOCAL, SSH, CLOUD):
            hint = "leave one of them out"
            raise UsageError(f"--sandbox goes with --executor local, ssh, ray and cloud, not {kind}", hint=hint)
        tier = "" if check_name(sandbox) == AUTO else sandbox
    if slots is not None and kind != LOCAL:
        what = f"--slots goes with --executor local and ray, not {kind}"
        raise UsageError(what, hint="a fleet has those of task.yaml")
    times = str(slots) if slots is not None else before
    return kind + (f":{tier}" if tier else "") + (f"{_TIMES}{times}" if times else "")


def laboratory(
    project: Project, session: Session, store: SqlStore, folder: Path, sinks: Sequence[EventSink]
) -> Context:
    """Everything that the loop of this session works with. folder: the task's folder in the user's checkout."""
    task = parse_task(session.task_json)
    workspace = open_workspace(project.root, session.tag, task, folder)
    settings = load_settings(os.environ)
    targets = targets_of(settings.notify)
    redactor = session_redactor(project.root, task.execution.env, settings)
    redactor = redactor.with_values(t.url for t in targets if t.url)
    store.hide(redactor)
    clock = SystemClock()

    def tell(kind: EventKind, text: str) -> None:
        sink.emit(Event(kind, clock.now(), text))

    def note(text: str, number: int | None) -> None:
        made = store.add_note(session.id, text, clock.now())
        if number is not None:
            store.mark_notes_seen(session.id, [made.id], number)

    observed = Observed(session.tag, task.name, project.journal, project.root)
    hooks = Hooks(observed, settings.hooks.before, settings.hooks.after, redactor, tell, note)
    notifier = Notifier(observed, targets, tell)
    log = FileSink(layout.daemon_log(project.root), session.tag)
    sink = Fanout([log, hooks, notifier, ServiceStatus(), *sinks], redactor)
    site = Site(
        source=folder,
        pristine=workspace.pristine(session.base_commit),
        setup=setup_dir(project.root, workspace, session.base_commit, task),
        runs=layout.public_dir(project.root) / "runs" / session.tag,
    )
    spec, stop = parse_spec(session.policy), StopSwitch()
    warn = partial(tell, EventKind.WARNING)

    def waits(reason: str) -> None:
        note_reason(store, session.tag, clock.now(), reason)

    fleet = _fleet_now(task, folder, tell) if executor_kind(session.executor) == SSH else task
    executor = make_executor(session.executor, fleet, _terms(project, session, store, stop, tell, waits))
    if isinstance(executor, LocalExecutor):
        executor.shared = _may_compute_here(spec, settings)
    # A server may call its model as it likes: the user says which folder has the same.
    named = (folder / Path(settings.learn.model).expanduser()).resolve() if settings.learn.model else None
    adapters, name = None, str(replace(spec, tuned=False))
    if spec.kind == LOCAL:  # an agent asks the plain model: what is learned and compared is one answer to one question
        adapters = LiveVersions(AdapterShelf.of(project.root, store), store, session.id, name, warn, place=named)
        adapters.sweep()
    offer = Offer(session, task, store, workspace, executor, site, settings, warn, stop, adapters)
    if session.executor.startswith(CLOUD) and hasattr(executor, "close"):
        offer.ended.append(executor.close)
    return Context(
        session_id=session.id,
        tag=session.tag,
        seed=session.seed,
        task=task,
        store=store,
        workspace=workspace,
        executor=executor,
        policy=hooks.around(make_policy(spec, offer)),
        clock=clock,
        sink=sink,
        stop=stop,
        site=site,
        restore=lambda: workspace.pristine(session.base_commit),
        redactor=redactor,
        memo=Memo(layout.memo_path(project.root, session.tag)),
        ends_when_spent=ends_when_spent(session),
        ended=partial(_call_all, offer.ended),
        left=partial(_call_all, [hooks.close, notifier.close]),
        rate=lambda: float(getattr(executor, "rate", 0.0)),
        learning=schedule_of(
            project.root,
            session,
            store,
            settings,
            executor,
            stopping=stop,
            tell=tell,
            waits=waits,
            free=partial(_call_all, offer.unloads),
        ),
    )


def _fleet_now(task: Task, folder: Path, tell: Callable[[EventKind, str], None]) -> Task:
    """A session's task, with the machines that its file names now: hosts move and die, what is judged on them stays."""
    try:
        slots = load_task(folder).remote_slots
    except (AutoresearchdError, OSError) as error:
        tell(EventKind.WARNING, f"the fleet is still that of the session's beginning: {error}")
        return task
    if slots == task.remote_slots or not slots:
        return task
    names = ", ".join(f"{slot.name} on {slot.host}" for slot in slots)
    tell(EventKind.SETUP, f"fleet.slots of task.yaml was changed: {names}")
    return replace(task, remote_slots=slots)


def _terms(
    project: Project, session: Session, store: SqlStore, stop: StopSwitch, tell: Callable[[EventKind, str], None],
    waits: Callable[[str], None],
) -> Terms:  # fmt: skip
    """For machines that this session rents."""
    from autoresearchd.executor.cloud.rental import Terms, prefix_of

    prefix, cap = prefix_of(session), session.limits.max_usd
    return Terms(
        prefix,
        layout.state_dir(project.root) / "cloud" / prefix,
        stop,
        tell,
        waits,
        charge=partial(store.charge, session.id),
        left=lambda: float("inf") if cap is None else cap - store.totals(session.id).usd,
        broke=lambda: stop.request(f"the spend limit of {cap:g} USD is reached", now=True),
    )


def _call_all(actions: Sequence[Callable[[], None]]) -> None:
    for action in actions:
        action()


def ends_when_spent(session: Session) -> bool:
    """Whether a session ends at its spend cap; else its policy goes on without a model."""
    return (
        session.executor.startswith(CLOUD)
        or not parse_spec(session.policy).asks_model
        or load_settings(os.environ).spend.when_reached == "stop"
    )


def segment_fingerprint(lab: Context, workspace_fingerprint: str) -> tuple[str, str]:
    """(fingerprint of what makes results comparable, hardware in words)."""
    facts, task = lab.facts(), lab.task
    hardware = f"{facts.get('device', 'cpu')} · {facts.get('cpu', platform.machine())}"
    hardware += f" · {facts['slots']} slots" if "slots" in facts else ""
    comparable = (
        asdict(task.execution.budget),
        workspace_fingerprint,
        task.execution.run_command,
        task.evaluation.command if task.evaluation else None,
        task.metric.name,
        dict(task.execution.env),
        facts.get("python"),
        hardware,
    )
    return hashlib.sha256(json.dumps(comparable).encode()).hexdigest()[:16], hardware


def ensure_segment(lab: Context, protected_fingerprint: str) -> bool:
    """Open a segment at the start, and a new one when results would no longer be comparable; whether one was opened."""
    fingerprint, hardware = segment_fingerprint(lab, protected_fingerprint)
    segment, reason = lab.store.segment(lab.session_id), "start"
    if segment is not None:
        if segment.fingerprint == fingerprint:
            return False
        known = f"{hardware}, Python {lab.facts().get('python', '')}"
        reason = f"the machine, Python, environment or task is another one than before ({known})"
    falling = lab.store.open_keeps(lab.session_id)
    lab.store.open_segment(lab.session_id, fingerprint, reason, hardware, lab.clock.now())
    if segment is not None:
        also = f" and {counted(len(falling), 'keep')} that none had confirmed fell back" if falling else ""
        lab.emit(EventKind.WARNING, f"{reason}; the confirmed program is measured again{also}")
    return True


# ---------------------------------------------------------------------- the policy
@dataclass(frozen=True, slots=True)
class Offer:
    """What a session offers to its policy; whoever makes that adds to ``unloads`` (its model) and ``ended``.

    stop: how the session is asked to end. adapters: says which version of the local policy answers.
    """

    session: Session
    task: Task
    store: SqlStore
    workspace: GitWorkspace
    executor: Executor
    site: Site
    settings: ModelSettings
    warn: Callable[[str], None]
    stop: StopSwitch
    adapters: Adapters | None
    unloads: list[Callable[[], None]] = field(default_factory=list)
    ended: list[Callable[[], None]] = field(default_factory=list)

    def materialise(self, state: ResearchState, target: Path) -> None:
        self.workspace.materialise(state.parent, target)

    def code_at(self, commit: str) -> Mapping[str, str]:
        return {path: self.workspace.read(commit, path) for path in self.task.editable}

    def trials(self, after: int = -1) -> Sequence[Trial]:
        return self.store.trials(self.session.id, after)


def make_policy(spec: PolicySpec, offer: Offer) -> Policy:
    """The policy of ``--policy``; each is imported only when it is the one."""
    if spec.tuned:
        from autoresearchd.policy.hybrid_policy import HybridPolicy

        return HybridPolicy(make_policy(replace(spec, tuned=False), offer), _search(offer), offer.warn)
    match spec.kind:
        case "auto" | "search":
            return _search(offer)
        case "random":
            from autoresearchd.policy.search.search_policies import RandomPolicy

            return RandomPolicy()
        case "outside":
            from autoresearchd.policy.outside_policy import OutsidePolicy

            return OutsidePolicy()
        case "command":
            from autoresearchd.policy.command_policy import CommandPolicy

            return CommandPolicy(spec.argument, offer.materialise)
        case _:
            return _with_model(spec, offer)


def _search(offer: Offer) -> SearchPolicy:
    from autoresearchd.policy.search.search_policies import SearchPolicy

    return SearchPolicy(offer, offer.code_at)


def _with_model(spec: PolicySpec, offer: Offer) -> Policy:
    settings, store, clock, session_id = offer.settings, offer.store, SystemClock(), offer.session.id
    day = UsersDay(daily_spend(os.environ), store, clock, offer.warn, str(offer.site.source))
    day.catch_up()
    offer.ended.append(day.close)
    caps = Caps(
        session_usd=lambda: store.totals(session_id).usd,
        day_usd=day.usd,
        session_cap=offer.session.limits.max_usd,
        day_cap=settings.spend.per_day,
    )
    check = EditCheck(offer.task, store, session_id, offer.site.pristine)
    clients = make_clients(spec, settings, offer.site.source, os.environ, offer.adapters, offer.warn)
    make: Callable[..., Policy]
    if spec.kind == "agent":
        from autoresearchd.policy.agent_policy import AgentPolicy

        make = partial(AgentPolicy, open_shell=_agent_shell(offer))
    else:
        from autoresearchd.policy.model_policy import ModelPolicy

        make = partial(ModelPolicy, outlook=_search(offer).outlook) if settings.prompt == "brief" else ModelPolicy
    charged = SessionAnswers(store, session_id, clock, day.spent, AWAY_S, offer.stop.now)
    policy: Policy = make(
        clients,
        settings,
        name=str(spec),
        answers=WatchedAnswers(charged, caps, offer.warn),
        purse=Roomy(caps, offer.site.pristine),
        check=check.legal,
        near=check.near,
        ending=offer.stop,
    )
    offer.unloads.extend(client.unload for client in clients)
    if settings.spend.when_reached == "search":
        return CapFallbackPolicy(policy, make_policy(PolicySpec("search"), offer), offer.warn)
    return policy


def _local_model(spec: PolicySpec, settings: ModelSettings, folder: Path) -> tuple[str | None, Path | None]:
    """The name of the policy's local model (None: a provider's) and its folder (None: a server's)."""
    kind, _, rest = spec.argument.partition(":")
    if spec.kind != LOCAL and (spec.kind, kind) != ("agent", LOCAL):
        return None, None
    name = (spec.argument if spec.kind == LOCAL else rest) or settings.local.model
    place = folder / Path(name).expanduser()
    return name, place if name and place.exists() else None


def usual_policy(settings: ModelSettings, environment: Mapping[str, str]) -> PolicySpec:
    """What ``--policy auto`` stands for: what the user has set up, else search. Raises ConfigError: it is no policy."""
    try:
        spec = parse_spec(settings.policy or "search")
    except UsageError as error:
        file = settings_path(environment)
        what, hint = (text.replace("--policy ", "") for text in (error.what, error.hint))
        raise ConfigError(what, file=str(file), line=line_in(file, ("policy",)), key="policy", hint=hint) from error
    return PolicySpec("search") if spec.kind == "auto" else spec


def require_model(spec: PolicySpec, settings: ModelSettings, folder: Path, environment: Mapping[str, str]) -> None:
    """Raise MissingCapability where a package is not installed, or no key is set, that the policy's models need."""
    if not spec.asks_model:
        return
    name, place = _local_model(spec, settings, folder)
    if name is not None and place is None and name.startswith(("/", "./", "../", "~")):
        what = f"--policy {spec}: there is no folder {folder / Path(name).expanduser()}"
        raise UsageError(what, hint="give the folder of a model, or its name")
    needed = {"litellm": "llm"} if name is None or settings.fallbacks else {}
    if name is not None:
        needed |= {"transformers": "learn"} if place is not None else {"httpx": "local"}
    for package, extra in needed.items():
        if find_spec(package) is None:
            raise MissingCapability(
                f"--policy {spec} needs the package {package}", hint=f"pip install 'autoresearchd[{extra}]'"
            )
    alone = name is None and not settings.fallbacks and spec.argument.partition("/")[0] not in settings.key_files
    # The environment of a process does not change: without a key the session would wait for ever.
    if alone and (variable := absent_key(spec.argument, environment)):
        raise MissingCapability(
            f"--policy {spec} needs a key, and {variable} is not set",
            hint=f"export {variable}=…, or name the file that holds it under key_files in the settings file; "
            "--policy search needs none",
        )
    if name is None or settings.fallbacks:
        provider_keys(settings)  # raises where one cannot be read
    if name is not None and place is None:
        endpoint_key(settings, environment)


def endpoint(spec: PolicySpec, settings: ModelSettings, folder: Path) -> str:
    """The address of a policy's model; empty where that is a provider's, one in this process, or none."""
    name, place = _local_model(spec, settings, folder)
    return settings.local.base_url if name is not None and place is None else ""


def make_clients(
    spec: PolicySpec,
    settings: ModelSettings,
    folder: Path,
    environment: Mapping[str, str],
    adapters: Adapters | None = None,
    warn: Callable[[str], None] = lambda text: None,
) -> list[ModelClient]:
    """The model of a policy, then those that are asked in its place.

    A local model answers with the version that ``adapters`` names, but not to an agent: see ``laboratory``.
    """
    name, place = _local_model(spec, settings, folder)
    adapters = adapters if spec.kind == LOCAL else None
    clients: list[ModelClient] = []
    if place is not None:
        from autoresearchd.models.transformers_client import TransformersClient

        clients.append(TransformersClient(place, adapters=adapters, warn=warn))
    elif name is not None:
        from autoresearchd.models.openai_client import OpenAIClient

        key = endpoint_key(settings, environment)
        url, prices = settings.local.base_url, settings.prices
        clients.append(OpenAIClient(url, name, adapters=adapters, warn=warn, key=key, prices=prices))
    hosted = settings.fallbacks if name is not None else (spec.argument, *settings.fallbacks)
    if hosted:
        from autoresearchd.models.litellm_client import LitellmClient

        keys = provider_keys(settings)
        clients += [LitellmClient(model, prices=settings.prices, keys=keys) for model in hosted]
    return clients


def provider_keys(settings: ModelSettings) -> dict[str, str]:
    """The keys of providers that lie in files, by provider; UsageError where one cannot be read."""
    from autoresearchd.models.openai_client import read_key

    return {name: read_key(path, setting=f"key_files.{name}") for name, path in settings.key_files.items()}


def endpoint_key(settings: ModelSettings, environment: Mapping[str, str]) -> str:
    """The key of the endpoint of ``local``; UsageError where its file cannot be read."""
    from autoresearchd.models.openai_client import read_key

    return read_key(settings.local.key_file, environment)


def ask_models(
    spec: PolicySpec,
    settings: ModelSettings,
    folder: Path,
    environment: Mapping[str, str],
    tell: Callable[[str], None],
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> None:
    """Ask each model once that the policy would ask; one in this process is not asked. What may pass by itself is told.

    The cost goes into the user's book of the day; where the cap of the day is reached, nothing is asked. Raises
    UsageError: every one of them refuses its key or its name, or cannot be reached.
    """
    if not spec.asks_model:
        return
    book, at = daily_spend(environment), now()

    def charge(cost: Cost, *names: str) -> None:
        usd = priced(cost, settings.prices, *names).usd
        if book is not None and usd:
            try:
                book.add(at, usd, str(folder))
            except OSError as error:
                tell(f"warning: ${usd:.6f} for asking {names[0]} is not in the book of the day: {error}\n")

    if book is not None and settings.spend.per_day is not None:
        with contextlib.suppress(OSError):  # told of when the session keeps the book
            if book.spent(at) >= settings.spend.per_day:
                tell("note: no model is asked now: the cap of the day is reached\n")
                return
    question = Question(
        ({"role": "user", "content": "Answer with the word OK."},),
        max_tokens=_MOST_TOKENS,
        temperature=settings.temperature,
        timeout=min(_PATIENCE_S, settings.timeout),
    )
    clients = {client.name: client for client in reversed(make_clients(spec, settings, folder, environment))}
    failures = []
    for client in reversed(clients.values()):
        if client.in_process:
            continue
        tell(f"asking {client.name} …\n")
        try:
            reply = _first_reply(client, question)
            charge(reply.cost, client.name, reply.model)
        except ModelError as error:
            if error.cost is not None:
                charge(error.cost, client.name)
            if error.trouble is not Trouble.REFUSED:  # it answers, whatever it says
                failures.append(Failure(client.name, error))
        if client.doubt:
            tell(f"warning: {client.doubt}\n")
    if len(failures) == len(clients) and all(failure.error.trouble in _HOPELESS for failure in failures):
        advice = "; ".join(
            dict.fromkeys(failure.hint or f"see to the network of {failure.model}" for failure in failures)
        )
        what = f"no model answers: {'; '.join(map(str, failures))}"
        raise UsageError(what, hint=f"{advice}. --no-preflight starts all the same")
    for failure in failures:
        tell(f"warning: {failure}\n  → {failure.hint}\n")


def _first_reply(client: ModelClient, question: Question) -> Reply:
    """The reply of a model, asked once more where the connection broke: many a server crashes at its first question."""
    try:
        return client.ask(question, threading.Event())
    except BrokeOff as broken:
        try:
            return client.ask(question, threading.Event())
        except ModelError as error:
            if not isinstance(error, BrokeOff) and error.trouble is not Trouble.UNREACHABLE:
                raise
            raise ModelError(Trouble.UNREACHABLE, f"{broken.what}; then {error.what}", hint=_ENDED) from error


def _agent_shell(offer: Offer) -> Callable[[ResearchState], contextlib.AbstractContextManager[SandboxedShell]]:
    from autoresearchd.executor.visible_files import agent_surroundings, link_data
    from autoresearchd.sandbox.agent_shell import open_shell, require_sandbox

    executor, task, site = offer.executor, offer.task, offer.site
    if not isinstance(executor, LocalExecutor):
        raise MissingCapability("--policy agent works on this machine only", hint="take --executor local")

    def copy(state: ResearchState, target: Path) -> None:
        offer.materialise(state, target)
        link_data(target, task, setup=site.setup, source=site.source)

    def surroundings(tools: Path) -> Surroundings:
        return agent_surroundings(task, tools, setup=site.setup, source=site.source, pristine=site.pristine)

    require_sandbox(executor.tier)
    return partial(open_shell, tier=executor.tier, materialise=copy, surroundings=surroundings)
