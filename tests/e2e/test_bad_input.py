"""Bad input gets a clear error and its exit code, and nothing of the user's is changed."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import Project


def refused(project: Project, code: int, *words: str, **more: object) -> None:
    """``start`` ends with the code, says the words, prints no traceback and changes nothing."""
    before = project.snapshot()
    done = project.cli("start", "--foreground", "--policy", "random", "--max-experiments", "1", **more)
    assert done.returncode == code, done.stderr + done.stdout
    for word in words:
        assert word in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    assert project.snapshot() == before


def test_no_git(project: Project) -> None:
    refused(project, 5, "git", env={"PATH": "/nonexistent"})


@pytest.mark.parametrize(
    ("program", "word"),
    [
        ("raise ValueError('broken here')\n", "broken here"),
        ("print('score: nan')\n", "score"),
        ("open('model.pt', 'w').write('x')\nprint('score: 1')\n", "AUTORESEARCHD_OUTPUT_DIR"),
    ],
)
def test_a_baseline_that_gives_no_metric(project: Project, program: str, word: str) -> None:
    project.put({"train.py": f"RATE = 0.1\n{program}"})
    refused(project, 3, word)
