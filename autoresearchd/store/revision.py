"""The revision of the database that this version works with, and what to say of any other."""

from __future__ import annotations

from autoresearchd.errors import SchemaTooNew

HEAD_REVISION = "0005"
"""The newest file in ``migrations/versions`` (a test holds the two together)."""


def too_new(where: str, found: str) -> SchemaTooNew:
    """The error for a database whose revision this version has never heard of."""
    return SchemaTooNew(
        f"{where} is at revision {found}, this version of autoresearchd knows revisions up to {HEAD_REVISION}: "
        "a newer version wrote it",
        mend="pip install --upgrade autoresearchd",
    )
