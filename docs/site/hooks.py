"""What the site has beside docs/: pages from elsewhere in the repository, and the help of the command line itself."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

import typer
from mkdocs.structure.files import File, Files
from typer.cli import get_docs_for_click

from autoresearchd.cli.main import PROGRAM, build

ROOT = Path(__file__).parents[2]
ELSEWHERE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/RESULTS.md": "results.md",
    **{f"templates/{f.parent.name}/{f.name}": f"tasks/{f.parent.name}.md" for f in ROOT.glob("templates/*/README.md")},
    **{f"templates/{f.parent.name}/{f.name}": f"tasks/{f.parent.name}.png" for f in ROOT.glob("templates/*/*.png")},
}
"""Path in the repository → path in the site."""
_THERE = {site: path for path, site in ELSEWHERE.items()}
_LINK = re.compile(r"\]\((?![a-z]+:|[#/])([^)#\s]+)")
_EXAMPLES = re.compile(r"\x08\nExamples:\n((?:  .*\n)+)")


def on_files(files: Files, config: Any) -> Files:
    """Add those pages."""
    for path, site in ELSEWHERE.items():
        files.append(File.generated(config, site, abs_src_path=str(ROOT / path)))
    files.append(File.generated(config, "cli.md", content=commands()))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Make links that are right in the repository right in the site."""
    uri = page.file.src_uri
    if uri.startswith(("adr/", "changelog")):
        page.meta["search"] = {"boost": 0.3}  # who looks for a word wants to use it first, and its history afterwards
    folder = posixpath.dirname(_THERE.get(uri, f"docs/{uri}"))

    def in_site(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, link[1]))
        site = ELSEWHERE.get(path, path.removeprefix("docs/"))
        return f"]({posixpath.relpath(site, posixpath.dirname(uri) or '.')}"

    return _LINK.sub(in_site, markdown)


def commands() -> str:
    """All commands with their options, in typer's own Markdown."""
    command: Any = typer.main.get_command(build())
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name=PROGRAM, title="Commands")
    text = _EXAMPLES.sub(lambda found: f"**Examples**:\n\n```bash\n{found[1].replace('  ', '')}```\n", text)
    parts = text.split("```")
    parts[::2] = [re.sub(r"<=x<=\d{16,}", "<=x", part).replace("[", r"\[") for part in parts[::2]]
    return "```".join(parts)
