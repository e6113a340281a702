"""What a run loses without: its score, where a scorer polls a pipe in the instant in which its other end is opened.

Linux reads the two counters of a pipe's writers without its lock (pipe_poll in fs/pipe.c), so poll(2) may tell of a
hang-up then, and a read that does not wait fails with EAGAIN. One in some thousands of opened pipes met it.
"""

from __future__ import annotations

import os
import select
from pathlib import Path
from typing import Any

import pytest

from autoresearchd.resources import bundled
from tests.templates.programs import load_program

TEMPLATES = bundled("templates")


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Both ends of a pipe; the first poll tells of an end that is none, and the next finds eight bytes and the end."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    polled = list[float]()

    class Poll:
        def register(self, *_: Any) -> None:
            pass

        def poll(self, limit: float) -> list[tuple[int, int]]:
            polled.append(limit)
            if len(polled) == 2:
                os.write(writer, b"answered")
                os.close(writer)
            return [(reader, select.POLLHUP if len(polled) == 1 else select.POLLIN)]

    monkeypatch.setattr(select, "poll", Poll)
    return reader, writer


def test_an_answer_counts_whose_pipe_looked_ended(pipe: tuple[int, int]) -> None:
    exchange = load_program(TEMPLATES / "shared", "exchange")
    scorer = object.__new__(exchange.Exchange)
    scorer.replies, scorer.who = pipe[0], "the model"
    assert scorer.reply(8, 5.0, "a batch") == b"answered"
    with pytest.raises(exchange.EvaluationError, match="the model ended in a batch"):
        scorer.reply(8, 5.0, "a batch")


def test_a_served_model_waits_on_where_its_requests_looked_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pipe: tuple[int, int]
) -> None:
    serving = load_program(TEMPLATES / "shared", "serving")
    monkeypatch.setattr(serving, "libc", lambda *_: None)
    tell = os.open(tmp_path / "tell", os.O_WRONLY | os.O_CREAT)
    assert serving._broke(tmp_path, (pipe[0], tell), (tell, tell), lambda: None, b"", tell, 1, 4) == serving._OVER
