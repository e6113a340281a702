"""A command that the documentation shows and the program does not know costs every reader ten minutes."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from autoresearchd.cli.main import build

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("skills/**/*.md")]


def shown_commands() -> list[tuple[str, str]]:
    """(page, command line) of each autoresearchd command in a block of shell code."""
    found = []
    for page in PAGES:
        for block in re.findall(r"```bash\n(.*?)```", page.read_text("utf-8"), re.DOTALL):
            lines = [line for line in block.replace("\\\n", " ").splitlines() if line.startswith("autoresearchd ")]
            found.extend((str(page.relative_to(ROOT)), line) for line in lines)
    return found


@pytest.mark.parametrize(("page", "line"), shown_commands())
def test_each_command_shown_parses(page: str, line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    command: Any = typer.main.get_command(build())
    while hasattr(command, "resolve_command"):
        _, command, words = command.resolve_command(command.context_class(command), words)
    command.parse_args(command.context_class(command), words)


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_prose_can_be_read_in_a_terminal() -> None:
    for page in (page for page in PAGES if not page.is_relative_to(ROOT / "skills")):  # which agents read
        code = False
        for number, line in enumerate(page.read_text("utf-8").splitlines(), start=1):
            code ^= line.lstrip().startswith("```")
            prose = not code and not line.lstrip().startswith(("|", "```")) and " " in line.strip()
            shown = re.sub(r"\]\([^)]*\)", "]", line)  # a reader sees the words of a link
            assert not prose or len(shown) <= 120, f"{page.name}:{number} has {len(shown)} columns"


def test_the_map_of_the_house_names_what_is_there() -> None:
    text = (ROOT / "docs/contributing.md").read_text("utf-8")
    packages = {p.parent.name for p in (ROOT / "autoresearchd").glob("*/__init__.py")}
    assert packages == set(re.findall(r"^\| `([a-z]+)/` \|", text, re.MULTILINE))
    for name in re.findall(r"`((?:app|domain|executor|loop|policy|tests|store)/[a-z_/]+\.py)`", text):
        assert (ROOT / name).exists() or (ROOT / "autoresearchd" / name).exists(), name


@pytest.mark.slow
def test_the_site_is_built_with_every_link_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("mkdocstrings", reason="mkdocs comes with the extra docs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    loads = re.compile(r"""<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)=["']?(?:https?:)?//[^>]*""")
    for page in tmp_path.rglob("*.html"):
        assert not loads.findall(page.read_text("utf-8")), page.name
    assert "--max-experiments" in (tmp_path / "cli.html").read_text("utf-8"), "the commands' own help is a page"
