"""The model that speaks: SmolLM2-135M-Instruct on a CPU, or a model of one's own behind a local endpoint. Protected.

All conversations of an evaluation begin with the same prompt. Its keys and values are computed once and read by all of
them, as in Hydragen (Juravsky et al. 2024, arXiv:2402.05099): each conversation has a few dozen tokens beside it.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rules import split

MOST_TOKENS = 28
BATCH = 48
FOLDER = Path("data/model")
ENDPOINT, NAME = "VOICE_AGENT_ENDPOINT", "VOICE_AGENT_MODEL"
AT_ONCE = 8
PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class Reply:
    """What was said. ended: whether the model had done, and was not cut off."""

    text: str
    ended: bool


class Speaker(Protocol):
    """What answers callers."""

    def replies(self, prompt: str, asked: Sequence[str]) -> list[Reply]:
        """A reply to each question, each in a conversation of its own."""
        ...


def speaker() -> Speaker:
    """The model that the environment names, else the bundled one."""
    address = os.environ.get(ENDPOINT)
    return Endpoint(address, os.environ.get(NAME, "")) if address else SmolLM2(FOLDER)


def beginning(prompt: str) -> list[tuple[str, str]]:
    """The turns that all conversations begin with: what the prompt says, then its examples."""
    told, examples = split(prompt)
    roles = {"Caller": "user", "Assistant": "assistant"}
    return [("system", told), *((roles[who], words) for who, words in examples)]


class Endpoint:
    """A model behind an OpenAI-compatible server on this machine."""

    def __init__(self, address: str, name: str) -> None:
        self.address, self.name = address.rstrip("/") + "/chat/completions", name

    def replies(self, prompt: str, asked: Sequence[str]) -> list[Reply]:
        """A reply to each question, a few at a time."""
        told = beginning(prompt)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(lambda words: self.reply(told, words), asked))

    def reply(self, told: Sequence[tuple[str, str]], words: str) -> Reply:
        """One request, at temperature 0."""
        turns = [{"role": role, "content": text} for role, text in (*told, ("user", words))]
        body: dict[str, Any] = {"model": self.name, "messages": turns, "temperature": 0, "max_tokens": MOST_TOKENS}
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.address, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                [choice] = json.load(answer)["choices"]
            return Reply(str(choice["message"]["content"] or ""), choice.get("finish_reason") == "stop")
        except (OSError, ValueError, KeyError, TypeError) as error:
            told = error.read(300).decode("utf-8", "replace") if isinstance(error, urllib.error.HTTPError) else error
            sys.exit(
                f"FAIL: no reply from {self.address} ({told}): start the server, `execution: {{network: true}}` in "
                f"task.yaml, and name its model in {NAME}; or leave {ENDPOINT} out for the bundled model"
            )


class SmolLM2:
    """A Llama of 135 million weights, as prepare.py has written it, in float32, without any sampling."""

    def __init__(self, folder: Path) -> None:
        import torch
        from tokenizers import Tokenizer

        self.torch: Any = torch
        self.weights: dict[str, Any] = torch.load(folder / "weights.pt", mmap=True, weights_only=True)
        self.tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
        facts = json.loads((folder / "model.json").read_text())
        self.layers, self.heads, self.groups = facts["layers"], facts["heads"], facts["groups"]
        self.epsilon, self.begin, self.end = facts["epsilon"], facts["begin"], facts["end"]
        self.size = facts["width"] // self.heads
        self.rates = facts["base"] ** (-torch.arange(0, self.size, 2, dtype=torch.float32) / self.size)

    # -- conversations

    def replies(self, prompt: str, asked: Sequence[str]) -> list[Reply]:
        """A reply to each question; those of like length are computed beside each other."""
        torch = self.torch
        answer = [self.begin, *self.ids("assistant\n")]
        turns = [[*self.turn("user", words), *answer] for words in asked]
        order = sorted(range(len(turns)), key=lambda i: len(turns[i]))
        said: dict[int, Reply] = {}
        with torch.inference_mode():
            shared = self.read([token for role, text in beginning(prompt) for token in self.turn(role, text)])
            for first in range(0, len(order), BATCH):
                batch = order[first : first + BATCH]
                said.update(zip(batch, self.spoken([turns[i] for i in batch], shared), strict=True))
        return [said[i] for i in range(len(turns))]

    def ids(self, text: str) -> list[int]:
        """Tokens of a text, none of which marks a turn, whatever it says: the tokenizer does not know the marks."""
        return list(self.tokenizer.encode(text).ids)

    def turn(self, role: str, text: str) -> list[int]:
        """A turn of a conversation."""
        return [self.begin, *self.ids(f"{role}\n{text}"), self.end, *self.ids("\n")]

    def read(self, tokens: Sequence[int]) -> list[tuple[Any, Any]]:
        """Keys and values of what all conversations begin with, by layer."""
        torch, count = self.torch, len(tokens)
        nothing = torch.zeros(self.groups, 0, self.size)
        own = [(nothing[None], nothing[None])] * self.layers
        seen = torch.ones(1, count, count, dtype=torch.bool).tril()
        self.logits(torch.tensor([tokens]), torch.arange(count)[None], seen, [(nothing, nothing)] * self.layers, own)
        return [(keys[0], values[0]) for keys, values in own]

    def spoken(self, turns: Sequence[Sequence[int]], shared: list[tuple[Any, Any]]) -> list[Reply]:
        """Replies to a batch of turns, the likeliest token at a time; rows that have ended are no longer computed."""
        torch = self.torch
        rows, longest, known = len(turns), max(map(len, turns)), shared[0][0].shape[1]
        gaps = torch.tensor([longest - len(turn) for turn in turns])
        tokens = torch.tensor([[self.end] * (longest - len(turn)) + list(turn) for turn in turns])
        nothing = torch.zeros(rows, self.groups, 0, self.size)
        own = [(nothing, nothing)] * self.layers
        at = torch.arange(longest)
        there = at[None] >= gaps[:, None]  # which own tokens there are: shorter turns stand to the right
        seen = there[:, None] & (at[None] <= at[:, None])[None]
        places = (known + at[None] - gaps[:, None]).clamp(min=0)
        said: list[list[int]] = [[] for _ in turns]
        alive, ended = torch.arange(rows), [False] * rows
        for step in range(MOST_TOKENS):
            chosen = self.logits(tokens, places, seen, shared, own).argmax(-1)
            for row, token in zip(alive.tolist(), chosen.tolist(), strict=True):
                ended[row] = token in (self.end, 0)
                if not ended[row]:
                    said[row].append(token)
            left = torch.tensor([not ended[row] for row in alive.tolist()])
            if step == MOST_TOKENS - 1 or not left.any():
                break
            alive, chosen, places = alive[left], chosen[left], places[left, -1:] + 1
            own = [(keys[left], values[left]) for keys, values in own]
            there = torch.cat([there[left], torch.ones(len(alive), 1, dtype=torch.bool)], 1)
            tokens, seen = chosen[:, None], there[:, None]
        return [Reply(self.tokenizer.decode(ids).strip(), done) for ids, done in zip(said, ended, strict=True)]

    # -- the network

    def logits(self, tokens: Any, places: Any, seen: Any, shared: list[tuple[Any, Any]], own: list[Any]) -> Any:
        """Of the token after the last of each row. ``own`` gets the new keys and values.

        Args:
            tokens: (rows, new tokens).
            places: of each in its conversation.
            seen: (rows, new tokens, own tokens): which of its row each token may look at, beside all that is shared.
            shared: keys and values (groups, tokens, size) of what all rows begin with, by layer.
            own: keys and values (rows, groups, tokens, size) of each row, by layer.
        """
        torch, weights = self.torch, self.weights
        linear, silu = torch.nn.functional.linear, torch.nn.functional.silu
        turned = places[..., None] * self.rates
        angle = turned.cos()[:, :, None], turned.sin()[:, :, None]
        x = torch.nn.functional.embedding(tokens, weights["token_embd.weight"])
        for layer in range(self.layers):
            here = {
                name: weights[f"blk.{layer}.{name}.weight"]
                for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
            }
            h = self.norm(x, f"blk.{layer}.attn_norm.weight")
            q, k, v = (linear(h, here[name]).unflatten(-1, (-1, self.size)) for name in ("attn_q", "attn_k", "attn_v"))
            keys, values = own[layer]
            keys = torch.cat([keys, rotated(torch, k, angle).transpose(1, 2)], 2)
            values = torch.cat([values, v.transpose(1, 2)], 2)
            own[layer] = keys, values
            found = self.attention(rotated(torch, q, angle), shared[layer], (keys, values), seen)
            x = x + linear(found, here["attn_output"])
            h = self.norm(x, f"blk.{layer}.ffn_norm.weight")
            inner = silu(linear(h, here["ffn_gate"])) * linear(h, here["ffn_up"])
            x = x + linear(inner, here["ffn_down"])
        return linear(self.norm(x[:, -1], "output_norm.weight"), weights["token_embd.weight"])

    def norm(self, x: Any, name: str) -> Any:
        """Root mean square norm."""
        return x * (x.square().mean(-1, keepdim=True) + self.epsilon).rsqrt() * self.weights[name]

    def attention(self, q: Any, shared: tuple[Any, Any], own: tuple[Any, Any], seen: Any) -> Any:
        """What each query finds, in the shared tokens and in those of its own row together."""
        torch = self.torch
        rows, count, heads, size = q.shape
        groups, known = shared[0].shape[:2]
        each = heads // groups
        q = q.unflatten(2, (groups, each)).permute(2, 0, 1, 3, 4) * size**-0.5  # groups, rows, count, each, size
        far = (q.reshape(groups, -1, size) @ shared[0].mT).view(groups, rows, count, each, known).transpose(0, 1)
        near = q.transpose(0, 1).reshape(rows, groups, -1, size) @ own[0].mT
        near = near.view(rows, groups, count, each, -1).masked_fill(~seen[:, None, :, None], -torch.inf)
        far, near = torch.cat([far, near], -1).softmax(-1).split([known, near.shape[-1]], -1)
        found = far.transpose(0, 1).reshape(groups, rows * count * each, known) @ shared[1]
        mine = (near.reshape(rows, groups, count * each, -1) @ own[1]).view(rows, groups, count, each, size)
        found = found.view(groups, rows, count, each, size).transpose(0, 1) + mine
        return found.permute(0, 2, 1, 3, 4).reshape(rows, count, heads * size)


def rotated(torch: Any, x: Any, angle: tuple[Any, Any]) -> Any:
    """Rotary positions, in the order of pairs that GGUF files have."""
    cos, sin = angle
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)
