"""Where a program could hide one: what it mentions by which text is run as code, or by which it reads its own text.

Comments, docstrings and names are free of charge wherever programs are compared. They are so only while nothing runs
or reads them. A mention is enough: an alias (``e = exec``) is one, too, and what is done with it is not followed.
So is what a name is found by: an attribute that a pattern or a text names (``case object(__self__=m)``,
``"{.__doc__}".format(f)``), another name of ``os`` or ``sys``. Methods of other objects (``model.eval()``,
``torch.compile``, ``re.compile``) are none.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Mapping

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


def runs_text(found: Mapping[str, int]) -> bool:
    """Whether text can become code by what ``ways`` found."""
    return not _RUN.isdisjoint(found)


def reads_documentation(found: Mapping[str, int]) -> bool:
    """Whether docstrings can matter to the program."""
    return not _READ_DOCUMENTATION.isdisjoint(found) or reads_text(found)


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
