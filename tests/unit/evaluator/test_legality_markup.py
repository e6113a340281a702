"""Edits of YAML, JSON and TOML files: one that breaks the file costs no run, and luck with a seed is no change."""

from __future__ import annotations

import pytest

from autoresearchd.domain.labels import Label
from autoresearchd.errors import PolicyError
from autoresearchd.evaluator.legality import check_edit, code_hash
from tests.fakes.policies import make_task

GOOD = {"a.yaml": "lr: 0.1  # x\nseed: 1\n", "a.json": '{"lr": 0.1, "seed": 1}', "a.toml": "lr = 0.1\nseed = 1\n"}


def label_of(path: str, old: str, new: str) -> tuple[Label, str]:
    try:
        check_edit(make_task(editable=(path,)), {path: old}, {path: new})
    except PolicyError as error:
        return error.label, error.what
    return Label.NONE, ""


@pytest.mark.parametrize("path", GOOD)
def test_another_value_is_a_legal_edit(path: str) -> None:
    assert label_of(path, GOOD[path], GOOD[path].replace("0.1", "0.2")) == (Label.NONE, "")


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
    label, what = label_of(path, GOOD[path], new)
    assert label is Label.ILLEGAL_EDIT and words in what


@pytest.mark.parametrize(
    ("path", "new"),
    [("a.yaml", "# y\nlr:   0.1\nseed: 1\n"), ("a.json", '{"lr":0.1,\n"seed":1}'), ("a.toml", "lr=0.1 # y\nseed=1\n")],
)
def test_other_comments_and_layout_change_nothing(path: str, new: str) -> None:
    label, what = label_of(path, GOOD[path], new)
    assert label is Label.NO_OP and "comments or layout" in what
    assert code_hash({path: GOOD[path]}) == code_hash({path: new}) != code_hash({path: new.replace("0.1", "0.2")})


@pytest.mark.parametrize("path", GOOD)
def test_another_seed_alone_changes_nothing(path: str) -> None:
    """Else a model draws lots with the seed of a configuration file, which it may not do in a program."""
    label, what = label_of(path, GOOD[path], GOOD[path].replace("1", "7").replace("0.7", "0.1"))
    assert label is Label.NO_OP and "seed" in what


def test_a_template_of_a_file_that_never_could_be_read_may_be_edited() -> None:
    assert label_of("a.yaml", "{% if x %}\n", "{% if y %}\n") == (Label.NONE, "")
