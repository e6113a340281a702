"""Which tasks an agent may begin: what lies in `task.yaml` runs unsandboxed as set-up; and what it may see of jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoresearchd.domain.errors import UsageError
from autoresearchd.workspace import layout
from tests.unit.cli.conftest import give_secret
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


def test_a_log_is_redacted_before_it_is_cut_and_cleaned(repository: Path) -> None:
    secret, log = give_secret(repository), layout.run_dir(repository, "mar8", 2, 0) / "training.log"
    log.parent.mkdir(parents=True)
    end = f"\nkey {secret[:9]}\r{secret[9:]}\nend\n"
    log.write_text(f"key {secret}{'.' * (mcp_server._LOG_BYTES - len(end) - 14)}{end}")
    shown = mcp_server.Tools(repository).show(2, log=True)["log"]
    assert shown.endswith("\nkey «redacted:environment»\nend\n") and secret[-14:] not in shown
