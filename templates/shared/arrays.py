"""What a run has left as an array, read without trusting it. Protected; it runs no edited code."""

from __future__ import annotations

import os
import stat
import zipfile
from pathlib import Path

import numpy as np


def read(path: Path, most: int = 1_000_000) -> np.ndarray | str:
    """The array in a file that a run has left, or what is wrong with it: more than ``most`` bytes, for one.

    It is opened once, and no link is followed.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        return f"{path.name} cannot be opened: {error.strerror}"
    facts = os.fstat(handle)
    if not stat.S_ISREG(facts.st_mode) or facts.st_size > most:
        os.close(handle)
        return f"{path.name} is no file of at most {most} bytes"
    with os.fdopen(handle, "rb") as file:
        try:
            found = np.load(file, allow_pickle=False)
        except (ValueError, OSError, EOFError, zipfile.BadZipFile):
            found = None
    return found if isinstance(found, np.ndarray) else f"{path.name} is no array as numpy.save writes it"
