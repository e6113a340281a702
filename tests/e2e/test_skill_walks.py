"""What the skills tell an agent to type works as it stands there, from the first line of each to its last."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from autoresearchd.resources import bundled
from tests.e2e.conftest import Project
from tests.e2e.test_models import BETTER, configure
from tests.fakes.model_server import ScriptedServer
from tests.timing import wait_until

SKILLS = bundled("skills")
SHORTER = [
    (r" --max-experiments 40\b", ""),  # on and on: the walk stops it
    (r" --max-experiments 20\b", " --max-experiments 2"),
]
"""What would take long, and what it becomes here."""

FIT = """\
import os, random
RATE = 0.5
random.seed(int(os.environ.get("AUTORESEARCHD_SEED", "0")))
print(f"loss: {1 + (RATE - 0.3) ** 2 + random.gauss(0, 0.01):.6f}")
"""
BENCH = "set -euo pipefail\npython3 -c 'print(\"METRIC loss=1.25\")'\necho METRIC peak_mb=64\n"
TAG = "night1"


def commands(page: Path) -> list[str]:
    """The lines of shell code on a page, those that go on at their ends joined."""
    text = page.read_text("utf-8")
    blocks = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    return [line for block in blocks for line in block.replace("\\\n", " ").splitlines() if line.strip()]


def walk(project: Project, tools: Path, page: Path) -> list[str]:
    """Run the lines of a page one after another; each has to succeed. What they printed."""
    environment = {
        **project.environment,
        "PATH": f"{tools}:{project.environment['PATH']}",
        "CLAUDE_SKILL_DIR": str(page.parent.parent if page.parent.name == "references" else page.parent),
    }
    printed = []
    lines = commands(page)
    assert lines
    for line in lines:
        for long, short in SHORTER:
            line = re.sub(long, short, line)
        done = subprocess.run(
            ["bash", "-c", line], cwd=project.root, env=environment, capture_output=True, text=True, timeout=280,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        printed.append(done.stdout + done.stderr)
        if line.startswith("autoresearchd start") and "--foreground" not in line:
            wait_until(lambda: project.latest_run(TAG) >= 2)
    return printed


@pytest.mark.slow
def test_the_skill_that_runs_a_session(project: Project, tools: Path) -> None:
    walk(project, tools, SKILLS / "autoresearch/SKILL.md")
    assert (project.root / "progress.png").is_file() and (project.root / "autoresearch.jsonl").is_file()


@pytest.mark.slow
def test_the_skill_that_makes_a_task(empty: Project, tools: Path) -> None:
    empty.begin({"train.py": FIT})
    printed = walk(empty, tools, SKILLS / "autoresearch-task/SKILL.md")
    assert any("over 3 runs" in text for text in printed)


@pytest.mark.slow
def test_the_skill_that_learns(project: Project, tools: Path) -> None:
    with ScriptedServer([BETTER]) as scripted:
        configure(project, scripted.url, "temperature: 1\n", reasks=0)
        project.session("local:m", tag=TAG)
    walk(project, tools, SKILLS / "autoresearch-learn/SKILL.md")


@pytest.mark.slow
def test_the_loop_by_hand_and_its_log_taken_over(empty: Project, tools: Path) -> None:
    empty.begin({"train.py": FIT})
    empty.write("autoresearch.sh", BENCH)
    empty.write("autoresearch.md", "# Files in Scope\n- `train.py`\n")
    walk(empty, tools, SKILLS / "autoresearch/references/by-hand.md")
    found = empty.json("experiments", "--json", "--session", "imported-autoresearch")
    assert [(one["status"], one["metric"]) for one in found] == [("keep", 1.25), ("discard", 0.993)]
    assert found[0]["metrics"]["peak_mb"] == 64
    made = empty.done("task", "init", "speed", ".", "--no-measure")
    assert "pi-autoresearch" in made.stderr and "metric: loss" in (empty.root / "task.yaml").read_text()
