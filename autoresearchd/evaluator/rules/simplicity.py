"""How simple a program is: the nodes of its syntax tree (the rule of autoresearch-ml); and where it could hide one.

Nodes do not change with layout, comments, names, docstrings or the values of constants. Nor can they be hidden: beside
them text, numbers and long names are weighed by their length, so that code moved into a string gains nothing. A program
that gains a mention of what runs text as code or reads its own text (``ways``) is never simpler; where one has a way to
run text already, its docstrings and comments are weighed as well. The text comes from a model and is only parsed.

A mention is enough: an alias (``e = exec``) is one, too. So is what a name is found by: an attribute that a pattern or
a text names (``case object(__self__=m)``, ``"{.__doc__}".format(f)``), another name of ``os`` or ``sys``. Methods of
other objects (``model.eval()``, ``torch.compile``, ``re.compile``) are none.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from autoresearchd.evaluator.rules.program_text import UNPARSABLE, parse

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
        "marshal", "ctypes", "codeop", "_os", "_sys",
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


def reads_text(found: Mapping[str, int]) -> bool:
    """Whether comments can matter to the program."""
    return not _READ_TEXT.isdisjoint(found)


def _plain(node: ast.AST) -> ast.Name | None:
    """The name in a node that is no mention there: its own folder, the module of ``os.path``, a call of ``getattr``.

    What ``hasattr`` is asked of is none either.
    """
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
_FREE_NAME = 40
"""Bytes of a name that are not weighed: text is read from a longer one (``[*dict(a=0)]``, ``NameError.name``)."""
_FREE_NAME_WHERE_TEXT_RUNS = 12
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class Size:
    """Of a program: nodes; weight: nodes, and the text of its constants by its length; ways: see ``ways``."""

    nodes: int
    weight: int
    ways: Counter[str] = field(default_factory=Counter)


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
        weight += _comments(text)
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
        gained.update(after.ways)
        gained.subtract(before.ways)
    return nodes < 0 and weight < 0 and max(gained.values(), default=0) <= 0


def _docstring(node: ast.AST) -> ast.Expr | None:
    """The statement that documents a node."""
    first = node.body[0] if isinstance(node, _DOCUMENTED) and node.body else None
    value = first.value if isinstance(first, ast.Expr) else None
    is_text = isinstance(value, ast.Constant) and isinstance(value.value, str)
    return first if is_text and isinstance(first, ast.Expr) else None


def _comments(text: str) -> int:
    """Characters of the comments in a program that parses."""
    tokens = tokenize.generate_tokens(io.StringIO(text.removeprefix("\ufeff")).readline)
    try:
        return sum(len(token.string) for token in tokens if token.type == tokenize.COMMENT)
    except (tokenize.TokenError, SyntaxError):  # the parser is more lenient: then all of it counts
        return len(text)


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
