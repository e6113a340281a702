"""A model of one's own is served on this machine alone, is called rightly, and stays up."""

from __future__ import annotations

import socket
import sys
import threading
import time
from pathlib import Path

import pytest

from autoresearchd.app.models.serve_model import (
    Patience,
    ServeOptions,
    ServerCommand,
    command_of,
    keep_up,
    require_free,
)
from autoresearchd.domain.errors import UsageError


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    folder = tmp_path / "v3"
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    return folder


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.mark.parametrize("model", [None, "", "--trust-remote-code", "./nowhere", "a\nb"])
def test_what_is_no_model_never_becomes_an_option(model: str | None, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        command_of(ServeOptions(model), Path("vllm"), tmp_path)


def test_an_adapter_that_cannot_be_served_is_refused_with_what_can(tmp_path: Path, adapter: Path) -> None:
    with pytest.raises(UsageError, match="vllm"):
        command_of(ServeOptions("m/m", adapter=adapter), Path("transformers"), tmp_path)
    with pytest.raises(UsageError, match="no LoRA adapter"):
        command_of(ServeOptions("m/m", adapter=tmp_path), Path("vllm"), tmp_path)


def test_a_port_that_is_taken_is_said_before_anything_is_loaded(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UsageError, match="port") as caught:
            require_free(taken.getsockname()[1])
    assert caught.value.exit_code == 2
    with pytest.raises(UsageError):
        require_free(70_000)


def test_a_server_that_falls_silent_is_ended_and_started_again(tmp_path: Path, port: int) -> None:
    said: list[str] = []
    stop = threading.Event()
    mute = ServerCommand(("/bin/sleep", "600"), {}, port)

    def say(line: str) -> None:
        said.append(line)
        stop.set()

    keep_up(mute, tmp_path / "log", stop, say, Patience(ready=0.2, look=0.05, first=0.01, end=5.0))
    assert "has not become ready" in said[0]


def test_nothing_of_a_server_outlives_the_serving(tmp_path: Path, port: int) -> None:
    stop = threading.Event()
    ignores = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
    family = f"{sys.executable} -c '{ignores}'"
    command = ServerCommand(("/bin/sh", "-c", f"{family} & echo $! > {tmp_path}/child; wait"), {}, port)
    watcher = threading.Thread(
        target=keep_up, args=(command, tmp_path / "log", stop, lambda _: None, Patience(look=0.05, end=5.0))
    )
    watcher.start()
    assert until(lambda: (tmp_path / "log").exists() and (tmp_path / "log").read_text().strip() == "1")
    child = int((tmp_path / "child").read_text())
    stop.set()
    watcher.join(30)
    assert until(lambda: not alive(child))


def until(condition: object, seconds: float = 20.0) -> bool:
    """Whether a condition comes true in time."""
    assert callable(condition)
    deadline, pause = time.monotonic() + seconds, threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            return False
        pause.wait(0.02)
    return True


def alive(pid: int) -> bool:
    """Whether a process runs; one that waits to be reaped does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
