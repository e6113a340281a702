"""Optuna: a session is a study, each experiment a trial; optuna-dashboard shows it.

The study lies in a journal file, to which a trial is one line; in SQLite, where the file's name ends with ``.db``, it
is a hundred rows, and takes a hundred times as long.

What was ended early is pruned, with the curve that it had; what failed, or never ran, has failed; what broke a bound is
infeasible. A constant is a number (on a logarithmic scale where it went over more than a factor of twenty) or one of
the values that it had at the first export; a value that came later stands in the trial's attributes alone, since a
study's choices cannot grow.
"""

from __future__ import annotations

import importlib
import math
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from autoresearchd.domain.errors import UsageError
from autoresearchd.domain.labels import FORBIDDEN
from autoresearchd.report.trackers.book import Book, Entry, Sent, Value, require

_WIDE, _POINTS = 20.0, 40


def send(book: Book, place: Path) -> Sent:
    """Place: the file."""
    optuna = require(lambda: importlib.import_module("optuna"), "Optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    where, storages = str(place.resolve()), optuna.storages
    no_database: type[Exception] = importlib.import_module("sqlalchemy.exc").SQLAlchemyError  # optuna needs it
    try:
        if place.suffix in (".db", ".sqlite", ".sqlite3"):
            where = f"sqlite:///{where}"
            storage = storages.RDBStorage(where)
        else:
            journal = importlib.import_module("optuna.storages.journal").JournalFileBackend(where)
            storage = storages.JournalStorage(journal)
        study = optuna.create_study(
            storage=storage, study_name=book.name, direction=book.direction, load_if_exists=True
        )
    except (ValueError, TypeError, LookupError, no_database, optuna.exceptions.StorageInternalError) as error:
        hint = "-o names another file; one that is damaged can be removed: all of it is exported anew"
        raise UsageError(f"{place} cannot be read as studies of Optuna", hint=hint) from error
    trials = study.get_trials(deepcopy=False)
    known = {trial.user_attrs.get("experiment") for trial in trials}
    fixed = {name: one for trial in trials for name, one in trial.distributions.items()}
    distributions = _distributions(optuna, book.entries, fixed)
    new = [entry for entry in book.entries if entry.number not in known]
    study.add_trials([_trial(optuna, book, entry, distributions) for entry in new])
    for name, value in (("task", book.task), ("metric", book.metric), ("session", book.tag)):
        study.set_user_attr(name, value)
    study.set_user_attr("confirmed", [entry.number for entry in book.entries if entry.confirmed])
    return Sent(len(new), len(book.entries) - len(new), f"optuna-dashboard {shlex.quote(where)}")


def _distributions(optuna: Any, entries: Iterable[Entry], fixed: Mapping[str, Any]) -> dict[str, Any]:
    seen: dict[str, list[Value]] = {}
    for entry in entries:
        for name, value in entry.constants.items():
            seen.setdefault(name, []).append(value)
    found = {}
    for name, values in seen.items():
        numbers = [float(v) for v in values if not isinstance(v, (bool, str))]
        old = fixed.get(name)
        if old is not None and not hasattr(old, "low"):
            found[name] = old
        elif old is None and len(numbers) < len(values):
            kinds = {(type(v).__name__, v): v for v in values}
            found[name] = optuna.distributions.CategoricalDistribution(list(kinds.values()))
        elif numbers:
            ends = [*numbers, old.low, old.high] if old is not None else numbers
            low, high = min(ends), max(ends)
            log = low > 0 and high / low > _WIDE if old is None else old.log
            found[name] = old if log and low <= 0 else optuna.distributions.FloatDistribution(low, high, log=log)
    return found


def _trial(optuna: Any, book: Book, entry: Entry, distributions: Mapping[str, Any]) -> Any:
    states = optuna.trial.TrialState
    state = states.FAIL if entry.failed else states.PRUNED if entry.stopped else states.COMPLETE
    params = {name: v for name, v in entry.constants.items() if _fits(distributions.get(name), v)}
    others = {f"constant {name}": v for name, v in entry.constants.items() if name not in params}
    facts = {"experiment": entry.number, "status": entry.status, "label": entry.label, **entry.facts, **others}
    curve = dict[int, float]()
    for step, _, value in book.points(entry.number, _POINTS):
        curve[step] = value
    trial = optuna.trial.create_trial(
        state=state,
        value=None if entry.failed else entry.value,
        params={name: v if isinstance(v, (bool, str)) else float(v) for name, v in params.items()},
        distributions={name: distributions[name] for name in params},
        user_attrs={**facts, **{f"metric {name}": v for name, v in entry.metrics.items()}},
        intermediate_values=curve,
        system_attrs={"constraints": [1.0]} if entry.label in FORBIDDEN else {},  # else it may be the best trial
    )
    local = (at.astimezone().replace(tzinfo=None) for at in (entry.started_at, entry.finished_at))
    trial.datetime_start, trial.datetime_complete = local  # Optuna's times are local, without a zone
    return trial


def _fits(distribution: Any, value: Value) -> bool:
    if distribution is None:
        return False
    if hasattr(distribution, "low"):
        return not isinstance(value, (bool, str)) and distribution.low <= value <= distribution.high
    return any(type(one) is type(value) and one == value for one in distribution.choices) and not (
        isinstance(value, float) and math.isnan(value)
    )
