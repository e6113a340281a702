"""The processor time that a piece of work takes, as a test may bound it on a machine that does other things too."""

import gc
import time
from collections.abc import Callable

__all__ = ["seconds"]


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
