"""Waiting for a blocking call of a library for no longer than somebody wants the result."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from autoresearchd.domain.errors import Interrupted
from autoresearchd.domain.ports import Cancel
from autoresearchd.models.client import ModelError, Trouble

T = TypeVar("T")

LOOK_S = 0.05
"""How often ``cancel`` is looked at: it has no way of waking two waits at once."""


def call(function: Callable[[], T], cancel: Cancel, timeout: float, *, give_up: Callable[[], None] = lambda: None) -> T:
    """What ``function`` returns or raises, waited for until ``cancel`` is set or the time is over.

    The call runs in a daemon thread. One that is abandoned goes on there by itself: it must end some time, keep nothing
    that a later call needs, and its outcome is dropped.

    Args:
        function: the blocking call.
        cancel: ends the waiting with Interrupted; when it is set already, the call is not begun.
        timeout: seconds until the waiting ends with ModelError(TIMEOUT).
        give_up: called when the waiting ends early, to make the call end soon (by closing its connection, say).
    """
    if cancel.is_set():
        raise Interrupted("the model was not asked: a stop was requested")
    outcome: Future[T] = Future()
    done = threading.Event()

    def run() -> None:
        try:
            outcome.set_result(function())
        except BaseException as error:  # noqa: BLE001 - it is raised again where the outcome is taken
            outcome.set_exception(error)
        finally:
            done.set()

    deadline = time.monotonic() + timeout
    threading.Thread(target=run, name="model-call", daemon=True).start()
    while not done.wait(max(0.0, min(LOOK_S, deadline - time.monotonic()))):
        if cancel.is_set():
            give_up()
            raise Interrupted("the model's reply was not waited for: a stop was requested")
        if time.monotonic() >= deadline:
            give_up()
            raise ModelError(
                Trouble.TIMEOUT, f"no reply within {timeout:g} s", hint="raise the time-out for models in config.yaml"
            )
    return outcome.result()
