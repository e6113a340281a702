"""A session whose user has hooks and wants to be told: what config.yaml says reaches the daemon, and secrets no log."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.e2e.conftest import Project

CONFIG = """\
hooks:
  before: ["cat > before.json; echo look at SHIFT"]
  after: ["cat >> after.jsonl; exit 1"]
notify:
  - {command: 'cat > "told-$AUTORESEARCHD_EVENT"'}
  - {url_file: url}
"""


def test_hooks_and_notifications_of_the_settings_are_those_of_the_daemon(project: Project, tmp_path: Path) -> None:
    folder = tmp_path / "config"
    folder.mkdir()
    (folder / "config.yaml").write_text(CONFIG)
    environment = {"AUTORESEARCHD_CONFIG": str(folder / "config.yaml")}
    refused = project.cli("start", "--foreground", "--policy", "random", env=environment)
    assert refused.returncode == 2 and "webhook" in refused.stderr, "a place that cannot be told is said at once"
    (folder / "url").write_text("http://127.0.0.1:9/services/T0KEN-of-mine\n")
    project.session("random", 1, env=environment)

    assert json.loads((project.root / "before.json").read_text())["experiment"] == 1
    assert (project.root / "after.jsonl").read_text().count('"event": "after"') == 2
    told = json.loads((project.root / "told-budget").read_text())
    assert (told["session"], told["task"]) == ("t", "toy") and "as asked" in told["message"]
    log = (project.root / ".autoresearchd/daemon.log").read_text()
    assert "hook before #1" in log and "ended with exit code 1" in log
    told = re.search(r"url could not be told of `(budget|confirmed)`: URLError", log)  # said once, of the first
    assert told and "T0KEN" not in log
