"""What git alone knows of a session: the refs of its experiments, and its commits with their messages.

A message has a subject in one line, a body, and trailers that no text in the first two can imitate. What git takes for
a trailer: git-interpret-trailers(1). It reads the last paragraph, and nothing after a ``---`` line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from autoresearchd.domain.cleaning import one_line, printable
from autoresearchd.domain.errors import RepositoryError
from autoresearchd.workspace import layout
from autoresearchd.workspace.command import Git, find_git
from autoresearchd.workspace.objects import ObjectStore, is_commit_id, parse_commit
from autoresearchd.workspace.refs import SessionRefs

SUBJECT_LENGTH = 72
_BODY_LENGTH = 8000
_VALUE_LENGTH = 200
_TRAILER = re.compile(r"([A-Za-z][A-Za-z0-9-]*): ?(.*)")
_DANGEROUS = re.compile(r"---|#|\(cherry picked|[A-Za-z0-9-]+[ \t]*:")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")
_COMMITTER = re.compile(rb"^committer .*> ([0-9]{1,12}) [+-][0-9]{4}$", re.MULTILINE)


def commit_message(subject: str, body: str, trailers: Mapping[str, str]) -> str:
    """The message, without control and formatting characters; body lines that look like trailers are indented."""
    line = one_line(subject, SUBJECT_LENGTH)
    parts = [(line.lstrip("- ") if line.startswith("---") else line) or "(no hypothesis)"]
    lines: list[str] = []
    for raw in re.split(r"\r\n|\r|\n", body[:_BODY_LENGTH]):
        line = printable(raw.expandtabs(4), instead=" ").rstrip()
        if line or (lines and lines[-1]):  # at most one empty line in a row
            lines.append(f"  {line}" if _DANGEROUS.match(line) else line)
    text = "\n".join(lines).strip("\n")
    if text and text.strip() != parts[0]:
        parts.append(text)
    if trailers:
        parts.append("\n".join(f"{key}: {one_line(value, _VALUE_LENGTH)}".rstrip() for key, value in trailers.items()))
    return "\n\n".join(parts) + "\n"


def parse_message(message: str) -> tuple[str, str, dict[str, str]]:
    """Subject, body and trailers of a message of ours, as git reads them; no body where it is the subject."""
    paragraphs = message.strip("\n").split("\n\n")
    found = [_TRAILER.fullmatch(line) for line in paragraphs[-1].split("\n")]
    if len(paragraphs) < 2 or None in found:
        return paragraphs[0], "\n\n".join(paragraphs[1:]), {}
    return paragraphs[0], "\n\n".join(paragraphs[1:-1]), {m[1]: m[2] for m in found if m is not None}


@dataclass(frozen=True, slots=True)
class RecordedCommit:
    """A commit of the daemon. trailers: ``Experiment``, ``Policy``, and of a kept one ``Metric`` and ``Delta``."""

    commit: str
    parent: str | None
    at: datetime
    subject: str
    body: str
    trailers: Mapping[str, str]

    @property
    def number(self) -> int | None:
        text = self.trailers.get("Experiment", "")
        return int(text) if _NUMBER.fullmatch(text) else None


class History:
    """Reads what git knows of one session; nothing is changed."""

    def __init__(self, git: Git, refs: SessionRefs, objects: ObjectStore) -> None:
        self._git, self._refs, self._objects = git, refs, objects

    def experiment(self, number: int) -> str | None:
        return self._refs.read(self._refs.experiment_ref(number))

    def tip(self) -> str | None:
        return self._refs.read(self._refs.branch_ref)

    def experiments(self) -> dict[int, str]:
        found, prefix = {}, self._refs.prefix
        for line in self._git.ask("for-each-ref", "--format=%(objectname) %(refname)", prefix).splitlines():
            commit, _, name = line.partition(" ")
            number = name.removeprefix(prefix)
            if _NUMBER.fullmatch(number) and is_commit_id(commit):
                found[int(number)] = commit
        return found

    def newest(self) -> int:
        return max(self.experiments(), default=0)

    def branch(self, base: str) -> list[str]:
        """Commits of the branch since it began, oldest first; empty where there is no branch, or not from there."""
        if not is_commit_id(base):
            return []
        result = self._git.run("rev-list", "--first-parent", "--reverse", f"{base}..{self._refs.branch_ref}", "--")
        return result.text.split() if result.ok else []

    def read(self, commit: str) -> RecordedCommit:
        """A commit; RepositoryError when it is missing or damaged."""
        data = self._objects.read(commit, "commit")
        try:
            parsed = parse_commit(data)
        except ValueError as error:
            raise RepositoryError(f"git object {commit} is damaged: {error}", hint="run `git fsck`") from error
        told = _COMMITTER.search(data.partition(b"\n\n")[0])
        at = datetime.fromtimestamp(int(told[1]) if told else 0, UTC)
        subject, body, trailers = parse_message(parsed.message)
        return RecordedCommit(commit, parsed.parents[0] if parsed.parents else None, at, subject, body, trailers)


def recorded_sessions(root: Path) -> list[str]:
    """Tags of all sessions that git has experiments of."""
    git = Git(find_git(), layout.common_dir(root))
    names = git.ask("for-each-ref", "--format=%(refname)", f"refs/{layout.BRANCHES}/*/0").split()
    tags = [name.split("/")[2] for name in names]
    return [tag for tag in tags if layout.valid_tag(tag)]
