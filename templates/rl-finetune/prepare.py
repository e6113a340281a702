"""Prepare the data of the `rl-finetune` task. Protected: no experiment may edit it.

Run once in the set-up folder; writes into `data/`. In the `cpu` profile, offline:

=======================  ======  ===================================================================================
file                     who     content
=======================  ======  ===================================================================================
`train.npz`              job     `prompts` (N, 27) and `answers` (N) int64: problems and what they come to, unsolved
`base.npy`               job     weights of the base policy
`validation.npz`         scorer  problems and answers that select
`test.npz`               scorer  problems and answers that are told once
=======================  ======  ===================================================================================

All problems differ as texts. Those above are drawn from the system's randomness, of which nothing is kept: this file is
readable by every program, a seed in it would give the private problems, and so might the state of a generator that can
be worked out from what it drew before. The base policy is trained here, by imitation, on worked
answers to other problems, always the same ones, in which the sentences `OPEN` of `problems.py` stand for any operation.

In the `cuda` profile: `train.jsonl` and the folder `policy` for the job, `validation.jsonl` and `test.jsonl` for the
scorer. The problems are GSM8K (Cobbe et al. 2021, arXiv:2110.14168; MIT licence), the policy is Qwen2.5-0.5B-Instruct
(Apache 2.0). Validation problems are a part of the training file, the test problems those of the test file.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import random
import sys
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np

TRAIN, VALIDATION, TEST = 8000, 2000, 2000
BASE_SEED = 20_211_027
BASE_STEPS, BASE_BATCH, BASE_RATE = 400, 64, 3e-3

MODEL = "Qwen/Qwen2.5-0.5B-Instruct"
MODEL_REVISION = "7ae557604adf67be50417f59c2c2f167def9a775"
MODEL_FILES = ("config.json", "model.safetensors", "tokenizer*", "vocab.json", "merges.txt")
GSM8K = "https://raw.githubusercontent.com/openai/grade-school-math/3101c7d5072418e28b9008a6636bde82a006892c/grade_school_math/data/{}.jsonl"
GSM8K_SHA256 = {
    "train": "17f347dc51477c50d4efb83959dbb7c56297aba886e5544ee2aaed3024813465",
    "test": "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
}
GSM8K_VALIDATION = 748


class PrepareError(Exception):
    """Something that the user has to fix; its text is one line."""


def write_problems(rng: random.Random, out: Path, taken: set[str]) -> None:
    """Draw the problems of all three files; none has the text of another, or one of `taken`."""
    from problems import Problem, draw, prompts

    for name, count in (("train", TRAIN), ("validation", VALIDATION), ("test", TEST)):
        chosen: list[Problem] = []
        while len(chosen) < count:
            problem = draw(rng)
            if problem.text not in taken:
                taken.add(problem.text)
                chosen.append(problem)
        answers = np.array([problem.answer for problem in chosen], np.int64)
        np.savez(out / f"{name}.npz", prompts=prompts(chosen), answers=answers)


def train_base(steps: int = BASE_STEPS) -> tuple[np.ndarray, set[str]]:
    """Weights of a policy that has imitated worked answers for a short time, and the texts that it has seen."""
    import torch
    from policy_model import Policy, log_probs, weights_of
    from problems import PAD_ID, draw, prompts, solutions

    torch.set_num_threads(1)  # the same sums everywhere, or nearly
    torch.manual_seed(BASE_SEED)
    rng, texts = random.Random(BASE_SEED), set()
    policy = Policy()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=BASE_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = BASE_RATE * min(1.0, (step + 1) / 20, 2 * (1 - step / steps))
        shown = [draw(rng, shown=True) for _ in range(BASE_BATCH)]
        texts.update(problem.text for problem in shown)
        said = torch.from_numpy(solutions(shown))
        chosen = log_probs(policy, torch.from_numpy(prompts(shown)), said)
        loss = -chosen.sum() / (said != PAD_ID).sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 100 == 0:
            print(f"base policy: step {step + 1} of {steps}, loss {loss.item():.3f}", flush=True)
    return weights_of(policy), texts


def offline(out: Path) -> None:
    """Write the files of the `cpu` profile."""
    if importlib.util.find_spec("torch") is None:
        raise PrepareError("package 'torch', which a run needs, is not installed: pip install 'autoresearchd[train]'")
    weights, texts = train_base()
    np.save(out / "base.npy", weights)
    write_problems(random.SystemRandom(), out, texts)
    print(f"{TRAIN} problems to learn from, {VALIDATION} that select, {TEST} that are told; {weights.size} weights")


def fetched(name: str) -> bytes:
    """A file of GSM8K, as its hash says."""
    url = GSM8K.format(name)
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            raw: bytes = answer.read()
    except (urllib.error.URLError, TimeoutError) as error:
        raise PrepareError(f"{url} cannot be fetched ({error}): set-up of this profile needs a network") from None
    if hashlib.sha256(raw).hexdigest() != GSM8K_SHA256[name]:
        raise PrepareError(f"{url} is not the file of which the hash is known: try again, or look who answers for it")
    return raw


def split(raw: bytes) -> tuple[list[str], list[str]]:
    """The lines to learn from and those that select, by their hash: the same ones everywhere, in no order of theirs."""
    lines = sorted(raw.decode().splitlines(), key=lambda line: hashlib.sha256(line.encode()).digest())
    return lines[GSM8K_VALIDATION:], lines[:GSM8K_VALIDATION]


def from_hubs(out: Path) -> None:
    """Write the files of the `cuda` profile."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise PrepareError("package 'transformers' is not installed: pip install 'autoresearchd[learn]'") from None
    train, validation = split(fetched("train"))
    test = fetched("test").decode().splitlines()
    for name, lines in (("train", train), ("validation", validation), ("test", test)):
        rows = [json.loads(line) for line in lines]
        kept = [{"question": row["question"], "answer": row["answer"].rpartition("####")[2].strip()} for row in rows]
        (out / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))
        print(f"{len(kept)} problems in {name}.jsonl")
    snapshot_download(MODEL, revision=MODEL_REVISION, local_dir=out / "policy", allow_patterns=list(MODEL_FILES))


def main() -> int:
    """Prepare `data/` in the current directory."""
    out = Path("data")
    out.mkdir(exist_ok=True)
    try:
        if os.environ.get("AUTORESEARCHD_PROFILE") == "cuda":
            from_hubs(out)
        else:
            offline(out)
    except (PrepareError, OSError) as error:
        print(f"prepare.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
