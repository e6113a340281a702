"""The policy ``command:CMD``: a tool of the user's own edits a private copy of the workspace; its edit is the proposal.

The tool is trusted: it runs with the user's rights and the whole environment of the daemon (it may need its keys), and
is not sandboxed. What it leaves behind is not: files are read back as data, and its words are cut and cleaned. It dies
with this process (``sandbox/process_group.py``).
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

from autoresearchd.domain.cleaning import clean
from autoresearchd.domain.errors import EnvironmentFailure, Interrupted, Passed, PolicyError
from autoresearchd.domain.experiment import Experiment
from autoresearchd.domain.labels import Label
from autoresearchd.domain.ports import Cancel, ResearchState
from autoresearchd.domain.proposal import Proposal
from autoresearchd.policy import answer_words, workspace_copy
from autoresearchd.policy.prompt import sections
from autoresearchd.policy.prompt.digest import stuck_mode
from autoresearchd.sandbox import process_group

DEFAULT_TIMEOUT_S = 1800.0
_TAIL_LINES = 12
KEEP_BYTES = 64 * 1024
"""How much of the end of each stream is kept."""
_LOOK_S = 0.02
_PATIENCE_S = 3.0


class CommandPolicy:
    """Runs a command (given to ``sh -c``) for each proposal.

    materialise: fills an empty folder with the task's folder at ``state.parent``, protected files included. timeout:
    seconds of one proposal. scratch: where the copies are made, else the system's place for temporary files.
    """

    repairs = 0
    """A tool of the user's own tries its edit itself, if it wants to."""

    def __init__(
        self,
        command: str,
        materialise: Callable[[ResearchState, Path], None],
        *,
        timeout: float = DEFAULT_TIMEOUT_S,
        scratch: Path | None = None,
    ) -> None:
        self._command, self._materialise, self._timeout, self._scratch = command, materialise, timeout, scratch
        self.name = f"command:{command}"

    def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
        if cancel.is_set():
            raise Interrupted("the policy was asked to stop")
        try:
            with tempfile.TemporaryDirectory(
                prefix="autoresearchd-command-", dir=self._scratch, ignore_cleanup_errors=True
            ) as folder:
                return self._propose(Path(folder), state, cancel)
        except OSError as error:
            raise EnvironmentFailure(
                f"the private copy for the command could not be made or read: {error}", hint="see to the disk"
            ) from error

    def _propose(self, folder: Path, state: ResearchState, cancel: Cancel) -> Proposal:
        copy, state_file, prompt_file = folder / "workspace", folder / "state.json", folder / "prompt.md"
        copy.mkdir()
        self._materialise(state, copy)
        state_file.write_text(json.dumps(as_json(state), indent=1), encoding="utf-8")
        prompt_file.write_text(sections.render(state), encoding="utf-8", errors="replace")
        before = workspace_copy.look(copy, state.task)
        result = run_tool(
            self._command,
            cwd=copy,
            stdin=prompt_file,
            env={**os.environ, "AUTORESEARCHD_STATE": str(state_file)},
            timeout=self._timeout,
            cancel=cancel,
        )
        # Before anything is cut to a length: half of a secret would not be known any more.
        stdout, stderr = state.redactor.text(result.stdout), state.redactor.text(result.stderr)
        said = answer_words.last_object(stdout)
        cost = answer_words.cost_of(said, result.duration_s)
        shown = [clean(line, answer_words.MAX_LINE) for line in (stderr.strip() or stdout.strip()).splitlines()]
        lines = "".join(f"\n    {words}" for words in shown[-_TAIL_LINES:] if words)
        complaint = f":{lines}" if lines else ""
        try:
            if result.timed_out:
                raise PolicyError(
                    f"the command did not end within {self._timeout:.0f} s and was killed{complaint}",
                    hint="make it faster: no setting gives it more",
                )
            if result.exit_code != 0:
                raise PolicyError(f"the command ended with exit code {result.exit_code}{complaint}")
            files = workspace_copy.changed(copy, state.task, before, who="the command")
            if not files:
                # Beside a search, to which the turn is left so.
                kind = Passed if state.outlook is not None and state.outlook.proposal else PolicyError
                raise kind(
                    f"the command changed nothing in {', '.join(state.task.editable)}",
                    label=Label.NO_OP,
                    hint="it has to edit the files in its working directory",
                )
        except PolicyError as error:  # what cannot be used has cost no less
            error.cost, error.charged = cost, False
            raise
        return replace(answer_words.propose(state, files, said, self.name), cost=cost)


# ---------------------------------------------------------------------- running it
@dataclass(frozen=True, slots=True)
class ToolResult:
    """How a tool ended. exit_code: −signal where it was killed; stdout, stderr: the end of each."""

    exit_code: int
    stdout: str
    stderr: str
    duration_s: float
    timed_out: bool = False


def run_tool(
    command: str, *, cwd: Path, stdin: Path, env: Mapping[str, str], timeout: float, cancel: Cancel,
    called: str = "the command of the policy",
) -> ToolResult:  # fmt: skip
    """Run a shell command to its end, to its deadline, or until ``cancel`` is set (then Interrupted is raised).

    called: what errors call it.
    """
    began = time.monotonic()
    process = process_group.start(["/bin/sh", "-c", command], called, cwd=cwd, env=env, stdin=stdin)
    out, err = _Tail(process.stdout), _Tail(process.stderr)
    timed_out = False
    try:
        while process.poll() is None and not timed_out:
            if cancel.wait(_LOOK_S):
                raise Interrupted(f"{called} was stopped on request")
            timed_out = time.monotonic() >= began + timeout
    finally:
        process_group.end(process, _PATIENCE_S)
        stdout, stderr = out.close(), err.close()
    return ToolResult(process.returncode, stdout, stderr, time.monotonic() - began, timed_out)


class _Tail:
    """Reads a stream to its end in a thread and keeps the last bytes of it."""

    def __init__(self, stream: IO[bytes] | None) -> None:
        assert stream is not None
        self._stream, self._kept, self._cut = stream, b"", False
        self._thread = threading.Thread(target=self._read, name="tool-output", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while chunk := os.read(self._stream.fileno(), 65536):
                kept = self._kept + chunk
                self._cut, self._kept = self._cut or len(kept) > KEEP_BYTES, kept[-KEEP_BYTES:]

    def close(self) -> str:
        """The end of the stream, from the beginning of a line on: half a line could hold half a key.

        A process that left the group and holds the pipe is not waited for long.
        """
        self._thread.join(1.0)
        if not self._thread.is_alive():
            self._stream.close()
        kept = self._kept
        return ((kept.partition(b"\n")[2] or kept) if self._cut else kept).decode("utf-8", "replace")


# ---------------------------------------------------------------------- the state as JSON
def as_json(state: ResearchState) -> dict[str, Any]:
    """The whole state as JSON values, without secrets."""
    task = state.task
    whole = {
        "tag": state.tag,
        "experiment": state.number,
        "parent": state.parent,
        "seed": state.seed,
        "state_id": state.state_id,
        "round_id": state.round_id,
        "role": state.role,
        "task": {
            "name": task.name,
            "metric": task.metric.name,
            "direction": str(task.metric.direction),
            "editable": list(task.editable),
            "protected": list(task.protected),
            "budget_s": task.execution.budget.training,
            "most_training_s": task.execution.budget.most,
            "profile": task.profile,
        },
        "baseline": state.baseline,
        "incumbent": state.incumbent_value,
        "incumbent_commit": state.incumbent or state.parent,
        "sigma": state.sigma,
        "streak": state.streak,
        "stuck": str(stuck_mode(state.streak)),
        "failures": dict(state.failures),
        "notes": list(state.notes),
        "memo": state.memo,
        "diagnostics": _plain(state.diagnostics),
        "recent": [_experiment_json(e) for e in state.recent],
        "top": [_experiment_json(e) for e in state.top],
        "own": [_experiment_json(e) for e in state.own],
        "under_way": [_experiment_json(e) for e in state.under_way],
        "code": dict(state.code),
        "repair": asdict(state.repair) if state.repair else None,
        "outlook": asdict(state.outlook) if state.outlook else None,
    }
    return state.redactor.value(whole)


def _experiment_json(experiment: Experiment) -> dict[str, Any]:
    decision, proposal = experiment.decision, experiment.proposal
    return {
        "experiment": experiment.number,
        "commit": experiment.commit,
        "parent": experiment.parent,
        "status": str(decision.status) if decision else None,
        "label": str(decision.label) if decision else None,
        "metric": decision.value if decision else None,
        "metrics": _plain(decision.metrics) if decision else {},
        "delta": decision.delta if decision else None,
        "confirmed": experiment.confirmed,
        "reason": decision.reason if decision else "",
        "description": proposal.description if proposal else "baseline",
        "role": proposal.role if proposal else "",
        "changes": _plain(proposal.changes) if proposal else {},
        "asi": _plain(experiment.asi.as_dict()),
    }


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    known = (str, int, float, bool, list, dict, type(None))
    return {str(k): v if isinstance(v, known) else str(v) for k, v in values.items()}
