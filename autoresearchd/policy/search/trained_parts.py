"""What a program trains: models by what they are called and made of, loops by what is done in them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from autoresearchd.policy.search.name_ranges import bag, words_of
from autoresearchd.policy.search.program_parts import last_name

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)

FITS = bag("""
    solve lstsq polyfit pinv inv ridge_regression train fit minimize curve_fit least_squares fmin fmin_l_bfgs_b
    fmin_bfgs minimize_scalar differential_evolution from_pretrained grad value_and_grad fit_predict""")
"""Calls whose result is what was learned."""
_TRAINS = bag(
    "backward zero_grad step fit partial_fit train_on_batch train_step apply_gradients value_and_grad grad train"
)
"""Methods that only a loop that trains calls."""
_UPDATES = re.compile(r"(?:^|_)(?:train|update|grads?|backprop|backward)(?:$|_)")
"""Functions that only a loop that trains calls."""
MODELS = re.compile(
    r"\w*(?:Regressor|Classifier|Regression|Ridge|RidgeCV|Lasso|LassoCV|ElasticNet|SVC|SVR|NB|Sequential|Linear|Conv[123]d"
    r"|Embedding|LSTM|GRU|RNN|Transformer\w*|Dropout\w*|LayerNorm|BatchNorm\w*|Parameter|Optimizer|Trainer|Estimator|Booster|LR"
    r"|Scheduler|Scaler)|Adam\w*|SGD|RMSprop|Adagrad|Muon\w*|LBFGS|Lion"
)
"""Constructors of what is trained, and of what trains it."""
MODEL_NAMES = bag("model net network clf regressor classifier booster estimator")
OF_MODELS = bag("parameters named_parameters state_dict eval train zero_grad step")
"""What is asked of models alone."""
_MODEL_BASES = re.compile(r"(?<!Data)Module$|(?:Model|Estimator|Layer|Block|(?:Regressor|Classifier)(?:Mixin)?)$")
_MODEL_METHODS = bag("forward predict parameters predict_proba backward")
DATA_METHODS = bag("__getitem__ __iter__ __len__ setup train_dataloader")
EVALUATES = re.compile(
    r"(?:^|_)(?:eval|evaluate|valid|validate|validation|val|test|score|measure|metric|accuracy|bpb)(?:$|_)|estimate_"
)
MEASURES = re.compile(r"\w*(?:Loss|Accuracy|Precision|Recall|F1\w*|AUROC|Metric|Error)")
"""Constructors of what measures a model."""


def methods(node: ast.ClassDef) -> set[str]:
    """Names of the methods of a class."""
    return {n.name for n in node.body if isinstance(n, ast.FunctionDef)}


def is_model_class(node: ast.ClassDef) -> bool:
    """Whether a class is a model: what stands in it is not looked at."""
    return any(_MODEL_BASES.search(ast.unparse(b)) for b in node.bases) or bool(methods(node) & _MODEL_METHODS)


def base_name(node: ast.expr) -> str:
    """The variable that an expression is a part of; empty where it is none."""
    while isinstance(node, (ast.Subscript, ast.Attribute, ast.Starred)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _names_in(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def trains(node: ast.stmt) -> bool:
    """Whether a loop trains something, so that how often it goes round is the training's."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Call):
            callee = last_name(inner.func)
            if _UPDATES.search(callee) or (isinstance(inner.func, ast.Attribute) and callee in _TRAINS):
                return True
        elif isinstance(inner, ast.Name) and _is_rate(inner.id):
            return True
        if isinstance(inner, ast.AugAssign) and _goes_down(inner):
            return True
    return False


def _goes_down(node: ast.AugAssign) -> bool:
    """``w -= rate * step``."""
    scaled = (ast.Mult, ast.Div, ast.MatMult)
    factors = (isinstance(n, ast.BinOp) and isinstance(n.op, scaled) for n in ast.walk(node.value))
    return isinstance(node.op, ast.Sub) and any(factors)


def trained_names(body: Sequence[ast.stmt]) -> frozenset[str]:
    """Variables that a loop which trains updates, and models that are fitted."""
    nodes = [node for statement in body for node in _own_nodes(statement)]
    loops = [node for node in nodes if isinstance(node, _LOOPS) and trains(node)]
    found = {name for loop in loops for name in _updated(loop)}
    for node in nodes:
        if isinstance(node, ast.Call) and last_name(node.func) in ("fit", "partial_fit"):
            found |= {n.id for n in ast.iter_child_nodes(node.func) if isinstance(n, ast.Name)}
    for loop in loops:  # what is updated by way of the loop that runs over it
        if isinstance(loop, ast.For) and _names_in(loop.target) & found:
            found |= _names_in(loop.iter) - {"zip", "enumerate", "range", "list", "reversed", "len"}
    return frozenset(found)


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes of a scope, without those of functions and classes in it."""
    if not isinstance(node, (*_FUNCTIONS, ast.ClassDef, ast.Lambda)):
        yield node
        for child in ast.iter_child_nodes(node):
            yield from _own_nodes(child)


def _updated(loop: ast.AST) -> Iterator[str]:
    """Variables that a loop changes step by step, but for counts: ``best = min(best, loss)``, ``n = n + 1``."""
    for node in ast.walk(loop):
        if isinstance(node, ast.AugAssign):
            base = base_name(node.target)
            if base and (_goes_down(node) or any(map(_is_rate, _names_in(node.value)))):
                yield base
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            value = node.value
            if isinstance(value, ast.Call) and last_name(value.func) in ("min", "max", "append", "sum"):
                continue
            if isinstance(value, ast.BinOp) and isinstance(value.right, ast.Constant):
                continue
            targets = node.targets[0].elts if isinstance(node.targets[0], ast.Tuple) else node.targets
            yield from {base for t in targets if (base := base_name(t))} & _names_in(value)


def _is_rate(name: str) -> bool:
    words = set(words_of(name))
    return bool({"lr", "eta", "grad", "gradient"} & words) or {"learning", "rate"} <= words
