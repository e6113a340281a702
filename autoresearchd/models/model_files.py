"""Models on this disk: their files, the hashes that tell one from another, and their names at a hub or a server.

Versions are told to fit a model by its hash. A server of models does not tell one, only what it calls its model, so
that names have to do there; and the same model is called otherwise by whoever trained it and by whoever serves it.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from autoresearchd.domain.errors import EnvironmentFailure, MissingCapability, UsageError
from autoresearchd.domain.policy_versions import BaseModel
from autoresearchd.models.gguf_header import gguf_template

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
_PART = r"[A-Za-z0-9][\w.-]{0,95}"
_CACHED = re.compile(rf"/models--({_PART}?)(?:--({_PART}))?/snapshots/")
_HUB_NAME = re.compile(rf"{_PART}(/{_PART})?")
_REVISION = re.compile(r"[0-9a-f]{40}")
_FETCHED = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt")
"""No pickled weights: loading them would run what they say."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a model lies: a folder as ``save_pretrained`` writes it, or a GGUF file in one."""

    folder: Path
    gguf: str | None = None

    @classmethod
    def at(cls, place: Path) -> Self:
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


def base_model(place: Path) -> BaseModel:
    """The model of a folder or a file, its hashes as they are recorded with its answers; UsageError: it is none."""
    source = Source.at(place)
    try:
        template = gguf_template(source.place) if source.gguf else chat_template(source.folder)
        return replace(source.base_model(template), name=str(place))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"the model in {place} cannot be read: {error}", hint="make its files readable, or load it anew"
        ) from error


def gguf_file(place: Path) -> str | None:
    """Name of the GGUF file that a model is in, None: a folder of the usual kind; UsageError: no model, or several."""
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

    Of a file of weights: name, size, its first and last MiB, and 256 blocks of 4 KiB between them. Training moves all
    weights of a layer, so that it is noticed; it is no protection against somebody who forges a file.
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
    """The chat template where transformers looks for it: a file of its own, or a key of the tokenizer's settings."""
    own, settings = folder / "chat_template.jinja", folder / "tokenizer_config.json"
    if own.is_file():
        return own.read_text("utf-8")
    values = json.loads(settings.read_text("utf-8")) if settings.is_file() else None
    return values.get("chat_template") if isinstance(values, dict) else None


def _named(paths: Iterable[Path]) -> bytes:
    parts = [f"{path.name}\0".encode() + hashlib.sha256(path.read_bytes()).digest() for path in paths if path.is_file()]
    return b"".join(parts)


def _sampled(path: Path) -> bytes:
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


# ---------------------------------------------------------------------- names
def model_place(name: str, folder: Path) -> Path | None:
    """The folder or file of a model, as ``--model`` names it; None where the name is one of a hub or a server.

    folder: what a relative path is relative to. Raises UsageError: it looks like a path, and nothing is there.
    """
    place = folder / Path(name).expanduser()
    if name and place.exists():
        return place
    if name.startswith(("/", "./", "../", "~")):
        raise UsageError(f"--model {name}: there is nothing at {place}", hint="give a folder with a model, or its name")
    return None


def described(base: BaseModel) -> str:
    """A model for people: its name, and how its hash begins."""
    known = f"hash {base.model_hash[:8]}" if base.model_hash else "whose hash nobody tells"
    return f"{base.name or 'a model without a name'} ({known})"


def same_name(one: str, other: str) -> bool:
    """Whether two names are of one model, as far as names tell."""
    return bool(_names_of(one) & _names_of(other))


def _names_of(name: str) -> frozenset[str]:
    """All names that a model has, from one of them; empty: none.

    A folder is also what it is a link to, and a snapshot in the cache of the Hugging Face hub also the model that it is
    one of (``models--OWNER--NAME/snapshots/<revision>``: huggingface.co/docs/huggingface_hub/guides/manage-cache).
    """
    text = name.strip().rstrip("/")
    if not text:
        return frozenset()
    found = {text}
    place = Path(text).expanduser()
    if place.is_absolute():
        found |= {str(place), str(place.resolve())}
        found |= {"/".join(filter(None, match.groups())) for match in _CACHED.finditer(str(place))}
    return frozenset(found)


def cached(name: str, environment: Mapping[str, str]) -> Path | None:
    """The folder on this machine of a hub's model (``OWNER/NAME``), where huggingface_hub keeps it; None: nowhere."""
    if not _HUB_NAME.fullmatch(name) or ".." in name:
        return None
    home = environment.get("HF_HOME") or f"{environment.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    place = Path(environment.get("HF_HUB_CACHE") or f"{home}/hub").expanduser()
    repository = place / f"models--{name.replace('/', '--')}"
    try:
        revision = (repository / "refs" / "main").read_text("ascii", "replace").strip()
        folder = repository / "snapshots" / revision
        return folder if _REVISION.fullmatch(revision) and folder.is_dir() else None
    except OSError:
        return None


def fetched(name: str) -> Path:
    """The folder of a hub's model, fetched once; UsageError: no hub has names like that."""
    if not _HUB_NAME.fullmatch(name) or ".." in name:
        raise UsageError(
            f"--model {name[:100]} is neither a folder nor a model's name", hint="name a folder, or OWNER/NAME"
        )
    try:
        hub = importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise MissingCapability(
            f"to fetch the model {name} needs the package huggingface_hub", hint="pip install 'autoresearchd[learn]'"
        ) from error
    try:
        return Path(hub.snapshot_download(name, allow_patterns=list(_FETCHED)))
    except Exception as error:  # whatever its HTTP library and its own tree of errors hold
        what = " ".join(str(error).split())[:200]
        raise EnvironmentFailure(
            f"the model {name} cannot be fetched from the hub: {type(error).__name__}: {what}",
            hint="look at the name and the network; or fetch it elsewhere, and name its folder with --model",
        ) from error
