"""The command task list, and where tasks are found."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from autoresearchd.cli import render
from autoresearchd.cli.options import JsonOption
from autoresearchd.cli.render import Paint, json_text
from autoresearchd.cli.session import here
from autoresearchd.errors import ConfigError, UsageError

TASK_FILE = "task.yaml"


def list_tasks(as_json: JsonOption = False) -> None:
    """List the bundled tasks, with the extra of autoresearchd that each needs, and what of it is missing here."""
    found = [_facts(folder) for folder in bundled_tasks()]
    if as_json:
        print(json_text(found, indent=2))
        return
    rows = [
        [f["name"], f["metric"], f["direction"], ", ".join(f["profiles"]) or "—", f["needs"]["words"], f["path"]]
        for f in found
    ]
    headers = ("name", "metric", "direction", "profiles", "needs", "path")
    print("\n".join(render.table(headers, rows, paint=Paint(sys.stdout))))


def bundled_tasks() -> list[Path]:
    """Folders of the bundled tasks, by name."""
    from autoresearchd.resources import bundled

    return sorted(path.parent for path in bundled("templates").glob(f"*/{TASK_FILE}"))


def find_task(which: str | None) -> Path:
    """The folder of a bundled task by name, else a folder. Raises UsageError when it is neither."""
    if which is None:
        return here()
    for folder in bundled_tasks():
        if folder.name == which:
            return folder
    folder = Path(which).expanduser()
    if folder.is_dir():
        return folder
    names = ", ".join(path.name for path in bundled_tasks())
    raise UsageError(f"{which!r} is neither a bundled task nor a folder", mend=f"bundled tasks: {names}")


def _facts(folder: Path) -> dict[str, Any]:
    """What ``task list --json`` says of a task, read from its file as it is written."""
    from autoresearchd.app.needs import needs_of
    from autoresearchd.config.document import parse_yaml, read_text

    needs = needs_of(folder)
    path = folder / TASK_FILE
    root = parse_yaml(read_text(path), str(path)).root
    inner = root.get("task")
    task: dict[str, Any] = inner if isinstance(inner, dict) else root
    scoring, profiles = task.get("scoring"), task.get("profiles")
    if not isinstance(scoring, dict):
        raise ConfigError(
            "is missing", file=str(path), key="scoring", mend="scoring: {metric: loss, direction: minimize}"
        )
    return {
        "name": str(task.get("name") or folder.name),
        "metric": str(scoring.get("metric") or ""),
        "direction": str(scoring.get("direction") or "minimize"),
        "path": str(folder),
        "profiles": sorted(profiles) if isinstance(profiles, dict) else [],
        "needs": {"extras": list(needs.extras), "missing": list(needs.missing), "words": needs.words},
    }
