"""A base model with a LoRA adapter, fresh or saved; how an adapter is written; and the memory of a learner run."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import json
import resource
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from autoresearchd.domain.errors import AutoresearchdError, EnvironmentFailure, MissingCapability, UsageError
from autoresearchd.models.client import words_of
from autoresearchd.models.model_files import Source
from autoresearchd.models.transformers_client import device_of, library, load_base, load_tokenizer, told

if TYPE_CHECKING:
    from autoresearchd.learner.algorithms.learnable import Learnable, Sample

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Of glibc's mallopt."""
_LARGE = 2**20
POLICY = "default"
"""Peft's name of the adapter that is trained."""

CONFIG, WEIGHTS, VALUE_HEAD = "adapter_config.json", "adapter_model.safetensors", "value_head.safetensors"
"""Files of an adapter: the first two as peft writes them."""

# What of a saved LoRA configuration is taken over. All else of it could change the base model, or run code.
_TAKEN = (
    "r", "lora_alpha", "target_modules", "exclude_modules", "use_rslora", "rank_pattern", "alpha_pattern",
    "layers_to_transform", "layers_pattern",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """How a model is loaded to be trained.

    adapter: folder of an adapter that is trained on; its own rank and layers count, not these. rank, alpha: of a fresh
    one on all linear layers but the output layer (Hu et al. 2021, arXiv:2106.09685): W + (alpha/rank)·B·A, with B = 0
    at first. dropout: above 0, ratios to stored log-probabilities are noisy. dtype: auto, float32 or bfloat16; adapter
    and value head are float32. checkpointing: compute each layer again in the backward pass: about a third slower.
    generated: completions that are written at once.
    """

    adapter: Path | None = None
    rank: int = 16
    alpha: float = 32
    dropout: float = 0.0
    value_head: bool = False
    device: str = "auto"
    dtype: str = "auto"
    threads: int = 1
    checkpointing: bool = False
    generated: int = 8
    seed: int = 0
    share_prompts: bool = True


class Loaded(NamedTuple):
    """Peft's model, and the causal language model within it; value_head: weights of a saved one, None for none."""

    adapted: Any
    base: Any
    tokenizer: Any
    hashes: tuple[str, str, str]
    device: torch.device
    value_head: Mapping[str, Tensor] | None = None


def load(place: Path, options: ModelOptions) -> Loaded:
    """The model of a folder or a GGUF file, with an adapter on it that can be trained.

    Raises UsageError: there is no model, it has no chat template, or the adapter is none, is damaged, or does not fit;
    ModelError: the model cannot be loaded; MissingCapability: a package is missing.
    """
    source = Source.at(place)
    peft = library("peft")
    torch.set_num_threads(options.threads)
    give_large_blocks_back()
    tokenizer = load_tokenizer(source)
    if not isinstance(tokenizer.chat_template, str):
        raise UsageError(
            f"{source.place} has no chat template: what the policy is shown cannot be written for it",
            hint="take an instruction-tuned model; its tokenizer_config.json or chat_template.jinja holds one",
        )
    model = source.base_model(tokenizer.chat_template)
    hashes = (model.model_hash or "", model.tokenizer_hash or "", model.template_hash or "")
    config = _config(peft, options)
    base = load_base(source, tokenizer, options.dtype)
    _without_dropout(base)
    try:
        device = torch.device(device_of(options.device))
    except RuntimeError as error:
        what = f"{words_of(repr(options.device))} is no device"
        raise UsageError(what, hint="take auto, cpu, cuda or cuda:0") from error
    with told(source.place), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(options.seed)  # not the generators of GPUs
        adapted = peft.get_peft_model(base, config, adapter_name=POLICY).to(device).eval()
    if options.checkpointing:
        # Not before the adapter is there: peft would make the embeddings need gradients, which costs memory in vain.
        base.activation_checkpointing_enable({"use_reentrant": False})
    value_head = None
    if options.adapter is not None:
        fill(parameters_of(adapted), read_tensors(options.adapter / WEIGHTS), str(options.adapter))
        if options.value_head and (options.adapter / VALUE_HEAD).exists():
            value_head = read_tensors(options.adapter / VALUE_HEAD)
    return Loaded(adapted, base, tokenizer, hashes, device, value_head)


def parameters_of(adapted: Any, adapter: str = POLICY) -> dict[str, torch.nn.Parameter]:
    """The parameters of an adapter, by the names that they have in its file."""
    parameters = {}
    for name, parameter in adapted.named_parameters():
        parts = name.split(".")
        if adapter in parts and any(part.startswith("lora_") for part in parts):
            parameters[".".join(part for part in parts if part != adapter)] = parameter
    return parameters


def fill(targets: Mapping[str, Tensor], state: Mapping[str, Tensor], where: str) -> None:
    """Copy a state into parameters, all of it or nothing. where: what the state is, as an error names it.

    Raises UsageError: names or shapes differ, or a value is not finite.
    """
    hint = "take an adapter that was trained on this model, or start from a fresh one"
    different = sorted(targets.keys() ^ state.keys())
    if different:
        which = "lacks" if different[0] in targets else "has more than the model's:"
        raise UsageError(
            f"{where} does not fit the model: it {which} {words_of(different[0])} ({len(different)} such)", hint=hint
        )
    for name, target in targets.items():
        if state[name].shape != target.shape:
            shapes = f"{tuple(state[name].shape)}, expected {tuple(target.shape)}"
            raise UsageError(f"{where} does not fit the model: {name} has shape {shapes}", hint=hint)
        if not bool(torch.isfinite(state[name]).all()):
            raise UsageError(
                f"{where}: {name} holds values that are NaN or infinite", hint="take an earlier version of the adapter"
            )
    with torch.no_grad():
        for name, target in targets.items():
            target.copy_(state[name])


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, on the CPU; raises UsageError where it is missing or damaged."""
    try:
        return dict(library("safetensors.torch").load_file(path))
    except AutoresearchdError:
        raise
    except Exception as error:
        raise _unreadable(path, error) from error


def write_adapter(folder: Path, adapted: Any, state: Mapping[str, Tensor], value_head: Mapping[str, Tensor]) -> None:
    """Write an adapter as peft does, and its value head where it has one. Raises EnvironmentFailure.

    The configuration, without which a folder is no adapter, goes away first and is written last.
    """
    tensors = library("safetensors.torch")
    config = copy.copy(adapted.peft_config[POLICY])
    config.inference_mode = True
    # A path of this machine is nobody else's business; which model it is stands in the version's manifest.
    config.base_model_name_or_path = Path(config.base_model_name_or_path or "").name or None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in (CONFIG, VALUE_HEAD):
            (folder / name).unlink(missing_ok=True)
        tensors.save_file(dict(state), folder / WEIGHTS, metadata={"format": "pt"})
        if value_head:
            tensors.save_file(dict(value_head), folder / VALUE_HEAD, metadata={"format": "pt"})
        config.save_pretrained(str(folder))
    except (OSError, library("safetensors").SafetensorError) as error:
        raise EnvironmentFailure(
            f"the adapter cannot be written to {folder}: {words_of(str(error))}", hint="free some space on its disk"
        ) from error


def _config(peft: Any, options: ModelOptions) -> Any:
    """Of a fresh adapter, or of the saved one, as far as that is plain LoRA."""
    taken: dict[str, Any] = {"r": options.rank, "lora_alpha": options.alpha, "target_modules": "all-linear"}
    if options.adapter is not None:
        path = options.adapter / CONFIG
        try:
            saved = json.loads(path.read_text())
            kind = saved.get("peft_type")
        except (OSError, ValueError, AttributeError) as error:
            raise _unreadable(path, error) from error
        if kind != "LORA":
            raise UsageError(
                f"{options.adapter} is no plain LoRA adapter", hint="take an adapter that `learn` has written"
            )
        taken = {name: saved[name] for name in _TAKEN if saved.get(name) is not None}
    with told(options.adapter or Path()):
        return peft.LoraConfig(task_type="CAUSAL_LM", lora_dropout=options.dropout, **taken)


def _unreadable(path: Path, error: Exception) -> UsageError:
    return UsageError(
        f"{path} cannot be read: {type(error).__name__}: {words_of(str(error))}",
        hint="take another version of the adapter: this one is not whole",
    )


def _without_dropout(model: Any) -> None:
    """Take the base's own dropout away: a policy that is scored twice must be the same one twice."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if "dropout" in name and isinstance(value, float):
                setattr(module, name, 0.0)


# ---------------------------------------------------------------------- memory
def trial_step(model: Learnable, samples: Sequence[Sample]) -> None:
    """Score the largest batch with gradients, and forget them: a run that does not fit ends here, and not hours later.

    Raises MissingCapability: the memory is used up; it says what to lower.
    """
    with explain_out_of_memory(f"a trial step with {len(samples)} completions"):
        scored = model.statistics(samples)
        torch.autograd.backward(scored.logprobs[scored.batch.mask].sum())
    for parameter in model.trainable():
        parameter.grad = None


@contextlib.contextmanager
def explain_out_of_memory(what: str) -> Iterator[None]:
    """Raise MissingCapability with advice where the memory runs out. what: is being done, to begin a sentence with."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # torch.OutOfMemoryError is one; on a CPU torch raises a plain one
        known = isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error)
        if not known:
            raise
        raise MissingCapability(
            f"{what}: the memory is used up",
            hint="lower what is in memory at once: --set micro=1, --set generated=1, --set checkpointing=true, "
            "--set max_length=TOKENS, or --set dtype=bfloat16; or take a smaller model, or raise memory_mb of "
            "config.yaml where it is set",
        ) from error


def give_large_blocks_back() -> None:
    """From now on, blocks of a megabyte and more go back to the system as soon as they are free, in this process.

    By itself glibc keeps blocks of up to 32 MB, between which tensors of other sizes find no place.
    """
    with contextlib.suppress(AttributeError, OSError):  # another C library, which has no such setting
        libc = ctypes.CDLL(None)
        for setting in (_MMAP_THRESHOLD, _TRIM_THRESHOLD):
            libc.mallopt(setting, _LARGE)


@contextlib.contextmanager
def lift_memory_limit() -> Iterator[None]:
    """Without the limit on this process's memory: what is started meanwhile does not inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
