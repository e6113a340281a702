"""The switch by which signals and commands ask the loop to stop or to pause."""

from __future__ import annotations

import threading


class StopSwitch:
    """Set from signal handlers and read by the loop. ``now`` is also the Cancel of a policy or a set-up under way.

    The switch itself is one, too: set as soon as the session is to end in any way.
    """

    def __init__(self) -> None:
        self.now = threading.Event()
        self._soon = threading.Event()
        self._asked = threading.Event()
        self.paused = threading.Event()
        self.reason = ""
        self.signal: int | None = None
        self._announcing = threading.Lock()

    @property
    def soon(self) -> bool:
        """Whether to stop once the running experiment is decided."""
        return self._soon.is_set() or self.now.is_set()

    def is_set(self) -> bool:
        """Whether to stop, at once or soon."""
        return self.soon

    @property
    def asked(self) -> bool:
        """Whether anybody has asked to stop, so that the next one who does means at once."""
        return self._asked.is_set()

    def end(self, reason: str) -> None:
        """Stop once the running experiment is decided, for a reason of the daemon's own.

        Nobody has asked for it, so it is no request: the first one that comes still lets the experiment end.
        """
        self.reason = self.reason or reason
        self._soon.set()

    def request(self, reason: str, *, now: bool = False, signal: int | None = None) -> None:
        """Ask to stop; the second request, or one with ``now``, means at once.

        Called from signal handlers, so it takes no lock that the loop might hold.
        """
        self.reason = self.reason or reason
        self.signal = self.signal if self.signal is not None else signal
        if now or self._asked.is_set():
            self.now.set()
        self._asked.set()
        self._soon.set()

    def announce(self) -> bool:
        """Whether it is to be said now that the session stops: True once, for the first thread that asks in time."""
        return self.soon and self._announcing.acquire(blocking=False)

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep, but wake when asked to stop in any way; True when asked."""
        return self._soon.wait(timeout) or self.now.is_set()
