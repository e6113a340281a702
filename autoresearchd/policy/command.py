"""The policy ``command:CMD``: a tool of the user's own edits a private copy of the workspace; its edit is the proposal.

The tool is trusted: it runs with the user's rights and the whole environment of the daemon (it may need its keys), and
is not sandboxed. What it leaves behind is not: files are read back as data, and its words are cut and cleaned.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from autoresearchd.domain.labels import Label
from autoresearchd.domain.proposal import Proposal
from autoresearchd.domain.state import ResearchState
from autoresearchd.errors import EnvironmentFailure, Interrupted, PolicyError
from autoresearchd.policy import answer, copies, prompt
from autoresearchd.policy.copies import Materialise
from autoresearchd.policy.tool import ToolResult, run_tool
from autoresearchd.ports import Cancel

DEFAULT_TIMEOUT_S = 1800.0
_TAIL_LINES = 12


class CommandPolicy:
    """Runs a command for each proposal.

    Args:
        command: what the user wrote after ``command:``; given to ``sh -c``.
        materialise: fills the copy.
        timeout: seconds that one proposal may take.
        scratch: where the private copies are made; the system's place for temporary files by default.
    """

    def __init__(
        self,
        command: str,
        materialise: Materialise,
        *,
        timeout: float = DEFAULT_TIMEOUT_S,
        scratch: Path | None = None,
    ) -> None:
        self._command, self._materialise, self._timeout, self._scratch = command, materialise, timeout, scratch

    @property
    def name(self) -> str:
        """``command:`` and the command."""
        return f"command:{self._command}"

    @property
    def repairs(self) -> int:
        """None: a tool of the user's own tries its edit itself, if it wants to."""
        return 0

    def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
        """What the tool changed in the editable files."""
        if cancel.is_set():
            raise Interrupted("the policy was asked to stop")
        try:
            with tempfile.TemporaryDirectory(
                prefix="autoresearchd-command-", dir=self._scratch, ignore_cleanup_errors=True
            ) as folder:
                return self._in(Path(folder), state, cancel)
        except OSError as error:
            raise EnvironmentFailure(
                f"the private copy for the command could not be made or read: {error}", mend="see to the disk"
            ) from error

    def _in(self, folder: Path, state: ResearchState, cancel: Cancel) -> Proposal:
        copy, state_file, prompt_file = folder / "workspace", folder / "state.json", folder / "prompt.md"
        copy.mkdir()
        self._materialise(state, copy)
        state_file.write_text(json.dumps(prompt.as_json(state), indent=1), encoding="utf-8")
        prompt_file.write_text(prompt.render(state), encoding="utf-8", errors="replace")
        before = copies.look(copy, state.task)
        result = run_tool(
            self._command,
            cwd=copy,
            stdin=prompt_file,
            env={**os.environ, "AUTORESEARCHD_STATE": str(state_file)},
            timeout=self._timeout,
            cancel=cancel,
        )
        # Before anything is cut to a length: half of a secret would not be known any more.
        clean = state.redactor.text
        result = replace(result, stdout=clean(result.stdout), stderr=clean(result.stderr))
        try:
            self._check(result)
            files = copies.taken_back(copy, state.task, before, who="the command")
            if not files:
                raise PolicyError(
                    f"the command changed nothing in {', '.join(state.task.editable)}",
                    label=Label.NO_OP,
                    mend="it has to edit the files in its working directory",
                )
        except PolicyError as error:  # what cannot be used has cost no less
            error.cost, error.charged = answer.cost_of(answer.last_object(result.stdout), result.duration_s), False
            raise
        return self._proposal(state, files, result)

    def _check(self, result: ToolResult) -> None:
        if result.timed_out:
            raise PolicyError(
                f"the command did not end within {self._timeout:.0f} s and was killed{_tail(result)}",
                mend="make it faster, or allow it more time",
            )
        if result.exit_code != 0:
            raise PolicyError(f"the command ended with exit code {result.exit_code}{_tail(result)}")

    def _proposal(self, state: ResearchState, files: Mapping[str, str], result: ToolResult) -> Proposal:
        found = answer.last_object(result.stdout)
        description = answer.clean(found.get("description"), answer.MAX_LINE)
        hypothesis = answer.clean(found.get("hypothesis"), answer.MAX_TEXT) or description
        hypothesis = hypothesis or f"An edit of {', '.join(sorted(files))} by the command may help"
        return Proposal(
            files=dict(files),
            hypothesis=hypothesis,
            policy=self.name,
            description=description or answer.clean(hypothesis, answer.MAX_LINE),
            expected_delta=answer.number(found.get("expected_delta")),
            role=state.role,
            asi=answer.asi_of(found, hypothesis),
            cost=answer.cost_of(found, result.duration_s),
            state_id=state.state_id,
            round_id=state.round_id,
        )


def _tail(result: ToolResult) -> str:
    """The end of what it complained about, for people."""
    lines = (result.stderr.strip() or result.stdout.strip()).splitlines()[-_TAIL_LINES:]
    clean = [answer.clean(line, answer.MAX_LINE) for line in lines]
    return ":\n" + "\n".join(f"    {line}" for line in clean if line) if any(clean) else ""
