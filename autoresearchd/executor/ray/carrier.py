"""What runs on a node of the cluster: an actor that starts the remote supervisor there and carries bytes and files.

Its class is sent by value, as autoresearchd is not installed there: it may use the standard library alone, and nothing
of this module but itself.
"""

# Each file of data sets is looked at: pathlib would double that.
# ruff: noqa: PTH103, PTH108, PTH115, PTH118, PTH120, PTH123, PTH208, PTH211

from __future__ import annotations

import errno
import json
import os
import platform
import select
import shutil
import stat
import subprocess
import sys
from importlib import import_module
from typing import Any


class Carrier:
    """Calls come several at a time, each in a thread of its own."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._complains = True

    def call(self, do: str, arguments: str, data: bytes) -> tuple[str, bytes]:
        """Do ``do_…`` with arguments (JSON) and bytes: what it gives, as JSON, and bytes.

        ``{"errno", "what"}``: the disk or a pipe failed.
        """
        try:
            value, data = getattr(self, f"do_{do}")(data, **json.loads(arguments))
            return json.dumps({"value": value}), data
        except OSError as error:
            return json.dumps({"errno": error.errno or 0, "what": str(error)}), b""

    def do_where(self, data: bytes) -> tuple[Any, bytes]:
        """The node that this is: Ray's name for it, its address."""
        ray = import_module("ray")
        return {"node": ray.get_runtime_context().get_node_id(), "name": platform.node()}, b""

    # -- the supervisor ----------------------------------------------------------------------------------------------
    def do_start(self, boot: bytes, words: list[str], gpus: bool) -> tuple[Any, bytes]:
        """Start Python with the program ``boot`` and words for it. gpus: it sees the GPUs that this actor was given."""
        environment = {**os.environ, **({} if gpus else {"CUDA_VISIBLE_DEVICES": ""})}
        self._process = subprocess.Popen(  # its input ends with this actor, and it with that
            [sys.executable, "-I", "-S", "-c", boot.decode(), *words],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/", env=environment,
        )  # fmt: skip
        return None, b""

    def do_read(self, data: bytes, patience: float, most: int) -> tuple[Any, bytes]:
        """What it has said, once there is something or the time is over; its complaints, and whether it has ended."""
        assert self._process is not None and self._process.stdout is not None and self._process.stderr is not None
        said, complaints = self._process.stdout.fileno(), self._process.stderr.fileno()
        ready, _, _ = select.select([said, complaints] if self._complains else [said], [], [], patience)
        text, ended = b"", False
        if said in ready:
            data = os.read(said, most)
            ended = not data
        if complaints in ready or (ended and select.select([complaints], [], [], 1.0)[0]):
            text = os.read(complaints, 4096)
            self._complains = bool(text)
        return {"ended": ended, "complaint": text.decode("utf-8", "replace")}, data

    def do_write(self, data: bytes) -> tuple[Any, bytes]:
        assert self._process is not None and self._process.stdin is not None
        left = memoryview(data)
        while left:
            left = left[os.write(self._process.stdin.fileno(), left) :]
        return None, b""

    # -- files -------------------------------------------------------------------------------------------------------
    def do_copy(self, data: bytes, source: str, folder: str) -> tuple[Any, bytes]:
        """Copy what is in a folder into one that is there."""
        shutil.copytree(source, folder, symlinks=True, dirs_exist_ok=True)
        return None, b""

    def do_put(self, data: bytes, folder: str, entries: list[list[Any]]) -> tuple[Any, bytes]:
        """Write parts of files, ``[name, mode, offset, length]``, and links, ``[name, target]``."""
        at = 0
        for name, *facts in entries:
            path = os.path.join(folder, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if len(facts) == 1:
                if os.path.lexists(path):
                    os.unlink(path)
                os.symlink(facts[0], path)
                continue
            mode, offset, length = facts
            if not offset and os.path.lexists(path):
                os.unlink(path)
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600), "wb") as stream:
                os.fchmod(stream.fileno(), mode)
                stream.seek(offset)
                stream.write(memoryview(data)[at : at + length])
            at += length
        return None, b""

    def do_list(self, data: bytes, folder: str) -> tuple[Any, bytes]:
        """What is in a folder: ``[name, "d"]``, ``[name, "l", target]``, ``[name, "f", mode, size]``.

        Nothing is followed; what is not a plain file, a folder or a link is left out, and what a job has made so that
        it cannot be read.
        """
        unreadable = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG)
        found: list[list[Any]] = []
        pending = os.listdir(folder)
        while pending:
            name = pending.pop()
            path = os.path.join(folder, name)
            try:
                facts = os.lstat(path)
                if stat.S_ISDIR(facts.st_mode):
                    pending += [f"{name}/{inner}" for inner in os.listdir(path)]
                    found.append([name, "d"])
                elif stat.S_ISLNK(facts.st_mode):
                    found.append([name, "l", os.readlink(path)])
                elif stat.S_ISREG(facts.st_mode) and os.access(path, os.R_OK):
                    found.append([name, "f", facts.st_mode & 0o777, facts.st_size])
            except OSError as error:
                if error.errno not in unreadable:
                    raise
        return found, b""

    def do_get(self, data: bytes, folder: str, parts: list[list[Any]]) -> tuple[Any, bytes]:
        """Parts of files, ``[name, offset, length]``, one after the other."""
        found = []
        for name, offset, length in parts:
            with open(os.open(os.path.join(folder, name), os.O_RDONLY | os.O_NOFOLLOW), "rb") as stream:
                stream.seek(offset)
                found.append(stream.read(length).ljust(length, b"\0"))  # a log may have been rotated meanwhile
        return None, b"".join(found)
