"""A search over a program with a configuration file, within the bounds of task.yaml."""

from __future__ import annotations

import json

from tests.e2e.conftest import TASK, Project

PROGRAM = """\
import argparse
import json

parser = argparse.ArgumentParser()
parser.add_argument("--scale", type=float, default=1.0)
parser.add_argument("--width", type=int, default=8)
options = parser.parse_args()
recipe = json.load(open("recipe.json"))
print(f"score: {(options.scale - 2.0) ** 2 + (recipe['lr'] - 0.5) ** 2 + recipe['model']['depth'] / 8:.6f}")
"""
RECIPE = '{\n  "seed": 3,\n  "lr": 0.1,\n  "model": {"depth": 4}\n}\n'
BOUNDS = "search: {fixed: [scale], ranges: {lr: 0.05..0.2}, choices: {model.depth: [3, 4]}}\n"
BOUNDED = TASK.replace("train.py}", "[recipe.json, train.py]}").replace("train.py,", "train.py --width 4,") + BOUNDS


def test_a_search_stays_within_the_bounds_and_changes_the_file_in_place(project: Project) -> None:
    """Without bounds the best is lr 0.5, depth 1; whoever forbade that must not find it in the morning."""
    project.put({"train.py": PROGRAM, "recipe.json": RECIPE, "task.yaml": BOUNDED})
    refused = project.cli("start", "--tag", "t", "--foreground")
    assert refused.returncode == 2
    assert "task.yaml:5: search.fixed[0]: no constant of recipe.json, train.py is called 'scale'" in refused.stderr
    assert "did you mean 'args.scale'?" in refused.stderr
    project.put({"task.yaml": BOUNDED.replace("[scale]", "[args.scale]")})
    told = project.json("task", "space", "--json")
    assert [c["name"] for c in told["constants"]] == ["recipe.json:lr", "recipe.json:model.depth"]
    assert {left["name"]: left["why"] for left in told["left_out"]} == {
        "recipe.json:seed": "its name is that of a seed",
        "train.py:args.scale": "fixed in task.yaml",
        "train.py:args.width": "execution.run_command gives --width",
    }
    project.session("search", 6)
    tried = [e["commit"] for e in project.experiments()[1:] if e["commit"]]
    assert tried
    for commit in tried:
        text = project.git("show", f"{commit}:recipe.json")
        recipe = json.loads(text)
        assert 0.05 <= recipe["lr"] <= 0.2 and recipe["model"]["depth"] in (3, 4)
        assert text.splitlines()[:2] == ["{", '  "seed": 3,'] and len(text.splitlines()) == 5
        assert project.git("show", f"{commit}:train.py") == PROGRAM.strip()
    assert json.loads(project.git("show", "autoresearch/t:recipe.json")) != json.loads(RECIPE), "something was kept"
