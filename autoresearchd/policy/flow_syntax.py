"""The look at the flow of a program asks of its syntax: what is written out, what a loop trains, what is a model."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from autoresearchd.policy.flow_calls import (
    ARRAYS,
    MAKES,
    MODEL_BASES,
    MODEL_METHODS,
    RANDOM,
    READS,
    SAMPLES,
    SEEDS,
    SPLITS,
    TRAINS,
)
from autoresearchd.policy.flow_value import Way
from autoresearchd.policy.ranges import words_of

_MODEL_NAMES = frozenset({"model", "net", "network", "clf", "regressor", "classifier", "booster", "estimator"})
_OF_MODELS = frozenset({"parameters", "named_parameters", "state_dict", "eval", "train", "zero_grad", "step"})


def last_name(func: ast.expr) -> str:
    """The last part of what is called: ``normal`` of ``rng.normal``."""
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""


def is_literal(node: ast.expr) -> bool:
    """Whether a value is written out: a number, a text, a flag, a choice of such."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (int, float, str))
    if isinstance(node, ast.UnaryOp):
        return is_literal(node.operand)
    if isinstance(node, ast.BinOp):
        return is_literal(node.left) and is_literal(node.right)
    if isinstance(node, ast.IfExp):
        return is_literal(node.body) and is_literal(node.orelse)
    return False


def is_setting(node: ast.expr) -> bool:
    """A number that may well be a setting, not where a count begins."""
    return is_literal(node) and not (
        isinstance(node, ast.Constant) and (not node.value or isinstance(node.value, (bool, str)))
    )


def makes_data(callee: str) -> bool:
    """Whether a call makes, reads, splits or seeds data."""
    return callee in RANDOM | ARRAYS | SAMPLES | SEEDS or any(p.fullmatch(callee) for p in (READS, MAKES, SPLITS))


def way_of(callee: str, node: ast.Call) -> Way | None:
    """What a call does with data for certain; None where it need not."""
    if callee == "open" and len(node.args) > 1 and isinstance(node.args[1], ast.Constant):
        return None if set(str(node.args[1].value)) & set("wax") else Way.READS
    if callee == "open" or READS.fullmatch(callee):
        return Way.READS
    if (
        callee == "load"
        and isinstance(node.func, ast.Attribute)
        and last_name(node.func.value) in ("np", "numpy", "jnp")
    ):
        return Way.READS
    if MAKES.fullmatch(callee):
        return Way.MAKES
    if SPLITS.fullmatch(callee):
        return Way.SPLITS
    return Way.SEEDS if callee in SEEDS else None


def blocks(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    """The blocks of a statement."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list):
            yield block
    for handler in getattr(node, "handlers", ()):
        yield handler.body


def assignments(body: Sequence[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    """Names with the values that they get, in blocks of the same scope."""
    for node in body:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    yield target.id, node.value
                elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    for left, right in zip(target.elts, node.value.elts, strict=False):
                        if isinstance(left, ast.Name):
                            yield left.id, right
        elif isinstance(node, ast.AnnAssign) and node.value is not None and isinstance(node.target, ast.Name):
            yield node.target.id, node.value
        elif isinstance(node, (ast.If, ast.For, ast.While, ast.With, ast.Try)):
            for block in blocks(node):
                yield from assignments(block)


def changed_names(body: Sequence[ast.stmt]) -> set[str]:
    """Names that are no constants of a function: assigned twice, added to, or run over."""
    seen: set[str] = set()
    twice: set[str] = set()
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                twice.add(node.target.id)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                (twice if node.id in seen else seen).add(node.id)
    return twice


def calls_in(tree: ast.AST) -> Iterator[ast.Call]:
    """Calls in the order of the file, the outer before the inner."""
    if isinstance(tree, ast.Call):
        yield tree
    for child in ast.iter_child_nodes(tree):
        yield from calls_in(child)


def index_parts(index: ast.expr) -> list[ast.expr]:
    """The indices between brackets."""
    return list(index.elts) if isinstance(index, ast.Tuple) else [index]


def index_bounds(index: ast.expr) -> Iterator[ast.expr]:
    """What is worked out between brackets."""
    for part in index_parts(index):
        if isinstance(part, ast.Slice):
            yield from (b for b in (part.lower, part.upper, part.step) if b is not None)
        else:
            yield part


def is_model_class(node: ast.ClassDef) -> bool:
    """Whether a class is a model: what stands in it is not looked at."""
    bases = [ast.unparse(b) for b in node.bases]
    methods = {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
    return any(MODEL_BASES.search(base) for base in bases) or bool(methods & MODEL_METHODS)


def holds_data(node: ast.ClassDef) -> bool:
    """Whether objects of a class are data, as those of a Dataset."""
    methods = {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
    return bool(methods & {"__getitem__", "__iter__", "__len__", "setup", "train_dataloader"})


def trains(node: ast.For | ast.AsyncFor | ast.While) -> bool:
    """Whether a loop trains something, so that how often it goes round is the training's."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr in TRAINS:
            return True
        if isinstance(inner, ast.Call) and re.search(
            r"(?:^|_)(?:train|update|grads?|backprop|backward)(?:$|_)", last_name(inner.func)
        ):
            return True
        if isinstance(inner, ast.AugAssign) and isinstance(inner.op, ast.Sub) and _scaled(inner.value):
            return True
        if isinstance(inner, ast.Name) and _is_rate(inner.id):
            return True
    return False


def _scaled(node: ast.expr) -> bool:
    return any(isinstance(n, ast.BinOp) and isinstance(n.op, (ast.Mult, ast.Div, ast.MatMult)) for n in ast.walk(node))


def _is_rate(name: str) -> bool:
    words = words_of(name)
    return bool({"lr", "eta", "grad", "gradient"} & set(words)) or {"learning", "rate"} <= set(words)


def trained_names(body: Sequence[ast.stmt]) -> frozenset[str]:
    """Variables that a loop which trains updates, and models that are fitted."""
    found: set[str] = set()
    for statement in body:
        for node in own_nodes(statement):
            if isinstance(node, (ast.For, ast.AsyncFor, ast.While)) and trains(node):
                found |= _updated(node)
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("fit", "partial_fit")
                and isinstance(node.func.value, ast.Name)
            ):
                found.add(node.func.value.id)
    for statement in body:  # what is updated by way of the loop that runs over it
        for node in own_nodes(statement):
            if isinstance(node, ast.For) and names_in(node.target) & found and trains(node):
                found |= names_in(node.iter) - {"zip", "enumerate", "range", "list", "reversed", "len"}
    return frozenset(found)


def model_names(tree: ast.Module) -> frozenset[str]:
    """Names of models, by what they are called and by what is asked of them."""
    return _MODEL_NAMES | {
        node.func.value.id
        for node in calls_in(tree)
        if isinstance(node.func, ast.Attribute)
        and node.func.attr in _OF_MODELS
        and isinstance(node.func.value, ast.Name)
    }


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes of a scope, without those of functions and classes in it."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from own_nodes(child)


def names_in(node: ast.AST) -> set[str]:
    """Names in an expression."""
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _updated(loop: ast.AST) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(loop):
        target: ast.expr | None = None
        if isinstance(node, ast.AugAssign):
            down = isinstance(node.op, ast.Sub) and _scaled(node.value)
            if down or any(_is_rate(n) for n in names_in(node.value)):
                target = node.target
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            targets = node.targets[0].elts if isinstance(node.targets[0], ast.Tuple) else node.targets
            for each in targets:
                base = base_name(each)
                if base and base in names_in(node.value) and not _is_count(node.value):
                    found.add(base)
        if target is not None:
            found.add(base_name(target))
    return found - {""}


def _is_count(node: ast.expr) -> bool:
    """``best = min(best, loss)``, ``n = n + 1``: no weights."""
    if isinstance(node, ast.Call):
        return last_name(node.func) in ("min", "max", "append", "sum")
    return isinstance(node, ast.BinOp) and isinstance(node.right, ast.Constant)


def base_name(node: ast.expr) -> str:
    """The variable that an expression is a part of; empty where it is none."""
    while isinstance(node, (ast.Subscript, ast.Attribute, ast.Starred)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
