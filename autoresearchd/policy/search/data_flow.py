"""Where the constants of a Python program flow: into the data that is measured, into the metric, or only into a model.

The program is not run. Its statements are gone through again and again with values that stand for "what came from
which constants", until nothing changes. What goes through something that is trained (a model, weights that a loop
updates, the result of a fit) leaves its constants behind: they are what a search is for. All other ways to the printed
metric count.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from autoresearchd.policy.search.name_ranges import words_of
from autoresearchd.policy.search.program_parts import (
    ARRAYS,
    EVALUATES,
    FITS,
    MEASURES,
    MODELS,
    NOTHING,
    RANDOM,
    SAMPLES,
    Constant,
    Reached,
    Scope,
    Sources,
    Strength,
    Value,
    Way,
    at_least,
    blocks,
    holds_data,
    index_bounds,
    index_parts,
    is_model_class,
    join,
    last_name,
    mixed,
    model_names,
    trained_names,
    trains,
    usual,
    way_of,
)

_PRINTS = frozenset({"print", "write", "info", "echo"})
_LOGS = frozenset({"log", "log_metric", "report", "add_scalar"})


class Printed:
    """Finds what stands behind the name of a metric."""

    def __init__(self, metric: str) -> None:
        self._metric = metric
        self._name = re.compile(rf"(?<!\w){re.escape(metric)}(?!\w)")

    def named(self, value: object) -> bool:
        """Whether a text has the name of the metric in it."""
        return bool(self._metric) and isinstance(value, str) and self._name.search(value) is not None

    def by_dict(self, node: ast.Dict) -> Iterator[ast.expr]:
        """The entry of a dictionary under the name of the metric."""
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and self.named(key.value):
                yield value

    def by_call(self, node: ast.Call) -> Iterator[ast.expr]:
        """What a call prints or logs under the name of the metric."""
        callee = last_name(node.func)
        yield from (k.value for k in node.keywords if k.arg and k.arg == self._metric)
        if callee in _LOGS and node.args and isinstance(node.args[0], ast.Constant) and self.named(node.args[0].value):
            yield from node.args[1:2]
        if callee not in _PRINTS:
            return
        for i, argument in enumerate(node.args):
            if isinstance(argument, ast.JoinedStr):
                yield from self._behind(argument)
            elif any(isinstance(n, ast.Constant) and self.named(n.value) for n in ast.walk(argument)):
                if isinstance(argument, ast.Constant):
                    yield from node.args[i + 1 : i + 2]
                else:
                    yield from _filled(argument)

    def _behind(self, text: ast.JoinedStr) -> Iterator[ast.expr]:
        """The field that stands behind the metric's name in an f-string."""
        named = False
        for part in text.values:
            if isinstance(part, ast.Constant):
                named = self.named(part.value)
            elif named and isinstance(part, ast.FormattedValue):
                yield part.value
                return


def all_of(node: ast.Call) -> Iterator[ast.expr]:
    """All that a call prints, each field of an f-string by itself."""
    for argument in node.args if last_name(node.func) in _PRINTS else ():
        if isinstance(argument, ast.JoinedStr):
            yield from (part.value for part in argument.values if isinstance(part, ast.FormattedValue))
        else:
            yield argument


def _filled(node: ast.expr) -> Iterator[ast.expr]:
    """What is filled into a text by % or format, or joined to it."""
    if isinstance(node, ast.Call) and last_name(node.func) in ("format", "join"):
        yield from (*node.args, *(k.value for k in node.keywords))
    elif isinstance(node, ast.BinOp):
        yield from _filled(node.left)
        yield node.right


_PASSES = 12
_MOST_DEPTH = 60
_MOST_STEPS = 30_000
"""Statements that are gone through, some seconds of work; of a larger program what was found by then counts."""
_OF_A_MODEL = re.compile(r"(?:^|_)(?:init|forward|predict|model|network|net)(?:$|_(?!_))")


def reached(tree: ast.Module, text: str, metric: str = "") -> tuple[Reached, ...]:
    """Constants that reach what is measured, in the order of the program.

    Args:
        tree: the program.
        text: its text.
        metric: name of the metric; where the program prints it nowhere, all counts that it prints of its model.
    """
    sources = Sources(tree, text)
    flow = _Flow(tree, sources, metric)
    flow.settle()
    if not flow.shown:
        flow = _Flow(tree, Sources(tree, text), metric)
        flow.shown = True
        flow.everything = True
        flow.settle()
    # Where nothing is trained that the metric comes from, its constants are the program, and not only its measure.
    counts = [(i, way) for i, way in sorted(flow.found.items()) if flow.of_model or way is not Way.METRIC]
    return tuple(Reached(sources.constants[i], way) for i, way in counts)


def constants_of(tree: ast.Module, text: str) -> tuple[Constant, ...]:
    """All constants with a name, in the order of the program."""
    return tuple(c for c in Sources(tree, text).constants if not c.inline)


_Key = TypeVar("_Key")


class _Flow:
    """The look at one program.

    shown: whether it prints its metric; everything: all that it prints counts; of_model: what it prints comes out of
    something trained.
    """

    def __init__(self, tree: ast.Module, sources: Sources, metric: str) -> None:
        self._tree, self._sources, self._printed = tree, sources, Printed(metric)
        self.found: dict[int, Way] = {}
        self.shown = self.everything = self.of_model = False
        self._models = model_names(tree)
        self._module = Scope("", tree, trained=trained_names(tree.body))
        self._control: list[Value] = []
        self._training = 0
        self._marking = True
        self._changed = False
        self._where: list[Scope] = [self._module]
        self._depth = self._steps = 0

    def settle(self) -> None:
        """Go through the program until nothing changes: first for what is trained, then for the constants."""
        for self._marking in (True, False):
            for _ in range(_PASSES):
                self._changed = False
                self._body(self._tree.body)
                for scope in self._sources.functions.values():
                    self._function(scope)
                if not self._changed:
                    break

    # -- statements
    def _body(self, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            self._steps += 1
            if self._steps <= _MOST_STEPS:
                self._statement(statement)

    def _function(self, scope: Scope) -> None:
        node = scope.node
        assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        kept = self._control, self._training
        self._control, self._training = [], 0
        self._where.append(scope)
        self._body(node.body)
        self._where.pop()
        self._control, self._training = kept

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Assign):
            value = self._value(node.value)
            for target in node.targets:
                self._assign(target, value, node.value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._assign(node.target, self._value(node.value), node.value)
        elif isinstance(node, ast.AugAssign):
            self._assign(node.target, self._value(node.value))
        elif isinstance(node, ast.Expr):
            self._value(node.value)
        elif isinstance(node, ast.Return) and node.value is not None:
            scope = self._where[-1]
            given = self._value(node.value)
            joined = join(scope.gives, given)
            if scope.name and joined != scope.gives:
                scope.gives, self._changed = joined, True
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            self._loop(node)
        elif isinstance(node, ast.While):
            self._value(node.test)
            self._within(NOTHING, node.body, training=trains(node))
        elif isinstance(node, ast.If):
            test = self._value(node.test)
            self._within(NOTHING if self._training else test, node.body)
            self._within(NOTHING if self._training else test, node.orelse)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                value = self._value(item.context_expr)
                if item.optional_vars is not None:
                    self._assign(item.optional_vars, value)
            self._body(node.body)
        elif isinstance(node, ast.Try):
            for block in blocks(node):
                self._body(block)

    def _loop(self, node: ast.For | ast.AsyncFor) -> None:
        value = self._value(node.iter)
        training = trains(node)
        self._assign(node.target, value)
        # A loop that trains a new model each time repeats the measurement: how often is part of the metric.
        repeats = training and any(isinstance(n, ast.Call) and self._is_model_call(n) for n in ast.walk(node))
        self._within(NOTHING if training and not repeats else value, node.body, training=training and not repeats)
        self._body(node.orelse)

    def _within(self, control: Value, body: Sequence[ast.stmt], *, training: bool = False) -> None:
        self._control.append(Value(mixed(control).taints))
        self._training += training
        self._body(body)
        self._training -= training
        self._control.pop()

    def _assign(self, target: ast.expr, value: Value, node: ast.expr | None = None) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            parts = node.elts if isinstance(node, (ast.Tuple, ast.List)) else []
            for i, element in enumerate(target.elts):
                own = self._value(parts[i]) if len(parts) == len(target.elts) else value
                self._assign(element, own, parts[i] if len(parts) == len(target.elts) else None)
            return
        if isinstance(target, ast.Starred):
            target = target.value
        value = join(value, *self._control)
        if isinstance(target, ast.Name):
            self._store(target.id, value)
        elif isinstance(target, ast.Attribute):
            base = self._value(target.value)
            kinds = base.kinds or (frozenset({self._where[-1].owner}) if self._where[-1].owner else frozenset())
            for kind in kinds:
                self._take_up(self._sources.attributes, (kind, target.attr), value)
        elif isinstance(target, ast.Subscript):
            base_node: ast.expr = target
            while isinstance(base_node, (ast.Subscript, ast.Attribute)):
                base_node = base_node.value
            if isinstance(target.slice, ast.Constant) and self._printed.named(target.slice.value):
                self._reach(value)
            if isinstance(base_node, ast.Name):
                self._store(base_node.id, value._replace(kinds=frozenset()))

    def _store(self, name: str, value: Value) -> None:
        scope = self._where[-1]
        self._bind(self._module if scope.name and name not in scope.local else scope, name, value)

    def _bind(self, scope: Scope, name: str, value: Value) -> None:
        trained = name in scope.trained or name in self._models
        self._take_up(scope.names, name, Value(model=True, seen=True) if trained else value)

    def _take_up(self, values: dict[_Key, Value], key: _Key, value: Value) -> None:
        """Join a value to what is under a key already."""
        before = values.get(key)
        joined = value if before is None else join(before, value)
        if joined != before:
            values[key], self._changed = joined, True

    # -- expressions
    def _value(self, node: ast.expr | None) -> Value:
        if node is None:
            return NOTHING
        known = self._sources.by_node.get(id(node))
        if known is not None:
            return known if not self._marking or known.kinds else Value(kinds=known.kinds)
        self._depth += 1
        try:
            return self._work_out(node) if self._depth < _MOST_DEPTH else NOTHING
        finally:
            self._depth -= 1

    def _work_out(self, node: ast.expr) -> Value:
        if isinstance(node, ast.Name):
            return self._load(node.id)
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, ast.Subscript):
            return self._subscript(node)
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.BinOp):
            return self._operation(node, node.left, node.right)
        if isinstance(node, ast.Compare):
            return self._operation(node, node.left, *node.comparators)
        if isinstance(node, ast.BoolOp):
            return join(*(self._value(v) for v in node.values))
        if isinstance(node, ast.UnaryOp):
            return self._value(node.operand)
        if isinstance(node, ast.IfExp):
            return join(self._value(node.test), self._value(node.body), self._value(node.orelse))
        if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
            return join(NOTHING, *(self._value(e) for e in node.elts))
        if isinstance(node, ast.Dict):
            values = [self._value(v) for v in node.values]
            self._show(self._printed.by_dict(node))
            return join(NOTHING, *values)
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
            return self._comprehension(node)
        if isinstance(node, (ast.Starred, ast.Await)):
            return self._value(node.value)
        if isinstance(node, ast.NamedExpr):
            value = self._value(node.value)
            self._assign(node.target, value)
            return value
        if isinstance(node, ast.JoinedStr):
            return join(NOTHING, *(self._value(v.value) for v in node.values if isinstance(v, ast.FormattedValue)))
        return NOTHING

    def _load(self, name: str) -> Value:
        scope = self._where[-1]
        if scope.name and name in scope.local:
            return self._seen_by_model(scope.names.get(name, NOTHING))
        if name == "self" and scope.owner:
            return Value(kinds=frozenset({scope.owner}))
        return self._seen_by_model(self._module.names.get(name, NOTHING))

    def _seen_by_model(self, value: Value) -> Value:
        """In a function of a model, plain numbers are the model's."""
        if self._in_model():
            return value._replace(taints=at_least(value.taints, Strength.MIXED))
        return value

    def _in_model(self) -> bool:
        scope = self._where[-1]
        name = scope.name.rpartition(".")[2]
        if not name or EVALUATES.search(name):
            return False
        if _OF_A_MODEL.search(name):
            return True
        return any(scope.names.get(p, NOTHING).model for p in scope.params) and not scope.prints

    def _attribute(self, node: ast.Attribute) -> Value:
        base = self._value(node.value)
        own = self._of_kinds(base.kinds, node.attr)
        if own is not None:
            return self._seen_by_model(own)
        return base._replace(kinds=frozenset())

    def _of_kinds(self, kinds: frozenset[str], name: str) -> Value | None:
        """An attribute or entry of objects that are known; None where they are not."""
        if not kinds:
            return None
        found = []
        for kind in kinds:
            if kind.startswith("dict ") or kind == "argparse":
                found.append(self._sources.entries.get((kind.removeprefix("dict "), name), NOTHING))
            else:
                found.append(self._sources.attributes.get((kind, name), NOTHING))
        return join(NOTHING, *(v if not self._marking or v.kinds else v._replace(taints={}) for v in found))

    def _subscript(self, node: ast.Subscript) -> Value:
        base, index = self._value(node.value), node.slice
        if base.kinds and isinstance(index, ast.Constant):
            own = self._of_kinds(base.kinds, str(index.value))
            return self._seen_by_model(own) if own is not None else NOTHING
        inner = [self._value(part) for part in index_bounds(index)]
        if any(isinstance(part, ast.Slice) for part in index_parts(index)):
            # X[:N] cuts the data; X[i : i + B] is one batch of it.
            inner = [self._raised(value) for value in inner]
        return join(base._replace(kinds=frozenset()), *(v._replace(kinds=frozenset()) for v in inner))

    def _raised(self, value: Value) -> Value:
        """What makes data: hyper-parameters are only met by it on the way (batches)."""
        if self._training or self._in_model():
            return value
        taints = {
            s: max(x, Strength.MIXED if usual(self._sources.constants[s].name) else Strength.DATA)
            for s, x in value.taints.items()
        }
        return value._replace(taints=taints)

    def _made(self, value: Value) -> Value:
        return value._replace(taints=dict.fromkeys(value.taints, Strength.DATA))

    def _operation(self, node: ast.expr, *operands: ast.expr) -> Value:
        values = [self._value(o) for o in operands]
        if any(isinstance(o, ast.Call) and last_name(o.func) in RANDOM for o in operands):
            values = [self._raised(v) for v in values]
        return self._through(values)

    def _through(self, values: Sequence[Value]) -> Value:
        """Several values become one. What meets something trained comes out as what the model makes of it."""
        joined = join(NOTHING, *values)
        if joined.model:
            return Value(at_least(joined.taints, Strength.DATA), seen=True)
        if joined.data or joined.seen:
            return mixed(joined)._replace(kinds=frozenset())
        return joined._replace(kinds=frozenset())

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Value:
        control = []
        for generator in node.generators:
            value = self._value(generator.iter)
            self._assign(generator.target, value)
            control.append(value)
            control += [self._value(test) for test in generator.ifs]
        inner = [self._value(node.key), self._value(node.value)] if isinstance(node, ast.DictComp) else []
        inner = inner or [self._value(node.elt)]  # type: ignore[union-attr]
        return join(*inner, *(mixed(v)._replace(model=False, kinds=frozenset()) for v in control))

    # -- calls
    def _call(self, node: ast.Call) -> Value:
        callee = last_name(node.func)
        receiver = self._value(node.func.value) if isinstance(node.func, ast.Attribute) else self._value(node.func)
        arguments = [self._value(a) for a in node.args]
        keywords = {k.arg or f"**{i}": self._value(k.value) for i, k in enumerate(node.keywords)}
        values = [*arguments, *keywords.values()]
        self._metric(node)
        user = self._user_call(node, callee, receiver, arguments, keywords)
        if user is not None:
            return user
        values = [self._whole(v) for v in values]
        receiver = self._whole(receiver)
        if callee == "parse_args":
            return Value(kinds=frozenset({"argparse"}))
        if callee in ("vars", "asdict", "copy", "deepcopy") and arguments:
            return arguments[0]
        if isinstance(node.func, ast.Attribute) and callee in ("append", "extend", "add", "insert", "update"):
            self._grown(node.func.value, join(NOTHING, *values))
        return self._external(node, callee, receiver, values)

    def _grown(self, base: ast.expr, value: Value) -> None:
        """A container took something up."""
        if isinstance(base, (ast.Name, ast.Attribute, ast.Subscript)):
            self._assign(ast.Subscript(base, ast.Constant(0)) if isinstance(base, ast.Name) else base, value)

    def _whole(self, value: Value) -> Value:
        """An object that holds data stands for all of it."""
        holders = [k for k in value.kinds if k in self._sources.classes and holds_data(self._sources.classes[k])]
        inner = [v for (kind, _), v in self._sources.attributes.items() if kind in holders]
        return join(value, *inner)._replace(kinds=value.kinds) if inner else value

    def _external(self, node: ast.Call, callee: str, receiver: Value, values: list[Value]) -> Value:
        everything = join(NOTHING, receiver, *values)._replace(kinds=frozenset())
        given = join(NOTHING, *values)._replace(kinds=frozenset())
        way = way_of(callee, node)
        if way is not None:
            for source in (everything if callee.startswith("read_") else given).taints:
                self._sink(source, way)
            return self._made(everything)._replace(data=True, model=False)
        if callee in RANDOM or callee in ARRAYS or callee in SAMPLES:
            if self._training or self._in_model():
                return Value(at_least(everything.taints, Strength.DATA), data=True)
            made = self._raised(given) if callee in SAMPLES else self._made(given)
            return join(made, receiver)._replace(data=True, kinds=frozenset())
        if callee in FITS and not EVALUATES.search(callee):
            return Value(model=True, seen=True)
        if MEASURES.fullmatch(callee):
            return given._replace(model=False)
        if self._is_model_call(node):
            return Value(at_least(given.taints, Strength.DATA), model=True, seen=True)
        if everything.model and callee.startswith(("to", "cuda", "cpu", "eval", "train", "compile", "half", "wrap")):
            return everything
        if callee[:1].isupper() and callee != "Path":
            return everything._replace(taints=at_least(everything.taints, Strength.MIXED))
        if everything.model and EVALUATES.search(callee):
            return everything._replace(model=False, seen=True)
        return self._through([receiver, *values])

    def _is_model_call(self, node: ast.Call) -> bool:
        callee = last_name(node.func)
        if callee in self._sources.classes:
            return is_model_class(self._sources.classes[callee])
        root = node.func
        while isinstance(root, ast.Attribute):
            root = root.value
        if MEASURES.fullmatch(callee):
            return False
        of_nn = isinstance(root, ast.Name) and root.id in ("nn", "optim") and callee[:1].isupper()
        return of_nn or MODELS.fullmatch(callee) is not None

    def _user_call(
        self, node: ast.Call, callee: str, receiver: Value, arguments: list[Value], keywords: Mapping[str, Value]
    ) -> Value | None:
        """The call of a function or class of this program; None where it is another's."""
        skip, result = 0, None
        if isinstance(node.func, ast.Name) and callee in self._sources.functions:
            scope, skip = self._sources.functions[callee], 0
        elif (
            isinstance(node.func, ast.Name)
            and callee in self._sources.classes
            and not is_model_class(self._sources.classes[callee])
        ):
            result = Value(kinds=frozenset({callee}))
            for name, value in keywords.items():
                if not name.startswith("**") and f"{callee}.__init__" not in self._sources.functions:
                    self._take_up(self._sources.attributes, (callee, name), value)
            found = self._sources.functions.get(f"{callee}.__init__")
            if found is None:
                return result
            scope, skip = found, 1
        else:
            methods = [self._sources.functions.get(f"{kind}.{callee}") for kind in receiver.kinds]
            scopes = [m for m in methods if m is not None]
            if not scopes:
                return None
            scope, skip = scopes[0], 1
            self._bind(scope, "self", receiver)
        for name, value in zip(scope.params[skip:], arguments, strict=False):
            self._bind(scope, name, value)
        for name, value in keywords.items():
            if name in scope.params:
                self._bind(scope, name, value)
        if result is not None:
            return result
        given = scope.gives
        if self._training and not EVALUATES.search(scope.name):
            given = given._replace(taints=at_least(given.taints, Strength.DATA))
        return given

    # -- where it ends
    def _metric(self, node: ast.Call) -> None:
        """What is printed or logged as the metric."""
        if not self.everything:
            self._show(self._printed.by_call(node))
        elif not self._training:
            self._reach(join(NOTHING, *(v for v in map(self._value, all_of(node)) if v.seen)))

    def _show(self, nodes: Iterable[ast.expr]) -> None:
        for node in nodes:
            self.shown = True
            self._reach(self._value(node))

    def _reach(self, value: Value) -> None:
        """It is the metric, or part of it."""
        self.of_model |= value.seen or value.model
        for source, strength in value.taints.items():
            if strength is Strength.DATA:
                self._sink(source, Way.MAKES)
            elif not self._tuned(source):
                self._sink(source, Way.METRIC)

    def _sink(self, source: int, way: Way) -> None:
        if not self._marking:
            self.found.setdefault(source, way)

    def _tuned(self, source: int) -> bool:
        name = self._sources.constants[source].name
        return usual(name) and "smoothing" not in words_of(name)
