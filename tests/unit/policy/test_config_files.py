"""Constants in the YAML, JSON and TOML files that a program reads: found, bounded, and changed in place."""

from __future__ import annotations

import difflib
import json
import tomllib

import numpy as np
import pytest
import yaml

from autoresearchd.domain.errors import PolicyError
from autoresearchd.domain.task import Search
from autoresearchd.policy.search.find_constants import find, look
from autoresearchd.policy.search.parameter import Value
from autoresearchd.policy.search.search_policies import draw
from autoresearchd.resources import bundled

from .synthetic import TOY, apply

TEMPLATE = bundled("templates") / "autoresearch" / "train.py"

YAML = """\
# Experiment Größe 7
seed: 42
data: {path: data/train.csv, batch_size: 8}
optimizer:            # the recipe
    lr: 1e-3          # range: 1e-5..1e-1
    name: adam        # one of: adam, sgd, lion
    betas: [0.9, 0.999]
model:
    width: 64
    # fixed
    depth: 4
    bias: true
    dropout: 0
schedule:  # fixed
    warmup: 10
eval: {batch_size: 64}
"""
TOML = """\
seed = 1
[optimizer]
lr = 0.001   # range: 1e-5..1e-1
nesterov = true
[model]  # do not change
width = 64
"""
JSON = '{\n\t"lr": 1e-3, "model": {"width": 64, "bias": false},\n\t"note": "# fixed", "momentum": 0.9}\n'


def values(path: str, text: str) -> dict[str, Value]:
    return {p.label: p.value for p in find(text, path=path)}


def test_the_recipe_in_a_yaml_file_is_tuned_and_the_rest_listed_with_reasons() -> None:
    """Such a file gave `nothing to tune`."""
    space = look(YAML, path="conf/a.yaml", given=("optimizer.betas[1]",))
    assert {p.label: p.value for p in space.parameters} == {
        "optimizer.lr": 1e-3,
        "optimizer.name": "adam",
        "optimizer.betas[0]": 0.9,
        "model.width": 64,
        "model.bias": True,
        "model.dropout": 0,
    }
    why = {left.label: left.why for left in space.left_out}
    assert why["seed"] == "its name is that of a seed"
    assert "data" in why["data.batch_size"] and "eval" in why["eval.batch_size"]
    assert why["model.depth"] == why["schedule.warmup"] == "fixed by a comment"
    assert why["optimizer.betas[1]"].startswith("execution.run_command gives")
    search = Search(ranges={"data.batch_size": (4, 16)}, fixed=("conf/a.yaml:model",))
    names = {p.label for p in look(YAML, path="conf/a.yaml", search=search).parameters}
    assert "data.batch_size" in names and "model.width" not in names


def test_toml_and_json_files_follow_the_same_rules() -> None:
    assert values("a.toml", TOML) == {"optimizer.lr": 0.001, "optimizer.nesterov": True}
    assert values("a.json", JSON) == {"lr": 1e-3, "model.width": 64, "model.bias": False, "momentum": 0.9}


@pytest.mark.parametrize(
    ("path", "text", "change", "line"),
    [
        ("a.yaml", YAML, {"optimizer.lr": 2e-5}, "    lr: 2.0e-5          # range: 1e-5..1e-1"),
        ("a.yaml", YAML, {"optimizer.name": "lion"}, "    name: lion        # one of: adam, sgd, lion"),
        ("a.yaml", YAML, {"model.bias": False}, "    bias: false"),
        ("a.yaml", YAML, {"model.dropout": 5e-5}, "    dropout: 5.0e-5"),
        ("a.toml", TOML, {"optimizer.lr": 0.0005}, "lr = 0.0005   # range: 1e-5..1e-1"),
        ("a.toml", TOML, {"optimizer.nesterov": False}, "nesterov = false"),
        ("a.json", JSON, {"lr": 3e-5}, '\t"lr": 3.0e-5, "model": {"width": 64, "bias": false},'),
        ("a.json", JSON, {"model.bias": True}, '\t"lr": 1e-3, "model": {"width": 64, "bias": true},'),
        ("a.yaml", "mode: a  # one of: a, yes-no, 1.5x\n", {"mode": "1.5x"}, 'mode: "1.5x"  # one of: a, yes-no, 1.5x'),
    ],
)
def test_a_change_replaces_the_value_and_nothing_else(
    path: str, text: str, change: dict[str, Value], line: str
) -> None:
    """Comments and layout stay; and what is written is a number to PyYAML, to which 2e-5 is text."""
    new = apply(text, {f"{path}:{name}": value for name, value in change.items()}, path=path)
    assert [d[2:] for d in difflib.ndiff(text.splitlines(), new.splitlines()) if d.startswith("+ ")] == [line]
    (name, value), *_ = change.items()
    data = {"yaml": yaml.safe_load, "toml": tomllib.loads, "json": json.loads}[path[2:]](new)
    for key in name.split("."):
        data = data[key]
    assert data == value and isinstance(data, type(value))


@pytest.mark.parametrize(
    ("path", "text"),
    [("a.yaml", YAML), ("a.toml", TOML), ("a.json", JSON), ("train.py", TOY), ("train.py", TEMPLATE.read_text())],
)
def test_a_changed_file_holds_exactly_the_values_that_were_drawn(path: str, text: str) -> None:
    parameters = {p.name: p for p in find(text, path=path)}
    random = np.random.default_rng(1)
    for _ in range(20):
        changes = draw(parameters, random)
        new = apply(text, changes, path=path)
        after = {p.name: p.value for p in find(new, path=path)}
        assert after == {**{n: p.value for n, p in parameters.items()}, **changes}
        assert sum(line.startswith("+ ") for line in difflib.ndiff(text.split("\n"), new.split("\n"))) <= len(changes)


@pytest.mark.parametrize(("path", "text"), [("a.yaml", "a: [1\n"), ("a.json", "{"), ("a.toml", "a =\n")])
def test_a_file_that_cannot_be_read_is_a_clear_error(path: str, text: str) -> None:
    with pytest.raises(PolicyError, match=rf"{path}.*cannot be searched for constants: not (YAML|JSON|TOML)"):
        find(text, path=path)
