"""Stands in for ``vllm serve``: its options, its routes and its words, as vLLM's documents and sources have them.

    python vllm_stub.py FOLDER serve MODEL --port P ...

It leaves what it was called with in FOLDER, a file for each of its lives.
"""

import argparse
import http.server
import json
import os
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(sys.argv[1])


def options() -> argparse.Namespace:
    """As the command line of vLLM reads them: what it does not know is an error."""
    parser = argparse.ArgumentParser(prog="vllm", allow_abbrev=False)
    known = parser.add_subparsers(required=True).add_parser("serve", allow_abbrev=False)
    known.add_argument("model")
    known.add_argument("--host")
    known.add_argument("--port", type=int)
    known.add_argument("--enable-lora", action="store_true")
    known.add_argument("--max-lora-rank", type=int, choices=(1, 8, 16, 32, 64, 128, 256, 320, 512))
    known.add_argument("--lora-modules", nargs="+", default=[])
    modes = ("raw_logits", "raw_logprobs", "processed_logits", "processed_logprobs")
    known.add_argument("--logprobs-mode", choices=modes)
    known.add_argument("--override-generation-config", type=json.loads)
    return parser.parse_args(sys.argv[2:])


def refusal(path: str, name: str, inplace: bool) -> tuple[int, str]:
    """Why an adapter is not loaded, 200 where it is."""
    place, roots = Path(path), os.environ.get("VLLM_RUNTIME_LORA_ALLOWED_PATH_PREFIXES", "")
    if place.is_absolute() and not roots:
        return 400, "Local LoRA adapter paths require VLLM_RUNTIME_LORA_ALLOWED_PATH_PREFIXES to be configured."
    if not all(Path(root).is_dir() for root in roots.split(":")):
        return 500, "configured path prefix must exist and be accessible"
    if not any(place.resolve().is_relative_to(Path(root).resolve()) for root in roots.split(":")):
        return 400, "Local LoRA adapter path is outside the configured allowed prefixes."
    if not (place / "adapter_config.json").is_file():
        return 404, f"Loading lora {name} failed: No adapter found for {path}"
    if name in LOADED and not inplace:
        return 400, f"The lora adapter '{name}' has already been loaded."
    return 200, f"Success: LoRA adapter '{name}' added successfully."


class Handler(http.server.BaseHTTPRequestHandler):
    """The routes that are asked for."""

    def do_GET(self) -> None:
        if self.path == "/health":
            self.reply(200, "")
        elif self.path == "/v1/models":
            base: dict[str, Any] = {"id": CALLED.model, "root": CALLED.model, "parent": None, "max_model_len": 4096}
            loras = [{"id": name, "root": path, "parent": CALLED.model} for name, path in LOADED.items()]
            self.reply(200, json.dumps({"object": "list", "data": [base, *loras]}))
        else:
            self.reply(404, '{"detail":"Not Found"}')

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path == "/v1/load_lora_adapter" and os.environ.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING") == "1":
            name, path, inplace = asked["lora_name"], asked["lora_path"], asked.get("load_inplace", False)
            status, words = refusal(path, name, inplace)
            if status == 200:
                LOADED[name] = path
                note("inplace" if inplace else "loaded", name)
            self.reply(status, words if status == 200 else error(status, words))
        elif self.path == "/v1/chat/completions":
            name = asked["model"]
            if name not in (CALLED.model, *LOADED):
                self.reply(404, error(404, f"The model `{name}` does not exist."))
            else:
                self.reply(200, json.dumps(answer(name)))
        else:
            self.reply(404, '{"detail":"Not Found"}')

    def reply(self, status: int, text: str) -> None:
        """Send a whole answer."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def error(status: int, words: str) -> str:
    """An error as vLLM words it."""
    return json.dumps({"error": {"message": words, "type": "NotFoundError", "param": None, "code": status}})


def answer(name: str) -> dict[str, Any]:
    """An answer of a model, with what the learner wants."""
    content = [{"token": "token_id:5", "logprob": -0.5, "bytes": None, "top_logprobs": []}]
    choice = {"index": 0, "message": {"role": "assistant", "content": name}, "finish_reason": "stop"}
    choice |= {"logprobs": {"content": content}, "token_ids": [5]}
    usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
    return {"id": "x", "object": "chat.completion", "model": name, "choices": [choice], "usage": usage}


def note(what: str, text: str) -> None:
    """Leave a word for whoever looks into the folder."""
    with (FOLDER / what).open("a") as file:
        file.write(f"{text}\n")


CALLED = options()
LOADED = dict(module.split("=", 1) for module in CALLED.lora_modules)
environment = {k: v for k, v in os.environ.items() if k.startswith(("VLLM_", "HF_", "DO_")) or k == "PATH"}
note("lives", json.dumps({"pid": os.getpid(), **vars(CALLED), "environment": environment}))
http.server.ThreadingHTTPServer((CALLED.host, CALLED.port), Handler).serve_forever()
