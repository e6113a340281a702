"""How the latest session ended that had no first result: kept in a file, as the session itself is taken away then."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class FailedStart:
    """A session that ended before its first result.

    ended_at: with a time zone. exit_code: that its daemon ended with. what, hint: why it ended, and how that is fixed.
    status: the session as ``status --json`` prints it.
    """

    tag: str
    ended_at: datetime
    exit_code: int
    what: str
    hint: str
    status: Mapping[str, Any]


def remember(path: Path, failed: FailedStart) -> None:
    """Write it down, in the place of an earlier one; a disk that takes no writing only loses these words."""
    facts = {
        "tag": failed.tag,
        "ended_at": failed.ended_at.isoformat(),
        "exit_code": failed.exit_code,
        "what": failed.what,
        "hint": failed.hint,
        "status": dict(failed.status),
    }
    part = path.with_name(f"{path.name}.part")
    with contextlib.suppress(OSError):
        part.write_text(json.dumps(facts), "utf-8")
        part.replace(path)


def recall(path: Path, known: Iterable[str]) -> FailedStart | None:
    """The latest failed start; None where there was none, or where its session is known all the same."""
    try:
        with path.open("rb") as stream:
            facts = json.loads(stream.read(_MOST_BYTES))
        found = FailedStart(
            str(facts["tag"]),
            datetime.fromisoformat(facts["ended_at"]),
            int(facts["exit_code"]),
            str(facts["what"]),
            str(facts.get("hint", facts.get("mend", ""))),  # as it was called before
            dict(facts["status"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if found.ended_at.tzinfo is not None and found.tag not in set(known) else None
