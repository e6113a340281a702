"""A session that is to end waits a moment for an answer under way, and for nothing else."""

from __future__ import annotations

import threading

import pytest

from autoresearchd.errors import Interrupted
from autoresearchd.policy.patience import Patience
from tests.fakes.models import PatientCancel


def test_as_long_as_nobody_wants_an_end_there_is_patience() -> None:
    for ending in (None, threading.Event()):
        patience = Patience(threading.Event(), ending)
        assert not patience.is_set()
        assert not patience.wait(0.0)
        patience.check("never told")


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


def test_a_wait_ends_with_the_request_and_not_with_its_time() -> None:
    cancel, ending = PatientCancel(), PatientCancel(stop_after=1)
    assert Patience(cancel, ending).wait(60.0)
    assert (cancel.waits, ending.waits) == ([], [60.0])


def test_what_is_not_done_any_more_is_said() -> None:
    ending = threading.Event()
    ending.set()
    with pytest.raises(Interrupted, match="the model was not asked: a stop was requested"):
        Patience(threading.Event(), ending).check("the model was not asked")
