"""What a policy is told of the machine and of the latest runs: device, memory, throughput, the last failure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autoresearchd.domain.experiment import Experiment, Run
from autoresearchd.evaluator.failure import last_lines
from autoresearchd.loop.artifacts import read_tail
from autoresearchd.loop.context import Context

FACTS = ("device", "cpu", "python")
SHOWN_METRICS = (
    "peak_vram_mb",
    "peak_memory_mb",
    "mfu_percent",
    "num_steps",
    "num_params_M",
    "total_tokens_M",
    "depth",
)
"""Of the metrics that programs of karpathy's kind print, those that tell of memory, size and speed."""

LOG_LINES = 6
_LOG_BYTES = 8 * 1024


class Diagnostics:
    """Collects them; what a log ended with is read once."""

    def __init__(self, context: Context) -> None:
        self._context = context
        facts = context.facts()
        self._facts = {name: facts[name] for name in FACTS if facts.get(name)}
        self._tail: tuple[int, str] = (-1, "")

    def of(self, recent: Sequence[Experiment], best: Experiment | None) -> Mapping[str, Any]:
        """By name, in words; only what is known.

        Args:
            recent: the latest decided experiments, oldest first.
            best: the incumbent.
        """
        found: dict[str, Any] = dict(self._facts)
        for name, e in (("run of the incumbent", best), ("latest run", _latest(recent))):
            if e is not None and e.good_runs:
                found[name] = _run(e)
        failed = [(e, run) for e in recent if (run := e.last_own) is not None and run.detail]
        if failed:
            found["last_failure"] = failed[-1][1].detail
            found["last_failure_log"] = self._log(*failed[-1])
        return {name: value for name, value in found.items() if value}

    def _log(self, e: Experiment, run: Run) -> str:
        """The end of what the failed training printed; of the evaluation nothing is told, it has seen private data."""
        if self._tail[0] != e.number:
            path = self._context.site.run_dir(e.number, run.index) / "training.log"
            self._tail = (e.number, " | ".join(last_lines(read_tail(path, _LOG_BYTES))[-LOG_LINES:]))
        return self._tail[1]


def _latest(recent: Sequence[Experiment]) -> Experiment | None:
    return next((e for e in reversed(recent) if e.good_runs), None)


def _run(e: Experiment) -> str:
    run = e.good_runs[-1]
    known = [f"{name} {run.metrics[name]:.6g}" for name in SHOWN_METRICS if name in run.metrics]
    return ", ".join([f"experiment {e.number}", f"{run.duration_s:.1f} s", *known])
