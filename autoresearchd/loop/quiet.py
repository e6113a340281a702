"""Is the machine quiet enough to tell gains? Said once when it is not any more, and once when it is again."""

from __future__ import annotations

from autoresearchd.domain.experiment import Experiment
from autoresearchd.domain.limits import CALM, explain_noise, noise_has_grown
from autoresearchd.loop.standing import Standing


class Quiet:
    """Compares the σ of each decision with that of the baseline; what was said before a restart is not said again."""

    def __init__(self, standing: Standing) -> None:
        self._standing = standing
        known = [e.decision.sigma for e in standing.recent if e.decision and e.decision.sigma is not None]
        self._busy = bool(known) and noise_has_grown(known[-1], standing.baseline_sigma)

    def words(self, e: Experiment) -> str:
        """A warning where a decision is the first with too much noise, or without it again; else empty."""
        sigma, first = e.decision.sigma if e.decision else None, self._standing.baseline_sigma
        if sigma is None or first is None:
            return ""
        if not self._busy and noise_has_grown(sigma, first):
            self._busy = True
            return explain_noise(sigma, first)
        if self._busy and not noise_has_grown(sigma, first, CALM):
            self._busy = False
            return f"σ is down to {sigma:.2g}, from too much: gains of that size can be told again"
        return ""
