"""Whether anybody listens at the address of a model's endpoint: a connection that is opened and closed again."""

from __future__ import annotations

import socket
import threading
from urllib.parse import urlsplit

from autoresearchd.models import abandonable_call
from autoresearchd.models.client import ModelError

SECONDS = 1.5
"""How long somebody who starts a session is kept waiting for it."""

_PORTS = {"http": 80, "https": 443}


def unreachable(url: str, seconds: float = SECONDS) -> str:
    """Why nobody can be reached at an address, in a few words; empty where somebody can.

    Nothing is sent, so it tells nothing of what listens there. Looking the name up counts towards the time as well.
    """
    parts = urlsplit(url)
    address = (parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 80))

    def connect() -> None:
        socket.create_connection(address, seconds).close()

    try:
        abandonable_call.call(connect, threading.Event(), seconds)
    except (ModelError, TimeoutError):
        return f"no connection within {seconds:g} s"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    except UnicodeError:
        return "its name is no host's"
    return ""
