"""A task survives the store: resume runs exactly what start was given."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import types
import typing
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoresearchd.config import dump_task, parse_task, read_task_text
from autoresearchd.domain.errors import StoreError
from autoresearchd.domain.task import Task
from tests.unit.config.test_load import MINIMAL

SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(max_size=8),
    float: st.floats(allow_nan=False, allow_infinity=False),
    int: st.integers(),
    bool: st.booleans(),
    type(None): st.none(),
}


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Any values of a type of the domain."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if kind in SCALARS:
        return SCALARS[kind]
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return st.sampled_from(list(kind))
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return st.builds(kind, **{name: values_of(hint) for name, hint in typing.get_type_hints(kind).items()})
    if origin is tuple and Ellipsis not in parts:
        return st.tuples(*(values_of(part) for part in parts))
    if origin is tuple:
        return st.lists(values_of(parts[0]), max_size=2).map(tuple)
    if origin is Mapping:
        return st.dictionaries(values_of(parts[0]), values_of(parts[1]), max_size=2)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([values_of(part) for part in parts])
    if origin is typing.Literal:
        return st.sampled_from(typing.get_args(kind))
    raise AssertionError(f"no values for {kind}")


@settings(max_examples=150, deadline=None, derandomize=True)
@given(values_of(Task))
def test_a_task_comes_back_from_the_store_as_it_was(task: Task) -> None:
    assert parse_task(dump_task(task)) == task


def test_a_reader_without_this_package_finds_what_status_shows() -> None:
    values = json.loads(dump_task(read_task_text(MINIMAL)))
    assert values["name"] == "tiny"
    assert {key: values["scoring"][key] for key in ("metric", "direction", "source")} == {
        "metric": "val_loss",
        "direction": "minimize",
        "source": "self-reported",
    }
    assert values["execution"]["budget"] == 300


def test_a_number_that_json_has_no_word_for_is_not_written() -> None:
    task = read_task_text(MINIMAL)
    with pytest.raises(ValueError, match="JSON compliant"):
        dump_task(dataclasses.replace(task, scoring=dataclasses.replace(task.scoring, reference=math.inf)))


def test_a_task_stored_before_a_key_existed_has_its_default() -> None:
    values = json.loads(dump_task(read_task_text(MINIMAL)))
    for key in ("source_dir", "history", "checks", "roles", "prompt", "curve", "evaluation", "fleet"):
        del values[key]
    assert parse_task(json.dumps(values)) == read_task_text(MINIMAL)


@pytest.mark.parametrize(("timeout", "named"), [(660, False), (400, True)])
def test_a_limit_in_a_session_of_an_older_version_is_taken_as_named_where_it_is_not_the_usual_one(
    timeout: int, named: bool
) -> None:
    values = json.loads(dump_task(read_task_text(MINIMAL)))
    del values["execution"]["timeout_named"]
    values["execution"]["timeout"] = timeout
    assert parse_task(json.dumps(values)).execution.timeout_named is named


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"name": "x"}', pytest.param("[" * 200_000, id="nested without end"),
     '{"name": "x", "scoring": {"metric": "m", "direction": "minimize", "source": "s"}, "execution": 1e999}',
     '{"name": "log", "scoring": {"metric": "a"}, "execution": {"budget": null}}'],
)  # fmt: skip
def test_a_session_without_a_program_says_so_when_it_is_resumed(text: str) -> None:
    with pytest.raises(StoreError, match="cannot be read"):
        parse_task(text)
