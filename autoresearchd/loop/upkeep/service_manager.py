"""What a service manager is told of the daemon: the protocol of sd_notify(3), which units of Type=notify speak."""

from __future__ import annotations

import contextlib
import os
import socket

from autoresearchd.domain.cleaning import one_line
from autoresearchd.domain.ports import Event, EventKind

_WAIT_S = 1.0
_LONGEST = 200
_SHOWN = frozenset(
    {
        EventKind.SETUP, EventKind.RUN_STARTED, EventKind.DECIDED, EventKind.CONFIRMED, EventKind.BACKING_OFF,
        EventKind.PAUSED, EventKind.UNPAUSED, EventKind.STOPPING,
    }
)  # fmt: skip


def serves() -> bool:
    """Whether a service manager has started this process, and listens."""
    return os.environ.get("NOTIFY_SOCKET", "").startswith(("/", "@"))


def notify(**fields: str) -> None:
    """Send ``READY="1"`` and the like, where a manager listens; that it cannot be told is nothing to stop for."""
    if not serves():
        return
    address = os.environ["NOTIFY_SOCKET"]
    text = "\n".join(f"{name}={one_line(value, _LONGEST)}" for name, value in fields.items())
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.settimeout(_WAIT_S)
        end.connect("\0" + address[1:] if address.startswith("@") else address)
        end.send(text.encode())


class ServiceStatus:
    """A sink: the line that ``systemctl status`` shows."""

    def emit(self, event: Event) -> None:
        if event.kind in _SHOWN:
            number = "" if event.experiment is None else f"#{event.experiment} "
            notify(STATUS=f"{number}{event.message}")
