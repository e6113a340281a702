"""Where the constants of a Python program flow: into the data that is measured, into the metric, or only into a model.

The program is not run. Its statements are gone through again and again with values that stand for "what came from
which constants", until nothing changes. What goes through something that is trained (a model, weights that a loop
updates, the result of a fit) leaves its constants behind: they are what a search is for. All other ways to the printed
metric count. What stands under a name in a dictionary or an object is one value, whichever of them it is in.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from itertools import chain, pairwise
from typing import NamedTuple

from autoresearchd.policy.search import known_calls as known
from autoresearchd.policy.search.parameter import words_of
from autoresearchd.policy.search.program_parts import Definition, Parts, blocks, defaults_of, is_literal, text_of

_PRINTS = frozenset({"print", "write", "info", "echo"})
_LOGS = frozenset({"log", "log_metric", "report", "add_scalar"})
_PASSES = 12
_MOST_STEPS = 30_000
"""Statements that are gone through, some seconds of work; of a larger program what was found by then counts."""
_OF_A_MODEL = re.compile(r"(?:^|_)(?:init|forward|predict|model|network|net)(?:$|_(?!_))")
_ON_THE_WAY = ("to", "cuda", "cpu", "eval", "train", "compile", "half", "wrap")
"""What a model is after such a call, it was before."""


class Way(StrEnum):
    """How a constant reaches what is measured, in words."""

    READS = "it says which data is read"
    SPLITS = "it splits the data"
    SEEDS = "it seeds the random numbers"
    MAKES = "it makes the data that is measured"
    METRIC = "it reaches the metric other than through the model"


class Strength(IntEnum):
    """How a constant is in a value: as a number, in numbers of data, or the data is of its making."""

    NUMBER = 0
    MIXED = 1
    DATA = 2


class Constant(NamedTuple):
    """A literal of the program. name: as the search space has it; start: its place in bytes; inline: it has no name."""

    name: str
    start: int
    text: str
    inline: bool = False


class _Value(NamedTuple):
    """What a variable may hold: constants, something trained, what came out of it, made data, objects of classes."""

    taints: Mapping[int, Strength] = {}
    model: bool = False
    seen: bool = False
    data: bool = False
    kinds: frozenset[str] = frozenset()

    def at_least(self, least: Strength) -> _Value:
        """With those constants alone that are that strong in it."""
        return self._replace(taints={s: x for s, x in self.taints.items() if x >= least})

    def raised(self, least: Strength) -> _Value:
        """With each constant at least that strong in it."""
        return self._replace(taints={s: max(least, x) for s, x in self.taints.items()})


_NOTHING = _Value()
_TRAINED = _Value(model=True, seen=True)


def _join(values: Iterable[_Value]) -> _Value:
    """One value of several: a constant in it counts where it is strongest."""
    taints: dict[int, Strength] = {}
    model = seen = data = False
    kinds: frozenset[str] = frozenset()
    for value in values:
        for source, strength in value.taints.items():
            taints[source] = max(strength, taints.get(source, strength))
        model, seen, data = model or value.model, seen or value.seen, data or value.data
        kinds |= value.kinds
    return _Value(taints, model, seen, data, kinds)


def reached(parts: Parts, metric: str = "") -> tuple[tuple[Constant, Way | None], ...]:
    """All constants, and how they reach what is measured (None: they do not).

    metric: its name; where the program prints it nowhere, all counts that it prints of its model.
    """
    flow = _Flow(parts, metric)
    if not flow.shown:
        flow = _Flow(parts, metric, everything=True)
    # Where nothing is trained that the metric comes from, its constants are the program, and not only its measure.
    ways = {i: way for i, way in flow.found.items() if flow.of_model or way is not Way.METRIC}
    return tuple((constant, ways.get(i)) for i, constant in enumerate(flow.constants))


@dataclass(slots=True)
class _Scope:
    """A function, or the module. gives: what it returns; owner: class of a method; trained: what it trains."""

    node: Definition | ast.Module
    name: str = ""
    owner: str = ""
    params: tuple[str, ...] = ()
    local: Collection[str] = ()
    trained: frozenset[str] = frozenset()
    prints: bool = False
    names: dict[str, _Value] = field(default_factory=dict)
    gives: _Value = _NOTHING


class _Flow:
    """The look at one program. shown: it prints its metric; of_model: what it prints comes out of something trained."""

    def __init__(self, parts: Parts, metric: str, *, everything: bool = False) -> None:
        self._parts, self._metric, self._everything = parts, metric, everything
        self._named = re.compile(rf"(?<!\w){re.escape(metric)}(?!\w)")
        self.constants: list[Constant] = []
        self._sources: dict[int, int] = {}  # by the node's id
        self._entries: dict[str, _Value] = {}  # of dictionaries, objects and the command line, by name
        self._written: dict[str, _Value] = {}
        self._listed: set[int] = set()  # constants that are an entry themselves
        for one in parts.values():
            if is_literal(one.node) and id(one.node) not in self._sources:
                start, end = parts.source.place(one.node)
                self._sources[id(one.node)] = number = len(self.constants)
                self.constants.append(Constant(one.name, start, parts.source.part(start, end), one.inline))
                if one.entry:
                    self._listed.add(number)
                    self._take_up(self._written, one.entry, _Value({number: Strength.NUMBER}))
        self._functions = self._scopes()
        self._holders = {
            name: {n.attr for n in ast.walk(cls) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)}
            for name, cls in parts.classes.items()
            if known.methods(cls) & known.DATA_METHODS
        }
        asked = (c.func for c in parts.calls if isinstance(c.func, ast.Attribute) and c.func.attr in known.OF_MODELS)
        self._models = known.MODEL_NAMES | {f.value.id for f in asked if isinstance(f.value, ast.Name)}
        self._module = _Scope(parts.tree, trained=known.trained_names(parts.tree.body))
        self._where = [self._module]
        self.found: dict[int, Way] = {}
        self.shown, self.of_model = everything, False
        self._control: list[_Value] = []
        self._training = self._steps = 0
        self._marking = True
        self._worked_out: dict[int, _Value] = {}  # in one statement, by the node's id: calls look at arguments twice
        self._settle()

    def _scopes(self) -> dict[str, _Scope]:
        scopes: dict[str, _Scope] = {}
        for function in self._parts.functions:
            node, owner = function.node, function.cls
            if owner and known.is_model_class(self._parts.classes[owner]):
                continue
            nodes = list(ast.walk(node))
            params = tuple(a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs))
            outside = {n for s in nodes if isinstance(s, (ast.Global, ast.Nonlocal)) for n in s.names}
            local = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)} | {*params}
            name = f"{owner}.{node.name}" if owner else node.name
            prints = node.name in ("main", "run") or any(getattr(n, "id", "") == "print" for n in nodes)
            scope = _Scope(node, name, owner, params, local - outside, known.trained_names(node.body), prints)
            scopes.setdefault(name, scope)
        return scopes

    def _settle(self) -> None:
        """Go through the program until nothing changes: first for what is trained, then for the constants."""
        for self._marking in (True, False):
            if not self._marking:
                for name, value in self._written.items():
                    self._take_up(self._entries, name, value)
            for _ in range(_PASSES):
                self._changed = False
                self._body(self._parts.tree.body)
                for scope in self._functions.values():
                    self._function(scope)
                if not self._changed:
                    break

    # -- statements

    def _body(self, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            self._steps += 1
            if self._steps <= _MOST_STEPS:
                self._statement(statement)

    def _function(self, scope: _Scope) -> None:
        assert isinstance(scope.node, Definition)
        kept = self._control, self._training
        self._control, self._training, self._worked_out = [], 0, {}
        for name, default in defaults_of(scope.node):
            self._bind(scope, name, self._value(default))
        self._where.append(scope)
        self._body(scope.node.body)
        self._where.pop()
        self._control, self._training = kept

    def _statement(self, node: ast.stmt) -> None:
        scope, self._worked_out = self._where[-1], {}
        match node:
            case ast.Assign():
                value = self._value(node.value)
                for target in node.targets:
                    self._assign(target, value, node.value)
            case ast.AnnAssign(value=ast.expr() as given) | ast.AugAssign(value=given):
                self._assign(node.target, self._value(given), given)
            case ast.Expr():
                self._value(node.value)
            case ast.Return(value=ast.expr() as given) if scope.name:
                gives = _join((scope.gives, self._value(given)))
                self._changed = self._changed or gives != scope.gives
                scope.gives = gives
            case ast.For() | ast.AsyncFor():
                value, training = self._value(node.iter), known.trains(node)
                self._assign(node.target, value)
                # A loop that trains a new model each time repeats the measurement: how often is part of the metric.
                once = training and not any(isinstance(n, ast.Call) and self._is_model_call(n) for n in ast.walk(node))
                self._within(_NOTHING if once else value, node.body, training=once)
                self._body(node.orelse)
            case ast.While():
                self._value(node.test)
                self._within(_NOTHING, node.body, training=known.trains(node))
            case ast.If():
                test = _NOTHING if self._training else self._value(node.test)
                self._within(test, node.body)
                self._within(test, node.orelse)
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    value = self._value(item.context_expr)
                    if item.optional_vars is not None:
                        self._assign(item.optional_vars, value)
                self._body(node.body)
            case ast.Try():
                for block in blocks(node):
                    self._body(block)

    def _within(self, control: _Value, body: Sequence[ast.stmt], *, training: bool = False) -> None:
        self._control.append(_Value(control.raised(Strength.MIXED).taints))
        self._training += training
        self._body(body)
        self._training -= training
        self._control.pop()

    def _assign(self, target: ast.expr, value: _Value, node: ast.expr | None = None) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            parts = node.elts if isinstance(node, (ast.Tuple, ast.List)) else []
            fits = len(parts) == len(target.elts)
            for i, element in enumerate(target.elts):
                self._assign(element, self._value(parts[i]) if fits else value, parts[i] if fits else None)
            return
        if isinstance(target, ast.Starred):
            target = target.value
        value = _join((value, *self._control))
        if isinstance(target, ast.Name):
            self._store(target.id, value)
        elif isinstance(target, ast.Attribute):
            self._take_up(self._entries, target.attr, value)
        elif isinstance(target, ast.Subscript):
            if self._names_metric(target.slice):
                self._reach(value)
            if base := known.base_name(target):
                self._store(base, value._replace(kinds=frozenset()))

    def _store(self, name: str, value: _Value) -> None:
        scope = self._where[-1]
        self._bind(self._module if scope.name and name not in scope.local else scope, name, value)

    def _bind(self, scope: _Scope, name: str, value: _Value) -> None:
        self._take_up(scope.names, name, _TRAINED if name in scope.trained or name in self._models else value)

    def _take_up(self, values: dict[str, _Value], key: str, value: _Value) -> None:
        joined = _join((values[key], value)) if key in values else value
        if joined != values.get(key):
            values[key], self._changed = joined, True

    # -- expressions

    def _value(self, node: ast.expr) -> _Value:
        if (source := self._sources.get(id(node))) is not None:
            return _NOTHING if self._marking else _Value({source: Strength.NUMBER})
        if id(node) not in self._worked_out:
            self._worked_out[id(node)] = self._work_out(node)
        return self._worked_out[id(node)]

    def _values(self, nodes: Iterable[ast.expr | None]) -> list[_Value]:
        return [self._value(node) for node in nodes if node is not None]

    def _work_out(self, node: ast.expr) -> _Value:
        match node:
            case ast.Name():
                return self._load(node.id)
            case ast.Attribute():
                base = self._value(node.value)
                own = None if base.model or base.data else self._entries.get(node.attr)
                return base._replace(kinds=frozenset()) if own is None else self._seen_by_model(own)
            case ast.Subscript():
                return self._subscript(node)
            case ast.Call():
                return self._call(node)
            case ast.BinOp() | ast.Compare():
                operands = [node.left, node.right] if isinstance(node, ast.BinOp) else [node.left, *node.comparators]
                values = self._values(operands)
                if any(isinstance(o, ast.Call) and known.last_name(o.func) in known.RANDOM for o in operands):
                    values = [self._raised(v) for v in values]
                return self._through(values)
            case ast.Dict():
                self._show(v for k, v in zip(node.keys, node.values, strict=True) if k and self._names_metric(k))
                return _join(self._values(node.values))
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                control = []
                for generator in node.generators:
                    value = self._value(generator.iter)
                    self._assign(generator.target, value)
                    control += [value, *self._values(generator.ifs)]
                inner = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
                around = (v.raised(Strength.MIXED)._replace(model=False, kinds=frozenset()) for v in control)
                return _join((*self._values(inner), *around))
            case ast.NamedExpr():
                value = self._value(node.value)
                self._assign(node.target, value)
                return value
            case ast.Lambda() | ast.Yield() | ast.YieldFrom():
                return _NOTHING
        return _join(self._values(n for n in ast.iter_child_nodes(node) if isinstance(n, ast.expr)))

    def _load(self, name: str) -> _Value:
        scope = self._where[-1]
        if name == "self" and scope.owner and name not in scope.names:
            return _Value(kinds=frozenset({scope.owner}))
        home = scope if scope.name and name in scope.local else self._module
        return self._seen_by_model(home.names.get(name, _NOTHING))

    def _seen_by_model(self, value: _Value) -> _Value:
        """In a function of a model, plain numbers are the model's."""
        return value.at_least(Strength.MIXED) if self._in_model() else value

    def _in_model(self) -> bool:
        scope = self._where[-1]
        name = scope.name.rpartition(".")[2]
        if not name or known.EVALUATES.search(name):
            return False
        given = not scope.prints and any(scope.names.get(p, _NOTHING).model for p in scope.params)
        return given or _OF_A_MODEL.search(name) is not None

    def _subscript(self, node: ast.Subscript) -> _Value:
        base, index = self._value(node.value), node.slice
        own = None if base.model or base.data else self._entries.get(text_of(index))
        if own is not None and base.taints.keys() <= self._listed:  # of one with other things in it all counts
            here = {s: x for s, x in own.taints.items() if s in base.taints} if base.taints else own.taints
            return self._seen_by_model(own._replace(taints=here))
        parts = index.elts if isinstance(index, ast.Tuple) else [index]
        bounds = ((p.lower, p.upper, p.step) if isinstance(p, ast.Slice) else (p,) for p in parts)
        inner = self._values(chain.from_iterable(bounds))
        if any(isinstance(part, ast.Slice) for part in parts):  # X[:N] cuts the data; X[i : i + B] is one batch of it
            inner = [self._raised(value) for value in inner]
        return _join((base, *inner))._replace(kinds=frozenset())

    def _raised(self, value: _Value) -> _Value:
        """What makes data: hyper-parameters are only met by it on the way (batches)."""
        if self._training or self._in_model():
            return value
        least = {s: Strength.MIXED if known.usual(self.constants[s].name) else Strength.DATA for s in value.taints}
        return value._replace(taints={s: max(x, least[s]) for s, x in value.taints.items()})

    def _through(self, values: Iterable[_Value]) -> _Value:
        """What meets something trained comes out as what the model makes of it."""
        joined = _join(values)._replace(kinds=frozenset())
        if joined.model:
            return _Value(joined.at_least(Strength.DATA).taints, seen=True)
        return joined.raised(Strength.MIXED) if joined.data or joined.seen else joined

    # -- calls

    def _call(self, node: ast.Call) -> _Value:
        callee = known.last_name(node.func)
        receiver = self._value(node.func.value if isinstance(node.func, ast.Attribute) else node.func)
        arguments = self._values(node.args)
        keywords = {k.arg or f"**{i}": self._value(k.value) for i, k in enumerate(node.keywords)}
        if not self._everything:
            self._show(self._metric_values(node))
        elif not self._training and callee in _PRINTS:
            printed = (v for a in node.args for v in (a.values if isinstance(a, ast.JoinedStr) else [a]))
            self._reach(_join(v for v in self._values(printed) if v.seen))
        user = self._user_call(node, callee, receiver, arguments, keywords)
        if user is not None:
            return user
        if callee in ("vars", "asdict", "copy", "deepcopy") and arguments:
            return arguments[0]
        values = [self._whole(v) for v in (*arguments, *keywords.values())]
        if isinstance(node.func, ast.Attribute) and callee in ("append", "extend", "add", "insert", "update"):
            base = node.func.value  # a container takes something up
            if isinstance(base, (ast.Name, ast.Attribute, ast.Subscript)):
                taken = ast.Subscript(base, ast.Constant(0)) if isinstance(base, ast.Name) else base
                self._assign(taken, _join(values))
        return self._external(node, callee, self._whole(receiver), values)

    def _whole(self, value: _Value) -> _Value:
        """An object that holds data stands for all of it."""
        entries = {name for kind in value.kinds for name in self._holders.get(kind, ())}
        return _join((value, *(self._entries.get(name, _NOTHING) for name in sorted(entries))))

    def _external(self, node: ast.Call, callee: str, receiver: _Value, values: list[_Value]) -> _Value:
        given = _join(values)._replace(kinds=frozenset())
        everything = _join((receiver, given))._replace(kinds=frozenset())
        way = _way_of(callee, node)
        if way is not None:
            for source in (everything if callee.startswith("read_") else given).taints:
                self.found.setdefault(source, way)
            return everything.raised(Strength.DATA)._replace(data=True, model=False)
        if callee in known.DRAWS:
            if self._training or self._in_model():
                return _Value(everything.at_least(Strength.DATA).taints, data=True)
            made = self._raised(given) if callee in known.SAMPLES else given.raised(Strength.DATA)
            return _join((made, receiver))._replace(data=True, kinds=frozenset())
        if callee in known.FITS and not known.EVALUATES.search(callee):
            return _TRAINED
        if known.MEASURES.fullmatch(callee):
            return given._replace(model=False)
        if self._is_model_call(node):
            return _Value(given.at_least(Strength.DATA).taints, model=True, seen=True)
        if everything.model and callee.startswith(_ON_THE_WAY):
            return everything
        if callee[:1].isupper() and callee != "Path":
            return everything.at_least(Strength.MIXED)
        if everything.model and known.EVALUATES.search(callee):
            return everything._replace(model=False, seen=True)
        return self._through([receiver, *values])

    def _is_model_call(self, node: ast.Call) -> bool:
        callee = known.last_name(node.func)
        if callee in self._parts.classes:
            return known.is_model_class(self._parts.classes[callee])
        if known.MEASURES.fullmatch(callee):
            return False
        of_nn = isinstance(node.func, ast.Attribute) and known.base_name(node.func) in ("nn", "optim")
        return (of_nn and callee[:1].isupper()) or known.MODELS.fullmatch(callee) is not None

    def _user_call(
        self, node: ast.Call, callee: str, receiver: _Value, arguments: list[_Value], keywords: Mapping[str, _Value]
    ) -> _Value | None:
        """The call of a function or class of this program; None where it is another's."""
        own, made = isinstance(node.func, ast.Name), None
        if own and callee in self._functions:
            scope, skip = self._functions.get(callee), 0
        elif own and callee in self._parts.classes and not known.is_model_class(self._parts.classes[callee]):
            made = _Value(kinds=frozenset({callee}))
            scope, skip = self._functions.get(f"{callee}.__init__"), 1
            for name, value in keywords.items() if scope is None else ():
                self._take_up(self._entries, name, value)
        else:
            methods = (self._functions.get(f"{kind}.{callee}") for kind in sorted(receiver.kinds))
            scope, skip = next(filter(None, methods), None), 1
            if scope is not None:
                self._bind(scope, "self", receiver)
        if scope is None:
            return made
        for name, value in (*zip(scope.params[skip:], arguments, strict=False), *keywords.items()):
            if name in scope.params:
                self._bind(scope, name, value)
        if made is not None:
            return made
        trained = self._training and not known.EVALUATES.search(scope.name)
        return scope.gives.at_least(Strength.DATA) if trained else scope.gives

    # -- where it ends

    def _names_metric(self, node: ast.expr) -> bool:
        """Whether a text has the name of the metric in it."""
        return bool(self._metric) and self._named.search(text_of(node)) is not None

    def _metric_values(self, node: ast.Call) -> Iterator[ast.expr]:
        callee = known.last_name(node.func)
        yield from (k.value for k in node.keywords if k.arg and k.arg == self._metric)
        if callee in _LOGS and node.args and self._names_metric(node.args[0]):
            yield from node.args[1:2]
        for i, argument in enumerate(node.args if callee in _PRINTS else ()):
            if isinstance(argument, ast.JoinedStr):  # the field behind the name
                behind = (b for a, b in pairwise(argument.values) if self._names_metric(a))
                yield from [b.value for b in behind if isinstance(b, ast.FormattedValue)][:1]
            elif self._names_metric(argument):
                yield from node.args[i + 1 : i + 2]
            elif any(isinstance(n, ast.Constant) and self._names_metric(n) for n in ast.walk(argument)):
                yield from _filled(argument)

    def _show(self, nodes: Iterable[ast.expr]) -> None:
        for node in nodes:
            self.shown = True
            self._reach(self._value(node))

    def _reach(self, value: _Value) -> None:
        self.of_model |= value.seen or value.model
        for source, strength in value.taints.items():
            name = self.constants[source].name
            if strength is Strength.DATA:
                self.found.setdefault(source, Way.MAKES)
            elif not known.usual(name) or "smoothing" in words_of(name):
                self.found.setdefault(source, Way.METRIC)


def _filled(node: ast.expr) -> Iterator[ast.expr]:
    """What is filled into a text by % or format, or joined to it."""
    if isinstance(node, ast.Call) and known.last_name(node.func) in ("format", "join"):
        yield from (*node.args, *(k.value for k in node.keywords))
    elif isinstance(node, ast.BinOp):
        yield from _filled(node.left)
        yield node.right


def _way_of(callee: str, node: ast.Call) -> Way | None:
    """What a call does with data for certain; None where it need not."""
    of = known.last_name(node.func.value) if isinstance(node.func, ast.Attribute) else ""
    if callee == "open":
        mode = getattr(node.args[1], "value", "") if len(node.args) > 1 else ""
        return None if set(str(mode)) & set("wax") else Way.READS
    if known.READS.fullmatch(callee) or (callee == "load" and of in ("np", "numpy", "jnp")):
        return Way.READS
    if known.MAKES.fullmatch(callee):
        return Way.MAKES
    return Way.SPLITS if known.SPLITS.fullmatch(callee) else Way.SEEDS if callee in known.SEEDS else None
