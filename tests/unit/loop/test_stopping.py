"""A stop lets the running experiment end, and only the second one that somebody asks for throws it away."""

from __future__ import annotations

from autoresearchd.loop.stop_switch import StopSwitch


def test_the_second_request_stops_at_once() -> None:
    stop = StopSwitch()
    stop.request("stopped by command")
    assert (stop.soon, stop.now.is_set()) == (True, False)
    stop.request("signal SIGINT", signal=2)
    assert stop.now.is_set()
    assert (stop.reason, stop.signal) == ("stopped by command", 2)


def test_where_the_daemon_ends_of_itself_the_first_request_still_lets_the_experiment_end() -> None:
    stop = StopSwitch()
    stop.end("the database was moved")
    assert (stop.soon, stop.asked, stop.wait(0)) == (True, False, True)
    stop.request("signal SIGTERM", signal=15)
    assert not stop.now.is_set(), "the running experiment would be thrown away"
    assert stop.reason == "the database was moved"
    stop.request("signal SIGTERM", signal=15)
    assert stop.now.is_set()
