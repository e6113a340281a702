"""A task as JSON for the store, and back again without loss.

The top keys are those of task.yaml, so that a reader that knows nothing of this package finds
``{"name", "scoring": {"metric", "direction", "source"}, "execution": {"budget"}}`` where it looks for them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from autoresearchd.domain.errors import StoreError
from autoresearchd.domain.task import (
    Budget,
    Check,
    Constraint,
    Curve,
    Direction,
    Evaluation,
    Execution,
    FleetSlot,
    Metric,
    MetricSource,
    Prompt,
    Proposing,
    Role,
    Scoring,
    Search,
    Task,
)


def dump_task(task: Task) -> str:
    """The task as one JSON object; numbers that are not finite are refused with ValueError."""
    values = asdict(task)
    values["scoring"] |= {
        "metric": task.metric.name,
        "direction": task.metric.direction.value,
        "source": task.scoring.source.value,
    }
    budget = task.execution.budget
    values["execution"] |= {"budget": budget.training, "startup_grace": budget.grace, "timeout": budget.wall}
    values["execution"]["most_training"] = budget.most
    return json.dumps(values, allow_nan=False)


def parse_task(text: str) -> Task:
    """The task that ``dump_task`` wrote; keys that it did not write yet have their defaults.

    Raises:
        StoreError: the text is something else, e.g. that of an imported session, which has no program.
    """
    try:
        return _task(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise StoreError(
            f"the task stored with this session cannot be read: {type(error).__name__}: {error}",
            hint="an imported session has no program to run: start a new one in the task's folder",
        ) from error


def _task(values: dict[str, Any]) -> Task:
    execution, scoring = dict(values.pop("execution")), dict(values.pop("scoring"))
    budget = Budget(execution.pop("budget"), execution.pop("startup_grace"), execution.pop("timeout"))
    budget = replace(budget, most=execution.pop("most_training", None))
    # Sessions of older versions tell of a limit that was named by its value alone.
    execution.setdefault("timeout_named", budget.wall != Budget.usual_wall(budget.training, budget.grace))
    metric = Metric(scoring.pop("metric"), Direction(scoring.pop("direction")))
    source = MetricSource(scoring.pop("source"))
    constraints = tuple(Constraint(**item) for item in scoring.pop("constraints", ()))
    evaluation = values.pop("evaluation", None)
    parts: dict[str, Any] = {
        "checks": tuple(Check(**item) for item in values.pop("checks", ())),
        "roles": tuple(Role(**item) for item in values.pop("roles", ())),
        "fleet": tuple(FleetSlot(**item) for item in values.pop("fleet", ())),
        "curve": Curve(**values.pop("curve", {})),
        "proposing": Proposing(**values.pop("proposing", {})),
        "prompt": Prompt(**values.pop("prompt", {})),
        "search": _search(values.pop("search", {})),
        "evaluation": Evaluation(**_tuples(evaluation)) if evaluation is not None else None,
    }
    return Task(
        execution=Execution(budget=budget, **_tuples(execution)),
        scoring=Scoring(metric=metric, source=source, constraints=constraints, **_tuples(scoring)),
        **parts,
        **_tuples(values),
    )


def _search(values: Mapping[str, Any]) -> Search:
    return Search(tuple(values.get("fixed", ())), _tuples(values.get("ranges", {})), _tuples(values.get("choices", {})))


def _tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    """Lists as the tuples that they were."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
