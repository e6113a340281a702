"""How much memory a run of the learner takes, told before it starts; and what to lower where there is not enough."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from autoresearchd.errors import MissingCapability
from autoresearchd.learner.loading import ModelOptions, device_named
from autoresearchd.learner.room import Room, room_in_memory, room_on
from autoresearchd.learner.sharing import reason_against
from autoresearchd.policy.provider import environment
from autoresearchd.policy.transformers_loading import OFFLINE, Source, library, told

_FLOAT = 4
_LIVE_LOGITS = 6
"""Numbers for each logit of a piece that live at once: what ``logprobs`` measured."""
_MASK = 3
"""Bytes of each pair of tokens while a mask is made."""
_PER_PARAMETER = 5 * _FLOAT
"""Of a trained parameter: itself, its gradient, two moments of AdamW, and a copy while a checkpoint is made."""
_SPARE = 256 * 2**20
"""What allocators and libraries take besides."""
_WASTE = {"cpu": 1.7, "cuda": 1.2}
"""How much more than what lives allocators hold on to: glibc up to 1.7 times, measured; PyTorch on a GPU less."""
_FINEST = 256
"""Advice on the length of sequences is a multiple of this."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a model decides how much memory it takes.

    parameters: of the base. adapted: inputs plus outputs of all layers that get LoRA, so that it has rank × adapted
    parameters. hidden, intermediate, vocabulary: sizes of the states, of the feed-forward layers, of the logits.
    queries, keys: heads × size of a head, of the queries and of keys. width: bytes of a number. bent: whether logits
    are bent or scaled after the output layer; those of a whole batch are then in memory at once. gguf: whether it is
    loaded from such a file, and so unpacked first. shares: whether answers to one prompt can share it, as far as the
    configuration tells.
    """

    parameters: int
    adapted: int
    layers: int
    hidden: int
    intermediate: int
    vocabulary: int
    queries: int
    keys: int
    width: int
    bent: bool = False
    gguf: bool = False
    shares: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run will do at once.

    longest: tokens of the longest prompt with its completion (at most ``max_length``). together: completions that are
    scored at once with gradients (``micro``). teacher: whether a second adapter scores too. packed: tokens of the
    largest group of answers to one prompt, with the prompt once, where they share it; None: they do not.
    """

    longest: int
    together: int
    options: ModelOptions = field(default_factory=ModelOptions)
    teacher: bool = False
    packed: int | None = None


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes at the peak: by what takes them while it learns, and while it writes completions or loads the model."""

    learning: Mapping[str, int]
    writing: Mapping[str, int]
    loading: int

    @property
    def peak(self) -> Mapping[str, int]:
        """The larger of the two phases that run on the device."""
        return max(self.learning, self.writing, key=lambda parts: sum(parts.values()))

    @property
    def total(self) -> int:
        """Bytes on the device."""
        return sum(self.peak.values())


def shape_of(place: Path, dtype: str = "auto") -> Shape:
    """The shape of the model in a folder or a GGUF file, told from its configuration: no weights are read.

    Raises as loading the model does.
    """
    source = Source.at(place)
    transformers = library("transformers")
    with environment(OFFLINE), told(source.place):
        config = transformers.AutoConfig.from_pretrained(source.folder, **source.options)
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        number = getattr(torch, dtype) if dtype != "auto" else (config.dtype or torch.float32)
        text = config.get_text_config()
        heads = text.num_attention_heads
        size = getattr(text, "head_dim", None) or text.hidden_size // heads
        head = model.get_output_embeddings()
        linear = [each for each in model.modules() if isinstance(each, torch.nn.Linear) and each is not head]
        return Shape(
            parameters=sum(each.numel() for each in model.parameters()),
            adapted=sum(each.in_features + each.out_features for each in linear),
            layers=text.num_hidden_layers,
            hidden=text.hidden_size,
            intermediate=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
            vocabulary=text.vocab_size,
            queries=heads * size,
            keys=(getattr(text, "num_key_value_heads", None) or heads) * size,
            width=number.itemsize,
            bent=any(
                getattr(text, name, None) for name in ("final_logit_softcapping", "logits_scaling", "logit_scale")
            ),
            gguf=source.gguf is not None,
            shares=not reason_against(model),
        )


def estimate(shape: Shape, plan: Plan, waste: float = 1.0) -> Estimate:
    """Bytes that a run takes at its peak.

    What autograd keeps of a layer for each token was counted on Llama's: inputs of the norms, of LoRA (float32 for each
    layer that has it, where the model is not), of the attention and of the feed-forward layers.

    Args:
        shape: of the model.
        plan: what the run will do.
        waste: how much more than that the allocator takes for what comes and goes.
    """
    s, options, width = shape, plan.options, shape.width
    tokens, shared = plan.together * plan.longest, None
    if s.shares and options.share_prompts and plan.packed is not None and plan.together > 1:
        tokens = shared = min(tokens, plan.packed)
    layer = (
        16 * s.hidden + 12 * s.queries + 8 * s.keys + 16 * s.intermediate
        if width == _FLOAT
        else 28 * s.hidden + 8 * s.queries + 4 * s.keys + 10 * s.intermediate
    )
    layer += 7 * options.lora.rank * _FLOAT
    if shared:  # under a mask, keys and values are copied for each head that asks
        layer += 2 * width * (s.queries - s.keys)
    mask = 0 if not shared else shared**2 * (width + _MASK)
    # The backward pass holds, beside what was kept, about as much again of the layer that it is in.
    kept = s.layers * s.hidden * width + 2 * layer if options.checkpointing else (s.layers + 1) * layer
    trained = options.lora.rank * s.adapted
    weights = {"weights": s.parameters * width}
    piece = s.vocabulary * _FLOAT * _LIVE_LOGITS * min(options.rows, max(1, tokens))
    learning = weights | {
        "adapter and optimiser": trained * (_PER_PARAMETER + (2 * _FLOAT if plan.teacher else 0)),
        "activations": int(waste * (tokens * (kept + 4 * s.hidden * width) + mask)),
        "logits": int(waste * (piece + (tokens * s.vocabulary * 2 * width if s.bent else 0))),
        "libraries": _SPARE,
    }
    rows, states = options.generated, 6 * s.hidden + 4 * s.queries + 4 * s.intermediate
    writing = weights | {
        "adapter and optimiser": learning["adapter and optimiser"],
        "keys and values": int(waste * rows * plan.longest * s.layers * 2 * s.keys * width),
        "the prompts": int(waste * rows * plan.longest * (states * width + plan.longest * (1 + width))),
        "logits": int(waste * rows * s.vocabulary * _FLOAT * _LIVE_LOGITS),
        "libraries": _SPARE,
    }
    return Estimate(learning, writing, s.parameters * width * (2 if s.gguf else 1))


def check(place: Path, plan: Plan, *, room: Room | None = None) -> Estimate:
    """Estimate what a run takes, and refuse it where that is not free.

    Args:
        place: of the model.
        plan: what the run will do.
        room: what is free on the device; None: look.

    Raises:
        MissingCapability: there is not enough memory; it says what takes how much, and what to lower.
    """
    device = device_named(plan.options.device)
    shape = shape_of(place, plan.options.dtype)
    waste = _WASTE.get(device.type, 1.0)
    found = estimate(shape, plan, waste)
    if device.type == "cuda":
        host = room_in_memory()
        _refuse(f"loading {place}", found.loading, host, "", f"take a smaller model, or {host.more}")
    room = room or room_on(device)
    parts = ", ".join(f"{name} {_gb(size)}" for name, size in sorted(found.peak.items(), key=lambda each: -each[1]))
    what = f"learning from {plan.together} completions at once, of up to {plan.longest:,} tokens with their prompts,"
    need = found.total if device.type == "cuda" else max(found.total, found.loading)
    _refuse(what, need, room, f" ({parts})", _advice(shape, plan, waste, room))
    return found


@contextlib.contextmanager
def out_of_memory_told(what: str) -> Iterator[None]:
    """Running out of memory is told as what it is, with what was being done.

    Args:
        what: what was being done, as the beginning of a sentence.
    """
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise _out(what) from error
    except RuntimeError as error:
        if "can't allocate memory" not in str(error):  # what torch raises on a CPU
            raise
        raise _out(what) from error


def _out(what: str) -> MissingCapability:
    return MissingCapability(
        f"{what}: the memory is used up",
        mend="lower what is in memory at once: --set micro=1, --set generated=1, --set checkpointing=true, "
        "--set max_length=TOKENS, or --set dtype=bfloat16",
    )


def _refuse(what: str, needed: int, room: Room, parts: str, mend: str) -> None:
    if room.free is not None and needed > room.free:
        raise MissingCapability(f"{what} takes {_gb(needed)}{parts}; {_gb(room.free)} are free {room.where}", mend=mend)


def _advice(shape: Shape, plan: Plan, waste: float, room: Room) -> str:
    """The constants to set, and how far: each that is enough alone, else all of them together."""

    def fits(other: Plan, like: Shape = shape) -> bool:
        return estimate(like, other, waste).total <= (room.free or 0)

    def longest(like: Plan) -> int:
        """Tokens of the longest sequences that fit, 0 where none do."""
        lengths = range((plan.longest - 1) // _FINEST * _FINEST, 0, -_FINEST)
        return next((length for length in lengths if fits(replace(like, longest=length))), 0)

    options = plan.options
    ways: dict[str, str | int] = {}
    if options.share_prompts and plan.packed is not None and fits(replace(plan, packed=None)):
        ways["share_prompts"] = "false"
    if not options.checkpointing and fits(replace(plan, options=replace(options, checkpointing=True))):
        ways["checkpointing"] = "true"
    if fewer := [count for count in range(1, plan.together) if fits(replace(plan, together=count))]:
        ways["micro"] = fewer[-1]
    written = [n for n in range(1, options.generated) if fits(replace(plan, options=replace(options, generated=n)))]
    if written:
        ways["generated"] = written[-1]
    if length := longest(plan):
        ways["max_length"] = length
    if shape.width == _FLOAT and fits(plan, replace(shape, width=2)):
        ways["dtype"] = "bfloat16"
    if ways:
        return f"add {'; or '.join(f'--set {name}={value}' for name, value in ways.items())}"
    least = replace(plan, together=1, options=replace(options, generated=1, checkpointing=True))
    if length := longest(least):
        return f"add --set checkpointing=true --set micro=1 --set generated=1 --set max_length={length}"
    return f"take a smaller model, or {room.more}"


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
