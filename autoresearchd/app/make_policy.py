"""The policy of a session, from its name, the user's settings, and what the session offers to it."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from autoresearchd.app.models.spending import Roomy, SessionAnswers, UsersDay, daily_spend
from autoresearchd.domain.errors import MissingCapability, UsageError
from autoresearchd.domain.model_settings import ModelSettings
from autoresearchd.domain.ports import Adapters, Cancel, Clock, Executor, Policy, Store, TrialHistory
from autoresearchd.domain.research_state import ResearchState
from autoresearchd.domain.secrets import secret_parts
from autoresearchd.domain.task import Task
from autoresearchd.executor.local import LocalExecutor
from autoresearchd.loop.proposing.edit_check import EditCheck
from autoresearchd.models.client import ModelClient
from autoresearchd.policy.policy_names import PolicySpec
from autoresearchd.workspace.git import GitWorkspace

if TYPE_CHECKING:
    from autoresearchd.sandbox.agent_shell import AgentShells, Surroundings

LOCAL = "local"


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
        """The task's folder at the state's parent."""
        self.workspace.materialise(state.parent, target)

    def code_at(self, commit: str) -> Mapping[str, str]:
        """Text of the editable files at a commit."""
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
    from autoresearchd.models.spend import CapFallbackPolicy, Caps, WatchedAnswers
    from autoresearchd.policy.model_renewal import Following, Renewable, Unloadable

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
    log = SessionAnswers(offer.store, offer.session_id, offer.clock, day.spent)
    answers = WatchedAnswers(log, caps, offer.warn)
    purse = Roomy(caps, offer.pristine)
    check = EditCheck(offer.task, offer.store, offer.session_id, offer.pristine)
    clients = make_clients(spec, settings, offer.source, offer.environment, offer.adapters, offer.warn)
    make: Callable[..., Policy]
    if spec.kind == "agent":
        from autoresearchd.policy.agent.agent_policy import AgentPolicy

        make = partial(AgentPolicy, shells=_agent_shell(offer))
    else:
        from autoresearchd.policy.model_policy import ModelPolicy

        make = ModelPolicy
    policy: Policy = make(
        clients,
        settings,
        name=str(spec),
        answers=answers,
        purse=purse,
        check=check.legal,
        near=check.near,
        ending=offer.ending,
    )
    offer.unloads.extend(client.unload for client in clients if isinstance(client, Unloadable))
    if isinstance(clients[0], Renewable):
        policy = Following(policy, clients[0])
    return CapFallbackPolicy(policy, _search(offer), offer.warn) if settings.when_spent == "search" else policy


def _local_name(spec: PolicySpec, settings: ModelSettings) -> str | None:
    """What the policy's local model is called, empty: whichever the server has; None: it asks a provider's."""
    kind, _, rest = spec.argument.partition(":")
    if spec.kind == LOCAL:
        return spec.argument or settings.local_model
    return (rest or settings.local_model) if (spec.kind, kind) == ("agent", LOCAL) else None


def _model_folder(name: str, folder: Path) -> Path | None:
    """The folder of a model that is loaded into this process; None: it is a server's."""
    place = folder / Path(name).expanduser()
    return place if name and place.exists() else None


def require_model(spec: PolicySpec, settings: ModelSettings, folder: Path, environment: Mapping[str, str]) -> None:
    """Raise MissingCapability where a package is not installed, or no key is set, that the policy's models need."""
    if not spec.asks_model:
        return
    name = _local_name(spec, settings)
    in_process = name is not None and _model_folder(name, folder) is not None
    if name is not None and not in_process and name.startswith(("/", "./", "../", "~")):
        place = folder / Path(name).expanduser()
        raise UsageError(f"--policy {spec}: there is no folder {place}", hint="give the folder of a model, or its name")
    needed = {"litellm": "llm"} if name is None or settings.fallbacks else {}
    if name is not None:
        needed |= {"transformers": "learn"} if in_process else {"httpx": "local"}
    for package, extra in needed.items():
        if not _installed(package):
            raise MissingCapability(
                f"--policy {spec} needs the package {package}", hint=f"pip install 'autoresearchd[{extra}]'"
            )
    if name is None and not settings.fallbacks and spec.argument.partition("/")[0] not in settings.key_files:
        _require_key(spec, environment)


def _require_key(spec: PolicySpec, environment: Mapping[str, str]) -> None:
    """The environment of a process does not change: without a key the session would wait for ever."""
    from autoresearchd.models.provider_errors import absent_key

    variable = absent_key(spec.argument, environment)
    if variable:
        raise MissingCapability(
            f"--policy {spec} needs a key, and {variable} is not set",
            hint=f"export {variable}=…, or name the file that holds it under key_files in the settings file; "
            "--policy search needs none",
        )


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # it is being kept from being imported
        return False


def endpoint(spec: PolicySpec, settings: ModelSettings, folder: Path) -> str:
    """The address of a policy's model; empty where that is a provider's, one in this process, or none."""
    name = _local_name(spec, settings)
    return settings.base_url if name is not None and _model_folder(name, folder) is None else ""


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
    name = _local_name(spec, settings)
    adapters = adapters if spec.kind == LOCAL else None
    clients: list[ModelClient] = []
    if name is not None and (place := _model_folder(name, folder)) is not None:
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
