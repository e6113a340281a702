"""Synthetic research problems: a toy train.py, a hidden loss over its constants, noise, crashes, an honest judge."""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from autoresearchd.domain.experiment import Trial
from autoresearchd.domain.labels import Label, Status
from autoresearchd.domain.ports import Policy
from autoresearchd.domain.randomness import derive_seed
from autoresearchd.domain.task import Direction
from autoresearchd.policy.search.find_constants import find, replace
from autoresearchd.policy.search.parameter import Value
from tests.fakes.policies import MemoryHistory, make_state, make_task

TOY = '''"""A toy."""

MATRIX_LR = 0.04  # Muon
EMBEDDING_LR = 6e-1
WEIGHT_DECAY = 0.2
BATCH_SIZE = 2**14  # tokens
DEPTH = 4
MODEL_DIM = 192
ADAM_BETAS = (0.8, 0.95)
WARMUP_RATIO = 0.0
WARMDOWN_RATIO = 0.5
SOFTCAP = 15.0
INIT_SCALE = 1.0
WINDOW_PATTERN = "SSSL"
USE_BIAS = True
DROPOUT = 0.0
MOMENTUM = 0.95
ROPE_BASE = 10_000
MLP_RATIO = 4
CLIP_NORM = 1.0
SHORT_WINDOW = 128
FINAL_LR_FRAC = 0.0
'''

Loss = Callable[[Mapping[str, float]], float]
Codes = Callable[[str], Mapping[str, str]]
CRASH = math.inf


def log(value: float, best: float) -> float:
    """Distance in octaves."""
    return math.log2(max(value, 1e-9) / best)


def separable(v: Mapping[str, float]) -> float:
    """Eight constants that each have a best value of their own."""
    return (
        1.0
        + 0.03 * log(v["MATRIX_LR"], 0.012) ** 2
        + 0.01 * log(v["EMBEDDING_LR"], 1.2) ** 2
        + 0.2 * (v["WEIGHT_DECAY"] - 0.05) ** 2
        + 0.02 * log(v["BATCH_SIZE"], 2**12) ** 2
        + 0.004 * (v["DEPTH"] - 6) ** 2
        + 0.15 * (v["WARMDOWN_RATIO"] - 0.8) ** 2
        + 0.01 * log(1 - v["ADAM_BETAS[1]"], 0.02) ** 2
        + 0.02 * log(v["INIT_SCALE"], 0.5) ** 2
    )


def coupled(v: Mapping[str, float]) -> float:
    """The best rate follows the batch size, width and depth trade against each other."""
    rate = log(v["MATRIX_LR"], 0.05 * math.sqrt(v["BATCH_SIZE"] / 2**14))
    size = math.log2(v["DEPTH"] * v["MODEL_DIM"] ** 2 / (6 * 256**2))
    return (
        2.0
        + 0.04 * rate**2
        + 0.02 * log(v["BATCH_SIZE"], 2**13) ** 2
        + 0.03 * size**2
        + 0.01 * (v["DEPTH"] - 6) ** 2 / 4
        + 0.05 * abs(v["FINAL_LR_FRAC"] - 0.1)
        + 0.02 * log(1 - v["MOMENTUM"], 0.03) ** 2
    )


def cliffs(v: Mapping[str, float]) -> float:
    """Higher rates help until the run diverges; larger models help until memory is full."""
    if (
        v["MATRIX_LR"] > 0.1
        or v["EMBEDDING_LR"] > 2.0
        or v["DEPTH"] * v["MODEL_DIM"] * v["BATCH_SIZE"] > 4 * 192 * 2**16
    ):
        return CRASH
    return (
        3.0
        - 0.04 * log(v["MATRIX_LR"], 0.04)
        - 0.02 * log(v["EMBEDDING_LR"], 0.6)
        - 0.02 * log(v["DEPTH"] * v["MODEL_DIM"], 4 * 192)
        + 0.01 * log(v["BATCH_SIZE"], 2**13) ** 2
        + 0.02 * log(v["SOFTCAP"], 15) ** 2
        + 0.05 * v["DROPOUT"]
    )


def needle(v: Mapping[str, float]) -> float:
    """Of twenty constants four matter, two of them choices."""
    window = {"SSSL": 0.06, "SSL": 0.04, "SL": 0.02, "L": 0.0}.get(str(v["WINDOW_PATTERN"]), 0.06)
    return (
        1.5
        + window
        + (0.03 if v["USE_BIAS"] else 0.0)
        + 0.02 * log(v["ROPE_BASE"], 40_000) ** 2
        + 0.03 * log(1 - v["MOMENTUM"], 0.12) ** 2
    )


PROBLEMS: dict[str, Loss] = {"separable": separable, "coupled": coupled, "cliffs": cliffs, "needle": needle}


@dataclass
class Outcome:
    """What a simulated session came to."""

    best: float
    keeps: int
    crashes: int
    values: list[float] = field(default_factory=list)


def constants(code: str) -> dict[str, float]:
    """What the toy would train with."""
    found: dict[str, float] = {}
    exec(compile(code, "train.py", "exec"), {}, found)
    betas: tuple[float, float] = found["ADAM_BETAS"]  # type: ignore[assignment]
    return {**found, "ADAM_BETAS[0]": betas[0], "ADAM_BETAS[1]": betas[1]}


def research(
    make: Callable[[MemoryHistory, Codes], Policy],
    loss: Loss,
    *,
    seed: int,
    experiments: int = 40,
    sigma: float = 0.004,
) -> Outcome:
    """Simulate a session; ``best`` is the true loss of the last incumbent."""
    noise = np.random.default_rng([seed, 77])
    history, code, parent = MemoryHistory(), TOY, commit_of(TOY)
    value = loss(constants(code)) + sigma / math.sqrt(3) * float(noise.standard_normal())
    baseline = value  # no trial of its own: it changes nothing
    codes = {parent: {"train.py": code}}
    policy, outcome, cancel = make(history, codes.__getitem__), Outcome(math.nan, 0, 0), threading.Event()
    task, seen = make_task(direction=Direction.MINIMIZE), {code}
    for number in range(1, experiments + 1):
        state = make_state(
            code,
            number=number,
            seed=derive_seed(seed, number, "policy"),
            task=task,
            parent=parent,
            sigma=sigma,
            incumbent_value=value,
            baseline=baseline,
        )
        proposal = policy.propose(state, cancel)
        new = proposal.files["train.py"]
        commit = commit_of(new)
        if new in seen:
            history.add(Trial(number, parent, None, proposal.changes, Status.DISCARD, Label.DUPLICATE, None))
            continue
        seen.add(new)
        true = loss(constants(new))
        if math.isinf(true):
            outcome.crashes += 1
            history.add(Trial(number, parent, commit, proposal.changes, Status.CRASH, Label.OOM, None))
            continue
        measured = true + sigma * float(noise.standard_normal())
        if value - measured > 2 * math.sqrt(2) * sigma:
            outcome.keeps += 1
            history.add(Trial(number, parent, commit, proposal.changes, Status.KEEP, Label.NONE, measured))
            code, parent, value = new, commit, measured
            codes[commit] = {"train.py": new}
        else:
            history.add(Trial(number, parent, commit, proposal.changes, Status.DISCARD, Label.NO_GAIN, measured))
        outcome.values.append(loss(constants(code)))
    outcome.best = loss(constants(code))
    return outcome


def commit_of(code: str) -> str:
    """A stand-in for a commit's name."""
    return hashlib.sha1(code.encode()).hexdigest()


def apply(text: str, changes: Mapping[str, Value], *, path: str = "train.py", profile: str = "cpu") -> str:
    """A program with other constants."""
    return replace(text, find(text, path=path, profile=profile), changes)
