"""For how long a model is waited for once the session is to end: an answer under way a moment, any other not at all."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from autoresearchd.domain.errors import Interrupted
from autoresearchd.domain.ports import Cancel

GRACE_S = 2.0
"""How long an answer under way is still waited for: it is paid for, and about to come more often than not."""


@dataclass(slots=True)
class Patience:
    """A ``Cancel`` that is set when another one is, or some time after the session was asked to end.

    cancel: whoever wants the end at once. ending: set once the session is to end, at the latest when ``cancel`` is;
    None: nobody says so. grace: seconds from then on. clock: monotonic seconds.
    """

    cancel: Cancel
    ending: Cancel | None = None
    grace: float = 0.0
    clock: Callable[[], float] = time.monotonic
    _since: float | None = field(default=None, init=False)

    def is_set(self) -> bool:
        """Whether the patience is at its end; the grace begins when this is first asked after the request."""
        if self.cancel.is_set():
            return True
        if self.ending is None or not self.ending.is_set():
            return False
        if self._since is None:
            self._since = self.clock()
        return self.clock() - self._since >= self.grace

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep until the session is to end or until the time-out; True when the patience is at its end."""
        (self.cancel if self.ending is None else self.ending).wait(timeout)
        return self.is_set()

    def check(self, what: str) -> None:
        """Raise Interrupted where the patience is at its end; ``what``: what is not done any more."""
        if self.is_set():
            raise Interrupted(f"{what}: a stop was requested")
