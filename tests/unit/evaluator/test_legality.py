"""Edits that may not run are stopped before a job is spent, and the same program is known again."""

from __future__ import annotations

import base64
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoresearchd.domain.labels import Label
from autoresearchd.errors import PolicyError
from autoresearchd.evaluator.legality import MAX_BYTES, check_edit, code_hash
from tests.unit.evaluator.builders import task

OLD = {"train.py": "LR = 0.1  # rate\n\n\ndef f(x):\n    return x + 1\n"}


def label_of(new: dict[str, str], old: dict[str, str] | None = None) -> tuple[Label, str]:
    with pytest.raises(PolicyError) as caught:
        check_edit(task(), old if old is not None else OLD, new)
    assert caught.value.mend
    return caught.value.label, str(caught.value)


def test_a_real_change_passes() -> None:
    check_edit(task(), OLD, {"train.py": OLD["train.py"].replace("0.1", "0.2")})


@pytest.mark.parametrize(
    "path", ["prepare.py", "../train.py", "./train.py", "/etc/passwd", "train.py/", "", "TRAIN.PY", "-x"]
)
def test_only_the_editable_files_may_be_edited(path: str) -> None:
    label, text = label_of({path: "x = 1\n"})
    assert label is Label.ILLEGAL_EDIT and "train.py" in text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = '\0'\n", "NUL"),
        ("x = '\ud800'\n", "surrogate"),
        ("#" * (MAX_BYTES + 1), "bytes"),
        ("def f(:\n", "line 1"),
        ("x = 1\n  y = 2\n", "line 2"),
        ("(" * 5000, "train.py"),
        ("x = " + "-" * 50_000 + "1", "train.py"),
        ("x = a" + ".a" * 25_000, "train.py"),
        ("x = a" + ".a" * 490_000, "words and operators"),
        ("a\n" * 400_000, "words and operators"),
        ("x = " + "9" * 5000, "train.py"),
    ],
)
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
    assert caught.value.label is Label.ILLEGAL_EDIT and caught.value.mend
    check_edit(task(), OLD, {"train.py": OLD["train.py"] + written})


def test_code_has_room_and_what_is_too_large_may_become_smaller() -> None:
    limited = replace(task(), max_compressed=2000)
    code = "".join(f"\n\ndef layer_{n}(x):\n    return x * {n} + {n % 7}\n" for n in range(150))
    check_edit(limited, OLD, {"train.py": OLD["train.py"] + code})
    large = {"train.py": OLD["train.py"] + f"ANSWERS = {ANSWERS!r}\n"}
    check_edit(limited, large, {"train.py": large["train.py"].replace(ANSWERS[:100], "")})


def test_a_program_that_did_not_parse_before_may_be_mended() -> None:
    check_edit(task(), {"train.py": "def f(:\n"}, {"train.py": "x = 1\n"})


def test_a_byte_order_mark_in_the_users_file_does_not_make_every_edit_illegal() -> None:
    old = {"train.py": "\ufeff" + OLD["train.py"]}
    check_edit(task(), old, {"train.py": old["train.py"] + "y = 1\n"})
    assert label_of(OLD, old)[0] is Label.NO_OP


def test_the_hash_ignores_layout_but_nothing_else() -> None:
    base = code_hash({"a.py": "x = 1\n"})
    assert base == code_hash({"a.py": "x=1 # one\n"}) and len(base) == 64
    others = [
        {"a.py": "x = 2\n"},
        {"a.py": "x = 1.0\n"},
        {"a.py": "x = True\n"},
        {"b.py": "x = 1\n"},
        {"a.txt": "x = 1\n"},
    ]
    others += [
        {"a.py": "x = '1'\n"},
        {"a.py": "x = (1,)\n"},
        {"a.py": "x = 1\n", "b.py": ""},
        {"a.py": "x = 0x" + "f" * 9999},
    ]
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
