"""What ``status`` shows of a session that ended before its first result, and was taken away."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from autoresearchd.cli.render import Paint, clean, json_text
from autoresearchd.store.failed_start import FailedStart
from autoresearchd.workspace import layout

_LONGEST = 600


def show_ended(root: Path, failed: FailedStart, *, as_json: bool) -> int:
    """Print how the session ended; the exit code that its daemon ended with."""
    if as_json:
        print(json_text(failed.status, indent=2))
    else:
        print("\n".join(ended_lines(root, failed, Paint(sys.stdout))))
    return failed.exit_code


def ended_lines(root: Path, failed: FailedStart, paint: Paint, *, now: datetime | None = None) -> list[str]:
    """How the session ended, as a block of lines."""
    session = failed.status.get("session") or {}
    at, today = failed.ended_at.astimezone(), (now or datetime.now().astimezone()).date()
    head = (
        f"{paint('●', 'red')} {paint(clean(session.get('task') or 'autoresearch'), 'bold')}",
        clean(failed.tag),
        f"{paint('ended before its first result', 'red', 'bold')} "
        + at.strftime("%H:%M" if at.date() == today else "%d %b %H:%M"),
    )
    rows = [f"  {paint(f'{name:<8}', 'dim')}{words}" for name, words in _rows(root, failed)]
    return [paint(" · ", "dim").join(head), "", *rows, ""]


def _rows(root: Path, failed: FailedStart) -> Iterator[tuple[str, str]]:
    yield "why", clean(failed.what, _LONGEST)
    if failed.mend:
        yield "mend", clean(failed.mend, _LONGEST)
    runs = layout.public_dir(root) / "runs" / failed.tag if layout.valid_tag(failed.tag) else None
    if runs is not None and runs.is_dir():
        yield "runs", f"{_near(runs)}   what they printed"
    if layout.daemon_log(root).exists():
        yield "log", f"autoresearchd logs --session {clean(failed.tag)}"
    yield "again", "autoresearchd start   begins another; of this one only the logs are left"


def _near(path: Path) -> str:
    relative = os.path.relpath(path)
    return clean(str(path) if relative.startswith("..") else relative, _LONGEST)
