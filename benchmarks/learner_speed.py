"""Tokens per second and peak memory of each algorithm of the learner, beside TRL's GRPOTrainer on the same batch.

    python benchmarks/learner_speed.py --model DIR    # TRL's row needs pip install -c constraints.txt -e '.[learn,trl]'

Every row is a process of its own. Groups of answers are stored first, of random tokens, with the log-probabilities that
the model gives them; a step learns from all of them, and each step but the first counts. All train a LoRA adapter of
the same shape in float32 without gradient checkpointing on ``--threads`` threads, ``--micro`` answers at a time. TRL is
handed the same tokens by a ``rollout_func``, so that it does not generate; it cannot be handed their log-probabilities,
and takes the ratio against its own. What differs is meant to: PPO makes four updates of each batch and has a value
head, SDPO's teacher reads a longer prompt. A token counts once for each update that learned from it.
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
from autoresearchd.learner.loading import LoraOptions, ModelOptions
from autoresearchd.learner.model import LocalModel
from autoresearchd.learner.objectives import Sample, Who
from autoresearchd.learner.options import Algo, Collapse, SftOptions, TrainOptions
from autoresearchd.learner.training import train
from autoresearchd.learner.trajectories import Trajectory

ROWS = ("grpo", "ppo", "sdpo", "sft", "trl")


@dataclass(frozen=True, slots=True)
class Answer:
    """Token ids of a prompt and a completion, and what it earned; answers with the same ``group`` share the prompt."""

    group: int
    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    reward: float


def answers(options: argparse.Namespace, vocabulary: int) -> list[Answer]:
    """The batch: random tokens, the same for every row."""
    chance = random.Random(0)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(chance.randrange(100, vocabulary) for _ in range(count))

    return [
        Answer(group, prompt, tokens(options.completion), chance.gauss(0, 1))
        for group in range(options.groups)
        for prompt in [tokens(options.prompt)]
        for _ in range(options.size)
    ]


def of_ours(options: argparse.Namespace, algo: Algo) -> dict[str, float]:
    """A row of the learner."""
    model = LocalModel.load(
        options.model,
        ModelOptions(value_head=algo is Algo.PPO, dtype="float32", device="cpu", threads=options.threads),
    )
    batch = answers(options, options.vocabulary)
    samples = [Sample(each.prompt, each.completion) for each in batch]
    with torch.no_grad():
        logprobs = [
            row[-options.completion :].tolist()
            for at in range(0, len(samples), options.micro)
            for row in model.statistics(samples[at : at + options.micro], who=Who.POLICY).tokens.logprobs
        ]
    given = [
        Trajectory(
            session="s", number=number, attempt=0, group=str(each.group), state_id=str(each.group),
            at=datetime.fromtimestamp(number, UTC), policy_version="",
            messages=({"role": "user", "content": f"state {each.group}"},), prompt_ids=each.prompt, completion="",
            token_ids=each.completion, logprobs=tuple(said), reward=each.reward, censored=False, label=Label.NO_GAIN,
            feedback="It made the loss smaller by 0.01.",
        )
        for number, (each, said) in enumerate(zip(batch, logprobs, strict=True))
    ]  # fmt: skip
    plan = TrainOptions(
        algo, steps=options.steps, batch=len(batch), micro=options.micro, warmup=0, learning_rate=1e-5, kl_every=10**6,
        collapse=Collapse(entropy=None, kl=None), sft=SftOptions(above=-100.0, kept=False),
    )  # fmt: skip
    seen: list[tuple[float, float]] = []
    found = train(
        model, given, plan, on_step=lambda step: seen.append((time.monotonic(), step.values.get("tokens", 0.0)))
    )
    if found.stopped or found.cold_start:
        raise SystemExit(f"{algo.value}: {found.stopped} {found.cold_start}")
    return {"tokens": sum(count for _, count in seen[1:]), "seconds": seen[-1][0] - seen[0][0]}


def of_trl(options: argparse.Namespace) -> dict[str, float]:
    """The row of TRL's GRPOTrainer."""
    from datasets import Dataset  # type: ignore[import-not-found, unused-ignore]
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found, unused-ignore]

    batch, lora = answers(options, options.vocabulary), LoraOptions()
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

    seen: list[float] = []

    class Watch(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            seen.append(time.monotonic())

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
    return {"tokens": len(batch) * options.completion * (len(seen) - 1), "seconds": seen[-1] - seen[0]}


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
    parser.add_argument("--only", choices=ROWS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        torch.set_num_threads(options.threads)
        row = of_trl(options) if options.only == "trl" else of_ours(options, Algo(options.only))
        row["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(row))
        return 0
    environment = os.environ | {
        "OMP_NUM_THREADS": str(options.threads), "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1",
    }  # fmt: skip
    print("| | tokens of completions per second | peak memory of the process, MB |\n|---|---|---|")
    for name in options.rows.split(","):
        done = subprocess.run(
            [sys.executable, __file__, *sys.argv[1:], "--only", name], env=environment, capture_output=True, text=True
        )
        if done.returncode:
            print(f"| {name} | failed: {' '.join(done.stderr.strip().splitlines()[-1:])[:200]} | |")
            continue
        row = json.loads(done.stdout.strip().splitlines()[-1])
        print(f"| {name} | {row['tokens'] / row['seconds']:.1f} | {row['peak_mb']:.0f} |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
