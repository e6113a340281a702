"""One place to run one run, and what is under way in it."""

from __future__ import annotations

from dataclasses import dataclass

from autoresearchd.domain.experiment import Run
from autoresearchd.evaluator.abort.abort_policy import Look
from autoresearchd.loop.early_abort import WatchedRun
from autoresearchd.loop.run import RunningProgram


@dataclass
class Slot:
    """All that an experiment under way has in memory; a daemon that finds it open begins with an empty slot.

    running: its program; opened: the run that the store has of it. watched: what early abort follows; ended_by: why it
    ended the run. began: when the experiment did, on the monotonic clock; policy_s, jobs_s: seconds that were not the
    daemon's own since then.
    """

    began: float
    number: int = 0
    running: RunningProgram | None = None
    opened: Run | None = None
    watched: WatchedRun | None = None
    ended_by: Look | None = None
    policy_s: float = 0.0
    jobs_s: float = 0.0

    def begin(self, now: float) -> None:
        """A new experiment begins in it."""
        self.began, self.policy_s, self.jobs_s = now, 0.0, 0.0

    def clear(self) -> None:
        """Its run is over, and written down."""
        self.running = self.watched = self.ended_by = None

    def kill(self) -> None:
        """End the run under way, if any; the experiment stays open."""
        if self.running is not None:
            self.running.kill()
        self.clear()
