"""A file that a user names for output: there as a whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def whole_file(target: Path) -> Iterator[Path]:
    """Where to write it. A link, a pipe or a device is written to as it is: nothing may be moved into its place."""
    if target.is_symlink() or (target.exists() and not target.is_file()):
        yield target
        return
    part = target.with_name(f"{target.name}.part")
    try:
        yield part
        part.replace(target)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
