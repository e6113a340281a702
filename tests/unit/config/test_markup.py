"""Where values stand in YAML, JSON and TOML files, and what such files mean."""

from __future__ import annotations

import json
import re

import pytest

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
        "optimizer.lr": (1e-3, "1e-3"), "optimizer.betas[0]": (0.9, "0.9"), "optimizer.betas[1]": (0.999, "0.999"),
        "optimizer.name": ("adam", "adam"), "model.width": (64, "64"), "model.depth": (4, "4"),
        "model.act": ("relu", '"relu"'), "model.bias": (True, "true"), "model.layers[0].units": (32, "32"),
        "model.layers[1].units": (16, "16"),
    }  # fmt: skip


def test_the_values_of_a_toml_file_are_found_and_those_in_a_text_are_not() -> None:
    """A number inside a text that is replaced would change what the program reads as words."""
    assert found("a.toml", TOML) == {
        "lr": (1e-3, "1e-3"), "model.width": (64, "64"), "betas[0]": (0.9, "0.9"), "betas[1]": (0.999, "0.999"),
        "name": ("adam", "'adam'"), "optim.inner.wd": (0.1, "0.1"), "optim.inner.flag": (True, "true"),
        "layers[0].units": (32, "32"), "layers[1].units": (16, "16"),
    }  # fmt: skip


@pytest.mark.parametrize("indent", [None, 2, "\t"])
def test_the_values_of_a_json_file_are_found_in_every_layout(indent: int | str | None) -> None:
    data = {"é": 1, "lr": 1e-05, "model": {"depth": 4, "act": "relu", "bias": False, "w": [1, 2.5]}, "n": None}
    text = json.dumps(data, indent=indent, ensure_ascii=False)
    assert {name: value for name, (value, _) in found("a.json", text).items()} == {
        "é": 1, "lr": 1e-05, "model.depth": 4, "model.act": "relu", "model.bias": False,
        "model.w[0]": 1, "model.w[1]": 2.5,
    }  # fmt: skip


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
