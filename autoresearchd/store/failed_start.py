"""How the latest session ended that had no first result: kept in a file, as the session itself is taken away then."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class FailedStart:
    """A session that ended before its first result, why, and how that is fixed. status: as ``status --json`` has it."""

    tag: str
    ended_at: datetime
    exit_code: int
    what: str
    hint: str
    status: Mapping[str, Any]


def remember(path: Path, failed: FailedStart) -> None:
    """Write it down, in the place of an earlier one; a disk that takes no writing only loses these words."""
    part = path.with_name(f"{path.name}.part")
    with contextlib.suppress(OSError):
        part.write_text(json.dumps(asdict(failed), default=datetime.isoformat), "utf-8")
        part.replace(path)


def recall(path: Path, known: Iterable[str]) -> FailedStart | None:
    """The latest failed start; None where there was none, or where its session is known all the same."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        told = json.loads(path.read_text("utf-8"))
        if told["tag"] not in set(known):
            return FailedStart(**{**told, "ended_at": datetime.fromisoformat(told["ended_at"]).astimezone(UTC)})
    return None
