"""Versions of the local policy as the JSON that commands print, by plain ``sqlite3``."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

from autoresearchd.store.documents import iso

_VERSIONS = """
SELECT v.version, v.status, r.algo, p.version AS parent, s.tag AS session, v.learner_run_id AS learner_run,
       v.created_at, v.promoted_at, v.reason, v.metrics, v.model_hash, v.adapter_path AS folder
FROM policy_version v
LEFT JOIN policy_version p ON p.id = v.parent_id
LEFT JOIN learner_run r ON r.id = v.learner_run_id
LEFT JOIN session s ON s.id = v.session_id
ORDER BY v.id
"""


def versions(db: sqlite3.Connection) -> list[dict[str, Any]]:
    """All versions, oldest first."""
    found = [dict(row) for row in db.execute(_VERSIONS)]
    for version in found:
        version["algo"] = version["algo"] or ""
        version["metrics"] = json.loads(version["metrics"] or "{}")
        for name in ("created_at", "promoted_at"):
            version[name] = iso(version[name])
    return found
