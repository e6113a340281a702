"""What an upgrade meets: the migrations of a later version, and another process that does the same."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from autoresearchd.resources import bundled
from autoresearchd.store.schema.health import HEAD_REVISION

_LATER = """
from alembic import op
import sqlalchemy as sa
revision, down_revision = "9999", "{head}"
def upgrade():
    op.add_column("session", sa.Column("colour", sa.Text(), nullable=True))
    {more}
"""


def later_migrations(folder: Path, more: str = "") -> Path:
    """Our migrations and one more in a new folder, which makes a column and then does ``more``."""
    shutil.copytree(bundled("migrations"), folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "versions" / "9999_colour.py").write_text(_LATER.format(head=HEAD_REVISION, more=more))
    return folder


def by_two_at_once(code: str, *arguments: str) -> None:
    """Two processes carry code out without an error, from its ``input()`` on at the same moment."""
    command = [sys.executable, "-c", code, *arguments]
    both = [subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for process in both:
        process.stdin.write("now\n")
        process.stdin.flush()
    said = [process.communicate()[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
