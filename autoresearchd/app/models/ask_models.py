"""The models of a policy are asked a word each before anything is measured: what is wrong with one shows at once.

A wrong key, a wrong name or a wrong address is not fixed by waiting, so a session that nobody could propose for is not
begun. What may pass by itself is told, and no more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from autoresearchd.app.make_policy import make_clients
from autoresearchd.app.models.spending import daily_spend
from autoresearchd.domain.errors import UsageError
from autoresearchd.domain.model_settings import ModelSettings
from autoresearchd.domain.proposal import Cost
from autoresearchd.models.client import FINAL, ModelClient, ModelError, Question, Trouble
from autoresearchd.models.spend import priced
from autoresearchd.policy.exchange import Failure, Unanswered, hint
from autoresearchd.policy.model_renewal import Unloadable
from autoresearchd.policy.policy_names import PolicySpec

MOST_TOKENS = 16
"""Of the answer, whatever it is: some providers refuse to be asked for fewer."""

_PATIENCE_S = 30.0
_HOPELESS = FINAL | {Trouble.UNREACHABLE}
_MESSAGES = ({"role": "user", "content": "Answer with the word OK."},)


def ask_models(
    spec: PolicySpec,
    settings: ModelSettings,
    folder: Path,
    environment: Mapping[str, str],
    tell: Callable[[str], None],
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> None:
    """Ask each model once that the policy would ask; one in this process is not asked.

    Its cost goes into the user's book of the day. Where the cap of the day is reached, nothing is asked.

    Args:
        spec: the policy.
        settings: the user's.
        folder: the task's.
        environment: has the keys.
        tell: is told which model is asked, and of one that gives no answer where another may.
        now: tells the day.

    Raises:
        UsageError: every one of them refuses its key or its name, or cannot be reached.
        MissingCapability: a package is not there.
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
        try:
            spent = book.spent(at)
        except OSError:  # told of when the session keeps the book
            spent = 0.0
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
            f"no model answers: {Unanswered(failures).what}", hint=f"{advice}. --no-preflight starts all the same"
        )
    for failure in failures:
        tell(f"warning: {Unanswered([failure]).what}\n  → {hint(failure)}\n")


def _advice(failure: Failure) -> str:
    if failure.error.trouble is Trouble.UNREACHABLE and not failure.error.hint:
        return f"see to the network, and to the address of {failure.model} if a variable of the environment names one"
    return hint(failure)


def _failure(client: ModelClient, settings: ModelSettings, charge: Callable[..., None]) -> Failure | None:
    """Why a model gives no answer; None where it does, whatever it says."""
    question = Question(
        _MESSAGES,
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
