"""The command logs, and the printing of logs that jobs have written: any size, any bytes."""

from __future__ import annotations

import os
import re
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Annotated

import typer

from autoresearchd import keys
from autoresearchd.cli.command_options import LARGEST
from autoresearchd.cli.repository_here import here
from autoresearchd.cli.terminal_text import say, strip_controls
from autoresearchd.domain.errors import UsageError
from autoresearchd.domain.redaction import Redactor, StreamRedactor
from autoresearchd.workspace import layout

_LONGEST_LINE = 64 * 1024
_POLL_SECONDS = 0.2
_HEAD = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ (\S+) ")


def logs(
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Stay and print what is added.")] = False,
    lines: Annotated[
        int, typer.Option("-n", "--lines", metavar="N", min=0, max=LARGEST, help="How many of the last lines.")
    ] = 200,
    session: Annotated[
        str | None,
        typer.Option("--session", "--tag", metavar="TAG", help="Only the lines of this session (default: all)."),
    ] = None,
) -> None:
    """Print the daemon's log: that of all sessions here, each line with the tag of its session."""
    path = layout.daemon_log(layout.find_session_root(here()))
    hide, position, inode = keys.redactor().text, 0, -1
    if path.exists():
        with path.open("rb") as stream:
            last = deque(_of_session(_plain_lines(stream), session), maxlen=lines)
            if session is not None and lines and not last and not follow:
                raise UsageError(f"{path} has no line of a session {session!r}", hint="`autoresearchd logs` prints all")
            for line in last:
                print(hide(line))
            position, inode = stream.tell(), os.fstat(stream.fileno()).st_ino
    elif follow:
        say(f"waiting for {path}")
    else:
        raise UsageError(f"there is no log yet: {path}", hint="it begins with `autoresearchd start`")
    if follow:
        sys.stdout.flush()
        for line in _of_session(followed(path, position, inode), session):
            print(hide(line), flush=True)


def _of_session(lines: Iterable[str], tag: str | None) -> Iterator[str]:
    """The lines of one session (None: of all): those that begin with a time and its tag, and what follows them."""
    wanted = tag is None
    for line in lines:
        if tag is not None and (head := _HEAD.match(line)):
            wanted = head[1] == tag
        if wanted:
            yield line


def print_log(path: Path, redactor: Redactor) -> None:
    """Print a log of any size, without secrets; a progress bar's rewritten lines one below the other."""
    hidden, pending = StreamRedactor(redactor), ""
    try:
        with path.open(encoding="utf-8", errors="replace", newline="") as stream:
            while piece := stream.read(_LONGEST_LINE):
                *complete, pending = (pending + hidden.feed(piece)).split("\n")
                if len(pending) > _LONGEST_LINE:
                    complete, pending = [*complete, pending], ""
                _print_lines(complete)
    except OSError as error:
        say(f"cannot read {path}: {error.strerror}")
        return
    if rest := pending + hidden.close():
        _print_lines(rest.removesuffix("\n").split("\n"))


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        for part in _rewritten(line):
            print(part)


def _rewritten(line: str) -> Iterator[str]:
    """What a line was before and after each carriage return in it."""
    line = line.rstrip("\r")
    return (strip_controls(part) for part in line.split("\r") if part or "\r" not in line)


def _plain_lines(stream: IO[bytes]) -> Iterator[str]:
    """Lines as plain text: invalid UTF-8 replaced, escapes gone, split at carriage returns, overlong ones in parts."""
    while block := stream.readline(_LONGEST_LINE):
        yield from _rewritten(block.decode("utf-8", "replace").removesuffix("\n"))


def followed(path: Path, position: int, inode: int) -> Iterator[str]:
    """Lines that are added to a log from ``position`` on, for ever; a rotated log is read to its end, then the new one.

    It need not be there yet. inode: the file that ``position`` belongs to; another one is read from its beginning.
    """
    while True:
        try:
            stream = path.open("rb")
        except OSError:
            time.sleep(_POLL_SECONDS)
            continue
        with stream:
            status = os.fstat(stream.fileno())
            if status.st_ino == inode and status.st_size >= position:
                stream.seek(position)
            pending, replaced = b"", False
            while not replaced:
                # Looked at before reading: what was written until the log was rotated is then read before it is left.
                replaced, grown = _replaced(path, stream), False
                while block := stream.read(_LONGEST_LINE):
                    grown = True
                    *complete, pending = (pending + block).split(b"\n")
                    yield from (strip_controls(line.decode("utf-8", "replace").rstrip("\r")) for line in complete)
                if not grown and not replaced:
                    time.sleep(_POLL_SECONDS)
        position, inode = 0, -1


def _replaced(path: Path, stream: IO[bytes]) -> bool:
    """Whether the path names another file by now, or the file was cut shorter than what was read."""
    try:
        there = path.stat()
    except OSError:
        return False  # between the two steps of a rotation
    return there.st_ino != os.fstat(stream.fileno()).st_ino or there.st_size < stream.tell()
