"""Time and peak memory of a step of each algorithm of the learner, beside TRL's GRPOTrainer on the same batch.

    python benchmarks/learner_speed.py --model DIR    # TRL's row needs pip install -c constraints.txt -e '.[learn,trl]'

Every row is a process of its own; each algorithm has two: the answers of a group share their prompt, or each has its
own (``--set share_prompts=false``). Groups of answers are stored first, of random words and tokens, with the
log-probabilities that the model gives them; a step learns from all of them, and each step counts. All
train a LoRA adapter of the same shape in float32 on ``--threads`` threads, ``--micro`` answers at a time. TRL is handed
the same tokens by a ``rollout_func``, so that it does not generate; it cannot be handed their log-probabilities, and
takes the ratio against its own. What differs is meant to: PPO makes four updates of each batch and has a value head,
SDPO's teacher reads a longer prompt. A token counts once for each update that learned from it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from autoresearchd.domain.labels import Label
from autoresearchd.learner.algorithms.learnable import Sample, Who
from autoresearchd.learner.algorithms.train_options import Algo, Collapse, TrainOptions
from autoresearchd.learner.data.trajectories import Trajectory
from autoresearchd.learner.training.load_model import ModelOptions
from autoresearchd.learner.training.local_model import LocalModel
from autoresearchd.learner.training.train import StepFigures, train
from autoresearchd.models.model_files import Source
from autoresearchd.models.transformers_client import encoded, load_tokenizer

WORDS = ("the", "of", "and", "to", "in", "is", "it", "for", "on", "as", "with", "by", "at", "from", "this", "that")
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "1048576", "MALLOC_TRIM_THRESHOLD_": "1048576"}
"""As a daemon starts its learner: without, a third and more of the peak is what malloc does not give back."""
ROWS = ("grpo", "ppo", "sdpo", "trl")


@dataclass(frozen=True, slots=True)
class Clocks:
    """Seconds by the clock, and of processor time in all threads."""

    wall: float
    processor: float

    @classmethod
    def now(cls) -> Clocks:
        """As they stand."""
        return cls(time.monotonic(), time.process_time())


def measured(seen: Sequence[Clocks], tokens: float) -> dict[str, float]:
    """What the steps took, from their beginning on and told when each ended."""
    first, last = seen[0], seen[-1]
    return {
        "tokens": tokens, "steps": len(seen) - 1,
        "seconds": last.wall - first.wall, "processor": last.processor - first.processor,
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Answer:
    """A prompt and a completion with its reward; answers with the same ``group`` have the same prompt."""

    group: int
    messages: tuple[dict[str, str], ...]
    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    reward: float


def answers(options: argparse.Namespace) -> list[Answer]:
    """The batch, the same for every row: prompts of random words, which are a token each, answers of random tokens."""
    chance, tokenizer = random.Random(0), load_tokenizer(Source.at(options.model))

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(chance.randrange(100, options.vocabulary) for _ in range(count))

    found = []
    for group in range(options.groups):
        messages = ({"role": "user", "content": " ".join(chance.choices(WORDS, k=options.prompt))},)
        prompt = tuple(encoded(tokenizer, messages))
        found += [
            Answer(group, messages, prompt, tokens(options.completion), chance.gauss(0, 1)) for _ in range(options.size)
        ]
    return found


def of_ours(options: argparse.Namespace, algo: Algo) -> dict[str, float]:
    """A row of the learner."""
    model = LocalModel.load(
        options.model,
        ModelOptions(
            value_head=algo is Algo.PPO,
            dtype="float32",
            device="cpu",
            threads=options.threads,
            checkpointing=options.checkpointing,
            share_prompts=not options.apart,
        ),
    )
    if (model.sharing is None) != options.apart:
        raise SystemExit(f"answers cannot share their prompt: {model.apart}")
    batch = answers(options)
    samples = [Sample(each.prompt, each.completion) for each in batch]
    with torch.no_grad():
        logprobs = [
            row[-options.completion :].tolist()
            for at in range(0, len(samples), options.micro)
            for row in model.statistics(samples[at : at + options.micro], who=Who.POLICY).logprobs
        ]
    given = [
        Trajectory(
            session="s", number=number, attempt=0, group=str(each.group), state_id=str(each.group),
            at=datetime.fromtimestamp(number, UTC), policy_version="",
            messages=each.messages, prompt_ids=each.prompt, completion="",
            token_ids=each.completion, logprobs=tuple(said), reward=each.reward, censored=False, label=Label.NO_GAIN,
            feedback=f"It made the loss smaller by 0.{number:02}.",
        )
        for number, (each, said) in enumerate(zip(batch, logprobs, strict=True))
    ]  # fmt: skip
    plan = TrainOptions(
        algo, steps=options.steps, batch=len(batch), micro=options.micro, warmup=0, learning_rate=1e-5, kl_every=10**6,
        collapse=Collapse(entropy=None, kl=None),
    )  # fmt: skip
    seen, tokens = [Clocks.now()], []

    def on_step(step: StepFigures) -> None:
        seen.append(Clocks.now())
        tokens.append(step.values.get("tokens", 0.0))

    found = train(model, given, plan, on_step=on_step)
    if found.stopped or found.cold_start:
        raise SystemExit(f"{algo.value}: {found.stopped} {found.cold_start}")
    return measured(seen, sum(tokens))


def of_trl(options: argparse.Namespace) -> dict[str, float]:
    """The row of TRL's GRPOTrainer."""
    from datasets import Dataset  # type: ignore[import-not-found, unused-ignore]
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found, unused-ignore]

    batch, lora = answers(options), ModelOptions()
    of_group = {str(g): [each for each in batch if each.group == g] for g in range(options.groups)}
    rewards = {each.completion: each.reward for each in batch}

    def rollouts(prompts: list[str], _trainer: Any) -> dict[str, Any]:
        taken = dict.fromkeys(of_group, 0)
        chosen: list[Answer] = []
        for prompt in prompts:
            chosen.append(of_group[prompt][taken[prompt]])
            taken[prompt] += 1
        return {
            "prompt_ids": [list(each.prompt) for each in chosen],
            "completion_ids": [list(each.completion) for each in chosen],
            "logprobs": [[0.0] * len(each.completion) for each in chosen],
        }

    def reward(completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
        return [rewards[tuple(ids)] for ids in completion_ids]

    seen = []

    class Watch(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            seen.append(Clocks.now())

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            seen.append(Clocks.now())

    with tempfile.TemporaryDirectory() as place:
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32),
            processing_class=AutoTokenizer.from_pretrained(options.model),
            reward_funcs=reward,
            train_dataset=Dataset.from_list([{"prompt": name} for name in of_group]),
            peft_config=LoraConfig(r=lora.rank, lora_alpha=int(lora.alpha), target_modules="all-linear"),
            rollout_func=rollouts,
            callbacks=[Watch()],
            args=GRPOConfig(
                output_dir=place, use_cpu=True, bf16=False, gradient_checkpointing=False, beta=0.0, report_to="none",
                per_device_train_batch_size=options.micro, gradient_accumulation_steps=len(batch) // options.micro,
                num_generations=options.size, max_completion_length=options.completion, max_steps=options.steps,
                learning_rate=1e-5, save_strategy="no", logging_strategy="no", disable_tqdm=True,
            ),
        )  # fmt: skip
        trainer.train()
    return measured(seen, len(batch) * options.completion * (len(seen) - 1))


def main() -> int:
    """Each row in a process; the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of the base model")
    parser.add_argument("--rows", default=",".join(ROWS), help="which, joined by commas")
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--size", type=int, default=4, help="answers in a group")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of a prompt")
    parser.add_argument("--completion", type=int, default=64, help="tokens of a completion")
    parser.add_argument("--micro", type=int, default=4)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--vocabulary", type=int, default=40_000, help="token ids are below this")
    parser.add_argument("--checkpointing", action="store_true", help="compute layers again in the backward pass")
    parser.add_argument("--only", choices=ROWS, help=argparse.SUPPRESS)
    parser.add_argument("--apart", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        torch.set_num_threads(options.threads)
        row = of_trl(options) if options.only == "trl" else of_ours(options, Algo(options.only))
        row["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(row))
        return 0
    environment = os.environ | {
        "OMP_NUM_THREADS": str(options.threads), "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", **MALLOC,
    }  # fmt: skip
    print("| | prompt | s per step | of processor time | tokens of completions per second | peak memory, MB |")
    print("|---|---|---|---|---|---|")
    rows = [
        (name, apart) for name in options.rows.split(",") for apart in ((True,) if name == "trl" else (False, True))
    ]
    for name, apart in rows:
        given = [*sys.argv[1:], "--only", name, *(["--apart"] if apart else [])]
        done = subprocess.run([sys.executable, __file__, *given], env=environment, capture_output=True, text=True)
        prompt = "each its own" if apart else "shared"
        if done.returncode:
            print(f"| {name} | {prompt} | failed: {' '.join(done.stderr.strip().splitlines()[-1:])[:200]} | | | |")
            continue
        row = json.loads(done.stdout.strip().splitlines()[-1])
        steps = row["steps"]
        print(f"| {name} | {prompt} | {row['seconds'] / steps:.1f} | {row['processor'] / steps:.1f} | "
              f"{row['tokens'] / row['seconds']:.1f} | {row['peak_mb']:.0f} |", flush=True)  # fmt: skip
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
