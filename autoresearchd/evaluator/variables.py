"""Whether a program reads what the daemon tells it in variables of its environment, and what follows for its seed.

A program that reads no seed of the daemon's has its own in each of its runs. They then differ by nothing, or by what
its seed does not rule, so σ does not hold the luck of the seed, and a change may be kept for just that.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

from autoresearchd.domain.metric import MetricSource
from autoresearchd.domain.task import Task

SEED_VARIABLE = "AUTORESEARCHD_SEED"
_DRAWS = re.compile("seed|rand|shuffle", re.IGNORECASE)
"""What a program that fixes its random numbers has in its text, in whatever language."""


def reads(variable: str, texts: Mapping[str, str], *commands: str) -> bool:
    """Whether one of some commands, or of some texts by path, names a variable as what it reads."""
    return any(variable in command for command in commands) or any(_named(variable, *item) for item in texts.items())


def _named(variable: str, path: str, text: str) -> bool:
    """Whether a text names the variable; of Python, where it can be read, a comment or docstring does not count."""
    if variable not in text or not path.endswith(".py"):
        return variable in text
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return True
    idle = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return any(
        isinstance(node, ast.Constant) and id(node) not in idle and variable in str(node.value)
        for node in ast.walk(tree)
    )


def ignores_seed(task: Task, texts: Mapping[str, str]) -> bool:
    """Whether neither a command, nor the program, nor a protected file reads the seed that the daemon gives each run.

    Of a program that draws nothing and is measured by an evaluation that is not asked: a kernel, say, of which the
    evaluation draws the inputs. There is no seed that a gain could be owed to.
    """
    draws = any(_DRAWS.search(texts.get(path, "")) for path in task.editable)
    if task.scoring.source is MetricSource.EVALUATOR and not draws:
        return False
    evaluation = (task.evaluation.command,) if task.evaluation else ()
    return not reads(SEED_VARIABLE, texts, task.execution.run_command, *evaluation)


def about_seed(task: Task, texts: Mapping[str, str]) -> tuple[str, ...]:
    """What the user should know of a program that ignores its seed, in a sentence; nothing where it does not."""
    if not ignores_seed(task, texts):
        return ()
    return (
        f"the program does not read {SEED_VARIABLE}: every run then has the program's own seed, so what is kept may be "
        "the luck of that seed, and its noise is not seen; read the variable, or pass it: "
        f"`--seed ${SEED_VARIABLE}` in run_command",
    )
