"""What is read out of a program's text: names that others rely on, seeds, variables, and how simple it is.

Simplicity is the number of nodes of its syntax tree (the rule of autoresearch-ml): layout, comments, names, docstrings
and values of constants do not change it. Nor can nodes be hidden: text, numbers and long names are weighed by their
length, so that code moved into a string gains nothing. A program that gains a mention of what runs text as code or
reads its own text (``ways``) is never simpler; where one has a way to run text already, its docstrings and comments are
weighed as well. The text comes from a model and is only parsed.

A mention is enough: an alias (``e = exec``) is one, too. So is what a name is found by: an attribute that a pattern or
a text names (``case object(__self__=m)``, ``"{.__doc__}".format(f)``), another name of ``os`` or ``sys``. Methods of
other objects (``model.eval()``, ``torch.compile``, ``re.compile``) are none.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import PurePosixPath
from typing import cast

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
    """Names of the module at ``path`` that ``readers``, the protected programs by path, take from it."""
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
    """The program without calls that only seed, values of names like ``seed``, and what a generator is made from."""
    return cast("ast.Module", _WithoutSeeds().visit(tree))


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


def fixed_seeds(tree: ast.Module) -> int:
    """How often a program seeds with a constant, or names one a seed; a generator for a fixed split of data is none."""
    return sum(_fixes_seed(node) for node in ast.walk(tree))


def _fixes_seed(node: ast.AST) -> bool:
    if isinstance(node, ast.Call) and _last_name(node.func) in _SEEDERS:
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        return bool(given) and all(isinstance(value, ast.Constant) for value in given)
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    constant = isinstance(getattr(node, "value", None), ast.Constant)
    return constant and any(map(_is_seed, targets))


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


@lru_cache(maxsize=16)
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
    """Whether nothing reads the seed that the daemon gives each run: σ does not hold the luck of the program's own.

    A program that draws nothing and is measured by an evaluation has no seed that a gain could be owed to.
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


# ---------------------------------------------------------------------- simplicity
_SCRIPT = "a name of a Python file"
_COMPUTED = "getattr of a computed name"
_ALIASED = "another name of a module that runs commands"

_NAMES_THAT_RUN = frozenset({"exec", "eval", "compile", "__import__", "__builtins__", "execfile", "breakpoint"})
_NAMES = frozenset(
    {"help", "globals", "locals", "vars", "dir", "__loader__", "__spec__", "__doc__", "__file__", "__cached__"}
)
_ATTRIBUTES_THAT_RUN = frozenset(
    {
        "exec", "__import__", "__builtins__", "__globals__", "__code__", "__subclasses__", "f_globals", "f_builtins",
        "import_module", "run_path", "run_module", "exec_module", "load_inline", "CompilationUnit", "popen",
        "execv", "execve", "execvp", "execvpe", "execl", "execle", "execlp", "execlpe", "posix_spawn", "posix_spawnp",
        "spawnl", "spawnle", "spawnlp", "spawnlpe", "spawnv", "spawnve", "spawnvp", "spawnvpe", "get_type_hints",
        "create_subprocess_exec", "create_subprocess_shell", "subprocess_exec", "subprocess_shell", "ForwardRef",
        "__self__", "__dict__", "__getattribute__", "attrgetter", "methodcaller", "get_objects", "get_referrers",
        "get_referents", "ForkingPickler", "Unpickler", "fileConfig", "dictConfig", "BaseConfigurator", "runstring",
        "rundocs", "breakpointhook", "_create_fn", "subprocess", "builtins", "importlib", "runpy", "pickle",
        "marshal", "ctypes", "codeop", "_os", "_sys", "singledispatch", "singledispatchmethod",
    }
)  # fmt: skip
_ATTRIBUTES = frozenset(
    {
        "__doc__", "__file__", "__cached__", "__loader__", "__spec__", "__name__", "__qualname__", "__annotations__",
        "orig_argv", "co_consts", "co_names", "co_varnames", "co_filename", "f_code", "f_locals", "tb_frame", "getdoc",
        "getsource", "getsourcelines", "getsourcefile", "getcomments", "findsource", "get_source", "get_data",
        "formatwarning",
    }
)  # fmt: skip
_ATTRIBUTES_OF = {"sys": frozenset({"modules", "argv"}), "os": frozenset({"system"})}  # models have `modules`, too
_MODULES_THAT_RUN = frozenset(
    {
        "builtins", "importlib", "imp", "runpy", "pkgutil", "zipimport", "code", "codeop", "marshal", "pickle", "dill",
        "cloudpickle", "shelve", "timeit", "cProfile", "profile", "trace", "bdb", "pdb", "doctest", "subprocess",
        "ctypes", "cffi", "types", "pty", "operator", "_pickle", "_ctypes", "_posixsubprocess", "_imp", "posix", "nt",
        "_operator", "rlcompleter", "_interpreters", "_xxsubinterpreters", "logging.config", "numpy.testing",
        "multiprocessing", "unittest",
    }
)  # fmt: skip
_MODULES = frozenset(
    {
        "inspect", "linecache", "tokenize", "ast", "pydoc", "traceback", "codecs", "zlib", "base64", "binascii", "bz2",
        "lzma", "gzip",
    }
)  # fmt: skip
_PICKLED = "a file that may hold code"
_RUN = _NAMES_THAT_RUN | _ATTRIBUTES_THAT_RUN | _MODULES_THAT_RUN | {_COMPUTED, _ALIASED, _PICKLED, "modules", "system"}
_KNOWN = _ATTRIBUTES_THAT_RUN | _ATTRIBUTES
_WORD = re.compile(r"__[a-z_]+?__")
_READ_DOCUMENTATION = frozenset({"help", "__doc__", "getdoc", "inspect", "pydoc", "doctest", "ast", "co_consts"})
_READ_TEXT = frozenset(
    {
        "__file__", "__cached__", "__loader__", "__spec__", "argv", "orig_argv", "co_filename", "inspect", "linecache",
        "tokenize", "traceback", "formatwarning",
        "getsource", "getsourcelines", "getsourcefile", "getcomments", "findsource", "get_source", "get_data", _SCRIPT,
    }
)  # fmt: skip


def ways(tree: ast.AST) -> Counter[str]:
    """What a program mentions of the above, and how often. Its own folder is none: there its data lies."""
    nodes = list(ast.walk(tree))
    plain = {id(name) for node in nodes if (name := _plain(node)) is not None}
    return Counter(word for node in nodes if id(node) not in plain for word in _words(node))


def reads_text(mentioned: Mapping[str, int]) -> bool:
    """Whether comments can matter to the program."""
    return not _READ_TEXT.isdisjoint(mentioned)


def _plain(node: ast.AST) -> ast.Name | None:
    """The name in a node that is no mention there: its own folder, the module of ``os.path``, a call of ``getattr``."""
    match node:
        case ast.Attribute(value=ast.Name(id=name) as found) if name in _ATTRIBUTES_OF:
            return found
        case ast.Call(func=ast.Name(id="getattr") as found):
            return found
        case ast.Call(func=ast.Name(id="hasattr"), args=[ast.Name(id=name) as found, _]) if name in _ATTRIBUTES_OF:
            return found
        case _:
            return _folder(node)


def _folder(node: ast.AST) -> ast.Name | None:
    """The ``__file__`` of ``Path(__file__).resolve().parent`` or ``os.path.dirname(os.path.abspath(__file__))``."""
    match node:
        case ast.Attribute(attr="parent" | "parents", value=inner):
            while isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and not inner.args:
                inner = inner.func.value  # resolve(), absolute()
            names, rest = {"Path"}, inner
        case ast.Call(func=ast.Attribute(attr="dirname"), args=[inner]):
            names, rest = {"abspath", "realpath"}, inner
            if isinstance(rest, ast.Name):
                return rest if rest.id == "__file__" else None
        case _:
            return None
    match rest:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[ast.Name(id="__file__") as found]):
            return found if name in names else None
        case _:
            return None


def _words(node: ast.AST) -> list[str]:
    """The mentions that a node makes by itself."""
    match node:
        case ast.Name(id=name) if name in _NAMES_THAT_RUN | _NAMES:
            return [name]
        case ast.Name(id=name) if name in _ATTRIBUTES_OF:
            return [_ALIASED]
        case ast.Name(id="getattr"):
            return [_COMPUTED]
        case ast.Attribute(attr=name) if name in _KNOWN:
            return [name]
        case ast.Attribute(attr=name, value=ast.Name(id=module) | ast.Attribute(attr=module)):
            return [name] if name in _ATTRIBUTES_OF.get(module, ()) else []
        case ast.Import(names=names):
            found = [word for alias in names for word in _modules(alias.name)]
            aliased = [_ALIASED for alias in names if alias.name in _ATTRIBUTES_OF and alias.asname]
            return [*aliased, *found]
        case ast.ImportFrom(module=module, names=names):
            root = (module or "").partition(".")[0]
            known = _KNOWN | _ATTRIBUTES_OF.get(root, frozenset()) | _ATTRIBUTES_OF.keys()
            found = [alias.name for alias in names if alias.name in known or (alias.name == "*" and root in known)]
            inner = {word for alias in names for word in _modules(f"{module}.{alias.name}")}
            return [*found, *sorted(inner)]
        case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(value=str(name)), *_]):
            known = _NAMES_THAT_RUN | _NAMES | _KNOWN
            return [name] if name in known - {"eval", "compile"} else []
        case ast.Call(func=ast.Name(id="getattr"), args=[_, _, *_]):
            return [_COMPUTED]
        case ast.MatchClass(kwd_attrs=names):
            return [name for name in names if name in _KNOWN | _NAMES_THAT_RUN]
        case ast.keyword(arg="allow_pickle" | "weights_only" as name, value=value):
            return [] if isinstance(value, ast.Constant) and value.value is (name == "weights_only") else [_PICKLED]
        case ast.Constant(value=str(text)):
            script = (".py" in text or "/proc/self" in text) and len(text.split()) == 1
            return [*[_SCRIPT][: int(script)], *(word for word in _WORD.findall(text) if word in _KNOWN)]
        case _:
            return []


def _modules(name: str) -> list[str]:
    """Which of the above modules are imported with one of this name: itself, or the packages that it lies in."""
    parts = name.split(".")
    every = (".".join(parts[: length + 1]) for length in range(len(parts)))
    return [module for module in every if module in _MODULES_THAT_RUN | _MODULES]


_TEXT_PER_NODE = 2
"""Characters of a string constant that count as one more node; code has two or three characters for each."""
_BITS_PER_CHARACTER = 8
"""Of a number, which holds text as well as a string does."""
_FREE_NAME, _FREE_NAME_WHERE_TEXT_RUNS = 40, 12
"""Bytes of a name that are not weighed: text is read from a longer one (``[*dict(a=0)]``, ``NameError.name``)."""
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class Size:
    """Of a program: nodes; weight: nodes, and the text of its constants by its length; ways: see ``ways``."""

    nodes: int
    weight: int
    ways: Counter[str] = field(default_factory=Counter)


@lru_cache(maxsize=16)
def size(text: str) -> Size | None:
    """Of a Python program, docstrings weighed only where something may read them; None when it cannot be parsed."""
    try:
        tree = parse(text)
    except UNPARSABLE:
        return None
    documented = [node for node in map(_docstring, ast.walk(tree)) if node is not None]
    documentation = {id(part) for node in documented for part in (node, node.value)}
    counted = [node for node in ast.walk(tree) if id(node) not in documentation]
    found = ways(tree)
    runs = not _RUN.isdisjoint(found)
    per_node = 1 if runs else _TEXT_PER_NODE  # code that is run from text counts in full, however dense
    free = _FREE_NAME_WHERE_TEXT_RUNS if runs else _FREE_NAME
    weight = sum(_weight(node, per_node, free) for node in counted)
    if runs or reads_text(found) or not _READ_DOCUMENTATION.isdisjoint(found):
        weight += sum(_weight(node.value, per_node, free) for node in documented)
    if runs:  # by which file it could read them is not followed
        weight += sum(map(len, _comments(text)))
    return Size(len(counted), weight, found)


def is_simpler(new: Mapping[str, str], old: Mapping[str, str]) -> bool:
    """Whether a program has fewer nodes than another one; never where one of its changed files cannot be counted."""
    changed = [path for path in {**old, **new} if new.get(path) != old.get(path)]
    if not changed or not all(path.endswith(".py") for path in changed):
        return False
    nodes = weight = 0
    gained: Counter[str] = Counter()
    for path in changed:
        after, before = size(new.get(path, "")), size(old.get(path, ""))
        if after is None or before is None:
            return False
        nodes += after.nodes - before.nodes
        weight += after.weight - before.weight
        # Old prose is free, and what is new may be a program that is run in a way that nobody has thought of.
        added = _prose(new.get(path, "")) - _prose(old.get(path, ""))
        weight += sum(len(words.encode("utf-8", "surrogatepass")) for words in added.elements())
        gained.update(after.ways)
        gained.subtract(before.ways)
    return nodes < 0 and weight < 0 and max(gained.values(), default=0) <= 0


def is_larger(new: Mapping[str, str], old: Mapping[str, str]) -> bool:
    """Whether a program has more nodes than another one; never where one of its changed files cannot be counted."""
    changed = [path for path in {**old, **new} if new.get(path) != old.get(path) and path.endswith(".py")]
    sizes = [(size(new.get(path, "")), size(old.get(path, ""))) for path in changed]
    return sum(after.nodes - before.nodes if after and before else 0 for after, before in sizes) > 0


def _docstring(node: ast.AST) -> ast.Expr | None:
    """The statement that documents a node."""
    match node.body[:1] if isinstance(node, _DOCUMENTED) else []:
        case [ast.Expr(value=ast.Constant(value=str())) as first]:
            return first
    return None


def _prose(text: str) -> Counter[str]:
    """The docstrings and comments of a program that parses."""
    documented = filter(None, map(_docstring, ast.walk(parse(text))))
    return Counter([*(ast.literal_eval(node.value) for node in documented), *_comments(text)])


def _comments(text: str) -> list[str]:
    """The comments in a program that parses."""
    tokens = tokenize.generate_tokens(io.StringIO(text.removeprefix("\ufeff")).readline)
    try:
        return [token.string for token in tokens if token.type == tokenize.COMMENT]
    except (tokenize.TokenError, SyntaxError):  # the parser is more lenient: then all of it counts
        return [text]


def _weight(node: ast.AST, per_node: int, free: int) -> int:
    if not isinstance(node, ast.Constant):
        free = 0 if isinstance(node, ast.keyword) else free  # an argument in a call is like the key of a dict
        return 1 + sum(max(0, len(name.encode("utf-8", "surrogatepass")) - free) for name in _names(node)) // per_node
    match node.value:
        case str(text):
            return 1 + len(text.encode("utf-8", "surrogatepass")) // per_node
        case bytes(data):
            return 1 + len(data) // per_node
        case int(number):
            return 1 + number.bit_length() // (_BITS_PER_CHARACTER * per_node)
        case float() | complex() as number:
            return 1 + len(repr(number)) // (2 * per_node)  # a digit is a third of a byte, a short one is no text
        case _:
            return 1


def _names(node: ast.AST) -> Iterator[str]:
    """The names that a node itself holds: of a variable, an attribute, an argument, a module."""
    for field_name in node._fields:
        value = getattr(node, field_name, None)
        for name in value if isinstance(value, list) else (value,):
            if isinstance(name, str):
                yield name
