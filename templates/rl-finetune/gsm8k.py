"""GSM8K in the `cuda` profile: how a model is asked, and how its answer is read. Protected: the scorer uses it, too."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

ASKED = "Solve the problem step by step. End with a line of its own: #### and the number, without a unit."
MOST_TOKENS = 320
"""Of an answer."""
_GIVEN = re.compile(r"####\s*\$?(-?[\d,]*\.?\d+)")


def problems(path: Path) -> list[dict[str, str]]:
    """The questions and answers of a file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def number(text: str) -> str:
    """A number as it is compared: `1,080.00` is 1080."""
    plain = text.replace(",", "").strip()
    return plain.rstrip("0").rstrip(".") if "." in plain else plain


def told(text: str) -> str | None:
    """The number that an answer ends with; None where it gives none."""
    found = _GIVEN.findall(text)
    return number(found[-1]) if found else None


def loaded(folder: Path, device: torch.device, dtype: torch.dtype) -> tuple[Any, Any]:
    """A model and its tokenizer; it answers as `answers` asks it to, whatever its makers recommend."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device)
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    return model, tokenizer


@torch.no_grad()
def answers(
    model: Any, tokenizer: Any, questions: Sequence[str], each: int = 1, temperature: float = 0.0
) -> tuple[torch.Tensor, int, list[str]]:
    """Tokens of questions and answers (N · each, P + A), P, and the answers as texts; at 0 the likeliest tokens."""
    asked = [
        tokenizer.apply_chat_template(
            [{"role": "system", "content": ASKED}, {"role": "user", "content": question}],
            add_generation_prompt=True,
            tokenize=False,
        )
        for question in questions
    ]
    read = tokenizer(asked, padding=True, add_special_tokens=False, return_tensors="pt").to(model.device)
    drawn = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature > 0 else {}
    said = model.generate(
        input_ids=read.input_ids, attention_mask=read.attention_mask,
        max_new_tokens=MOST_TOKENS, num_return_sequences=each, **drawn,
    )  # fmt: skip
    length = read.input_ids.size(1)
    return said, length, tokenizer.batch_decode(said[:, length:], skip_special_tokens=True)
