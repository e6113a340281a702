"""What the supervisor writes: capped logs and small JSON files. C modules only, see `supervise`."""
# pathlib and contextlib are among what the supervisor must not import:
# ruff: noqa: PTH105, PTH108, SIM105

from __future__ import annotations

import errno
import os

FULL = (errno.ENOSPC, errno.EDQUOT)


class Log:
    """A log that keeps the last ``limit`` to ``2 × limit`` bytes, in the file and in the file with ``.1`` added."""

    def __init__(self, path: str, limit: int, append: bool) -> None:
        self.path, self.limit, self.full = path, limit, False
        if not append:
            unlink(path + ".1")
        self.fd = self.open(os.O_APPEND if append else os.O_TRUNC)
        self.size = os.fstat(self.fd).st_size if self.fd >= 0 else 0

    def open(self, mode: int) -> int:
        try:
            return os.open(self.path, os.O_WRONLY | os.O_CREAT | mode, 0o644)
        except OSError as error:
            if error.errno not in FULL:
                raise
            self.full = True
            return -1

    def write(self, data: bytes) -> None:
        if self.full:
            return
        if self.size >= self.limit:
            os.close(self.fd)
            os.replace(self.path, self.path + ".1")
            self.fd, self.size = self.open(os.O_TRUNC), 0
        view = memoryview(data)
        while view and not self.full:
            try:
                written = os.write(self.fd, view)
            except OSError as error:
                if error.errno not in FULL:
                    raise
                self.full = True
            else:
                self.size += written
                view = view[written:]

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def unlink(path: str) -> None:
    """Remove a file if it is there."""
    try:
        os.unlink(path)
    except OSError:
        pass


def dump(value: object) -> str:
    """JSON text of dicts, lists, strings and numbers."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{dump(k)}: {dump(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(dump, value)) + "]"
    if isinstance(value, str):
        units = value.encode("utf-16-be", "surrogatepass")
        codes = [units[i] << 8 | units[i + 1] for i in range(0, len(units), 2)]
        return '"' + "".join(chr(c) if 32 <= c < 127 and c not in (34, 92) else f"\\u{c:04x}" for c in codes) + '"'
    return "null" if value is None else repr(value)


def write_json(path: str, value: object) -> None:
    """Write a JSON file that is there whole or not at all."""
    fd = os.open(path + ".tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        os.write(fd, dump(value).encode())
    finally:
        os.close(fd)
    os.replace(path + ".tmp", path)
