"""Paths of task files: nothing that could lead out of the task's folder or into ``.git``."""

from __future__ import annotations

import re
import unicodedata

from autoresearchd.errors import RepositoryError

_LONGEST = 1024
_GIT_SHORT = re.compile(r"git~\d+")


def split_path(path: str) -> tuple[bytes, ...]:
    """The parts of a relative POSIX path; RepositoryError for anything else.

    ``.git`` is refused in every spelling that some file system takes for it: other case, characters that HFS+ ignores,
    the short names and trailing dots and blanks of NTFS (the rules of git's own ``verify_path``).
    """
    parts = path.split("/")
    if not path or len(path) > _LONGEST or any(not _harmless(part) for part in parts):
        raise RepositoryError(
            f"{path[:80]!r} is not a path inside the task's folder",
            mend="name files relative to the task's folder, with '/' between folders",
        )
    try:
        return tuple(part.encode("utf-8") for part in parts)
    except UnicodeEncodeError as error:
        raise RepositoryError(f"{path[:80]!r} is not text", mend="name files in UTF-8") from error


def _harmless(part: str) -> bool:
    if part in ("", ".", "..") or "\\" in part or any(unicodedata.category(c) in ("Cc", "Cs") for c in part):
        return False
    folded = "".join(c for c in part if unicodedata.category(c) != "Cf").casefold()
    folded = unicodedata.normalize("NFKC", folded).split(":")[0].rstrip(". ")
    return folded != ".git" and not _GIT_SHORT.fullmatch(folded)
