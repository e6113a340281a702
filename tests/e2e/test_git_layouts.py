"""Projects as users have them: submodules, a commit checked out without a branch, environments of their own."""

from __future__ import annotations

import json
import venv

import pytest

from tests.e2e.conftest import PROGRAM, Project


@pytest.fixture
def with_library(project: Project) -> Project:
    """A project whose program imports from a submodule."""
    library = project.root.parent / "library"
    library.mkdir()
    (library / "shapes.py").write_text("OFFSET = 3.0\n")
    for words in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-qm", "library"]):
        project.git("-C", str(library), *words)
    project.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(library), "library")
    program = f"import sys\nsys.path.insert(0, 'library')\nimport shapes\n{PROGRAM}print(shapes.OFFSET)"
    return project.put({"train.py": program}, "with a library")


def test_a_program_that_imports_from_a_submodule_is_researched(with_library: Project) -> None:
    """Else its baseline fails, as the folder of the submodule is empty in every run."""
    assert "submodule" not in with_library.done("task", "check", "--run").stderr
    with_library.session("search", 2)
    assert with_library.git("diff", "--name-only", "main", "autoresearch/t") in ("", "train.py")


def test_a_project_of_uv_is_measured_in_its_own_environment(empty: Project) -> None:
    """What a user types is ``uv run train.py``; as a job it finds neither uv's environment nor its cache."""
    project = "[project]\nname = 'mine'\nversion = '0'\nrequires-python = '>=3.11'\n"
    uv = {"pyproject.toml": project, "uv.lock": "version = 1\n", ".gitignore": ".venv\n"}
    empty.begin({**uv, "train.py": f"import only_there\n{PROGRAM}"})
    words = ("task", "init", "mine", ".", "--file", "train.py", "--command", "uv run train.py", "--metric", "score")
    early = empty.done(*words, "--budget", "5s")
    assert "`uv sync` makes it" in early.stderr and "not measured: its environment is not there" in early.stderr
    refused = empty.cli("task", "check")
    assert refused.returncode == 5 and "uv sync" in refused.stderr
    (empty.root / "task.yaml").unlink()

    venv.create(empty.root / ".venv", symlinks=True)  # as `uv sync` does
    (next((empty.root / ".venv/lib").iterdir()) / "site-packages" / "only_there.py").write_text("")
    made = empty.done(*words, "--budget", "5s")
    assert "jobs run without uv, so run_command is `python train.py`" in made.stderr
    assert "baseline: score" in made.stderr
    text = (empty.root / "task.yaml").read_text()
    assert f"python: {json.dumps(str(empty.root / '.venv/bin/python'))}" in text and "uv run" not in text
