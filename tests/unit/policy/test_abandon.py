"""Nobody waits for a model longer than they want to."""

from __future__ import annotations

import threading
import time

import pytest

from autoresearchd.errors import Interrupted
from autoresearchd.policy import abandon
from autoresearchd.policy.client import ModelError, Trouble


def test_the_result_is_there_as_soon_as_the_call_ends() -> None:
    began = time.monotonic()
    assert abandon.call(lambda: 17, threading.Event(), 60.0) == 17
    assert time.monotonic() - began < 5.0


def test_an_error_of_the_call_is_raised_where_it_was_waited_for() -> None:
    def fail() -> None:
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        abandon.call(fail, threading.Event(), 60.0)


def test_a_stop_that_came_before_spends_nothing() -> None:
    cancel, calls = threading.Event(), []
    cancel.set()
    with pytest.raises(Interrupted):
        abandon.call(lambda: calls.append(1), cancel, 60.0)
    assert calls == []


def test_a_stop_ends_the_waiting_and_the_call_is_told() -> None:
    cancel, given_up = threading.Event(), threading.Event()

    def hang() -> None:
        cancel.set()
        given_up.wait(60.0)

    with pytest.raises(Interrupted):
        abandon.call(hang, cancel, 60.0, give_up=given_up.set)
    assert given_up.is_set()


def test_a_call_that_takes_too_long_is_a_time_out_that_names_the_time() -> None:
    given_up = threading.Event()
    with pytest.raises(ModelError, match=r"within 0\.05 s") as caught:
        abandon.call(lambda: given_up.wait(60.0), threading.Event(), 0.05, give_up=given_up.set)
    assert caught.value.trouble is Trouble.TIMEOUT
    assert given_up.is_set()
