"""The first Ctrl-C lets a learner end at a checkpoint and says so; the second ends it at once."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

PROGRAM = """
import os
import sys
from autoresearchd.learner.learner_process import stoppable
from autoresearchd.domain.errors import Interrupted
with stoppable('replay', lambda text: print(text, flush=True)) as cancel:
    os.write(1, b'at work\\n')  # in one call: the signal comes after it
    while not (cancel.is_set() and {ends}):
        pass
    try:
        raise Interrupted('stopped')
    finally:
        print('saved', flush=True)
"""
ENDED = (
    "from autoresearchd.cli.terminal_text import guarded; import sys; "
    "sys.exit(guarded(lambda: exec({program!r}, {{}})))"
)


@contextmanager
def at_work(*, ends: bool) -> Iterator[subprocess.Popen[str]]:
    """A learner that ends after its first signal, or never by itself."""
    program = ENDED.format(program=PROGRAM.format(ends=ends))
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "at work\n"
        yield child
    finally:
        child.kill()
        child.communicate()


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_answered_and_the_run_ends_where_it_can_go_on(kind: signal.Signals) -> None:
    with at_work(ends=True) as child:
        child.send_signal(kind)
        out, err = child.communicate(timeout=60)
        assert "the same command goes on from its checkpoint" in out + err
        assert "Ctrl-C again ends it at once" in out + err
        assert out.endswith("saved\n")
        assert "error: stopped" in err
        assert child.returncode == 128 + kind


def test_the_second_signal_ends_it_whatever_it_is_doing() -> None:
    with at_work(ends=False) as child:
        assert child.stdout is not None
        child.send_signal(signal.SIGINT)
        assert "again ends it" in child.stdout.readline()
        child.send_signal(signal.SIGINT)
        assert child.wait(60) == -signal.SIGINT
