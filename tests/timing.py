"""Time in tests on a machine that does other things too: what a piece of work takes, and waiting for what must come."""

import gc
import time
from collections.abc import Callable
from typing import Any

__all__ = ["seconds", "wait_until"]


def seconds(work: Callable[[], object], times: int = 3) -> float:
    """The least processor time of `times` goes, in seconds, without the garbage collector (as `timeit` has it).

    In a worker that has run a thousand other tests one collection takes half a second; that is nobody's to bound.
    """
    found = []
    collecting = gc.isenabled()
    gc.disable()
    try:
        for _ in range(times):
            began = time.process_time()
            work()
            found.append(time.process_time() - began)
    finally:
        if collecting:
            gc.enable()
    return min(found)


def wait_until(condition: Callable[[], Any], patience: float = 200.0) -> Any:
    """Poll for what another process or thread brings about; its value. patience: seconds, on a machine that is busy."""
    deadline = time.monotonic() + patience
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"it did not happen within {patience:g} s")
        time.sleep(0.01)
    return value
