"""Nobody waits for a model longer than they want to, and a session that is to end only a moment."""

from __future__ import annotations

import threading

import pytest

from autoresearchd.domain.errors import Interrupted
from autoresearchd.models import abandonable_call
from autoresearchd.models.client import ModelError, Trouble
from autoresearchd.policy.patience import Patience


def test_who_wants_the_end_at_once_has_it_whatever_the_grace() -> None:
    cancel = threading.Event()
    cancel.set()
    assert Patience(cancel, threading.Event(), grace=60.0).is_set()


def test_the_grace_counts_from_when_the_request_was_seen() -> None:
    ending, now = threading.Event(), [100.0]
    patience = Patience(threading.Event(), ending, grace=2.0, clock=lambda: now[0])
    assert not patience.is_set()
    now[0] = 500.0
    ending.set()
    assert not patience.is_set()
    now[0] = 501.9
    assert not patience.is_set()
    now[0] = 502.0
    assert patience.is_set()


def test_a_stop_that_came_before_spends_nothing() -> None:
    cancel, calls = threading.Event(), []
    cancel.set()
    with pytest.raises(Interrupted):
        abandonable_call.call(lambda: calls.append(1), cancel, 60.0)
    assert calls == []


def test_a_stop_ends_the_waiting_and_the_call_is_told() -> None:
    cancel, given_up = threading.Event(), threading.Event()

    def hang() -> None:
        cancel.set()
        given_up.wait(60.0)

    with pytest.raises(Interrupted):
        abandonable_call.call(hang, cancel, 60.0, give_up=given_up.set)
    assert given_up.is_set()


def test_a_call_that_takes_too_long_is_a_time_out_that_names_the_time() -> None:
    given_up = threading.Event()
    with pytest.raises(ModelError, match=r"within 0\.05 s") as caught:
        abandonable_call.call(lambda: given_up.wait(60.0), threading.Event(), 0.05, give_up=given_up.set)
    assert caught.value.trouble is Trouble.TIMEOUT
    assert given_up.is_set()
