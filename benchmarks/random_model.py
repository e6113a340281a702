"""A "model" that draws its answer: the control for a small model that chooses among the values of a JSON schema.

    python benchmarks/random_model.py --port 8803      # then local: {base_url: http://127.0.0.1:8803/v1, model: random}

It is told nothing and takes one constant uniformly, then one of its values; where it may pass, that is drawn like a
constant. The same seed in a request gives the same answer. Whatever a real model adds to `hybrid:local` with `prompt:
brief` has to be seen above this.
"""

from __future__ import annotations

import argparse
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from typing import Any


def answer(schema: dict[str, Any], seed: int) -> dict[str, Any]:
    """One of the objects that a brief prompt's schema allows."""
    random = Random(seed)
    chosen = random.choice(schema["anyOf"])["properties"]
    return {name: form["const"] if "const" in form else random.choice(form["enum"]) for name, form in chosen.items()}


class Handler(BaseHTTPRequestHandler):
    """As much of the OpenAI API as the client asks for."""

    def do_GET(self) -> None:
        self._send({"object": "list", "data": [{"id": "random", "object": "model"}]})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        form = asked.get("response_format")  # a session's first question has none
        said = json.dumps(answer(form["json_schema"]["schema"], asked.get("seed", 0))) if form else "OK"
        message = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": said}}
        usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        self._send({"id": "r", "object": "chat.completion", "model": "random", "choices": [message], "usage": usage})

    def _send(self, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8803)
    ThreadingHTTPServer(("127.0.0.1", parser.parse_args().port), Handler).serve_forever()


if __name__ == "__main__":
    main()
