"""The language model that is trained: a base of transformers that stays as it is, a LoRA adapter, and a value head."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from autoresearchd.domain.errors import UsageError
from autoresearchd.learner.algorithms.learnable import (
    Batch,
    Generated,
    Sample,
    Statistics,
    Who,
    collate,
    token_statistics,
)
from autoresearchd.learner.training import load_model, prompt_sharing
from autoresearchd.learner.training.prompt_sharing import Pack, Sharing, laid_out
from autoresearchd.models.client import words_of
from autoresearchd.models.transformers_client import Draw, context_of, decoded, encoded, ends_of, library, rendered

TEACHER = "teacher"
"""Peft's name of the adapter of ``Who.TEACHER``."""

_HEAD = "value_head."


class LocalModel:
    """The ``Learnable`` of transformers and peft.

    Of the base, which no gradient reaches, there is one copy, whoever scores: policy, base and teacher differ in the
    adapter alone. In float32, completions are scored with the log-probabilities that the client which answers in this
    process records; in bfloat16 with others by its rounding: here all tokens go through the model at once.

    ends: tokens that end a turn. apart: why each answer is scored with a prompt of its own; empty: it is not.
    """

    def __init__(self, loaded: load_model.Loaded, options: load_model.ModelOptions) -> None:
        self._adapted, self._base, self._tokenizer, self.hashes, self.device, saved_head = loaded
        self._options = options
        embeddings = self._base.get_input_embeddings().weight
        self.vocabulary, width = int(embeddings.shape[0]), int(embeddings.shape[-1])
        self.padding = int(self._base.generation_config.pad_token_id or 0)
        self.ends, self.context = ends_of(self._base), context_of(self._base)
        self._decoder, self._head = self._base.get_decoder(), self._base.get_output_embeddings()
        self._policy = load_model.parameters_of(self._adapted)
        self._value_head: torch.nn.Linear | None = None
        if options.value_head:
            self._value_head = torch.nn.Linear(width, 1, dtype=torch.float32).to(self.device)
            torch.nn.init.zeros_(self._value_head.weight)
            torch.nn.init.zeros_(self._value_head.bias)
            if saved_head is not None:
                load_model.fill(dict(self._value_head.named_parameters()), saved_head, str(options.adapter))
        if not self._in_pieces():
            self._head = None
        self._end = self._end_of_turn()
        shared = Sharing(width)
        self.apart = self._reason_apart(shared) if options.share_prompts else "share_prompts is false"
        self.sharing = None if self.apart else shared

    @classmethod
    def load(cls, place: Path, options: load_model.ModelOptions | None = None) -> Self:
        """The model of a folder or a GGUF file; raises as ``load_model.load`` says."""
        with load_model.explain_out_of_memory(f"loading {place}"):
            options = options or load_model.ModelOptions()
            return cls(load_model.load(place, options), options)

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
        end = next((token for token in after if token in self.ends), default)
        if end is None:
            raise UsageError(
                "the model has no token that ends a turn: what it would learn never to end could not be stopped",
                hint="take an instruction-tuned model; its generation_config.json names eos_token_id",
            )
        return int(end)

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
        with load_model.explain_out_of_memory(f"scoring {len(samples)} completions"), self._scoring(who):
            return self._scored(samples, self.sharing, top=top, at=at, values=values)

    def _scored(
        self,
        samples: Sequence[Sample],
        shared: Sharing | None,
        *,
        top: int = 0,
        at: Tensor | None,
        values: bool = False,
    ) -> Statistics:
        batch = self._batch(samples)
        packs = [] if shared is None else shared.packs([each.prompt for each in samples], _lengths(batch))
        features, states = self._features(batch, packs, hidden=values)
        others = None if at is None else at.to(self.device)
        said = token_statistics(features, batch, head=self._head, top=top, at=others)
        if not values:
            return said
        # A value is of the state at the last token of a prompt: the one that predicts the first of the completion.
        assert self._value_head is not None
        counts = batch.mask.sum(dim=-1)
        worth: Tensor = self._value_head(states[counts.cumsum(dim=0) - counts].float())
        return replace(said, values=worth.squeeze(-1))

    def _batch(self, samples: Sequence[Sample]) -> Batch:
        batch = collate(samples, padding=self.padding)
        longest = batch.ids.shape[1]
        if self.context is not None and longest > self.context:
            raise UsageError(
                f"a prompt and its completion have {longest:,} tokens together, the context length of the model is "
                f"{self.context:,}",
                hint=f"leave out what is longer than that: --set max_length={self.context}",
            )
        return batch.to(self.device)

    def _features(self, batch: Batch, packs: Sequence[Pack], *, hidden: bool) -> tuple[Tensor, Tensor]:
        """What the log-probabilities are computed from, [N, …], row by row; the last hidden states, where asked for.

        They are those of the positions that predict the tokens of completions; the others' go away at once. Rows of a
        pack go through the model as one. Of the others, those of the same length go together: padding them would take
        a mask of L × L numbers, and keep the attention from its fast way.
        """
        lengths, counts = _lengths(batch), batch.mask.sum(dim=-1).tolist()
        taken: dict[int, tuple[Tensor, ...]] = {}

        def take(rows: Sequence[int], said: tuple[Tensor, ...], at: Tensor) -> None:
            own = [torch.split(each.flatten(0, 1)[at], [counts[row] for row in rows]) for each in said]
            taken.update(zip(rows, zip(*own, strict=True), strict=True))

        packed = [pack for pack in packs if len(pack.rows) > 1]
        for pack in packed:
            ids, positions, mask, where = laid_out(pack, batch.ids, self._base.dtype)
            said = self._forward(ids, hidden=hidden, position_ids=positions, attention_mask=mask)
            at = [places[:-1][batch.mask[row, : len(places) - 1]] for row, places in zip(pack.rows, where, strict=True)]
            take(pack.rows, said, torch.cat(at))
        alone = set(range(len(lengths))).difference(*(pack.rows for pack in packed))
        for length in sorted({lengths[row] for row in alone}):
            rows = sorted(row for row in alone if lengths[row] == length)
            predicting = torch.nn.functional.pad(batch.mask[rows, : length - 1], (0, 1))
            said = self._forward(batch.ids[rows, :length], hidden=hidden)
            take(rows, said, predicting.flatten().nonzero().squeeze(-1))
        columns = [torch.cat(column) for column in zip(*(taken[row] for row in range(len(lengths))), strict=True)]
        return columns[0], columns[-1]

    def _forward(self, ids: Tensor, *, hidden: bool, **how: Tensor) -> tuple[Tensor, ...]:
        """Hidden states [B, L, D] for the output layer, or logits [B, L, V] and the states where they are asked for."""
        if self._head is not None:
            return (self._decoder(input_ids=ids, use_cache=False, **how).last_hidden_state,)
        output = self._base(input_ids=ids, use_cache=False, output_hidden_states=hidden, **how)
        return (output.logits, output.hidden_states[-1]) if hidden else (output.logits,)

    def _reason_apart(self, shared: Sharing) -> str:
        """Why answers to one prompt cannot share it; empty where a probe shows that they can."""
        against = prompt_sharing.reason_against(self._base)
        if against:
            return against
        samples, others = prompt_sharing.probe(self.vocabulary)
        try:
            with self._still():
                first = self._scored(samples, None, top=1, at=None)
                scored = [self._scored(each, shared, at=first.top_indices) for each in (samples, others)]
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
        ids = torch.arange(4, device=self.device).unsqueeze(0)
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
        elif who is Who.BASE:
            with self._adapted.disable_adapter():
                yield
        else:
            self._adapted.set_adapter(TEACHER)
            try:
                yield
            finally:
                self._adapted.set_adapter(load_model.POLICY)

    def set_teacher(self, state: Mapping[str, Tensor]) -> None:
        if TEACHER not in self._adapted.peft_config:
            with torch.random.fork_rng(devices=[]):
                self._adapted.add_adapter(TEACHER, copy.copy(self._adapted.peft_config[load_model.POLICY]))
            self._adapted.set_adapter(load_model.POLICY)
        kept = {name: each for name, each in state.items() if not name.startswith(_HEAD)}
        load_model.fill(load_model.parameters_of(self._adapted, TEACHER), kept, "the teacher's state")

    # -- what is trained
    def trainable(self) -> list[torch.nn.Parameter]:
        return list(self._parameters().values())

    def adapter_state(self) -> dict[str, Tensor]:
        return {name: each.detach().to("cpu", copy=True) for name, each in self._parameters().items()}

    def load_adapter_state(self, state: Mapping[str, Tensor]) -> None:
        load_model.fill(self._parameters(), state, "the state of the adapter")

    def save(self, folder: Path) -> None:
        state = self.adapter_state()
        head = {name.removeprefix(_HEAD): each for name, each in state.items() if name.startswith(_HEAD)}
        lora = {name: each for name, each in state.items() if not name.startswith(_HEAD)}
        load_model.write_adapter(folder, self._adapted, lora, head)

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
        written: dict[int, Generated] = {}
        advice = load_model.explain_out_of_memory(f"writing {self._options.generated} completions at once")
        with advice, self._still(), self._acting(who):
            for room, numbers in self._in_batches(prompts, max_tokens):
                own = [prompts[number] for number in numbers]
                said = self._write(own, room, temperature, [seeds[number] for number in numbers])
                written.update(zip(numbers, said, strict=True))
        return [written[number] for number in range(len(prompts))]

    def _in_batches(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[tuple[int, list[int]]]:
        """Which prompts, of about the same length, are answered together, and with how many tokens at most.

        Those whose context has no room for ``max_tokens`` get what it has, beside others of the same room only.
        """
        rooms: dict[int, list[int]] = {}
        for number, prompt in enumerate(prompts):
            room = max_tokens if self.context is None else min(max_tokens, self.context - len(prompt))
            if not prompt or room < 1:
                raise UsageError(
                    f"prompt {number} has {len(prompt)} tokens, the context length of the model is {self.context}",
                    hint="leave empty prompts out, and those that fill the context",
                )
            rooms.setdefault(room, []).append(number)
        made, rows = [], self._options.generated
        for room, numbers in rooms.items():
            ordered = sorted(numbers, key=lambda number: len(prompts[number]))
            made += [(room, ordered[at : at + rows]) for at in range(0, len(ordered), rows)]
        return made

    def _write(
        self, prompts: Sequence[Sequence[int]], max_tokens: int, temperature: float, seeds: Sequence[int]
    ) -> list[Generated]:
        """One completion for each prompt of a batch; padded to the left, so that all go on at the same place."""
        width = max(len(prompt) for prompt in prompts)
        ids = torch.full((len(prompts), width), self.padding, dtype=torch.long)
        attention = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = torch.tensor(list(prompt), dtype=torch.long)
            attention[row, width - len(prompt) :] = 1
        ids, attention = ids.to(self.device), attention.to(self.device)
        draw = Draw(torch, temperature, seeds, self.device)
        output = self._base.generate(
            ids,
            attention_mask=attention,
            past_key_values=None if self.sharing is None else self._read(prompts, ids, attention),
            max_new_tokens=max_tokens,
            do_sample=False,  # ``draw`` leaves one token to choose from
            logits_processor=library("transformers").LogitsProcessorList([draw]),
        )
        written = []
        for drawn, logprobs in zip(output[:, width:].tolist(), draw.logprobs, strict=True):
            # Up to the first end; a row that has ended is filled up until the last one has.
            length = next((at + 1 for at, token in enumerate(drawn) if token in self.ends), len(drawn))
            own = drawn[:length]
            written.append(Generated(tuple(own), tuple(logprobs[:length]), decoded(self._tokenizer, own)))
        return written

    def _read(self, prompts: Sequence[Sequence[int]], ids: Tensor, attention: Tensor) -> Any:
        """The cache of a batch whose prompts were each read once, up to their last token; None where all differ."""
        first: dict[tuple[int, ...], int] = {}
        rows = [first.setdefault(tuple(prompt), row) for row, prompt in enumerate(prompts)]
        if len(first) == len(rows) or ids.shape[1] < 2:
            return None
        chosen = list(first.values())
        seen = attention[chosen, :-1]
        cache = library("transformers").DynamicCache(config=self._base.config)
        self._decoder(
            input_ids=ids[chosen, :-1],
            attention_mask=seen,
            position_ids=(seen.cumsum(dim=-1) - 1).clamp(min=0),
            past_key_values=cache,
            use_cache=True,
        )
        cache.batch_select_indices(torch.tensor([chosen.index(row) for row in rows], device=self.device))
        return cache


def _lengths(batch: Batch) -> list[int]:
    return [int(length) for length in batch.attention.sum(dim=-1).tolist()]
