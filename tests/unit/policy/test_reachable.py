"""A model server that is not there is noticed at once, and one that hangs does not keep anybody waiting."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from autoresearchd.models.reachable import unreachable


def test_somebody_who_listens_is_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert unreachable(f"http://127.0.0.1:{server.getsockname()[1]}/v1") == ""


def test_where_nobody_listens_it_is_said_why() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert unreachable(f"http://127.0.0.1:{port}/v1") == "connection refused"
    assert unreachable("http://nobody.invalid/v1", seconds=5.0)
    assert unreachable(f"http://{'a' * 64}.example/v1") == "its name is no host's"


def test_an_address_that_swallows_everything_costs_no_more_than_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, released = [], threading.Event()

    def swallow(address: tuple[str, int], timeout: float) -> None:
        asked.append(address)
        released.wait(60.0)

    monkeypatch.setattr(socket, "create_connection", swallow)
    began = time.monotonic()
    try:
        assert unreachable("https://far.example/v1", seconds=0.2) == "no connection within 0.2 s"
        assert time.monotonic() - began < 5.0
    finally:
        released.set()
    assert asked == [("far.example", 443)]
