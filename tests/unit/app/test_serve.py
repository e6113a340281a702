"""A model of one's own is served on this machine alone, is called rightly, and stays up, with its adapters."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from autoresearchd.app.models.serve_model import Patience, ServerCommand, command_of, keep_up
from autoresearchd.domain.errors import UsageError
from autoresearchd.domain.policy_versions import ServedAdapter
from autoresearchd.models.client import Reply
from autoresearchd.models.openai_client import OpenAIClient
from tests.contract.client_contract import QUESTION
from tests.fakes.models import Chosen
from tests.integration.local_jobs import alive
from tests.timing import wait_until
from tests.unit.learner.sessions import make_root

STUB = Path(__file__).with_name("vllm_stub.py")
NEVER = threading.Event()


@dataclass
class Served:
    """An environment with a scripted vLLM, and a repository whose versions it is to serve."""

    folder: Path
    port: int
    said: queue.Queue[str] = field(default_factory=queue.Queue)

    def __post_init__(self) -> None:
        self.python, self.vllm = (self.folder / "env" / "bin" / name for name in ("python", "vllm"))
        self.repository = self.folder / "repository"

    def adapter(self, name: str, place: str = "repository/.git/autoresearchd/adapters") -> ServedAdapter:
        folder = self.folder / place / name
        folder.mkdir(parents=True)
        (folder / "adapter_config.json").write_text("{}")
        return ServedAdapter(name, folder)

    def lines(self, name: str) -> list[str]:
        return (self.folder / name).read_text().splitlines() if (self.folder / name).exists() else []

    def lives(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines("lives")]

    def wait_for(self, words: str) -> str:
        """The next line that has these words, of what the command says."""
        while True:
            line = self.said.get(timeout=60)
            if words in line:
                return line


@pytest.fixture
def served(tmp_path: Path) -> Served:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        found = Served(tmp_path, int(free.getsockname()[1]))
    found.vllm.parent.mkdir(parents=True)
    found.vllm.write_text(f'#!/bin/sh\nexec {sys.executable} {STUB} {tmp_path} "$@"\n')
    found.python.write_text(f"#!/bin/sh\necho {found.vllm.parent}\n")
    for program in (found.vllm, found.python):
        program.chmod(0o755)
    make_root(found.repository)
    return found


@pytest.fixture
def serving(served: Served) -> Iterator[subprocess.Popen[str]]:
    """``autoresearchd serve`` in that repository, with an adapter from elsewhere."""
    pytest.importorskip("httpx", reason="pip install 'autoresearchd[local]'")
    adapter = served.adapter("mine", "elsewhere").folder
    options = ("--python", served.python, "--port", str(served.port), "--adapter", adapter)
    process = subprocess.Popen(
        [sys.executable, "-m", "autoresearchd", "serve", "some/model", *options],
        cwd=served.repository,
        env={**os.environ, "HOME": str(served.folder), "AUTORESEARCHD_CONFIG": "/dev/null"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )

    def listen() -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                served.said.put(line)

    listener = threading.Thread(target=listen)
    listener.start()
    yield process
    process.kill()
    process.wait(30)
    listener.join(30)


def test_it_is_called_rightly_loads_versions_and_is_started_again_when_it_is_killed(
    served: Served, serving: subprocess.Popen[str]
) -> None:
    assert f"ready: http://127.0.0.1:{served.port}/v1" in served.wait_for("ready")
    [life] = served.lives()
    assert (life["model"], life["host"], life["port"]) == ("some/model", "127.0.0.1", served.port)
    assert (life["enable_lora"], life["logprobs_mode"]) == (True, "processed_logprobs")
    assert life["override_generation_config"] == {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
    assert life["environment"]["VLLM_NO_USAGE_STATS"] == "1"
    assert life["environment"]["PATH"].split(":")[0] == str(served.vllm.parent), "it calls programs of its own"

    told: list[str] = []
    chosen = Chosen(None)
    client = OpenAIClient(f"http://127.0.0.1:{served.port}/v1", adapters=chosen, warn=told.append)

    def ask(version: ServedAdapter | None) -> Reply:
        chosen.version = version
        client.renew()
        return client.ask(QUESTION, NEVER)

    plain = ask(None)
    assert (plain.text, plain.adapter, plain.token_ids, plain.logprobs) == ("some/model", "", (5,), (-0.5,))
    first = served.adapter("v1-0a")
    assert [ask(first).adapter for _ in range(2)] == ["v1-0a", "v1-0a"]
    assert ask(ServedAdapter("mine", served.folder / "elsewhere" / "mine")).text == "mine", "it was loaded at the start"

    os.kill(life["pid"], signal.SIGKILL)
    assert "was ended by SIGKILL; it is started again" in served.wait_for("started again")
    served.wait_for("ready")
    assert ask(first).text == "v1-0a"
    assert served.lines("loaded") == ["v1-0a", "v1-0a"], "once in each life"
    assert served.lines("inplace") == [], "vLLM would load such a one anew in each step"
    stranger = served.adapter("v1-0b", "another")
    assert ask(stranger).adapter == ""
    assert "outside the configured allowed prefixes" in told[-1] and "started in this repository" in told[-1]

    serving.send_signal(signal.SIGTERM)
    assert serving.wait(30) == 128 + signal.SIGTERM
    assert len(served.lives()) == 2


@pytest.mark.parametrize("model", [None, "", "--trust-remote-code", "./nowhere", "a\nb"])
def test_what_is_no_model_never_becomes_an_option(model: str | None, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        command_of(model, Path("vllm"), tmp_path)


def test_a_server_that_falls_silent_is_ended_and_started_again(tmp_path: Path, served: Served) -> None:
    said: list[str] = []
    stop = threading.Event()
    mute = ServerCommand(("/bin/sleep", "600"), {}, served.port)

    def say(line: str) -> None:
        said.append(line)
        stop.set()

    keep_up(mute, tmp_path / "log", stop, say, Patience(ready=0.2, look=0.05, first=0.01, end=5.0))
    assert "has not become ready" in said[0]


def test_nothing_of_a_server_outlives_the_serving(tmp_path: Path, served: Served) -> None:
    stop = threading.Event()
    ignores = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
    family = f"{sys.executable} -c '{ignores}'"
    command = ServerCommand(("/bin/sh", "-c", f"{family} & echo $! > {tmp_path}/child; wait"), {}, served.port)
    watcher = threading.Thread(
        target=keep_up, args=(command, tmp_path / "log", stop, lambda _: None, Patience(look=0.05, end=5.0))
    )
    watcher.start()
    assert wait_until(lambda: (tmp_path / "log").exists() and (tmp_path / "log").read_text().strip() == "1", 60)
    child = int((tmp_path / "child").read_text())
    stop.set()
    watcher.join(30)
    assert wait_until(lambda: not alive(child), 60)
