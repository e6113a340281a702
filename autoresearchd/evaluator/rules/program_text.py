"""What is read out of a program's text: names that others rely on, what only sets a seed, which variables it reads.

Runs of a program that does not read the daemon's seed all have its own: σ does not hold the luck of it, and a change
may be kept for just that.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Mapping
from pathlib import PurePosixPath

from autoresearchd.domain.task import MetricSource, Task

_SEEDERS = frozenset(
    {"manual_seed", "manual_seed_all", "seed", "seed_all", "set_seed", "seed_everything", "fix_seed", "set_random_seed"}
)
_GENERATORS = frozenset({"default_rng", "RandomState", "SeedSequence", "PCG64", "Random"})
SEED_NAME = re.compile(r"(?:\w+_)?(?:seed|random_state)", re.IGNORECASE)
_ANY = "*"


UNPARSABLE = (SyntaxError, ValueError, RecursionError, MemoryError)


def parse(text: str) -> ast.Module:
    """The syntax tree of a program; one of ``UNPARSABLE`` where it has none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a doubtful escape in a string is the model's affair, not the daemon's
        return ast.parse(text.removeprefix("\ufeff"))  # a byte order mark is legal at the start of a file


# ---------------------------------------------------------------------- names
def required_names(path: str, readers: Mapping[str, ast.Module]) -> frozenset[str]:
    """Names of the module at ``path`` that other programs of the task take from it.

    readers: the protected programs, by path: ``import train`` and ``train.load_model``, or ``from train import …``.
    """
    if not path.endswith(".py"):
        return frozenset()
    module = ".".join(PurePosixPath(path.removesuffix(".py")).parts)
    found: set[str] = set()
    for tree in readers.values():
        aliases: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module == module and not node.level:
                found.update(alias.name for alias in node.names if alias.name != _ANY)
            elif isinstance(node, ast.Import):
                aliases.update(a.asname or a.name for a in node.names if a.name == module)
        found.update(
            node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and _dotted(node.value) in aliases
        )
    return frozenset(found)


def defined_names(tree: ast.Module) -> frozenset[str] | None:
    """Names that a module binds at its top level; None where that cannot be said by reading it."""
    found: set[str] = set()
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
            found.update(n for g in ast.walk(node) if isinstance(g, ast.Global) for n in g.names)
            continue
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found.update(alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name):
            if node.id in ("globals", "exec", "vars", "setattr"):
                return None
            if isinstance(node.ctx, ast.Store):
                found.add(node.id)
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            found.add(node.name)
        pending.extend(ast.iter_child_nodes(node))
    return None if _ANY in found or "__getattr__" in found else frozenset(found)


def _dotted(node: ast.AST) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


# ---------------------------------------------------------------------- seeds
def without_seeds(tree: ast.Module) -> ast.Module:
    """The program, changed so that nothing says what the random numbers start from; not to be run.

    Left out: calls that only seed (``torch.manual_seed(…)``), values of names like ``seed``, arguments of that name,
    and what a generator is made from.
    """
    _WithoutSeeds().visit(tree)
    return tree


class _WithoutSeeds(ast.NodeTransformer):
    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        seeds = isinstance(node.value, ast.Call) and _last_name(node.value.func) in _SEEDERS
        return None if seeds else self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        return None if all(map(_is_seed, node.targets)) else self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        return None if _is_seed(node.target) else self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        name = _last_name(node.func)
        if name in _GENERATORS or name in _SEEDERS:
            return ast.Call(self.visit(node.func), [], [])
        return self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> ast.AST | None:
        return None if node.arg and SEED_NAME.fullmatch(node.arg) else self.generic_visit(node)

    def visit_arguments(self, node: ast.arguments) -> ast.AST:
        named = [*node.posonlyargs, *node.args][-len(node.defaults) :] if node.defaults else []
        pairs = [*zip(named, node.defaults, strict=True), *zip(node.kwonlyargs, node.kw_defaults, strict=True)]
        values: list[ast.expr] = []
        for arg, default in pairs:
            if default is not None and not SEED_NAME.fullmatch(arg.arg):
                values += [ast.Constant(arg.arg), self.visit(default)]
        return ast.arguments(node.posonlyargs, node.args, node.vararg, node.kwonlyargs, [], node.kwarg, values)


def _is_seed(node: ast.AST) -> bool:
    return SEED_NAME.fullmatch(_last_name(node)) is not None


def _last_name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def mentions(tree: ast.AST, text: str) -> bool:
    """Whether a string constant of a program holds ``text``."""
    constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return any(isinstance(value, str) and text in value for value in constants)


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
        tree = parse(text)
    except UNPARSABLE:
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
