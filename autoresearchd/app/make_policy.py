"""The policy of a session, from its name, the user's settings, and what the session offers; its models tried out."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from autoresearchd.app.models.spending import Roomy, SessionAnswers, UsersDay, daily_spend
from autoresearchd.domain.errors import MissingCapability, UsageError
from autoresearchd.domain.model_settings import ModelSettings
from autoresearchd.domain.ports import Adapters, Cancel, Clock, Executor, Policy, Store, TrialHistory
from autoresearchd.domain.proposal import Cost
from autoresearchd.domain.redaction import secret_parts
from autoresearchd.domain.research_state import ResearchState
from autoresearchd.domain.task import Task
from autoresearchd.executor.local import LocalExecutor
from autoresearchd.loop.proposing.proposals import EditCheck
from autoresearchd.models.client import FINAL, ModelClient, ModelError, Question, Trouble
from autoresearchd.models.spend import CapFallbackPolicy, Caps, WatchedAnswers, priced
from autoresearchd.policy.exchange import Failure, Unloadable
from autoresearchd.policy.policy_names import PolicySpec
from autoresearchd.workspace.git import GitWorkspace

if TYPE_CHECKING:
    from autoresearchd.sandbox.agent_shell import AgentShells, Surroundings

LOCAL = "local"
MOST_TOKENS = 16
"""Of the answer to the first question, whatever it is: some providers refuse to be asked for fewer."""
_PATIENCE_S = 30.0
_HOPELESS = FINAL | {Trouble.UNREACHABLE}


@dataclass(frozen=True, slots=True)
class Offer:
    """What a session offers to its policy.

    pristine: the unedited task; setup: what the set-up commands made; source: the user's own folder; warn: tells the
    user; max_usd: the session's spend cap. adapters: says which version of the local policy answers. ending: set once
    the session is to end. unloads: gives back the memory of a policy's own model; ended: what is left to do once the
    session has ended; whoever makes the policy adds to both.
    """

    session_id: int
    task: Task
    store: Store
    workspace: GitWorkspace
    executor: Executor
    clock: Clock
    trials: TrialHistory
    pristine: Path
    setup: Path
    source: Path
    settings: ModelSettings
    warn: Callable[[str], None]
    max_usd: float | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    adapters: Adapters | None = None
    ending: Cancel | None = None
    unloads: list[Callable[[], None]] = field(default_factory=list)
    ended: list[Callable[[], None]] = field(default_factory=list)

    def materialise(self, state: ResearchState, target: Path) -> None:
        self.workspace.materialise(state.parent, target)

    def code_at(self, commit: str) -> Mapping[str, str]:
        return {path: self.workspace.read(commit, path) for path in self.task.editable}


def make_policy(spec: PolicySpec, offer: Offer) -> Policy:
    """The policy of ``--policy``; each is imported only when it is the one."""
    match spec.kind:
        case "auto" | "search":
            return _search(offer)
        case "random":
            from autoresearchd.policy.search.search_policies import RandomPolicy

            return RandomPolicy()
        case "command":
            from autoresearchd.policy.command_policy import CommandPolicy

            return CommandPolicy(spec.argument, offer.materialise)
        case _:
            return _with_model(spec, offer)


def _search(offer: Offer) -> Policy:
    from autoresearchd.policy.search.search_policies import SearchPolicy

    return SearchPolicy(offer.trials, offer.code_at)


def _with_model(spec: PolicySpec, offer: Offer) -> Policy:
    settings = offer.settings
    day = UsersDay(daily_spend(offer.environment), offer.store, offer.clock, offer.warn, str(offer.source))
    day.catch_up()
    offer.ended.append(day.close)
    caps = Caps(
        session_usd=lambda: offer.store.totals(offer.session_id).usd,
        day_usd=day.usd,
        session_cap=offer.max_usd,
        day_cap=settings.per_day,
    )
    check = EditCheck(offer.task, offer.store, offer.session_id, offer.pristine)
    clients = make_clients(spec, settings, offer.source, offer.environment, offer.adapters, offer.warn)
    make: Callable[..., Policy]
    if spec.kind == "agent":
        from autoresearchd.policy.agent_policy import AgentPolicy

        make = partial(AgentPolicy, open_shell=_agent_shell(offer).open)
    else:
        from autoresearchd.policy.model_policy import ModelPolicy

        make = ModelPolicy
    policy: Policy = make(
        clients,
        settings,
        name=str(spec),
        answers=WatchedAnswers(SessionAnswers(offer.store, offer.session_id, offer.clock, day.spent), caps, offer.warn),
        purse=Roomy(caps, offer.pristine),
        check=check.legal,
        near=check.near,
        ending=offer.ending,
    )
    offer.unloads.extend(client.unload for client in clients if isinstance(client, Unloadable))
    return CapFallbackPolicy(policy, _search(offer), offer.warn) if settings.when_spent == "search" else policy


def _local_model(spec: PolicySpec, settings: ModelSettings, folder: Path) -> tuple[str | None, Path | None]:
    """The name of the policy's local model (None: a provider's) and its folder (None: a server's)."""
    kind, _, rest = spec.argument.partition(":")
    if spec.kind == LOCAL:
        name = spec.argument or settings.local_model
    elif (spec.kind, kind) == ("agent", LOCAL):
        name = rest or settings.local_model
    else:
        return None, None
    place = folder / Path(name).expanduser()
    return name, place if name and place.exists() else None


def require_model(spec: PolicySpec, settings: ModelSettings, folder: Path, environment: Mapping[str, str]) -> None:
    """Raise MissingCapability where a package is not installed, or no key is set, that the policy's models need."""
    if not spec.asks_model:
        return
    name, place = _local_model(spec, settings, folder)
    if name is not None and place is None and name.startswith(("/", "./", "../", "~")):
        missing = folder / Path(name).expanduser()
        raise UsageError(
            f"--policy {spec}: there is no folder {missing}", hint="give the folder of a model, or its name"
        )
    needed = {"litellm": "llm"} if name is None or settings.fallbacks else {}
    if name is not None:
        needed |= {"transformers": "learn"} if place is not None else {"httpx": "local"}
    for package, extra in needed.items():
        if find_spec(package) is None:
            raise MissingCapability(
                f"--policy {spec} needs the package {package}", hint=f"pip install 'autoresearchd[{extra}]'"
            )
    if name is None and not settings.fallbacks and spec.argument.partition("/")[0] not in settings.key_files:
        from autoresearchd.models.client import absent_key

        # The environment of a process does not change: without a key the session would wait for ever.
        if variable := absent_key(spec.argument, environment):
            raise MissingCapability(
                f"--policy {spec} needs a key, and {variable} is not set",
                hint=f"export {variable}=…, or name the file that holds it under key_files in the settings file; "
                "--policy search needs none",
            )


def endpoint(spec: PolicySpec, settings: ModelSettings, folder: Path) -> str:
    """The address of a policy's model; empty where that is a provider's, one in this process, or none."""
    name, place = _local_model(spec, settings, folder)
    return settings.base_url if name is not None and place is None else ""


def make_clients(
    spec: PolicySpec,
    settings: ModelSettings,
    folder: Path,
    environment: Mapping[str, str],
    adapters: Adapters | None = None,
    warn: Callable[[str], None] = lambda text: None,
) -> list[ModelClient]:
    """The model of a policy, then those that are asked in its place.

    A local model answers with the version that ``adapters`` names; ``warn`` is told where it cannot. An agent asks the
    plain model: what is learned and compared is one answer to one question.
    """
    name, place = _local_model(spec, settings, folder)
    adapters = adapters if spec.kind == LOCAL else None
    clients: list[ModelClient] = []
    if place is not None:
        from autoresearchd.models.transformers_client import TransformersClient

        clients.append(TransformersClient(place, adapters=adapters, warn=warn))
    elif name is not None:
        from autoresearchd.models.openai_client import OpenAIClient, read_key

        key = read_key(settings.key_file, environment)
        url, prices = settings.base_url, settings.prices
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

    return {name: read_key(path) for name, path in settings.key_files.items()}


def model_secrets(settings: ModelSettings) -> list[str]:
    """All keys that lie in files which the settings name; a file that cannot be read holds none that was used."""
    from autoresearchd.models.openai_client import read_key

    found: list[str] = []
    for path in (settings.key_file, *settings.key_files.values()):
        if path:
            with contextlib.suppress(UsageError):
                found.extend(secret_parts(read_key(path)))
    return found


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

    if book is not None and settings.per_day is not None:
        spent = 0.0
        with contextlib.suppress(OSError):  # told of when the session keeps the book
            spent = book.spent(at)
        if spent >= settings.per_day:
            tell("note: no model is asked now: the cap of the day is reached\n")
            return
    clients = {client.name: client for client in reversed(make_clients(spec, settings, folder, environment))}
    failures = []
    for client in reversed(clients.values()):
        if not isinstance(client, Unloadable):
            tell(f"asking {client.name} …\n")
            failure = _failure(client, settings, charge)
            failures += [failure] if failure else []
    if len(failures) == len(clients) and all(failure.error.trouble in _HOPELESS for failure in failures):
        advice = "; ".join(dict.fromkeys(map(_advice, failures)))
        raise UsageError(
            f"no model answers: {'; '.join(map(str, failures))}", hint=f"{advice}. --no-preflight starts all the same"
        )
    for failure in failures:
        tell(f"warning: {failure}\n  → {failure.hint}\n")


def _advice(failure: Failure) -> str:
    if failure.error.trouble is Trouble.UNREACHABLE and not failure.error.hint:
        return f"see to the network, and to the address of {failure.model} if a variable of the environment names one"
    return failure.hint


def _failure(client: ModelClient, settings: ModelSettings, charge: Callable[..., None]) -> Failure | None:
    """Why a model gives no answer; None where it does, whatever it says."""
    question = Question(
        ({"role": "user", "content": "Answer with the word OK."},),
        max_tokens=MOST_TOKENS,
        temperature=settings.temperature,
        timeout=min(_PATIENCE_S, settings.timeout),
    )
    try:
        reply = client.ask(question, threading.Event())
    except ModelError as error:
        if error.cost is not None:
            charge(error.cost, client.name)
        return None if error.trouble is Trouble.REFUSED else Failure(client.name, error)
    charge(reply.cost, client.name, reply.model)
    return None


def _agent_shell(offer: Offer) -> AgentShells:
    from autoresearchd.executor.visible_files import agent_surroundings, link_data
    from autoresearchd.sandbox.agent_shell import AgentShells

    executor = offer.executor
    if not isinstance(executor, LocalExecutor):
        raise MissingCapability("--policy agent works on this machine only", hint="take --executor local")

    def copy(state: ResearchState, target: Path) -> None:
        offer.materialise(state, target)
        link_data(target, offer.task, setup=offer.setup, source=offer.source)

    def surroundings(tools: Path) -> Surroundings:
        return agent_surroundings(offer.task, tools, setup=offer.setup, source=offer.source, pristine=offer.pristine)

    return AgentShells(executor.tier, copy, surroundings)
