"""An edit that only tries its luck is no experiment, one that breaks what the evaluation uses does not run."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoresearchd.domain.labels import Label
from autoresearchd.errors import PolicyError
from autoresearchd.evaluator.legality import check_edit, required_symbols
from autoresearchd.evaluator.program_text import without_seeds
from tests.unit.evaluator.builders import task

OLD = """\
import os, random, torch
SEED = 3
WIDTH = 4
def batches(path, seed=1, *, rows=2): return random.Random(seed + 1)
def load_model(path): return torch.load(path)
def main():
    seed = int(os.environ.get("AUTORESEARCHD_SEED", 42))
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    return train(seed=seed, width=WIDTH)
"""
REQUIRED = {"train.py": frozenset({"load_model"})}


def verdict(new: str, old: str = OLD) -> Label:
    try:
        check_edit(task(), {"train.py": old}, {"train.py": new}, required=REQUIRED)
    except PolicyError as error:
        assert error.mend
        return error.label
    return Label.NONE


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("SEED = 3", "SEED = 4"),
        ("seed=1", "seed=2"),
        ("manual_seed(seed)\n    gen", "manual_seed(1337)\n    gen"),
        ("    torch.manual_seed(seed)\n", ""),
        ("    torch.manual_seed(seed)\n", "    torch.manual_seed(seed)\n    random.seed(7)\n"),
        ('int(os.environ.get("AUTORESEARCHD_SEED", 42))', "137"),
        ("seed=seed", "seed=137"),
        ("Random(seed + 1)", "Random(9)"),
        ("Generator().manual_seed(seed)", "Generator().manual_seed(137)"),
    ],
)
def test_an_edit_of_a_seed_alone_is_not_run(old: str, new: str) -> None:
    assert OLD.count(old) == 1
    assert verdict(OLD.replace(old, new)) is Label.NO_OP


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("WIDTH = 4", "WIDTH = 5"),
        ("seed=1, *, rows=2", "seed=1, *, rows=3"),
        ("seed=1, *, rows=2", "seed, *, rows=2, seeded=True"),
        ("width=WIDTH", "width=WIDTH, seeds=3"),
        ("return train(", "return seed_everything_and_train("),
        ("import os,", "import json, os,"),
    ],
)
def test_an_edit_of_anything_else_is_run(old: str, new: str) -> None:
    assert OLD.count(old) == 1
    assert verdict(OLD.replace(old, new)) is Label.NONE


@pytest.mark.parametrize(
    ("before", "after"),
    [("def f(a=1, *, b): pass", "def f(a, *, b=1): pass"), ("x = {**a, 'k': b}", "x = {'k': a, **b}")],
)
def test_programs_that_differ_in_more_than_a_seed_are_not_confused(before: str, after: str) -> None:
    assert verdict(OLD + after, OLD + before) is Label.NONE


def test_a_seed_that_is_pinned_beside_a_change_is_refused() -> None:
    pinned = OLD.replace('int(os.environ.get("AUTORESEARCHD_SEED", 42))', "137")
    assert verdict(pinned.replace("WIDTH = 4", "WIDTH = 5")) is Label.ILLEGAL_EDIT


def test_what_the_evaluation_uses_must_stay() -> None:
    assert verdict(OLD.replace("def load_model", "def load")) is Label.ILLEGAL_EDIT


@pytest.mark.parametrize(
    "instead",
    [
        "if True:\n    def load_model(path): return 1\n",
        "try:\n    from models import load_model\nexcept ImportError:\n    load_model = None\n",
        "from models import *\n",
        "load_model: object = lambda path: 1\n",
        "def make():\n    global load_model\n    load_model = 1\nmake()\n",
        "globals()['load_' + 'model'] = 1\n",
        "def __getattr__(name): return 1\n",
    ],
)
def test_a_name_may_come_about_in_any_way(instead: str) -> None:
    assert verdict(OLD.replace("def load_model(path): return torch.load(path)\n", instead)) is Label.NONE


def test_required_names_are_those_that_the_protected_programs_take() -> None:
    sources = {
        "serve.py": "import train as t, train_more\nmodel = t.load_model(1)\nx = other.thing\n",
        "evaluate.py": "from train import VOCAB, Config as C\nfrom .train import a\nfrom elsewhere import b\n",
        "notes.md": "import train\ntrain.nothing",
        "broken.py": "import train\ntrain.nothing(",
    }
    assert required_symbols(task(), sources) == {"train.py": frozenset({"load_model", "VOCAB", "Config"})}


def test_characters_that_turn_the_direction_of_writing_are_refused_where_there_were_none() -> None:
    turned = OLD + "y = '\u202e'\n"
    assert verdict(turned) is Label.ILLEGAL_EDIT
    assert verdict(turned + "z = 1\n", turned) is Label.NONE


def test_a_program_that_is_nested_too_deeply_to_be_compared_is_no_error_of_the_daemon() -> None:
    deep = "x = " + "(-" * 80 + "1" + ")" * 80 + "\n"
    assert verdict(OLD + deep) is Label.NONE


@given(
    st.sampled_from(["seed", "lr", "rows"]),
    st.integers(0, 9),
    st.sampled_from(["{0}={1}", "f({0}={1})", "{0}: int = {1}"]),
)
def test_leaving_out_seeds_changes_the_tree_only_where_there_is_one(name: str, value: int, form: str) -> None:
    tree = ast.parse(form.format(name, value))
    before = ast.dump(tree)
    changed = ast.dump(without_seeds(tree)) != before
    assert changed == (name == "seed")
    assert ast.dump(tree) == before, "the tree itself stays as it is"
