"""Whether an edit would bring a secret into the repository: it is refused, for code must not be changed silently."""

from __future__ import annotations

from collections.abc import Mapping

from autoresearchd.domain.labels import Label
from autoresearchd.domain.redaction import MARK, Redactor
from autoresearchd.errors import PolicyError


def check_no_secret(redactor: Redactor, old: Mapping[str, str], new: Mapping[str, str]) -> None:
    """Let an edit pass or raise.

    What the files at the parent hold already is the user's own, and no leak.

    Args:
        redactor: knows what is secret.
        old: text of the editable files at the parent.
        new: their text after the edit; a file that is left out is unchanged.

    Raises:
        PolicyError: ``illegal_edit``; the message names the place and the kind of the secret, never the secret.
    """
    changed = {path: text for path, text in new.items() if text != old.get(path)}
    before = {secret for text in old.values() for secret, _, _ in redactor.found(text)} if changed else set()
    marks = sum(text.count(MARK) for text in old.values())
    for path in sorted(changed):
        for secret, line, kind in redactor.found(changed[path]):
            if secret not in before and not any(secret in text for text in old.values()):
                raise PolicyError(
                    f"{path}, line {line}: the edit holds a secret ({kind})",
                    label=Label.ILLEGAL_EDIT,
                    mend="leave keys, tokens and passwords out of the program",
                )
    if marks < sum(text.count(MARK) for text in {**old, **changed}.values()):
        raise PolicyError(
            f"the edit holds the mark {MARK}…, which stands for a secret in what a policy is shown",
            label=Label.ILLEGAL_EDIT,
            mend="leave the lines with such a mark as they are",
        )
