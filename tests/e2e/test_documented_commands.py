"""What a newcomer copies out of the README and the tutorials works as it stands there, from the first block on.

A comment before a block says what is run in its place, where it would take a night: ``<!-- test: TEXT => TEXT; … -->``;
or why it is not run: ``<!-- test: not run, WHY -->`` (commands are parsed all the same: ``tests/unit/test_docs.py``).
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import PROGRAM, Project
from tests.fakes import model_turns as turns
from tests.fakes.model_server import ScriptedServer

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"(?:^<!-- test: ([^>]*(?:=>[^>]*)*) -->\n\n)?^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)


def script(page: str, heading: str = "", **values: str) -> str:
    """The blocks of a page, or of what stands below one heading, as one script with what is run in their place."""
    text = (ROOT / page).read_text("utf-8")
    if heading:
        text = re.split("^#+ ", text[text.index(f"\n{heading}\n") + 2 :], flags=re.MULTILINE)[1]
    lines = []
    for marks, block in BLOCK.findall(text):
        if marks.startswith("not run, "):
            continue
        for mark in re.split(r";\s+", marks) if marks else ():
            there, _, instead = mark.partition(" => ")
            assert there in block, f"{page}: {there!r} is not in the block that it is marked for"
            block = block.replace(there, instead.format(**values))
        lines.append(block)
    assert lines, f"{page} has nothing to run below {heading!r}"
    return "".join(lines)


def run(project: Project, tools: Path, text: str) -> str:
    """What a shell prints that ends at the first command which fails."""
    environment = {**project.environment, "PATH": f"{tools}:{project.environment['PATH']}"}
    done = subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", text], cwd=project.root, env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def keys(document: Any) -> set[str]:
    """All keys of a JSON document but those that a task or a policy gives."""
    if isinstance(document, list):
        return set().union(*map(keys, document))
    if not isinstance(document, dict):
        return set()
    return set(document).union(*(keys(value) for key, value in document.items() if key not in ("metrics", "asi")))


@pytest.mark.slow
def test_the_first_night_on_a_laptop(empty: Project, tools: Path) -> None:
    said = run(empty, tools, script("docs/first-night.md"))
    assert "3 experiments done, as asked" in said and "progress.png" in said


@pytest.mark.slow
def test_a_local_model(empty: Project, tools: Path) -> None:
    answers = [turns.edits("train.py", "HIDDEN = 32", f"HIDDEN = {n}") for n in (24, 40)]
    with ScriptedServer(answers) as scripted:
        said = run(empty, tools, script("docs/local-model.md", url=scripted.url))
    assert "2 experiments done, as asked" in said and "HIDDEN = 24" in said


@pytest.mark.slow
def test_the_tour_of_the_readme(empty: Project, tools: Path) -> None:
    tour, own = (script("README.md", heading) for heading in ("## Ten-minute tour", "### Your own program"))
    assert tour + own == script("README.md"), "a block that nothing runs is below another heading"
    assert "3 experiments done, as asked" in run(empty, tools, tour)


@pytest.mark.slow
def test_your_own_program(empty: Project, tools: Path) -> None:
    empty.begin({"train.py": PROGRAM.replace("score", "val_loss")})
    run(empty, tools, script("README.md", "### Your own program"))
    documents = empty.status(), empty.experiments()
    assert [e["experiment"] for e in documents[1]] == [0, 1, 2]
    pages = re.split("^### ", (ROOT / "docs/interface.md").read_text("utf-8"), flags=re.MULTILINE)[1:3]
    for document, told in zip(documents, pages, strict=True):
        assert keys(document) <= set(re.findall("`([a-z0-9_]+)`", told)), "who reads JSON is told of each key"
