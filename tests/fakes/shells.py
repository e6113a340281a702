"""A fake of the agent's shell: no process, no sandbox; what commands do is written down beforehand, in Python."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from autoresearchd.domain.errors import Interrupted
from autoresearchd.domain.ports import Cancel, ResearchState
from autoresearchd.sandbox.agent_shell import CommandResult


def fake_run(
    head: str = "", exit_code: int | None = 0, ended: str = "", tail: str = "", omitted: int = 0
) -> CommandResult:
    """How a fake command ended: well and at once, where nothing else is said."""
    return CommandResult(exit_code, ended, head, tail, omitted, 0.0)


Act = Callable[[Path], str | CommandResult | None]
"""What a command does in the folder of the copy, and what it prints."""


class FakeShells:
    """Shells over copies made of ``state.code`` and a few more files.

    A command does what ``acts`` says of it; one that it does not name does nothing, but ``echo WORDS`` prints them.
    All commands, with their time-outs, are kept in ``ran``.
    """

    def __init__(self, acts: Mapping[str, Act] | None = None, files: Mapping[str, str] | None = None) -> None:
        self._acts = dict(acts or {})
        self._files = {"prepare.py": "# protected\n"} if files is None else dict(files)
        self.ran: list[tuple[str, float]] = []
        self.open_copies = 0

    @contextlib.contextmanager
    def open(self, state: ResearchState) -> Iterator[FakeShell]:
        folder = Path(tempfile.mkdtemp(prefix="autoresearchd-fake-shell-"))
        self.open_copies += 1
        try:
            for path, text in {**self._files, **state.code}.items():
                place = folder / path
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(text, encoding="utf-8", newline="")
            yield FakeShell(folder, self._acts, self.ran)
        finally:
            self.open_copies -= 1
            shutil.rmtree(folder)


class FakeShell:
    def __init__(self, folder: Path, acts: Mapping[str, Act], ran: list[tuple[str, float]]) -> None:
        self.folder, self._acts, self._ran = folder, acts, ran

    def run(self, command: str, *, timeout: float, cancel: Cancel) -> CommandResult:
        if cancel.is_set():
            raise Interrupted("the fake shell was asked to stop")
        command = command.strip()
        self._ran.append((command, timeout))
        act = self._acts.get(command)
        if act is None:
            return fake_run(command.removeprefix("echo ") + "\n" if command.startswith("echo ") else "")
        done = act(self.folder)
        return done if isinstance(done, CommandResult) else fake_run(done or "")
