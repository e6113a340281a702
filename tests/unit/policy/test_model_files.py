"""Two models, tokenizers or templates that differ are never taken for one."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoresearchd.domain.errors import UsageError
from autoresearchd.models.model_files import gguf_file, model_hash, template_hash, tokenizer_hash

MIB = 1024 * 1024


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"hidden_size": 8}')
    (tmp_path / "model.safetensors").write_bytes(bytes(5 * MIB))
    (tmp_path / "tokenizer.json").write_text("{}")
    return tmp_path


def test_trained_weights_of_the_same_shape_are_another_model(folder: Path) -> None:
    before = model_hash(folder)
    weights = bytearray(bytes(5 * MIB))
    weights[2 * MIB : 3 * MIB] = b"\x01" * MIB  # one layer
    (folder / "model.safetensors").write_bytes(weights)
    assert model_hash(folder) != before


def test_tokenizers_and_templates_are_told_apart(folder: Path) -> None:
    before = tokenizer_hash(folder)
    (folder / "tokenizer.json").write_text('{"added_tokens": []}')
    assert tokenizer_hash(folder) != before
    assert template_hash("{{ messages }}") != template_hash("{{ messages }} ")
    assert template_hash(None) is None


def test_a_model_is_a_folder_or_one_gguf_file(folder: Path, tmp_path: Path) -> None:
    assert gguf_file(folder) is None
    one = tmp_path / "one"
    one.mkdir()
    (one / "small.gguf").write_bytes(b"GGUF")
    assert gguf_file(one) == gguf_file(one / "small.gguf") == "small.gguf"
    assert model_hash(one, "small.gguf") != model_hash(folder)
    (one / "large.gguf").write_bytes(b"GGUF")
    with pytest.raises(UsageError, match="several"):
        gguf_file(one)
    with pytest.raises(UsageError, match="not a folder"):
        gguf_file(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="holds no model"):
        gguf_file(tmp_path / "empty")
