"""A task as JSON for the store, and back again without loss.

The top keys are those of task.yaml, so that a reader that knows nothing of this package finds
``{"name", "scoring": {"metric", "direction", "source"}, "execution": {"budget"}}`` where it looks for them.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import cache

from pydantic import TypeAdapter

from autoresearchd.domain.errors import StoreError
from autoresearchd.domain.task import Budget, Task


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
        values = json.loads(text)
        scoring, execution = values["scoring"], values["execution"]
        scoring["metric"] = {"name": scoring["metric"], "direction": scoring.pop("direction")}
        training, grace, wall = (float(execution.pop(key)) for key in ("budget", "startup_grace", "timeout"))
        execution["budget"] = Budget(training, grace, wall, execution.pop("most_training", None))
        # Sessions of older versions tell of a limit that was named by its value alone.
        execution.setdefault("timeout_named", wall != Budget.usual_wall(training, grace))
        return _adapter().validate_python(values)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise StoreError(
            f"the task stored with this session cannot be read: {type(error).__name__}: {error}",
            hint="an imported session has no program to run: start a new one in the task's folder",
        ) from error


@cache
def _adapter() -> TypeAdapter[Task]:
    return TypeAdapter(Task)
