"""The files of a model on disk: which there are, and hashes that tell one model, tokenizer or template from another."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoresearchd.domain.errors import UsageError
from autoresearchd.domain.policy_versions import BaseModel

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
)
_WEIGHTS = ("*.safetensors", "*.gguf", "pytorch_model*.bin")
_BLOCKS, _BLOCK = 256, 4096
_EDGE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Source:
    """Where a model lies: a folder as ``save_pretrained`` writes it, or a GGUF file in one."""

    folder: Path
    gguf: str | None = None

    @classmethod
    def at(cls, place: Path) -> Source:
        """The model of a folder, or of a file; raises UsageError for what is none."""
        gguf = gguf_file(place)
        return cls(place if place.is_dir() else place.parent, gguf)

    @property
    def place(self) -> Path:
        """The folder, or the file, as messages name it."""
        return self.folder / self.gguf if self.gguf else self.folder

    @property
    def options(self) -> dict[str, Any]:
        """What every ``from_pretrained`` of transformers is told."""
        file = {"gguf_file": self.gguf} if self.gguf else {}
        return {"trust_remote_code": False, "local_files_only": True, **file}

    def base_model(self, template: object) -> BaseModel:
        """The model with its hashes. template: the chat template that its tokenizer uses."""
        model, tokenizer = model_hash(self.folder, self.gguf), tokenizer_hash(self.folder, self.gguf)
        return BaseModel(str(self.place.absolute()), model, tokenizer, template_hash(template))


def known_by_files(place: Path) -> BaseModel:
    """The model of a folder or a file with its hashes, by its files alone.

    Raises UsageError for what is no model, OSError and ValueError for files that cannot be read.
    """
    source = Source.at(place)
    return source.base_model(None if source.gguf else chat_template(source.folder))


def gguf_file(place: Path) -> str | None:
    """Name of the GGUF file that a model is in, None where it is a folder of the usual kind.

    Raises UsageError for what is no model, and for a folder with several GGUF files.
    """
    if place.is_file() and place.suffix == ".gguf":
        return place.name
    if not place.is_dir():
        raise UsageError(f"{place} is not a folder with a model", hint="give a folder with config.json or a .gguf file")
    if (place / "config.json").is_file():
        return None
    found = sorted(path.name for path in place.glob("*.gguf"))
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{place} holds several models: {', '.join(found)}", hint="name the file")
    raise UsageError(f"{place} holds no model: neither a config.json nor a .gguf file", hint="name its folder")


def model_hash(folder: Path, gguf: str | None = None) -> str:
    """Tells one base model from another: SHA-256 over ``config.json`` and every file of weights.

    Of a file of weights: name, size, its first and last MiB (the header of safetensors and GGUF), and 256 blocks of 4
    KiB between them. Training moves all weights of a layer, so that it is noticed, at the cost of reading 3 MiB; it is
    no protection against somebody who forges a file.
    """
    weights = [folder / gguf] if gguf else sorted({path for form in _WEIGHTS for path in folder.glob(form)})
    whole = hashlib.sha256(_named([folder / "config.json"]))
    for path in weights:
        whole.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        whole.update(_sampled(path))
    return whole.hexdigest()


def tokenizer_hash(folder: Path, gguf: str | None = None) -> str:
    """SHA-256 over the tokenizer's files; of a GGUF file, which has it in its header, that of the model."""
    if gguf:
        return model_hash(folder, gguf)
    return hashlib.sha256(_named(folder / name for name in _TOKENIZER_FILES)).hexdigest()


def template_hash(template: object) -> str | None:
    """SHA-256 of a chat template, None where there is none."""
    return hashlib.sha256(template.encode()).hexdigest() if isinstance(template, str) else None


def chat_template(folder: Path) -> object:
    """The chat template where transformers looks for it: a file of its own, or a key of the tokenizer's settings.

    Raises OSError and ValueError for files that cannot be read.
    """
    own, settings = folder / "chat_template.jinja", folder / "tokenizer_config.json"
    if own.is_file():
        return own.read_text("utf-8")
    values = json.loads(settings.read_text("utf-8")) if settings.is_file() else None
    return values.get("chat_template") if isinstance(values, dict) else None


def _named(paths: Iterable[Path]) -> bytes:
    """Names and digests of those files that are there."""
    parts = [f"{path.name}\0".encode() + hashlib.sha256(path.read_bytes()).digest() for path in paths if path.is_file()]
    return b"".join(parts)


def _sampled(path: Path) -> bytes:
    """Digest of the beginning, the end, and blocks at even distances."""
    digest, size = hashlib.sha256(), path.stat().st_size
    with path.open("rb") as file:
        digest.update(file.read(_EDGE))
        step = max(_BLOCK, (size - 2 * _EDGE) // _BLOCKS)
        for place in range(_EDGE, max(_EDGE, size - _EDGE), step):
            file.seek(place)
            digest.update(file.read(_BLOCK))
        file.seek(max(0, size - _EDGE))
        digest.update(file.read(_EDGE))
    return digest.digest()
