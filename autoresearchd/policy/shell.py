"""What the policy ``agent`` needs of a shell: commands over a private copy of the workspace, one process for each."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from autoresearchd.domain.state import ResearchState
from autoresearchd.ports import Cancel


class Ran(Protocol):
    """How a command ended."""

    @property
    def exit_code(self) -> int | None:
        """0…255, or −signal; None when it was ended from outside."""
        ...

    @property
    def ended(self) -> str:
        """Why it was ended from outside, in words (``it took longer than 30 s``); empty: it ended by itself."""
        ...

    @property
    def head(self) -> str:
        """What it printed, both streams together; where that was too much to keep, the beginning of it."""
        ...

    @property
    def tail(self) -> str:
        """The end of what it printed, where the middle was not kept."""
        ...

    @property
    def omitted(self) -> int:
        """Bytes between the two; at least so many where it was ended for printing too much."""
        ...

    @property
    def seconds(self) -> float:
        """How long it ran."""
        ...


class Shell(Protocol):
    """Runs commands in a copy of the workspace. Files last from one command to the next; processes do not."""

    @property
    def folder(self) -> Path:
        """The copy. Nothing runs in it between two commands."""
        ...

    def run(self, command: str, *, timeout: float, cancel: Cancel) -> Ran:
        """Run a shell script in the copy; all its processes are dead when this returns.

        Whatever the script is or does comes back as facts. Raises Interrupted soon after ``cancel`` is set, and
        EnvironmentFailure where the machine is at fault (its disk is full, the sandbox does not start).
        """
        ...


class Shells(Protocol):
    """Makes shells."""

    def open(self, state: ResearchState) -> AbstractContextManager[Shell]:
        """A shell over a fresh copy of the workspace at the state's parent; copy and all, it is gone at the end.

        Raises EnvironmentFailure where the copy cannot be made.
        """
        ...
