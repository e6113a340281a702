"""Simpler means fewer nodes in the syntax tree, not fewer lines, comments or letters."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoresearchd.evaluator.rules.program_text import is_simpler, size

PROGRAM = 'def f(x):\n    """Documented."""\n    y = x + 1\n    return y\n'


def simpler(new: str, old: str = PROGRAM, path: str = "train.py") -> bool:
    return is_simpler({path: new}, {path: old})


def test_less_code_is_simpler_and_more_is_not() -> None:
    shorter = "def f(x):\n    return x + 1\n"
    assert simpler(shorter) and not simpler(PROGRAM, shorter)


@pytest.mark.parametrize(
    "new",
    [
        PROGRAM, PROGRAM.replace('    """Documented."""\n', ""), PROGRAM.replace("x", "a"), PROGRAM + "# a comment\n",
        PROGRAM.replace("x + 1", "x + 2"), f"exec({PROGRAM!r})\n", "def f(:\n",
    ],
)  # fmt: skip
def test_comments_names_constants_and_tricks_do_not_count(new: str) -> None:
    assert not simpler(new)


LONG = "import math\ndef f(x):\n" + "".join(f"    x = math.sin(x + {n}) * x\n" for n in range(40)) + "    return x\n"
COMMENTED = "".join(f"#@{line}\n" for line in LONG.splitlines())


@pytest.mark.parametrize(
    "hidden",
    [
        f"{LONG!r}\nexec(__doc__)\n",
        f"{LONG!r}\ne = exec\ne(__doc__)\n",
        f"{LONG!r}\nimport builtins as b\ngetattr(b, 'ex' + 'ec')(b.__dict__ and globals()['__d' + 'oc__'])\n",
        f"def f():\n    {LONG!r}\nimport inspect, code\ncode.InteractiveInterpreter().runsource(inspect.getdoc(f))\n",
        f"def f():\n    {LONG!r}\n__import__('runpy').run_path(f.__doc__)\n",
        COMMENTED + "exec('\\n'.join(line[2:] for line in open(__file__).read().splitlines() if line[:2] == '#@'))\n",
        f"exec(bytes.fromhex('%x' % 0x{LONG.encode().hex()}))\n",
        f"from builtins import eval as f\nf(compile('', '', 'exec'))\n# {LONG!r}\n",
    ],
)
def test_a_program_hidden_in_text_is_no_simpler_one(hidden: str) -> None:
    """It was kept as `simpler`, with everything that a reader of the program wants to know in a comment."""
    assert not simpler(hidden, LONG)


DOCUMENTED = f"def g():\n    {LONG!r}\n"
NAME = "".join(chr(0x4E00 + byte) for byte in LONG.encode())
"""The program as letters, of which a name may consist."""
PAIRS = "".join(chr(0x10000 + 256 * ord(a) + ord(b)) for a, b in zip(LONG[::2], LONG[1::2], strict=False))
NUMBERS = [struct.unpack("d", LONG.encode().ljust(8000)[at : at + 8])[0] for at in range(0, 8000, 8)]


@pytest.mark.parametrize(
    "hidden",
    [
        DOCUMENTED + "print.__self__.__dict__['exec']('{.__doc__}'.format(g))\n",
        DOCUMENTED + "match print, g:\n    case object(__self__=object(exec=e)), object(__doc__=t):\n        e(t)\n",
        DOCUMENTED + "import os as o\no.system('python -c \\'' + '{.__doc__}'.format(g) + '\\'')\n",
        DOCUMENTED + "import os\no = os\no.system('python -c \\'' + next(iter(g.__code__.co_consts)) + '\\'')\n",
        DOCUMENTED + "from os import *\nspawnv(0, 'python', ['p', '-c', '{.__doc__}'.format(g)])\n",
        DOCUMENTED + "import random\nrandom._os.system('{.__doc__}'.format(g))\n",
        DOCUMENTED + "a = getattr\na(a(print, '__se' 'lf__'), 'ex' + 'ec')(a(g, '__d' + 'oc__'))\n",
        DOCUMENTED + "import operator as o\no.attrgetter('exec')(print)(o.attrgetter('_' '_doc__')(g))\n",
        DOCUMENTED + "import gc\n[o for o in gc.get_objects() if 'exec' in o][0]['exec']('{.__doc__}'.format(g))\n",
        DOCUMENTED + "import os\nos.environ['PYTHONBREAKPOINT'] = 'builtins.exec'\nbreakpoint(text)\n",
        DOCUMENTED + "import logging.config as c\nc.BaseConfigurator({}).resolve('builtins.exec')(text)\n",
        DOCUMENTED + "from logging import config as c\nc.dictConfig(text)\n",
        DOCUMENTED + "import numpy.testing as t\nt.runstring(text, {})\n",
        DOCUMENTED + "import numpy\nnumpy.load(file, allow_pickle=True)\n",
        DOCUMENTED + "import torch\ntorch.load(file, weights_only=False)\n",
        DOCUMENTED + "import functools as f\nf.singledispatch(g).register(lambda a: 0)\n",
        DOCUMENTED + "import some_way_that_nobody_has_thought_of as s\ns.run(g)\n",
        f"run(bytes(ord(c) - 0x4e00 for c in [*dict({NAME}=0)][0]).decode())\n",
        f"try:\n    {NAME}\nexcept NameError as e:\n    run(bytes(ord(c) - 0x4e00 for c in e.name))\n",
        f"import enum\nclass A(enum.Enum):\n    {NAME} = 0\nrun(A(0).name)\n",
        f"import numpy\nrun(numpy.array({NUMBERS!r}).tobytes())\n",
    ],
)
def test_a_program_found_by_another_way_is_no_simpler_one(hidden: str) -> None:
    """None of these says ``exec`` or ``__doc__`` as a name or an attribute, and each was kept as `simpler`."""
    assert not simpler(hidden, LONG)


@pytest.mark.parametrize(
    ("before", "text"),
    [
        ("", f"0x{LONG.encode().hex()}.to_bytes({len(LONG)}, 'big')"),
        ("", f"bytes(ord(c) - 0x4e00 for c in [*dict({NAME}=0)][0])"),
        ("", f"''.join({PAIRS!r})"),
        (DOCUMENTED, "('{.__' + 'doc__}').format(g)"),
        (COMMENTED + "t = open(glob.glob('*')[0]).read()\n", "t.replace('#@', '')"),
    ],
)
def test_a_program_that_starts_processes_hides_none_in_a_number_a_name_or_its_words(before: str, text: str) -> None:
    """Eight characters of a number, and any of a name, weighed no more than one of code."""
    begin = "import subprocess, glob\n"
    assert not simpler(f"{begin}{before}subprocess.run(['python', '-c', {text}])\n", begin + LONG)


@pytest.mark.parametrize("had", ["exec(open(__file__).read()[:0])\n", "exec(__doc__ or '')\n"])
def test_where_a_program_can_run_its_text_already_the_text_counts(had: str) -> None:
    assert not simpler((f"{LONG!r}\n" if "doc" in had else COMMENTED) + had, had + LONG)
    assert simpler(had, had + LONG)


@pytest.mark.parametrize(
    "line",
    [
        "model.eval()", "model = torch.compile(model)", "word = re.compile('[a-z]+')",
        "data = Path(__file__).resolve().parent / 'data'",
        "data = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'data')", "layers = list(model.modules())",
        "mode = getattr(model, 'mode', 'eval')", "if __name__ == '__main__':\n    main()",
        "code = trace = profile = types = 1", "mode = os.environ.get('MODE', 'eval')",
        "print('loss', file=sys.stderr)",
        "cores = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else 1",
        "weights = torch.load('weights.pt', map_location='cpu', weights_only=True)",
        "optimizer = torch.optim.AdamW(parameters, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)",
    ],
)  # fmt: skip
def test_what_honest_programs_say_keeps_nobody_from_being_simpler(line: str) -> None:
    assert simpler(line + "\n", LONG)
    assert not simpler(f"'Words.'\n{line}\n", f"'More words than those.'\n{line}\n")


@given(st.text(max_size=200))
def test_any_text_is_counted_or_not_but_never_an_error(text: str) -> None:
    found = size(text)
    assert found is None or 1 <= found.nodes <= found.weight
