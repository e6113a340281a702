"""What git alone knows of a session: its branch, the refs of its tip and experiments, its commits and their messages.

A message has a subject in one line, a body, and trailers that no text in the first two can imitate. What git takes for
a trailer: git-interpret-trailers(1). Refs are written by ``git update-ref`` (compare-and-swap, any ref storage); a
loose one is read as the file that it is, and git is asked when there is no such file.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from autoresearchd.domain.cleaning import one_line, printable
from autoresearchd.domain.errors import RepositoryError
from autoresearchd.workspace import layout
from autoresearchd.workspace.command import Git, Result, find_git
from autoresearchd.workspace.files import hold_lock
from autoresearchd.workspace.layout import BRANCHES, branch_name
from autoresearchd.workspace.objects import ObjectStore, is_commit_id

STALE_AFTER_S = 10.0
"""A ref's lock is held for milliseconds; one older than this, in our own namespace, was left by a git that died."""

ABSENT = "0" * 40
SUBJECT_LENGTH = 72
_BODY_LENGTH = 8000
_VALUE_LENGTH = 200
_TRAILER = re.compile(r"([A-Za-z][A-Za-z0-9-]*): ?(.*)")
_DANGEROUS = re.compile(r"---|#|\(cherry picked|[A-Za-z0-9-]+[ \t]*:")
_COMMAND = re.compile(
    r"(?<!\w)@(?=\w)|#(?=\d)|\bGH-(?=\d)|\bhttps?:(?=//)|\[(?! )(?=[^\[\]]*\b(?:ci|skip|actions)\b)|\*\*\*(?=NO_CI)",
    re.IGNORECASE,
)
"""Where ``@team``, ``Closes #1`` or with an address, ``[skip ci]`` or ``***NO_CI***`` is broken."""
_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")
FALL_BACK = "fall_back"
"""``Status`` of the commit that goes back to the confirmed program, on a line that has discards as well."""
_WRITING = ("update-ref", "--no-deref", "-m", "autoresearchd", "--stdin")


def commit_message(subject: str, body: str, trailers: Mapping[str, str]) -> str:
    """The message, without control and formatting characters; body lines that look like trailers are indented.

    A space breaks what hosts take for a command: they close issues, tell people and skip checks.
    """
    line = one_line(_COMMAND.sub(r"\g<0> ", one_line(subject)), SUBJECT_LENGTH)
    parts = [(line.lstrip("- ") if line.startswith("---") else line) or "(no hypothesis)"]
    lines: list[str] = []
    for raw in re.split(r"\r\n|\r|\n", body[:_BODY_LENGTH]):
        line = _COMMAND.sub(r"\g<0> ", printable(raw.expandtabs(4), instead=" ").rstrip())
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
    """A commit of the daemon. trailers: ``Experiment``, ``Policy``, and of a kept one ``Metric`` and ``Delta``.

    One that goes back to the confirmed program (``falls_back``) has the number of that. own: not made anew by somebody
    else, who may have changed it.
    """

    commit: str
    parent: str | None
    at: datetime
    subject: str
    body: str
    trailers: Mapping[str, str]
    own: bool

    @property
    def number(self) -> int | None:
        text = self.trailers.get("Experiment", "")
        return int(text) if _NUMBER.fullmatch(text) else None

    @property
    def kept(self) -> bool:
        """Whether it is the final commit of a keep: no other has its result in its message."""
        return "Metric" in self.trailers

    @property
    def falls_back(self) -> bool:
        return self.trailers.get("Status") == FALL_BACK


class History:
    """What git knows of one session (a tag that is valid). guard: locked while git writes refs."""

    def __init__(self, git: Git, tag: str, guard: Path, objects: ObjectStore) -> None:
        self._git, self._guard, self._objects = git, guard, objects
        self._locks: dict[tuple[int, int], float] = {}
        self.name = branch_name(tag)
        self._branch_ref = f"refs/heads/{self.name}"
        self.prefix = f"refs/{BRANCHES}/{tag}/"
        self.tip_ref = f"{self.prefix}tip"

    # -- reading
    def confirmed(self) -> str | None:
        """Where the branch is."""
        return self._read_ref(self._branch_ref)

    def tip(self) -> str | None:
        """What the tip's ref names; None where there is none (sessions of earlier versions): it is the branch."""
        return self._read_ref(self.tip_ref)

    def experiment(self, number: int) -> str | None:
        return self._read_ref(self._ref(number))

    def experiments(self) -> dict[int, str]:
        found = {}
        for line in self._git.ask("for-each-ref", "--format=%(objectname) %(refname)", self.prefix).splitlines():
            commit, _, name = line.partition(" ")
            number = name.removeprefix(self.prefix)
            if _NUMBER.fullmatch(number) and is_commit_id(commit):
                found[int(number)] = commit
        return found

    def newest(self) -> int:
        return max(self.experiments(), default=0)

    def line(self, base: str, end: str | None) -> list[str]:
        """Commits from where the session began to ``end`` (branch or tip), oldest first; empty where there are none."""
        if end is None or not is_commit_id(base):
            return []
        result = self._git.run("rev-list", "--first-parent", "--reverse", f"{base}..{end}", "--")
        return result.text.split() if result.ok else []

    def read(self, commit: str) -> RecordedCommit:
        """A commit; RepositoryError when it is missing or damaged."""
        found = self._objects.commit(commit)
        subject, body, trailers = parse_message(found.message)
        at = datetime.fromtimestamp(found.seconds, UTC)
        return RecordedCommit(commit, next(iter(found.parents), None), at, subject, body, trailers, found.own)

    def require_confirmed(self) -> str:
        found = self.confirmed()
        if found is None:
            raise RepositoryError(
                f"branch {self.name} is gone",
                hint=f"git branch {self.name} <the confirmed commit, see `autoresearchd experiments`>, then resume",
            )
        return found

    def _ref(self, number: int) -> str:
        return f"{self.prefix}{int(number)}"

    def _read_ref(self, ref: str) -> str | None:
        loose = self._read_loose(ref)
        if loose is not None:
            return loose
        result = self._git.run("rev-parse", "--verify", "--quiet", "--end-of-options", ref)
        return result.text if result.ok and is_commit_id(result.text) else None

    def _read_loose(self, ref: str) -> str | None:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            text = (self._git.directory / ref).read_text("ascii").strip()
            if is_commit_id(text):
                return text
        return None

    # -- writing
    def restore_branch(self, commit: str) -> None:
        """Write a branch anew that a power cut cut off; one that is anywhere, or gone, is left as it is."""
        if self._remove_cut_off(self._branch_ref):
            self._write([f"update {self._branch_ref} {commit}"])

    def set_experiment(self, number: int, commit: str) -> None:
        self._set(self._ref(number), commit)

    def move_tip(self, commit: str) -> None:
        """Wherever it was: the journal is right about it."""
        self._set(self.tip_ref, commit)

    def _set(self, ref: str, commit: str) -> None:
        if self._read_loose(ref) != commit:
            self._remove_cut_off(ref)
            self._write([f"update {ref} {commit}"])

    def advance(self, old: str, new: str) -> None:
        """Compare-and-swap of the branch; nothing when it is at ``new``."""
        there = self.require_confirmed()
        if there == old and old != new:
            result = self._try([f"update {self._branch_ref} {new} {old}"])
            if result.ok:
                return
            there = self.require_confirmed()
            if there == old:
                raise result.failure()
        if there != new:
            raise RepositoryError(
                f"branch {self.name} was moved by somebody else: it is at {there}, this session left it at {old} "
                f"and wants to move it to {new}",
                hint=f"git branch --force {self.name} {old}, then `autoresearchd resume`; "
                "to build on your own commit, start a new session from it",
            )

    def begin(self, base: str) -> None:
        """Create the branch and the refs of experiment 0 and the tip in one transaction; what is there already stays.

        RepositoryError: the branch is that of another session.
        """
        zero = self._ref(0)
        for ref in (zero, self.tip_ref, self._branch_ref):
            self._remove_cut_off(ref)
        branch, first, tip = self.confirmed(), self.experiment(0), self.tip()
        if branch is not None and (branch, first) != (base, base):
            raise RepositoryError(
                f"branch {self.name} is there already", hint="choose another tag with --tag, or delete the branch"
            )
        # Git puts refs in their places one after another: the branch comes last, so that a git which is killed between
        # them leaves what this completes, and not a branch that could be somebody else's.
        commands = [] if first == base else [f"update {zero} {base} {first or ABSENT}"]
        if tip is None or (branch is None and tip != base):
            commands.append(f"update {self.tip_ref} {base} {tip or ABSENT}")
        if branch is None:
            commands.append(f"create {self._branch_ref} {base}")
        if commands:
            self._write(commands)

    def abandon(self) -> None:
        """Delete the branch, unless it is anywhere but where it began, and the refs of the tip and all experiments."""
        there = self.confirmed()
        if there is not None and there != self.experiment(0):
            raise RepositoryError(
                f"branch {self.name} is at {there}, not where the session began: it is left as it is",
                hint=f"look at it; `git branch -D {self.name}` deletes it",
            )
        self.forget()

    def create_branches(self, commits: Mapping[str, str]) -> None:
        """Branches of these names (which git allows), all or none; RepositoryError where one is there already."""
        self._try([f"create refs/heads/{name} {commit}" for name, commit in commits.items()]).checked()

    def forget(self) -> None:
        there = self.confirmed()
        names = self._git.ask("for-each-ref", "--format=%(refname)", self.prefix).split()
        # The branch goes first: a git that is killed between the two leaves what ``begin`` completes.
        commands = [] if there is None else [f"delete {self._branch_ref} {there}"]
        commands += [f"delete {name}" for name in names]
        if commands:
            self._write(commands)

    def _remove_cut_off(self, ref: str) -> bool:
        """Remove a ref's file that a power cut left empty, which git can neither read nor write; whether it did."""
        place = self._git.directory / ref
        try:
            if place.read_bytes().strip(b"\0\n "):
                return False
        except OSError:
            return False
        place.unlink(missing_ok=True)
        return True

    def _write(self, commands: list[str]) -> None:
        self._try(commands).checked()

    def _try(self, commands: list[str]) -> Result:
        """One transaction; once more after a lock that a dead git left in our own namespace was removed."""
        # Each word is ours: a validated tag, numbers and hex digits; or a name that ``Branches`` has had git check.
        stdin = "".join(f"{command}\n" for command in commands).encode("utf-8", "surrogateescape")
        with hold_lock(self._guard) as descriptor:
            result = self._git.run(*_WRITING, stdin=stdin, keep_open=[descriptor])
            if not result.ok and result.lock is not None and self._remove_stale(result.lock):
                result = self._git.run(*_WRITING, stdin=stdin, keep_open=[descriptor])
        return result

    def _remove_stale(self, lock: Path) -> bool:
        """By its own time, or by how long it has been seen here: a wall clock may have been set back."""
        top = self._git.directory
        name = Path(top, lock)
        if name != top / f"{self._branch_ref}.lock" and not name.is_relative_to(top / self.prefix):
            return False
        with contextlib.suppress(FileNotFoundError):
            found = name.stat()
            seen = self._locks.setdefault((found.st_ino, found.st_mtime_ns), time.monotonic())
            if max(time.time() - found.st_mtime, time.monotonic() - seen) < STALE_AFTER_S:
                return False
            name.unlink()
        return True


def recorded_sessions(root: Path) -> list[str]:
    """Tags of all sessions that git has experiments of."""
    git = Git(find_git(), layout.common_dir(root))
    names = git.ask("for-each-ref", "--format=%(refname)", f"refs/{layout.BRANCHES}/*/0").split()
    tags = [name.split("/")[2] for name in names]
    return [tag for tag in tags if layout.valid_tag(tag)]
