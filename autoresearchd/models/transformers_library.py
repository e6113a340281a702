"""Language models that transformers loads, for whoever asks or trains one: from disk, offline, without their code."""

from __future__ import annotations

import contextlib
import importlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from autoresearchd.domain.errors import AutoresearchdError, MissingCapability
from autoresearchd.models import model_files, provider_errors
from autoresearchd.models.client import ModelError, Trouble

OFFLINE: Mapping[str, str] = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Environment variables under which libraries are imported and models are loaded."""


@dataclass(frozen=True, slots=True)
class Hashes:
    """What tells one base model, tokenizer and chat template from another; template: None where there is none."""

    model: str
    tokenizer: str
    template: str | None


@dataclass(frozen=True, slots=True)
class Source:
    """Where a model lies: a folder as ``save_pretrained`` writes it, or a GGUF file in one."""

    folder: Path
    gguf: str | None = None

    @classmethod
    def at(cls, place: Path) -> Source:
        """The model of a folder, or of a file; raises UsageError for what is none."""
        gguf = model_files.gguf_file(place)
        return cls(place if place.is_dir() else place.parent, gguf)

    @property
    def place(self) -> Path:
        """The folder, or the file, as messages name it."""
        return self.folder / self.gguf if self.gguf else self.folder

    @property
    def options(self) -> dict[str, Any]:
        """What every ``from_pretrained`` is told."""
        file = {"gguf_file": self.gguf} if self.gguf else {}
        return {"trust_remote_code": False, "local_files_only": True, **file}

    def hashes(self, template: object) -> Hashes:
        """Of the files, and of the chat template that the tokenizer uses."""
        return Hashes(
            model_files.model_hash(self.folder, self.gguf),
            model_files.tokenizer_hash(self.folder, self.gguf),
            model_files.template_hash(template),
        )


def load_tokenizer(source: Source) -> Any:
    """The tokenizer, with its chat template; raises ModelError where it cannot be loaded."""
    transformers = library("transformers")
    with provider_errors.environment(OFFLINE), told(source.place):
        return transformers.AutoTokenizer.from_pretrained(source.folder, **source.options)


def load_base(source: Source, tokenizer: Any, dtype: str) -> Any:
    """The causal language model, on the CPU and ready to be asked; raises ModelError where it cannot be loaded.

    Of its own generation settings only the ends of a turn are kept: what else they hold (penalties, top-p) would bend
    the distribution that is drawn from.

    Args:
        source: where it lies.
        tokenizer: its tokenizer, which names the end of a turn where the model does not.
        dtype: ``auto`` (that of the checkpoint), ``float32``, ``bfloat16`` …
    """
    transformers = library("transformers")
    transformers.utils.logging.disable_progress_bar()  # a daemon has no screen
    with provider_errors.environment(OFFLINE), told(source.place):
        model = transformers.AutoModelForCausalLM.from_pretrained(source.folder, dtype=dtype, **source.options)
    ends = model.generation_config.eos_token_id
    ends = tokenizer.eos_token_id if ends is None else ends
    padding = tokenizer.pad_token_id
    if padding is None:
        padding = ends[0] if isinstance(ends, (list, tuple)) else ends
    model.generation_config = transformers.GenerationConfig(eos_token_id=ends, pad_token_id=padding)
    return model.eval()


def device_of(name: str) -> str:
    """The device of a setting: ``auto`` is a GPU where there is one."""
    if name != "auto":
        return name
    return "cuda" if library("torch").cuda.is_available() else "cpu"


def context_of(model: Any) -> int | None:
    """How many tokens a model can look at; None where it does not say."""
    context = getattr(model.config, "max_position_embeddings", None)
    return context if isinstance(context, int) else None


def ends_of(model: Any) -> frozenset[int]:
    """Tokens that end a turn."""
    ends = model.generation_config.eos_token_id
    return frozenset(ends if isinstance(ends, (list, tuple)) else () if ends is None else (ends,))


def encoded(tokenizer: Any, messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """A conversation as the model is shown it, up to where its answer begins."""
    text = rendered(tokenizer, messages, answer=True)
    try:
        return [int(token) for token in tokenizer(text, add_special_tokens=False)["input_ids"]]
    except Exception as error:
        raise trouble(error) from error


def rendered(tokenizer: Any, messages: Sequence[Mapping[str, Any]], *, answer: bool) -> str:
    """A conversation in the words of the chat template; with ``answer`` up to where the next one begins."""
    try:
        text = tokenizer.apply_chat_template(
            [dict(message) for message in messages], add_generation_prompt=answer, tokenize=False
        )
    except Exception as error:
        raise trouble(error) from error
    return str(text)


def decoded(tokenizer: Any, ids: Sequence[int]) -> str:
    """The text of tokens, special ones left out."""
    return str(tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))


def trouble(error: Exception) -> ModelError:
    """What went wrong in a library while a model was asked."""
    kind = type(error).__name__
    found = Trouble.OVERLOADED if "OutOfMemory" in kind or isinstance(error, MemoryError) else Trouble.BAD_REQUEST
    return ModelError(found, f"the model in this process failed: {kind}: {provider_errors.words_of(str(error))}")


def library(name: str) -> ModuleType:
    """A library that is imported at its first use; raises MissingCapability with the extra that brings it."""
    try:
        with provider_errors.environment(OFFLINE):
            return importlib.import_module(name)
    except ImportError as error:
        raise MissingCapability(
            f"a model in this process needs the package {name}: {error}", hint="pip install 'autoresearchd[learn]'"
        ) from error


@contextlib.contextmanager
def told(place: Path) -> Iterator[None]:
    """What goes wrong with the files of a model is told with their place."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of what peft uses of transformers
            yield
    except AutoresearchdError:
        raise
    except ImportError as error:
        raise MissingCapability(
            f"{place} needs another package: {provider_errors.words_of(str(error))}", hint="install what it names"
        ) from error
    except Exception as error:
        kind = type(error).__name__
        raise ModelError(
            Trouble.NOT_FOUND,
            f"{place} cannot be loaded: {kind}: {provider_errors.words_of(str(error))}",
            hint="give a folder as save_pretrained writes it, or a GGUF file",
        ) from error


class Draw:
    """A processor of logits that draws the tokens itself, writes their log-probabilities down, and leaves them alone.

    Neither top-p nor top-k nor penalties: what is written down is of the very distribution that was drawn from. What a
    row draws depends on its own seed and logits, not on the rows beside it.

    Args:
        torch: the library.
        temperature: 0 takes the likeliest token, with its log-probability at temperature 1.
        seeds: one for each row; None: another one at each time.
        device: where the logits are.
    """

    def __init__(self, torch: ModuleType, temperature: float, seeds: Sequence[int | None], device: Any) -> None:
        self._torch, self._temperature = torch, temperature
        self._generators = [_generator(torch, seed, device) for seed in seeds]
        self.logprobs: list[list[float]] = [[] for _ in seeds]

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        torch, temperature = self._torch, self._temperature
        logits = scores.float()
        logprobs = torch.log_softmax(logits / temperature if temperature > 0 else logits, dim=-1)
        if temperature > 0:
            rows = zip(logprobs.exp(), self._generators, strict=True)
            tokens = torch.stack([torch.multinomial(row, 1, generator=generator) for row, generator in rows])
        else:
            tokens = logprobs.argmax(dim=-1, keepdim=True)
        for found, value in zip(self.logprobs, logprobs.gather(-1, tokens)[:, 0].tolist(), strict=True):
            found.append(value)
        return torch.full_like(scores, float("-inf")).scatter_(-1, tokens, 0.0)


def _generator(torch: ModuleType, seed: int | None, device: Any) -> Any:
    generator = torch.Generator(device=device)
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed % 2**63)
    return generator
