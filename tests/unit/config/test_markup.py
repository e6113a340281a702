"""Where values stand in YAML, JSON and TOML files, and what such files mean."""

from __future__ import annotations

import json
import re
import tomllib

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from autoresearchd.config.value_positions import MOST_CHARACTERS, MarkupError, meaning, scalars

YAML = """\
# Größe
optimizer: &opt {lr: 1e-3, betas: [0.9, 0.999], name: adam}   # one
model:
  width: 64
  "depth": 4
  act: "relu"
  bias: true
  note: |
    lr: 5
  nothing: ~
  layers:
    - units: 32
    - units: 16
other: *opt
tagged: !!float 3
anchored: &x 7
date: 2026-03-08
"""
TOML = """\
lr = 1e-3  # rate
text = \"\"\"
lr = 1e-3
depth = 4
\"\"\"
model.width = 64
betas = [0.9, 0.999]
name = 'adam'
[ optim . inner ]
wd = 0.1
flag = true
when = 2026-03-08
point = { x = 1 }
[[layers]]
units = 32
[[layers]]
units = 16
"""


def found(path: str, text: str) -> dict[str, tuple[object, str]]:
    raw = text.encode()
    return {s.name: (s.value, raw[s.start : s.end].decode()) for s in scalars(path, text)}


def test_the_values_of_a_yaml_file_are_found_where_they_stand() -> None:
    assert found("a.yaml", YAML) == {
        "optimizer.lr": (1e-3, "1e-3"),
        "optimizer.betas[0]": (0.9, "0.9"),
        "optimizer.betas[1]": (0.999, "0.999"),
        "optimizer.name": ("adam", "adam"),
        "model.width": (64, "64"),
        "model.depth": (4, "4"),
        "model.act": ("relu", '"relu"'),
        "model.bias": (True, "true"),
        "model.layers[0].units": (32, "32"),
        "model.layers[1].units": (16, "16"),
    }


def test_the_values_of_a_toml_file_are_found_and_those_in_a_text_are_not() -> None:
    """A number inside a text that is replaced would change what the program reads as words."""
    assert found("a.toml", TOML) == {
        "lr": (1e-3, "1e-3"),
        "model.width": (64, "64"),
        "betas[0]": (0.9, "0.9"),
        "betas[1]": (0.999, "0.999"),
        "name": ("adam", "'adam'"),
        "optim.inner.wd": (0.1, "0.1"),
        "optim.inner.flag": (True, "true"),
        "layers[0].units": (32, "32"),
        "layers[1].units": (16, "16"),
    }


@pytest.mark.parametrize("indent", [None, 2, "\t"])
def test_the_values_of_a_json_file_are_found_in_every_layout(indent: int | str | None) -> None:
    data = {"é": 1, "lr": 1e-05, "model": {"depth": 4, "act": "relu", "bias": False, "w": [1, 2.5]}, "n": None}
    text = json.dumps(data, indent=indent, ensure_ascii=False)
    assert {name: value for name, (value, _) in found("a.json", text).items()} == {
        "é": 1, "lr": 1e-05, "model.depth": 4, "model.act": "relu", "model.bias": False,
        "model.w[0]": 1, "model.w[1]": 2.5,
    }  # fmt: skip


LEAVES = st.one_of(
    st.integers(0, 999), st.sampled_from([0.5, 1.25, 2e-5]), st.booleans(), st.sampled_from(["ab", "c-d"])
)
TREES = st.recursive(LEAVES, lambda inner: st.dictionaries(st.sampled_from("abcd"), inner, min_size=1), max_leaves=8)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.dictionaries(st.sampled_from("abcd"), TREES, min_size=1))
def test_every_value_is_found_with_its_text(tree: dict[str, object]) -> None:
    leaves = dict(_leaves(tree, ""))
    for path, text in (("a.json", json.dumps(tree)), ("a.yaml", yaml.safe_dump(tree)), ("a.toml", _as_toml(tree, ""))):
        assert {name: value for name, (value, _) in found(path, text).items()} == leaves, text
        for name, (value, source) in found(path, text).items():
            assert str(value).lower() in source.lower() or float(source) == value, name


def _leaves(tree: dict[str, object], prefix: str) -> list[tuple[str, object]]:
    out: list[tuple[str, object]] = []
    for key, value in tree.items():
        out += _leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else [(f"{prefix}{key}", value)]
    return out


def _as_toml(tree: dict[str, object], table: str) -> str:
    own = "".join(f"{k} = {json.dumps(v)}\n" for k, v in tree.items() if not isinstance(v, dict))
    below = "".join(_as_toml(v, f"{table}{k}.") for k, v in tree.items() if isinstance(v, dict))
    text = (f"[{table[:-1]}]\n" if table else "") + own + below
    tomllib.loads(text)
    return text


@pytest.mark.parametrize(
    ("path", "text", "words", "line"),
    [
        ("a.yaml", "a: 1\nb: [1\n", "not YAML", 3),
        ("a.yml", "a: 1\n\tb: 2\n", "not YAML", 2),
        ("a.yaml", "a: \x07\n", "not YAML", None),
        ("a.json", '{"a": 1,\n}', "not JSON", 2),
        ("a.toml", "a = 1\nb = \n", "not TOML", 2),
        ("a.yaml", "a: " + "[" * 3000, "nested too deeply", None),
        ("a.json", "[" * 50_000, "nested too deeply", None),
        ("a.toml", "x = 1\n" + "a." * 20_000 + "a = 1", "too many parts", 2),
        ("a.yaml", "a: 1\n" * MOST_CHARACTERS, "larger than 64 KiB", None),
    ],
)
def test_a_file_that_cannot_be_read_is_told_with_its_line(path: str, text: str, words: str, line: int | None) -> None:
    for call in (scalars, meaning):
        with pytest.raises(MarkupError, match=words) as caught:
            call(path, text)
        assert line is None or caught.value.line == line


def test_aliases_do_not_grow() -> None:
    """Nine lines of aliases would be a thousand million values."""
    text = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10))
    assert len(meaning("a.yaml", text)) < 20_000
    assert scalars("a.yaml", text) == ()


def test_what_a_file_means_does_not_depend_on_comments_and_layout() -> None:
    seed = re.compile("seed")
    assert meaning("a.yaml", "a: {b: 1}\n") == meaning("a.yaml", "a:  # x\n    b: 1\n")
    assert meaning("a.yaml", "a: 1") != meaning("a.yaml", "a: '1'")
    assert meaning("a.toml", "a = 1\n") == meaning("a.toml", "a=1 # x\n") != meaning("a.toml", "a = 1.0\n")
    assert meaning("a.json", '{"a": 1}') == meaning("a.json", '{\n"a":1}') != meaning("a.json", '{"a": true}')
    for path, one, two in (
        ("a.yaml", "seed: 1\nb: {seed: 2}", "seed: 3\nb: {seed: 4}"),
        ("a.json", '{"seed": 1}', '{"seed": 2}'),
        ("a.toml", "[x]\nseed = 1\n", "[x]\nseed = 2\n"),
    ):
        assert meaning(path, one) != meaning(path, two)
        assert meaning(path, one, seed) == meaning(path, two, seed)
