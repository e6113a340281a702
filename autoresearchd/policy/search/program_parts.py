"""What there is in a program: its constants under the names of the search space, functions, classes, well-known calls.

The look at the flow of a program (``data_flow``) asks what is written out, what a call does with data, what a loop
trains, and what is a model.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import NamedTuple

from autoresearchd.policy.search.constructors import arguments_of
from autoresearchd.policy.search.name_ranges import bag, words_of


class Way(StrEnum):
    """How a constant reaches what is measured, in words."""

    READS = "it says which data is read"
    SPLITS = "it splits the data"
    SEEDS = "it seeds the random numbers"
    MAKES = "it makes the data that is measured"
    METRIC = "it reaches the metric other than through the model"


class Strength(IntEnum):
    """How a constant is in a value. NUMBER: as a number; MIXED: in numbers of data; DATA: the data is of its making."""

    NUMBER = 0
    MIXED = 1
    DATA = 2


class Constant(NamedTuple):
    """A literal of the program. name: as the search space has it; start, end: its bytes; inline: it has no name."""

    name: str
    start: int
    end: int
    text: str
    inline: bool = False


class Reached(NamedTuple):
    """A constant that reaches what is measured."""

    constant: Constant
    way: Way


class Value(NamedTuple):
    """What a variable may hold, as far as it matters where that came from.

    taints: constants in it; model: it is trained; seen: it came out of something trained; kinds: of objects, by name.
    data: made by a call that makes data.
    """

    taints: Mapping[int, Strength] = {}
    model: bool = False
    seen: bool = False
    data: bool = False
    kinds: frozenset[str] = frozenset()


NOTHING = Value()


def join(*values: Value) -> Value:
    """One value of several: a constant in it counts where it is strongest."""
    if len(values) == 1:
        return values[0]
    taints: dict[int, Strength] = {}
    for value in values:
        for source, strength in value.taints.items():
            if taints.get(source, -1) < strength:
                taints[source] = strength
    return Value(
        taints,
        any(v.model for v in values),
        any(v.seen for v in values),
        any(v.data for v in values),
        frozenset().union(*(v.kinds for v in values)),
    )


def at_least(taints: Mapping[int, Strength], least: Strength) -> dict[int, Strength]:
    """Those constants that are that strong in a value."""
    return {s: x for s, x in taints.items() if x >= least}


def mixed(value: Value) -> Value:
    """The value where its numbers have become part of others."""
    return value._replace(taints={s: max(Strength.MIXED, x) for s, x in value.taints.items()})


READS = re.compile(
    r"(?:load|fetch|read)(?:_(?!state|model|weights|checkpoint|ckpt|from_checkpoint|config|yaml|json$|dotenv)\w+|csv|txt)"
    r"|loadtxt|genfromtxt|fromfile|memmap|load_dataset|ImageFolder|DatasetFolder|(?:Fashion|K|E|Q)?MNIST|CIFAR100?|SVHN|STL10"
    r"|image_dataset_from_directory|text_dataset_from_directory"
)
"""Calls that read data by a name."""

MAKES = re.compile(
    r"make_(?:classification|regression|blobs|moons|circles|friedman[123]|s_curve|swiss_roll|gaussian_quantiles"
    r"|hastie_10_2|low_rank_matrix|sparse_uncorrelated|multilabel_classification|biclusters|checkerboard)"
)
"""Calls that make a data set."""

SPLITS = re.compile(
    r"(?:train_test|random|train_val|temporal_train_test)_split|(?:Stratified|Group|Repeated|RepeatedStratified|StratifiedGroup)?KFold"
    r"|(?:Stratified|Group)?ShuffleSplit|TimeSeriesSplit|Leave\w*Out|Subset|PredefinedSplit|cross_val\w*|cross_validate"
)
"""Calls that choose what is trained on and what is measured."""

SEEDS = bag("seed manual_seed manual_seed_all default_rng RandomState Generator PRNGKey PCG64 seed_everything set_seed")
RANDOM = bag("""
    normal randn rand random uniform standard_normal random_sample gauss multivariate_normal poisson exponential
    binomial lognormal laplace gumbel beta gamma rand_like randn_like truncated_normal normalvariate""")
"""Calls that draw numbers."""
ARRAYS = bag("linspace arange logspace geomspace zeros ones full empty eye meshgrid tile mgrid indices")
"""Calls that make arrays of a shape."""
SAMPLES = bag("randint integers choice choices permutation randperm sample shuffle randrange categorical bernoulli")
"""Calls that draw whole numbers, mostly rows of something."""
FITS = bag("""
    solve lstsq polyfit pinv inv ridge_regression train fit minimize curve_fit least_squares fmin fmin_l_bfgs_b
    fmin_bfgs minimize_scalar differential_evolution from_pretrained grad value_and_grad fit_predict""")
"""Calls whose result is what was learned."""
TRAINS = bag(
    "backward zero_grad step fit partial_fit train_on_batch train_step apply_gradients value_and_grad grad train"
)
"""Methods that only a loop that trains calls."""

MODELS = re.compile(
    r"\w*(?:Regressor|Classifier|Regression|Ridge|RidgeCV|Lasso|LassoCV|ElasticNet|SVC|SVR|NB|Sequential|Linear|Conv[123]d"
    r"|Embedding|LSTM|GRU|RNN|Transformer\w*|Dropout\w*|LayerNorm|BatchNorm\w*|Parameter|Optimizer|Trainer|Estimator|Booster|LR"
    r"|Scheduler|Scaler)|Adam\w*|SGD|RMSprop|Adagrad|Muon\w*|LBFGS|Lion"
)
"""Constructors of what is trained, and of what trains it."""
EVALUATES = re.compile(
    r"(?:^|_)(?:eval|evaluate|valid|validate|validation|val|test|score|measure|metric|accuracy|bpb)(?:$|_)|estimate_"
)
MEASURES = re.compile(r"\w*(?:Loss|Accuracy|Precision|Recall|F1\w*|AUROC|Metric|Error)")
"""Constructors of what measures a model."""

MODEL_BASES = re.compile(r"(?<!Data)Module$|Model$|Estimator$|Layer$|Regressor(?:Mixin)?$|Classifier(?:Mixin)?$|Block$")
MODEL_METHODS = frozenset({"forward", "predict", "parameters", "predict_proba", "backward"})

_USUAL = bag("""
    lr rate eta batch bs bsz minibatch epoch step iter iteration hidden width depth layer head dropout drop decay wd
    l1 l2 momentum beta eps epsilon warmup warmdown cooldown clip embd embed channel ffn lambda lam reg alpha
    estimator leaf patience rank accum accumulation expert optimizer optimiser activation act init degree tree
    round boost neighbor learning weight penalty regularization regularisation ridge temperature nesterov kernel""")
_MEASURED_WORDS = bag(
    "eval evaluation val valid validation test holdout heldout fold split data dataset sample row point"
)


def usual(name: str) -> bool:
    """Whether a name is that of a hyper-parameter: it may meet the data, as a batch size does, and not make it."""
    words = set(words_of(name))
    return bool(words & _USUAL) and not words & (_MEASURED_WORDS - {"sample", "split"})


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


@dataclass(slots=True)
class Scope:
    """A function, or the module. gives: what it returns; owner: class of a method; trained: what it trains."""

    name: str
    node: ast.AST
    names: dict[str, Value] = field(default_factory=dict)
    local: frozenset[str] = frozenset()
    params: tuple[str, ...] = ()
    gives: Value = NOTHING
    owner: str = ""
    trained: frozenset[str] = frozenset()
    prints: bool = False


class Sources:
    """What there is in one program.

    constants: in the order found; by_node: values of what is written out, by the node's id; attributes: of objects, by
    class; entries: of dictionaries and of the options of a command line, by name.
    """

    def __init__(self, tree: ast.Module, text: str) -> None:
        self._tree = tree
        self._raw = text.encode()
        self._starts = [0]
        for line in self._raw.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self.constants: list[Constant] = []
        self.by_node: dict[int, Value] = {}
        self.functions: dict[str, Scope] = {}
        self.classes: dict[str, ast.ClassDef] = {}
        self.attributes: dict[tuple[str, str], Value] = {}
        self.entries: dict[tuple[str, str], Value] = {}
        self._definitions(tree.body, "")
        self._sources()

    def _definitions(self, body: Sequence[ast.stmt], owner: str) -> None:
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                arguments = node.args
                params = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
                name = f"{owner}.{node.name}" if owner else node.name
                outside = frozenset(
                    n for s in ast.walk(node) if isinstance(s, (ast.Global, ast.Nonlocal)) for n in s.names
                )
                local = frozenset(
                    n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
                ) | frozenset(params)
                self.functions.setdefault(
                    name,
                    Scope(
                        name,
                        node,
                        local=local - outside,
                        params=tuple(params),
                        owner=owner,
                        trained=trained_names(node.body),
                        prints=node.name in ("main", "run")
                        or any(last_name(call.func) == "print" for call in calls_in(node)),
                    ),
                )
                self._definitions(node.body, "")
            elif isinstance(node, ast.ClassDef):
                self.classes.setdefault(node.name, node)
                if not is_model_class(node):
                    self._definitions(node.body, node.name)
            elif isinstance(node, (ast.If, ast.For, ast.While, ast.With, ast.Try)):
                for block in blocks(node):
                    self._definitions(block, owner)

    def _place(self, node: ast.expr) -> tuple[int, int]:
        end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
        return self._starts[node.lineno - 1] + node.col_offset, self._starts[end_line - 1] + end_column

    def _source(self, name: str, node: ast.expr, *, inline: bool = False) -> Value:
        start, end = self._place(node)
        self.constants.append(Constant(name, start, end, self._raw[start:end].decode(), inline))
        value = Value({len(self.constants) - 1: Strength.NUMBER})
        self.by_node[id(node)] = value
        return value

    def _sources(self) -> None:
        """Every constant under the name that the search space gives it."""
        for name, node in assignments(self._tree.body):
            self._named_value(name, node)
        for cls in self.classes.values():
            for name, node in assignments(cls.body):
                value = self._named_value(f"{cls.name}.{name}", node)
                self.attributes[cls.name, name] = value
        for scope in self.functions.values():
            self._defaults(scope)
        counts: dict[str, int] = {}
        for call in calls_in(self._tree):
            callee = last_name(call.func)
            if callee == "add_argument":
                self._argument(call)
                continue
            wanted = arguments_of(callee, frozenset(k.arg for k in call.keywords if k.arg)) if callee else frozenset()
            if wanted:
                counts[callee] = counts.get(callee, 0) + 1
            for keyword in call.keywords:
                if is_literal(keyword.value) and id(keyword.value) not in self.by_node:
                    mark = f"#{counts[callee]}" if keyword.arg in wanted else ""
                    self._source(f"{callee}.{keyword.arg}{mark}", keyword.value, inline=not mark)
            for i, argument in enumerate(call.args):
                if is_literal(argument) and id(argument) not in self.by_node and makes_data(callee):
                    self._source(f"{callee}({i})", argument, inline=True)
        for cut in ast.walk(self._tree):
            if isinstance(cut, ast.Slice):
                for bound in (cut.lower, cut.upper):
                    if bound is not None and is_literal(bound):
                        self._source("[:]", bound, inline=True)

    def _named_value(self, name: str, node: ast.expr) -> Value:
        """The constants in a value; an object with named entries is known by its name."""
        if isinstance(node, (ast.Tuple, ast.List)) and node.elts and all(is_literal(e) for e in node.elts):
            value = join(*(self._source(f"{name}[{i}]", e) for i, e in enumerate(node.elts)))
        elif isinstance(node, ast.Dict) and node.keys and all(isinstance(k, ast.Constant) for k in node.keys):
            for key, entry in zip(node.keys, node.values, strict=True):
                text = key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else ""
                if not text.isidentifier():
                    continue
                self.entries[name, text] = self._named_value(f"{name}.{text}", entry)
            value = Value(kinds=frozenset({f"dict {name}"}))
        elif (
            isinstance(node, ast.Call)
            and last_name(node.func) in ("dict", "SimpleNamespace", "field")
            and not node.args
        ):
            if last_name(node.func) == "field":
                default = next((k.value for k in node.keywords if k.arg == "default"), None)
                return self._named_value(name, default) if default is not None else NOTHING
            for keyword in node.keywords:
                if keyword.arg:
                    self.entries[name, keyword.arg] = self._named_value(f"{name}.{keyword.arg}", keyword.value)
            value = Value(kinds=frozenset({f"dict {name}"}))
        elif is_literal(node):
            value = self._source(name, node)
        else:
            return NOTHING
        self.by_node[id(node)] = value
        return value

    def _defaults(self, scope: Scope) -> None:
        """Defaults of parameters, and what a function calls by a name that it never changes."""
        node = scope.node
        assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        positional = [*node.args.posonlyargs, *node.args.args]
        pairs = list(zip(positional[len(positional) - len(node.args.defaults) :], node.args.defaults, strict=True))
        pairs += [(a, d) for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if d is not None]
        for argument, default in pairs:
            if is_literal(default):
                scope.names[argument.arg] = self._source(
                    f"{scope.name.removesuffix('.__init__')}.{argument.arg}", default
                )
        changed = changed_names(node.body)
        for name, value in assignments(node.body):
            if name not in changed and is_setting(value) and id(value) not in self.by_node:
                self._source(name, value)

    def _argument(self, call: ast.Call) -> None:
        """The default of an option of argparse, by the name of its attribute."""
        default = next((k.value for k in call.keywords if k.arg == "default"), None)
        dest = next(
            (k.value.value for k in call.keywords if k.arg == "dest" and isinstance(k.value, ast.Constant)), None
        )
        flags = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        flag = next((f for f in flags if f.startswith("--")), flags[0] if flags else "")
        name = str(dest) if dest else flag.lstrip("-").replace("-", "_")
        if default is not None and name.isidentifier() and is_literal(default):
            self.entries["argparse", name] = self._source(f"args.{name}", default)
