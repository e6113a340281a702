"""What a run has left as an array, read without trusting it. Protected; it runs no edited code."""

from __future__ import annotations

import os
import stat
import sys
import zipfile
from pathlib import Path
from typing import BinaryIO

import numpy as np


def opened(path: Path, most: int) -> BinaryIO | str:
    """A file that a run has left, or what is wrong with it: more than ``most`` bytes, for one.

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
    return os.fdopen(handle, "rb")


def read(path: Path, most: int = 1_000_000) -> np.ndarray | str:
    """The array in a file that a run has left, or what is wrong with it."""
    file = opened(path, most)
    if isinstance(file, str):
        return file
    with file:
        try:
            found = np.load(file, allow_pickle=False)
        except (ValueError, OSError, EOFError, zipfile.BadZipFile):
            found = None
    return found if isinstance(found, np.ndarray) else f"{path.name} is no array as numpy.save writes it"


def errors(true: np.ndarray, name: str, what: str) -> np.ndarray:
    """By how much a run's predictions are off. Exits where they are none. name: of their file; what: each has to be."""
    said = read(Path(os.environ["AUTORESEARCHD_OUTPUT_DIR"]) / name)
    if not isinstance(said, str):
        if said.shape == true.shape and said.dtype.kind == "f" and np.isfinite(said).all():
            return said.astype(np.float64) - true
        said = f"{name} must hold {true.size} finite {what}"
    print(f"FAIL: {said}", flush=True)
    sys.exit(1)
