"""The language model that is trained: a base of transformers that stays as it is, a LoRA adapter, and a value head."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from autoresearchd.domain.errors import UsageError
from autoresearchd.learner.algorithms.learnable import Generated, Sample, Statistics, Who
from autoresearchd.learner.training import generation, prompt_sharing
from autoresearchd.learner.training.load_model import (
    POLICY,
    Loaded,
    ModelOptions,
    fill,
    load,
    parameters_of,
    write_adapter,
)
from autoresearchd.learner.training.logprobs import Batch, collate, token_statistics
from autoresearchd.learner.training.out_of_memory import explain_out_of_memory
from autoresearchd.learner.training.prompt_sharing import Pack, Sharing, laid_out
from autoresearchd.models.client import words_of
from autoresearchd.models.transformers_client import context_of, decoded, encoded, ends_of, rendered

TEACHER = "teacher"
"""Peft's name of the adapter of ``Who.TEACHER``."""

_HEAD = "value_head."


class LocalModel:
    """The ``Learnable`` of transformers and peft.

    Of the base, which no gradient reaches, there is one copy, whoever scores: policy, base and teacher differ in the
    adapter alone. In float32, completions are scored with the log-probabilities that the client which answers in this
    process records; in bfloat16 with others by its rounding: here all tokens go through the model at once.

    loaded: the model, with an adapter on it. options: how it was loaded.
    """

    def __init__(self, loaded: Loaded, options: ModelOptions) -> None:
        self._adapted, self._base, self._tokenizer = loaded.adapted, loaded.base, loaded.tokenizer
        self._hashes, self._device, self._options = loaded.hashes, loaded.device, options
        self._decoder, self._head = self._base.get_decoder(), self._base.get_output_embeddings()
        self._policy = parameters_of(self._adapted)
        self._taught = False
        self._value_head: torch.nn.Linear | None = None
        if options.value_head:
            width = self._base.get_input_embeddings().weight.shape[-1]
            self._value_head = torch.nn.Linear(width, 1, dtype=torch.float32).to(self._device)
            torch.nn.init.zeros_(self._value_head.weight)
            torch.nn.init.zeros_(self._value_head.bias)
            if loaded.value_head is not None:
                fill(dict(self._value_head.named_parameters()), loaded.value_head, str(options.adapter))
        if not self._in_pieces():
            self._head = None
        self._end = self._end_of_turn()
        shared = Sharing(int(self._base.get_input_embeddings().weight.shape[-1]))
        self._apart = self._reason_apart(shared) if options.share_prompts else "share_prompts is false"
        self._sharing = None if self._apart else shared

    @classmethod
    def load(cls, place: Path, options: ModelOptions | None = None) -> LocalModel:
        """The model of a folder or a GGUF file; raises as ``load_model.load`` says."""
        with explain_out_of_memory(f"loading {place}"):
            options = options or ModelOptions()
            return cls(load(place, options), options)

    @property
    def padding(self) -> int:
        return int(self._base.generation_config.pad_token_id or 0)

    @property
    def ends(self) -> frozenset[int]:
        return ends_of(self._base)

    @property
    def context(self) -> int | None:
        return context_of(self._base)

    @property
    def vocabulary(self) -> int:
        return int(self._base.get_input_embeddings().weight.shape[0])

    @property
    def hashes(self) -> tuple[str, str, str]:
        return self._hashes

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def sharing(self) -> Sharing | None:
        return self._sharing

    @property
    def apart(self) -> str:
        """Why each answer goes through the model with a prompt of its own; empty: those to one prompt share it."""
        return self._apart

    # -- text and tokens
    def encode(self, messages: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        return tuple(encoded(self._tokenizer, messages))

    def tokens(self, text: str) -> tuple[int, ...]:
        # What looks like a special token in a program's text is text: it ends no turn.
        ids = self._tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        return (*(int(token) for token in ids), self._end)

    def _end_of_turn(self) -> int:
        """The token that ends an answer: the first after one in the chat template. A model may know several ends."""
        mark = "an answer"
        talk = [{"role": "user", "content": "a question"}, {"role": "assistant", "content": mark}]
        tail = rendered(self._tokenizer, talk, answer=False).rpartition(mark)[2]
        after = self._tokenizer(tail, add_special_tokens=False)["input_ids"]
        default = self._tokenizer.eos_token_id
        found = next((token for token in after if token in self.ends), default)
        if found is None:
            raise UsageError(
                "the model has no token that ends a turn: what it would learn never to end could not be stopped",
                hint="take an instruction-tuned model; its generation_config.json names eos_token_id",
            )
        return int(found)

    # -- scoring
    def statistics(
        self,
        samples: Sequence[Sample],
        *,
        who: Who = Who.POLICY,
        top: int = 0,
        at: Tensor | None = None,
        values: bool = False,
    ) -> Statistics:
        if values and (who is not Who.POLICY or self._value_head is None):
            raise ValueError("values are the policy's, and need a model that was loaded with a value head")
        with explain_out_of_memory(f"scoring {len(samples)} completions"), self._scoring(who):
            return self._scored(samples, self._sharing, top=top, at=at, values=values)

    def _scored(
        self,
        samples: Sequence[Sample],
        shared: Sharing | None,
        *,
        top: int = 0,
        at: Tensor | None = None,
        values: bool = False,
    ) -> Statistics:
        batch = self._batch(samples)
        packs = [] if shared is None else shared.packs([each.prompt for each in samples], _lengths(batch))
        features, hidden = self._features(batch, packs, hidden=values)
        told = None if at is None else at.to(self._device)
        tokens = token_statistics(features, batch, head=self._head, top=top, at=told)
        if hidden is None:
            return Statistics(batch, tokens)
        # A value is of the state at the last token of a prompt: the one that predicts the first of the completion.
        assert self._value_head is not None
        counts = batch.mask.sum(dim=-1)
        found: Tensor = self._value_head(hidden[counts.cumsum(dim=0) - counts].float())
        return Statistics(batch, tokens, found.squeeze(-1))

    def _batch(self, samples: Sequence[Sample]) -> Batch:
        batch = collate(samples, padding=self.padding)
        longest = batch.ids.shape[1]
        if self.context is not None and longest > self.context:
            raise UsageError(
                f"a prompt and its completion have {longest:,} tokens together, the context length of the model is "
                f"{self.context:,}",
                hint=f"leave out what is longer than that: --set max_length={self.context}",
            )
        return batch.to(self._device)

    def _features(self, batch: Batch, packs: Sequence[Pack], *, hidden: bool) -> tuple[Tensor, Tensor | None]:
        """What the log-probabilities are computed from, [N, …], row by row; the last hidden states, where asked for.

        They are those of the positions that predict the tokens of completions; the others' go away at once. Rows of a
        pack go through the model as one. Of the others, those of the same length go together: padding them would take
        a mask of L × L numbers, and keep the attention from its fast way.
        """
        lengths, counts = _lengths(batch), batch.mask.sum(dim=-1).tolist()
        features: dict[int, Tensor] = {}
        states: dict[int, Tensor] = {}

        def take(rows: Sequence[int], told: Tensor, last: Tensor | None, at: Tensor) -> None:
            parts = [counts[row] for row in rows]
            features.update(zip(rows, torch.split(told.flatten(0, 1)[at], parts), strict=True))
            if last is not None:
                states.update(zip(rows, torch.split(last.flatten(0, 1)[at], parts), strict=True))

        packed = [pack for pack in packs if len(pack.rows) > 1]
        for pack in packed:
            layout = laid_out(pack, batch.ids, self._base.dtype)
            how = {"position_ids": layout.positions, "attention_mask": layout.mask}
            told, last = self._forward(layout.ids, hidden=hidden, **how)
            pairs = zip(pack.rows, layout.places, strict=True)
            at = [places[:-1][batch.mask[row, : len(places) - 1]] for row, places in pairs]
            take(pack.rows, told, last, torch.cat(at))
        alone = set(range(len(lengths))).difference(*(pack.rows for pack in packed))
        for length in sorted({lengths[row] for row in alone}):
            rows = sorted(row for row in alone if lengths[row] == length)
            told, last = self._forward(batch.ids[rows, :length], hidden=hidden)
            predicting = torch.nn.functional.pad(batch.mask[rows, : length - 1], (0, 1))
            take(rows, told, last, predicting.flatten().nonzero().squeeze(-1))
        whole = _in_order(features)
        if not hidden:
            return whole, None
        return whole, whole if self._head is not None else _in_order(states)

    def _forward(self, ids: Tensor, *, hidden: bool, **how: Tensor) -> tuple[Tensor, Tensor | None]:
        """Hidden states [B, L, D] for the output layer, or logits [B, L, V] and the states where they are asked for."""
        if self._head is not None:
            return self._decoder(input_ids=ids, use_cache=False, **how).last_hidden_state, None
        output = self._base(input_ids=ids, use_cache=False, output_hidden_states=hidden, **how)
        return output.logits, output.hidden_states[-1] if hidden else None

    def _reason_apart(self, shared: Sharing) -> str:
        """Why answers to one prompt cannot share it; empty where a probe shows that they can."""
        against = prompt_sharing.reason_against(self._base)
        if against:
            return against
        samples, others = prompt_sharing.probe(self.vocabulary)
        try:
            with self._still():
                first = self._scored(samples, None, top=1).tokens
                scored = [self._scored(each, shared, at=first.top_indices).tokens for each in (samples, others)]
        except Exception as error:  # noqa: BLE001 - the model's own code, made for other masks; it is told
            return f"it fails where they are tried: {type(error).__name__}: {words_of(str(error))}"
        found = (each.top_logprobs for each in (first, *scored))
        alone, together, beside = (each for each in found if each is not None)
        apart, most = float((alone - together).abs().max()), prompt_sharing.tolerance(self._base.dtype)
        if not apart <= most:
            return f"log-probabilities differ by {apart:.2g}, more than {most:g}"
        moved = float((together[-1] - beside[-1]).abs().max())
        leaks = f"what others answer moves an answer's log-probabilities by {moved:.2g}"
        return "" if moved <= prompt_sharing.LEAK else leaks

    def _in_pieces(self) -> bool:
        """Whether the output layer alone makes logits of the hidden states: some models bend or scale them after it."""
        if self._head is None:
            return False
        ids = torch.arange(4, device=self._device).unsqueeze(0)
        with self._still():
            whole = self._base(input_ids=ids, use_cache=False).logits
            parts = self._head(self._decoder(input_ids=ids, use_cache=False).last_hidden_state)
        return whole.shape == parts.shape and bool(torch.allclose(whole, parts, rtol=1e-3, atol=1e-4))

    # -- whose weights
    @contextlib.contextmanager
    def _scoring(self, who: Who) -> Iterator[None]:
        if who is Who.POLICY and torch.is_grad_enabled():
            # It stays in this mode until the next call: the backward pass computes layers again.
            self._adapted.train()
            yield
            return
        with self._still(), self._acting(who):
            yield

    @contextlib.contextmanager
    def _still(self) -> Iterator[None]:
        """Without gradients, and in evaluation mode; afterwards in the mode that it was in."""
        training = self._adapted.training
        self._adapted.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self._adapted.train(training)

    @contextlib.contextmanager
    def _acting(self, who: Who) -> Iterator[None]:
        """With the weights of ``who``; afterwards with the policy's again, whatever happens."""
        if who is Who.POLICY:
            yield
        elif who is Who.BASE or not self._taught:
            with self._adapted.disable_adapter():
                yield
        else:
            self._adapted.set_adapter(TEACHER)
            try:
                yield
            finally:
                self._adapted.set_adapter(POLICY)

    def set_teacher(self, state: Mapping[str, Tensor] | None) -> None:
        if state is None:
            self._taught = False
            return
        if TEACHER not in self._adapted.peft_config:
            with torch.random.fork_rng(devices=[]):
                self._adapted.add_adapter(TEACHER, copy.copy(self._adapted.peft_config[POLICY]))
            self._adapted.set_adapter(POLICY)
        kept = {name: each for name, each in state.items() if not name.startswith(_HEAD)}
        fill(parameters_of(self._adapted, TEACHER), kept, "the teacher's state")
        self._taught = True

    # -- what is trained
    def trainable(self) -> list[torch.nn.Parameter]:
        return list(self._parameters().values())

    def adapter_state(self) -> dict[str, Tensor]:
        return {name: each.detach().to("cpu", copy=True) for name, each in self._parameters().items()}

    def load_adapter_state(self, state: Mapping[str, Tensor]) -> None:
        fill(self._parameters(), state, "the state of the adapter")

    def save(self, folder: Path) -> None:
        state = self.adapter_state()
        head = {name.removeprefix(_HEAD): each for name, each in state.items() if name.startswith(_HEAD)}
        lora = {name: each for name, each in state.items() if not name.startswith(_HEAD)}
        write_adapter(folder, self._adapted, lora, head)

    def _parameters(self) -> dict[str, torch.nn.Parameter]:
        if self._value_head is None:
            return self._policy
        return self._policy | {f"{_HEAD}{name}": each for name, each in self._value_head.named_parameters()}

    # -- writing
    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_tokens: int,
        temperature: float,
        seeds: Sequence[int],
        who: Who = Who.POLICY,
    ) -> list[Generated]:
        found: dict[int, Generated] = {}
        told = explain_out_of_memory(f"writing {self._options.generated} completions at once")
        with told, self._still(), self._acting(who):
            for most, numbers in generation.batches(prompts, max_tokens, self.context, self._options.generated):
                written = generation.write(
                    self._base,
                    [prompts[number] for number in numbers],
                    max_tokens=most,
                    temperature=temperature,
                    seeds=[seeds[number] for number in numbers],
                    padding=self.padding,
                    ends=self.ends,
                    decode=lambda ids: decoded(self._tokenizer, ids),
                    share=self._sharing is not None,
                )
                found.update(zip(numbers, written, strict=True))
        return [found[number] for number in range(len(prompts))]


def _lengths(batch: Batch) -> list[int]:
    return [int(length) for length in batch.attention.sum(dim=-1).tolist()]


def _in_order(rows: Mapping[int, Tensor]) -> Tensor:
    return torch.cat([rows[row] for row in range(len(rows))])
