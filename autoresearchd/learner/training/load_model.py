"""A base model with a LoRA adapter on it: a fresh one, or one that was saved; and how an adapter is written to disk."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from autoresearchd.domain.errors import AutoresearchdError, EnvironmentFailure, UsageError
from autoresearchd.learner.training.logprobs import ROWS
from autoresearchd.learner.training.out_of_memory import give_large_blocks_back
from autoresearchd.models.model_files import Source
from autoresearchd.models.provider_errors import words_of
from autoresearchd.models.transformers_client import device_of, library, load_base, load_tokenizer, told

POLICY = "default"
"""Peft's name of the adapter that is trained."""

CONFIG, WEIGHTS, VALUE_HEAD, BASE_MODEL = (
    "adapter_config.json",
    "adapter_model.safetensors",
    "value_head.safetensors",
    "base_model.json",
)
"""Files of an adapter: the first two as peft writes them."""

DTYPES = ("auto", "float32", "bfloat16")
"""Number types of the base; float16 has too little range to learn in."""

_ALL_LINEAR = "all-linear"
_MOST_CONFIG_BYTES = 1_000_000
_HIGHEST_RANK = 4096
# What of a LoRA configuration is taken over. All else of it that is set would change the base model, or run code.
_TAKEN = (
    "r", "lora_alpha", "target_modules", "exclude_modules", "use_rslora", "rank_pattern", "alpha_pattern",
    "layers_to_transform", "layers_pattern",
)  # fmt: skip
_REFUSED = (
    "modules_to_save", "megatron_config", "layer_replication", "target_parameters", "trainable_token_indices",
    "alora_invocation_tokens", "use_dora", "use_qalora", "lora_bias", "use_bdlora", "arrow_config", "kasa_config",
    "velora_config", "monteclora_config", "fan_in_fan_out",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LoraOptions:
    """Of a fresh adapter (Hu et al. 2021, arXiv:2106.09685): W + (alpha/rank)·B·A, with B = 0 at first.

    targets: names of the layers, ``all-linear``: all linear ones but the output layer. dropout: of A's input while
    there are gradients; above 0, ratios to stored log-probabilities are noisy from the first step on.
    """

    rank: int = 16
    alpha: float = 32
    dropout: float = 0.0
    targets: tuple[str, ...] = (_ALL_LINEAR,)

    def __post_init__(self) -> None:
        if not 1 <= self.rank <= _HIGHEST_RANK or self.alpha <= 0 or not 0 <= self.dropout < 1 or not self.targets:
            raise UsageError(
                f"a LoRA adapter of rank {self.rank}, alpha {self.alpha}, dropout {self.dropout} on "
                f"{len(self.targets)} kinds of layers is none",
                hint=f"take a rank from 1 to {_HIGHEST_RANK} (16), an alpha above 0 (32), and a dropout below 1 (0)",
            )


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """How a model is loaded to be trained.

    adapter: folder of an adapter that is trained on; its own rank and layers count, not those of ``lora``. value_head:
    whether there is one, as PPO needs it. device, dtype, threads: as for the client that answers in this process;
    adapter and value head are float32 whatever the dtype. checkpointing: compute each layer again in the backward pass:
    about a third slower, with the memory of one layer instead of all. generated: completions that are written at once.
    rows: tokens whose logits are in memory at once. seed: of a fresh adapter. share_prompts: whether answers to one
    prompt are scored after one copy of it, where the model can do that.
    """

    adapter: Path | None = None
    lora: LoraOptions = field(default_factory=LoraOptions)
    value_head: bool = False
    device: str = "auto"
    dtype: str = "auto"
    threads: int = 1
    checkpointing: bool = False
    generated: int = 8
    rows: int = ROWS
    seed: int = 0
    share_prompts: bool = True

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise UsageError(
                f"{words_of(repr(self.dtype))} is no number type to learn in", hint=f"take one of {', '.join(DTYPES)}"
            )
        if min(self.threads, self.generated, self.rows) < 1:
            raise UsageError(
                f"threads ({self.threads}), completions at once ({self.generated}) and rows of logits ({self.rows}) "
                "must each be at least 1",
                hint=f"1, 8 and {ROWS} are usual",
            )


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was loaded: peft's model, the causal language model within it, tokenizer, hashes, device.

    value_head: weights of a saved one, None where there is none.
    """

    adapted: Any
    base: Any
    tokenizer: Any
    hashes: tuple[str, str, str]
    device: torch.device
    value_head: Mapping[str, Tensor] | None = None


def load(place: Path, options: ModelOptions) -> Loaded:
    """The model of a folder or a GGUF file, with an adapter on it that can be trained.

    Raises:
        UsageError: there is no model, it has no chat template, or the adapter is none, is damaged, or belongs to
            another base model.
        ModelError: the model cannot be loaded.
        MissingCapability: a package is missing.
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
    found = source.base_model(tokenizer.chat_template)
    hashes = (found.model_hash or "", found.tokenizer_hash or "", found.template_hash or "")
    config = _config(peft, options.lora) if options.adapter is None else _saved_config(peft, options, hashes)
    base = load_base(source, tokenizer, options.dtype)
    _without_dropout(base)
    with told(source.place), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(options.seed)  # not the generators of GPUs
        adapted = peft.get_peft_model(base, config, adapter_name=POLICY)
    device = device_named(options.device)
    with told(source.place):
        adapted = adapted.to(device).eval()
    if options.checkpointing:
        # Not before the adapter is there: peft would make the embeddings need gradients, which costs memory in vain.
        base.activation_checkpointing_enable({"use_reentrant": False})
    value_head = None
    if options.adapter is not None:
        fill(parameters_of(adapted), read_tensors(options.adapter / WEIGHTS), str(options.adapter))
        if options.value_head and (options.adapter / VALUE_HEAD).exists():
            value_head = read_tensors(options.adapter / VALUE_HEAD)
    return Loaded(adapted, base, tokenizer, hashes, device, value_head)


def device_named(name: str) -> torch.device:
    """The device of a setting: ``auto``, ``cpu``, ``cuda``, ``cuda:1`` …; raises UsageError for what is none."""
    try:
        return torch.device(device_of(name))
    except RuntimeError as error:
        raise UsageError(f"{words_of(repr(name))} is no device", hint="take auto, cpu, cuda or cuda:0") from error


def parameters_of(adapted: Any, adapter: str = POLICY) -> dict[str, torch.nn.Parameter]:
    """The parameters of an adapter, by the names that they have in its file."""
    found = {}
    for name, parameter in adapted.named_parameters():
        parts = name.split(".")
        if adapter in parts and any(part.startswith("lora_") for part in parts):
            found[".".join(part for part in parts if part != adapter)] = parameter
    return found


def fill(targets: Mapping[str, Tensor], state: Mapping[str, Tensor], where: str) -> None:
    """Copy a state into parameters, all of it or nothing.

    targets: the parameters by name. state: their new values. where: what the state is, as an error names it. Raises
    UsageError: names or shapes differ, or a value is not finite.
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
            raise UsageError(
                f"{where} does not fit the model: {name} has shape {tuple(state[name].shape)}, "
                f"expected {tuple(target.shape)}",
                hint=hint,
            )
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
        raise UsageError(
            f"{path} cannot be read: {type(error).__name__}: {words_of(str(error))}",
            hint="take another version of the adapter: this one is not whole",
        ) from error


def write_adapter(
    folder: Path,
    adapted: Any,
    state: Mapping[str, Tensor],
    value_head: Mapping[str, Tensor],
    hashes: tuple[str, str, str],
) -> None:
    """Write an adapter as peft does, its value head where it has one, and which base model it belongs to.

    The configuration, without which a folder is no adapter, goes away first and is written last. Raises
    EnvironmentFailure: the disk is full, or the folder cannot be written to.
    """
    tensors = library("safetensors.torch")
    names = ("model_hash", "tokenizer_hash", "template_hash")
    config = copy.copy(adapted.peft_config[POLICY])
    config.inference_mode = True
    # A path of this machine is nobody else's business, and which model it is stands in ``base_model.json``.
    config.base_model_name_or_path = Path(config.base_model_name_or_path or "").name or None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in (CONFIG, VALUE_HEAD):
            (folder / name).unlink(missing_ok=True)
        (folder / BASE_MODEL).write_text(json.dumps(dict(zip(names, hashes, strict=True)), indent=2) + "\n")
        tensors.save_file(dict(state), folder / WEIGHTS, metadata={"format": "pt"})
        if value_head:
            tensors.save_file(dict(value_head), folder / VALUE_HEAD, metadata={"format": "pt"})
        config.save_pretrained(str(folder))
    except (OSError, library("safetensors").SafetensorError) as error:
        raise EnvironmentFailure(
            f"the adapter cannot be written to {folder}: {words_of(str(error))}", hint="free some space on its disk"
        ) from error


def _config(peft: Any, options: LoraOptions) -> Any:
    targets = _ALL_LINEAR if options.targets == (_ALL_LINEAR,) else list(options.targets)
    return peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=options.rank,
        lora_alpha=options.alpha,
        lora_dropout=options.dropout,
        target_modules=targets,
    )


def _saved_config(peft: Any, options: ModelOptions, hashes: tuple[str, str, str]) -> Any:
    """The configuration of a saved adapter, as far as it is plain LoRA; for this base model, or not known for which."""
    assert options.adapter is not None
    found = _read_json(options.adapter / CONFIG)
    set_ = [name for name in _REFUSED if found.get(name)]
    if found.get("peft_type") != "LORA" or found.get("bias", "none") != "none" or set_:
        raise UsageError(
            f"{options.adapter} is no plain LoRA adapter" + (f": it sets {', '.join(set_)}" if set_ else ""),
            hint="take an adapter that `learn` has written, or one of peft's LoraConfig without extras",
        )
    belongs = options.adapter / BASE_MODEL
    if belongs.exists():
        known = _read_json(belongs)
        what = ("model_hash", "tokenizer_hash", "template_hash")
        other = [name for name, own in zip(what, hashes, strict=True) if known.get(name) != own]
        if other:
            raise UsageError(
                f"{options.adapter} was trained on another base model: {', '.join(other)} differ",
                hint="take the model that it was trained on, or start from a fresh adapter",
            )
    taken = {name: found[name] for name in _TAKEN if found.get(name) is not None}
    rank = taken.get("r")
    if not isinstance(rank, int) or not 1 <= rank <= _HIGHEST_RANK:
        raise UsageError(
            f"{options.adapter / CONFIG}: r: {words_of(repr(rank))} is no rank", hint="take another adapter"
        )
    with told(options.adapter):
        return peft.LoraConfig(task_type="CAUSAL_LM", lora_dropout=options.lora.dropout, **taken)


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        if path.stat().st_size > _MOST_CONFIG_BYTES:
            raise ValueError(f"it has more than {_MOST_CONFIG_BYTES:,} bytes")
        found = json.loads(path.read_text())
        if not isinstance(found, dict):
            raise ValueError("it holds no JSON object")
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path} cannot be read: {words_of(str(error))}", hint="take another adapter: this one is not whole"
        ) from error
    return found


def _without_dropout(model: Any) -> None:
    """Take the base's own dropout away: a policy that is scored twice must be the same one twice."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if "dropout" in name and isinstance(value, float):
                setattr(module, name, 0.0)
