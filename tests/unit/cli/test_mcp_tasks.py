"""Which tasks an agent may begin: what lies in `task.yaml` runs unsandboxed as set-up."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoresearchd.domain.errors import UsageError
from tests.unit.learner.sessions import make_root

mcp_server = pytest.importorskip("autoresearchd.cli.mcp_server", exc_type=ImportError)


def test_an_agent_begins_a_bundled_task_or_one_of_the_projects_own(tmp_path: Path) -> None:
    root = make_root(tmp_path / "project")
    (root / "tasks" / "mine").mkdir(parents=True)
    assert mcp_server._safe_task(root, "tasks/mine", "search") == str(root / "tasks" / "mine")
    assert mcp_server._safe_task(root, "autoresearch", "search") == "autoresearch"


def test_an_agent_begins_no_task_that_a_job_or_somebody_else_has_left(tmp_path: Path) -> None:
    """A job may make a repository with a task.yaml in its output folder, and talk an agent into starting it."""
    root = make_root(tmp_path / "project")
    output = root / ".autoresearchd" / "runs" / "tag" / "1" / "0" / "output"
    (root / "link").symlink_to(tmp_path)
    for place in (output, make_root(output / "nested"), make_root(root / "module"), root / ".git", root / "link"):
        place.mkdir(parents=True, exist_ok=True)
        with pytest.raises(UsageError):
            mcp_server._safe_task(root, str(place.relative_to(root)), "search")
