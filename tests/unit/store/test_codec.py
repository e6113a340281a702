"""Whatever a model or a run gives, what is stored is valid and comes back."""

from __future__ import annotations

import json
import math
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoresearchd.domain.cleaning import storable
from autoresearchd.domain.experiment import CurvePoint
from autoresearchd.store.schema import codec

MIB = 2**20
FLOATS = st.floats(allow_nan=False)
POINTS = st.builds(
    CurvePoint, step=FLOATS, loss=FLOATS, progress=st.none() | FLOATS, seconds=st.none() | FLOATS,
    validation=st.booleans(),
)  # fmt: skip
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters()) | st.integers(), inner, max_size=4)
        | st.frozensets(st.integers())
    ),
    max_leaves=20,
)


@given(st.lists(POINTS, max_size=50))
def test_a_curve_comes_back_exactly(points: list[CurvePoint]) -> None:
    assert codec.unpack_curve(codec.pack_curve(points)) == tuple(points)


@given(ANYTHING)
@settings(deadline=None)
def test_anything_becomes_json_that_every_reader_accepts(value: Any) -> None:
    def refuse(token: str) -> None:
        raise AssertionError(f"{token} is not JSON")

    text = codec.dumps(value)
    found = json.loads(text, parse_constant=refuse)
    text.encode("ascii")
    assert codec.dumps(found) == text, "what was stored once is stored the same again"


@given(st.dictionaries(st.text(max_size=5), st.floats(width=64) | st.integers(-(2**53), 2**53)))
def test_metrics_come_back_as_numbers(metrics: dict[str, float]) -> None:
    clean = {storable(name): value for name, value in metrics.items()}
    found = codec.metrics(json.loads(codec.dumps(metrics)))
    assert found.keys() == clean.keys()
    assert all(found[k] == v or (math.isnan(v) and math.isnan(found[k])) for k, v in clean.items())


@given(st.text(st.characters()))
def test_text_can_be_written_to_any_database_and_good_text_is_left_alone(text: str) -> None:
    clean = storable(text)
    clean.encode("utf-8")
    assert "\0" not in clean
    assert storable(clean) == clean
    if clean.isprintable():
        assert codec.unpack_text(codec.pack_text(text)) == clean


def test_nesting_without_end_is_cut_instead_of_ending_the_daemon() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert "…" in json.loads(codec.dumps({"a": "…"}))["a"]
    assert len(codec.dumps(deep)) < 1000
    endless: dict[str, Any] = {}
    endless["self"] = endless
    assert len(codec.dumps(endless)) < 5000


def test_a_curve_of_a_later_form_is_refused_not_misread() -> None:
    with pytest.raises(ValueError, match="form 9"):
        codec.unpack_curve(zlib.compress(b"\x09\0\0\0\0"))


def _squeezed(piece: bytes, times: int, before: bytes = b"", after: bytes = b"") -> bytes:
    packing = zlib.compressobj(9)
    parts = [packing.compress(before), *(packing.compress(piece) for _ in range(times)), packing.compress(after)]
    return b"".join(parts) + packing.flush()


def test_a_few_bytes_that_stand_for_gigabytes_are_refused_before_they_are_there() -> None:
    bomb = _squeezed(b" " * MIB, 200, b"[", b"]")
    assert len(bomb) < MIB
    readers: tuple[Callable[[bytes], object], ...] = (
        codec.unpack_text, codec.unpack_json, codec.unpack_curve, lambda blob: codec.unpack_numbers(blob, "q"),
    )  # fmt: skip
    for unpack in readers:
        tracemalloc.start()
        with pytest.raises(ValueError, match="longer than"):
            unpack(bomb)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 150 * MIB


def test_json_of_countless_empty_parts_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(ValueError, match="parts"):
        codec.unpack_json(_squeezed(b"{}," * (MIB // 4), 50, b"[", b"{}]"))


def test_a_value_that_is_cut_off_is_not_taken_for_a_shorter_one() -> None:
    whole = codec.pack_text("a text that is long enough" * 100)
    with pytest.raises(ValueError, match="cut off"):
        codec.unpack_text(whole[:-6])
