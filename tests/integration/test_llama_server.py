"""A code model of half a billion parameters behind llama.cpp's server answers as the schema says, through ``local``.

Skipped where it is not at hand. Once, in a clone (docs/local-model.md)::

    python benchmarks/models.py fetch 0.5b --dir ~/models
    python -m venv ~/.venvs/llama && ~/.venvs/llama/bin/pip install 'llama-cpp-python[server]'
    export AUTORESEARCHD_TESTS_MODELS=~/models AUTORESEARCHD_TESTS_LLAMA=~/.venvs/llama/bin/python
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from autoresearchd.models.client import Question
from autoresearchd.models.openai_client import OpenAIClient
from benchmarks.models import ALL

pytest.importorskip("httpx", reason="pip install 'autoresearchd[local]'")

FOLDER, PYTHON = (os.environ.get(f"AUTORESEARCHD_TESTS_{name}", "") for name in ("MODELS", "LLAMA"))
FILE = Path(FOLDER or "nowhere").expanduser() / ALL["0.5b"].file
SCHEMA = {
    "type": "object",
    "properties": {
        "constant": {"enum": ["HIDDEN", "LEARNING_RATE"]},
        "value": {"type": "number"},
        "expected_delta": {"const": 0.125},
    },
    "required": ["constant", "value", "expected_delta"],
    "additionalProperties": False,
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not PYTHON or not FILE.is_file(), reason="the head of this file says how it is made ready"),
]


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """An endpoint with the model, ready to answer."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(Path(PYTHON).expanduser()), "-m", "llama_cpp.server", "--model", str(FILE), "--model_alias", "coder"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--n_ctx", "2048", "--logits_all", "false"]
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    server = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert server.stderr is not None
    try:
        said = []
        for line in server.stderr:
            said.append(line)
            if "Uvicorn running" in line:
                break
        else:
            pytest.fail("".join(said[-20:]))
        rest = threading.Thread(target=server.stderr.read)  # a full pipe would stop the server
        rest.start()
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait(60)
    rest.join(60)
    server.stderr.close()


def test_a_real_server_of_llama_cpp_holds_the_model_to_the_schema(url: str) -> None:
    client = OpenAIClient(url, "coder")
    said = "HIDDEN = 32, LEARNING_RATE = 0.1; the loss rises. What do you change? Explain yourself at length."
    for seed in (1, 2):
        question = Question(({"role": "user", "content": said},), 60, 0.7, seed, timeout=300.0, schema=SCHEMA)
        reply = client.ask(question, threading.Event())
        answer = json.loads(reply.text)
        assert set(answer) == set(SCHEMA["properties"]), "a model of that size does not come to this by itself"
        assert answer["constant"] in ("HIDDEN", "LEARNING_RATE") and answer["expected_delta"] == 0.125
        assert reply.finish == "stop" and reply.sampling["structured"] is True
        assert reply.cost.tokens_in > 20
