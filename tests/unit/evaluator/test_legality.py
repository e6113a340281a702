"""Edits that may not run are stopped before a job is spent, and the same program is known again."""

from __future__ import annotations

import base64
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoresearchd.config.task_paths import MAX_EDITABLE_BYTES
from autoresearchd.domain.errors import PolicyError
from autoresearchd.domain.labels import Label
from autoresearchd.domain.redaction import Redactor, mark
from autoresearchd.evaluator.rules.legality import check_edit, check_no_secret, code_hash, required_symbols
from tests.fakes.policies import make_task
from tests.unit.domain.canaries import TOKENS, letters
from tests.unit.evaluator.builders import task

OLD = {"train.py": "LR = 0.1  # rate\n\n\ndef f(x):\n    return x + 1\n"}


def label_of(new: dict[str, str], old: dict[str, str] | None = None) -> tuple[Label, str]:
    with pytest.raises(PolicyError) as caught:
        check_edit(task(), old if old is not None else OLD, new)
    assert caught.value.hint
    return caught.value.label, str(caught.value)


@pytest.mark.parametrize(
    "path", ["prepare.py", "../train.py", "./train.py", "/etc/passwd", "train.py/", "", "TRAIN.PY", "-x"]
)
def test_only_the_editable_files_may_be_edited(path: str) -> None:
    label, text = label_of({path: "x = 1\n"})
    assert label is Label.ILLEGAL_EDIT and "train.py" in text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = '\0'\n", "NUL"), ("x = '\ud800'\n", "surrogate"), ("#" * (MAX_EDITABLE_BYTES + 1), "bytes"),
        ("def f(:\n", "line 1"), ("x = 1\n  y = 2\n", "line 2"), ("(" * 5000, "train.py"),
        ("x = " + "-" * 50_000 + "1", "train.py"), ("x = a" + ".a" * 25_000, "train.py"),
        ("x = a" + ".a" * 490_000, "words and operators"), ("a\n" * 20_001, "20,001 lines"),
        ("x = " + "9" * 5000, "train.py"),
    ],
)  # fmt: skip
def test_text_that_cannot_run_or_would_exhaust_the_daemon_is_illegal(text: str, words: str) -> None:
    label, said = label_of({"train.py": text})
    assert label is Label.ILLEGAL_EDIT and words in said


@pytest.mark.parametrize("space", [" ", " " * 2000])
@pytest.mark.parametrize("name", ["utf-7", "rot13", "latin-1", "unicode_escape", "no-such-codec"])
@pytest.mark.parametrize("first", ["", "\n", "# words\r", "\f# words\n"])
def test_what_is_read_is_what_python_runs(space: str, name: str, first: str) -> None:
    """Python looks at two whole lines: behind a long comment another encoding was not seen, nor what ran."""
    label, said = label_of({"train.py": f"{first}#{space}-*- coding: {name} -*-\nLR = 0.2\ndef f(x): return x\n"})
    assert label is Label.ILLEGAL_EDIT and "written in" in said


def test_programs_that_read_their_own_text_are_the_same_only_with_the_same_text() -> None:
    """They differ in what they do: the second was called a duplicate and never run."""
    reads = "words = open(__file__).read()\n"
    assert code_hash({"a.py": reads + "# 1\n"}) != code_hash({"a.py": reads + "# 2\n"})
    folder = "data = Path(__file__).resolve().parent / 'data'\n"
    assert code_hash({"a.py": folder + "# 1\n"}) == code_hash({"a.py": folder + "# 2\n"})


@pytest.mark.parametrize(
    "text",
    [OLD["train.py"], "LR=0.1\ndef f(x): return (x+1)\n", "# new words\n" + OLD["train.py"].replace("\n", "\r\n")],
)
def test_an_edit_of_comments_and_layout_changes_nothing(text: str) -> None:
    assert label_of({"train.py": text})[0] is Label.NO_OP


ANSWERS = base64.b85encode(random.Random(1).randbytes(3000)).decode()
"""Data that no run has to learn."""


@pytest.mark.parametrize(
    "written",
    [
        f"ANSWERS = {ANSWERS!r}\n",
        "".join(f"a{i} = {ANSWERS[i : i + 20]!r}\n" for i in range(0, len(ANSWERS), 20)),
        "".join(f"# {ANSWERS[i : i + 90]}\n" for i in range(0, len(ANSWERS), 90)) + "x = open(__file__).read()\n",
        "".join(f"n_{ANSWERS[i : i + 30].encode().hex()} = 1\n" for i in range(0, len(ANSWERS), 30)),
        "N = [" + ", ".join(map(str, random.Random(1).randbytes(3000))) + "]\n",
    ],
    ids=["a text", "many texts", "comments", "names", "numbers"],
)
def test_a_program_may_not_bring_answers_however_it_writes_them(written: str) -> None:
    limited = replace(task(), max_compressed=2000)
    with pytest.raises(PolicyError, match="max_compressed_bytes allows 2,000") as caught:
        check_edit(limited, OLD, {"train.py": OLD["train.py"] + written})
    assert caught.value.label is Label.ILLEGAL_EDIT and caught.value.hint
    check_edit(task(), OLD, {"train.py": OLD["train.py"] + written})


def test_code_has_room_and_what_is_too_large_may_become_smaller() -> None:
    limited = replace(task(), max_compressed=2000)
    code = "".join(f"\n\ndef layer_{n}(x):\n    return x * {n} + {n % 7}\n" for n in range(150))
    check_edit(limited, OLD, {"train.py": OLD["train.py"] + code})
    large = {"train.py": OLD["train.py"] + f"ANSWERS = {ANSWERS!r}\n"}
    check_edit(limited, large, {"train.py": large["train.py"].replace(ANSWERS[:100], "")})


def test_the_hash_ignores_layout_but_nothing_else() -> None:
    base = code_hash({"a.py": "x = 1\n"})
    assert base == code_hash({"a.py": "x=1 # one\n"}) and len(base) == 64
    others = [{"a.py": f"x = {value}\n"} for value in ("2", "1.0", "True", "'1'", "(1,)", "0x" + "f" * 9999)]
    others += [{"b.py": "x = 1\n"}, {"a.txt": "x = 1\n"}, {"a.py": "x = 1\n", "b.py": ""}]
    assert len({base, *(code_hash(o) for o in others)}) == len(others) + 1


@given(st.dictionaries(st.sampled_from(["train.py", "x.py", "t.txt"]), st.text(max_size=60), max_size=3))
def test_no_edit_makes_the_check_raise_anything_but_its_own_error(new: dict[str, str]) -> None:
    code_hash(new)
    try:
        check_edit(task(), OLD, new)
    except PolicyError as error:
        assert error.label in (Label.ILLEGAL_EDIT, Label.NO_OP)
    else:
        assert set(new) == {"train.py"} and code_hash(new) != code_hash(OLD)


GOOD = {"a.yaml": "lr: 0.1  # x\nseed: 1\n", "a.json": '{"lr": 0.1, "seed": 1}', "a.toml": "lr = 0.1\nseed = 1\n"}


def label_of_file(path: str, old: str, new: str) -> tuple[Label, str]:
    try:
        check_edit(make_task(editable=(path,)), {path: old}, {path: new})
    except PolicyError as error:
        return error.label, error.what
    return Label.NONE, ""


@pytest.mark.parametrize(
    ("path", "new", "words"),
    [
        ("a.yaml", "lr: 0.2\nx: [\n", "a.yaml, line 3: not YAML"),
        ("a.json", '{"lr": 0.2,}', "a.json, line 1: not JSON"),
        ("a.toml", "lr = \n", "a.toml, line 1: not TOML"),
        ("a.yaml", "lr: " + "[" * 5000, "nested too deeply"),
    ],
)
def test_an_edit_that_breaks_the_file_is_illegal(path: str, new: str, words: str) -> None:
    label, what = label_of_file(path, GOOD[path], new)
    assert label is Label.ILLEGAL_EDIT and words in what


@pytest.mark.parametrize(
    ("path", "new"),
    [("a.yaml", "# y\nlr:   0.1\nseed: 1\n"), ("a.json", '{"lr":0.1,\n"seed":1}'), ("a.toml", "lr=0.1 # y\nseed=1\n")],
)
def test_other_comments_and_layout_change_nothing(path: str, new: str) -> None:
    label, what = label_of_file(path, GOOD[path], new)
    assert label is Label.NO_OP and "comments or layout" in what
    assert code_hash({path: GOOD[path]}) == code_hash({path: new}) != code_hash({path: new.replace("0.1", "0.2")})


@pytest.mark.parametrize("path", GOOD)
def test_another_value_is_an_edit_of_a_configuration_file_and_another_seed_alone_is_none(path: str) -> None:
    """Else a model draws lots with the seed of a configuration file, which it may not do in a program."""
    assert label_of_file(path, GOOD[path], GOOD[path].replace("0.1", "0.2")) == (Label.NONE, "")
    label, what = label_of_file(path, GOOD[path], GOOD[path].replace("1", "7").replace("0.7", "0.1"))
    assert label is Label.NO_OP and "seed" in what


PROMISED = """\
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


def verdict(new: str, old: str = PROMISED) -> Label:
    try:
        check_edit(task(), {"train.py": old}, {"train.py": new}, required=REQUIRED)
    except PolicyError as error:
        assert error.hint
        return error.label
    return Label.NONE


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("SEED = 3", "SEED = 4"), ("seed=1", "seed=2"), ("manual_seed(seed)\n    gen", "manual_seed(1337)\n    gen"),
        ("    torch.manual_seed(seed)\n", ""),
        ("    torch.manual_seed(seed)\n", "    torch.manual_seed(seed)\n    random.seed(7)\n"),
        ('int(os.environ.get("AUTORESEARCHD_SEED", 42))', "137"), ("seed=seed", "seed=137"),
        ("Random(seed + 1)", "Random(9)"), ("Generator().manual_seed(seed)", "Generator().manual_seed(137)"),
    ],
)  # fmt: skip
def test_an_edit_of_a_seed_alone_is_not_run(old: str, new: str) -> None:
    assert PROMISED.count(old) == 1
    assert verdict(PROMISED.replace(old, new)) is Label.NO_OP


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("WIDTH = 4", "WIDTH = 5"), ("seed=1, *, rows=2", "seed=1, *, rows=3"),
        ("seed=1, *, rows=2", "seed, *, rows=2, seeded=True"), ("width=WIDTH", "width=WIDTH, seeds=3"),
        ("return train(", "return seed_everything_and_train("), ("import os,", "import json, os,"),
    ],
)  # fmt: skip
def test_an_edit_of_anything_else_is_run(old: str, new: str) -> None:
    assert PROMISED.count(old) == 1
    assert verdict(PROMISED.replace(old, new)) is Label.NONE


def test_a_seed_that_is_pinned_beside_a_change_is_refused_and_what_the_evaluation_uses_must_stay() -> None:
    pinned = PROMISED.replace('int(os.environ.get("AUTORESEARCHD_SEED", 42))', "137")
    assert verdict(pinned.replace("WIDTH = 4", "WIDTH = 5")) is Label.ILLEGAL_EDIT
    assert verdict(PROMISED.replace("def load_model", "def load")) is Label.ILLEGAL_EDIT


@pytest.mark.parametrize("own", ["torch.manual_seed(1337)", "random.seed(a=7)", "seed = 3", "SEED: int = 3"])
def test_a_seed_of_the_programs_own_beside_a_change_is_refused(own: str) -> None:
    """On every seed that the evaluator draws it would be as lucky again, so that its luck would be confirmed."""
    wider = PROMISED.replace("WIDTH = 4", "WIDTH = 5")
    assert verdict(wider + f"{own}\n") is Label.ILLEGAL_EDIT
    assert verdict(wider + "split = numpy.random.default_rng(0)\nrandom.seed(WIDTH)\n") is Label.NONE
    before = PROMISED + "torch.manual_seed(1)\n"
    assert verdict(before.replace("WIDTH = 4", "WIDTH = 5"), before) is Label.NONE


def test_a_program_for_a_newer_python_than_the_daemons_may_be_edited() -> None:
    """Else a task whose own interpreter is newer would have every edit refused, all night."""
    newer = "if rate == 1 and:  # stands for what this Python cannot parse\n    pass\nRATE = 1\n"
    check_edit(task(), {"train.py": newer}, {"train.py": newer.replace("RATE = 1", "RATE = 2")})


@pytest.mark.parametrize(
    "instead",
    [
        "if True:\n    def load_model(path): return 1\n",
        "try:\n    from models import load_model\nexcept ImportError:\n    load_model = None\n",
        "from models import *\n", "load_model: object = lambda path: 1\n",
        "def make():\n    global load_model\n    load_model = 1\nmake()\n", "globals()['load_' + 'model'] = 1\n",
        "def __getattr__(name): return 1\n",
    ],
)  # fmt: skip
def test_a_name_may_come_about_in_any_way(instead: str) -> None:
    assert verdict(PROMISED.replace("def load_model(path): return torch.load(path)\n", instead)) is Label.NONE


def test_required_names_are_those_that_the_protected_programs_take() -> None:
    sources = {
        "serve.py": "import train as t, train_more\nmodel = t.load_model(1)\nx = other.thing\n",
        "evaluate.py": "from train import VOCAB, Config as C\nfrom .train import a\nfrom elsewhere import b\n",
        "notes.md": "import train\ntrain.nothing",
        "broken.py": "import train\ntrain.nothing(",
    }
    assert required_symbols(task(), sources) == {"train.py": frozenset({"load_model", "VOCAB", "Config"})}


def test_characters_that_turn_the_direction_of_writing_are_refused_where_there_were_none() -> None:
    turned = PROMISED + "y = '\u202e'\n"
    assert verdict(turned) is Label.ILLEGAL_EDIT
    assert verdict(turned + "z = 1\n", turned) is Label.NONE


VALUE = letters(20)
REDACTOR = Redactor([VALUE])
KEYED = {"train.py": f"KEY = '{TOKENS['npm']}'\nX = 1\n", "b.py": "Y = 1\n"}


@pytest.mark.parametrize("secret", [VALUE, TOKENS["anthropic"], f"API_KEY = '{letters(30, seed=9)}'"])
def test_a_new_secret_is_refused_and_named_by_its_place_only(secret: str) -> None:
    with pytest.raises(PolicyError) as raised:
        check_no_secret(REDACTOR, KEYED, {"b.py": f"Y = 1\n# {secret}\n"})
    assert raised.value.label is Label.ILLEGAL_EDIT
    assert "b.py, line 2" in str(raised.value)
    assert secret[-12:] not in str(raised.value)


def test_a_secret_of_the_users_own_may_stay_move_and_go() -> None:
    check_no_secret(REDACTOR, KEYED, {"train.py": KEYED["train.py"] + "Z = 2\n"})
    check_no_secret(REDACTOR, KEYED, {"b.py": KEYED["train.py"]})
    check_no_secret(REDACTOR, KEYED, {"train.py": "X = 1\n"})


def test_a_mark_that_was_copied_from_a_prompt_is_refused() -> None:
    with pytest.raises(PolicyError, match="stands for a secret") as raised:
        check_no_secret(REDACTOR, KEYED, {"train.py": f"KEY = '{mark('npm')}'\nX = 2\n"})
    assert raised.value.label is Label.ILLEGAL_EDIT
    marked = {"train.py": f"MARK = '{mark('npm')}'\n"}
    check_no_secret(REDACTOR, marked, {"train.py": marked["train.py"] + "X = 2\n"})
