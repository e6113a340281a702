"""The training loop: what a run will do, batches, gradients, limits, checkpoints; the algorithms do the learning."""

from __future__ import annotations

import contextlib
import hashlib
import io
import math
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from autoresearchd.domain.errors import EnvironmentFailure, UsageError
from autoresearchd.domain.ports import Cancel
from autoresearchd.domain.quantities import counted
from autoresearchd.domain.randomness import derive_seed
from autoresearchd.learner.algorithms.grpo import GrpoObjective, advantages_of
from autoresearchd.learner.algorithms.learnable import Learnable
from autoresearchd.learner.algorithms.ppo import PpoObjective
from autoresearchd.learner.algorithms.scoring import NotFinite, Objective, SftObjective, batches, parts
from autoresearchd.learner.algorithms.sdpo import SdpoObjective, lessons
from autoresearchd.learner.algorithms.train_options import Algo, Collapse, TrainOptions
from autoresearchd.learner.data.examples import Example, imitable, replayable, shuffled
from autoresearchd.learner.data.trajectories import Trajectory, all_equal
from autoresearchd.learner.training.load_model import explain_out_of_memory
from autoresearchd.store.backups import sync

FORMAT = 2
"""Of the file: part of each run's fingerprint."""

_DIGEST = hashlib.sha256().digest_size

PATIENCE = 5
"""So many steps in a row without a usable gradient end a run: a model that has broken does not fix itself."""

CANCELLED = "it was asked to stop"


@dataclass(frozen=True, slots=True)
class StepFigures:
    """What a step did. step: from 1; steps: of the whole run. algo: that was at work, ``sft`` in a warm-up.

    values: those that are finite, by name: ``skipped``: 1 where the gradient was not finite and nothing was changed;
    ``cold_start``: 1 in a warm-up; ``grad_norm``: before clipping; ``advantage``: mean absolute; ``tokens``: of
    completions; ``seconds``: since the step before; ``epoch``: of the batch, from 0; ``entropy``, ``kl_base``: for each
    token; ``approx_kl``: from the policy that acted, ``kl_update``: from the one that the update began with.
    """

    step: int
    steps: int
    algo: Algo
    values: Mapping[str, float]

    def flat(self) -> dict[str, float]:
        """All numbers by name, the step's own among them."""
        return {"step": float(self.step), **self.values}


@dataclass(frozen=True, slots=True)
class Trained:
    """How a run ended, after how many steps, with the figures of each (``StepFigures``).

    stopped: why it ended before its time; cold_start: why the policy was warmed up first; empty: it did not, was not.
    """

    steps: int
    history: tuple[dict[str, float], ...]
    stopped: str
    cold_start: str
    counts: Mapping[str, int]


def train(
    model: Learnable,
    trajectories: Sequence[Trajectory],
    options: TrainOptions,
    *,
    on_step: Callable[[StepFigures], None],
    checkpoint: Path | None = None,
    cancel: Cancel | None = None,
) -> Trained:
    """Train a model's adapter on stored trajectories.

    The order of the examples and the randomness of the model are functions of the seed and the step alone, so that a
    run which goes on from its checkpoint takes the very steps that it would have taken; on a CPU bit for bit.

    on_step: told of each step, once. cancel: looked at between the parts of a batch. Raises UsageError: there is
    nothing to learn from, or the checkpoint is of another run; EnvironmentFailure: it cannot be written.
    """
    given = shuffled(trajectories, options.seed) if options.shuffle_rewards else list(trajectories)
    name = "" if checkpoint is None else fingerprint(options, trajectories, model.hashes)
    return _Loop(model, plan(model, given, options), options, on_step, checkpoint, name, cancel).run()


# ---------------------------------------------------------------------- the plan
class Phase(NamedTuple):
    """A stretch of a run with one algorithm, up to a step; begin makes it ready, from the policy as it is then."""

    algo: Algo
    until: int
    begin: Callable[[], Objective]


class Plan(NamedTuple):
    """The phases of a run. cold_start: why it begins with a warm-up; empty: it does not. counts: of what it has."""

    phases: tuple[Phase, ...]
    cold_start: str
    counts: Counter[str]


def plan(model: Learnable, trajectories: Sequence[Trajectory], options: TrainOptions) -> Plan:
    """Look at what there is to learn from, and decide. Raises UsageError: there is nothing, in words that say why."""
    answers = counted(len(trajectories), "answer")
    counts = Counter(trajectories=len(trajectories), usable=sum(each.usable for each in trajectories))
    examples, left_out = replayable(model, trajectories)
    counts["examples"] = len(examples)
    counts.update(left_out)
    if not examples:
        why = ", ".join(f"{name} {count}" for name, count in sorted(left_out.items()))
        raise UsageError(
            f"none of {answers} can be replayed: {why}",
            hint="let a local model propose, whose tokens and log-probabilities are stored",
        )
    begin, silent = _begin(model, examples, options, counts)
    reason, steps, kept = silent, options.steps, list[Example]()
    share, cold = counts["usable"] / len(trajectories), options.cold_start
    if options.algo is not Algo.SDPO and not silent and share < cold.valid_share and options.steps > 1:
        steps = min(cold.steps, options.steps // 2)
        reason = f"{counts['usable']} of {answers} could be used ({share:.0%}, below {cold.valid_share:.0%})"
    if reason:
        kept = imitable(model, trajectories)[0] if cold.allowed else kept
        counts["kept"] = len(kept)
    if silent and not kept:
        tried = "no answer was kept that" if cold.allowed else "no warm-up is allowed in which"
        raise UsageError(
            f"there is nothing to learn: {silent}, and {tried} the policy could be warmed up on",
            hint="run more experiments, several from one state (--group), or begin with a larger model",
        )
    main = Phase(options.algo, options.steps, begin)
    if not kept:
        return Plan((main,), "", counts)
    warm_up = Phase(Algo.SFT, steps, lambda: SftObjective(model, kept, options))
    return Plan((warm_up,) if silent else (warm_up, main), reason, counts)


def _begin(
    model: Learnable, examples: Sequence[Example], options: TrainOptions, counts: Counter[str]
) -> tuple[Callable[[], Objective], str]:
    """What begins the algorithm, and why the rewards tell it nothing; empty: they do."""
    if options.algo is Algo.GRPO:
        found = advantages_of(examples, options.grpo)
        counts.update(found.counts)
        counts["with_signal"] = int(found.signal.sum())
        silent = f"none of {counted(counts['groups'], 'group')} has rewards that differ"
        return lambda: GrpoObjective(model, examples, options, found), "" if counts["with_signal"] else silent
    if options.algo is Algo.PPO:
        rewards = [each.reward for each in examples]
        counts["sessions"] = len({each.trajectory.session for each in examples})
        silent = f"all {len(rewards)} rewards are {rewards[0]:g}" if all_equal(rewards) else ""
        return lambda: PpoObjective(model, examples, options), silent
    assert options.algo is Algo.SDPO, "what imitates is a warm-up only"
    taught = lessons(model, examples, options.sdpo.feedback_chars)
    counts["untaught"] = taught.count(None)
    if counts["untaught"] == len(taught):
        raise UsageError(
            f"none of {counted(len(taught), 'answer')} has feedback that the teacher could read",
            hint="learn from decided experiments, or by --algo grpo, which needs rewards only",
        )
    return lambda: SdpoObjective(model, examples, options, taught), ""


# ---------------------------------------------------------------------- collapse
def collapsed(history: Sequence[Mapping[str, float]], limits: Collapse) -> str:
    """Why the policy counts as collapsed, by the last steps on which each figure was measured; empty: it does not."""
    entropies = _last(history, "entropy", limits.patience)
    if limits.entropy is not None and entropies and max(entropies) < limits.entropy:
        return f"the policy collapsed: its entropy fell to {entropies[0]:.3g} nats (limit {limits.entropy:g})"
    divergences, limit = _last(history, "kl_base", limits.patience), _most_kl(history, limits)
    if divergences and min(divergences) > limit:
        return (
            f"the policy collapsed: its divergence from the base rose to {divergences[0]:.3g} nats for each token "
            f"(limit {limit:.3g})"
        )
    return ""


def _most_kl(history: Sequence[Mapping[str, float]], limits: Collapse) -> float:
    """Above this the policy has strayed from where its run began: a version in use may be far from the base."""
    began = limits.began
    if began is None:
        began = next((each["kl_base"] for each in history if "kl_base" in each), 0.0)
    return math.inf if limits.kl is None else limits.kl + began


def _last(history: Sequence[Mapping[str, float]], name: str, count: int) -> list[float]:
    """The last values of a figure, the newest first; none where there are fewer."""
    values = list(islice((each[name] for each in reversed(history) if name in each), count))
    return values if len(values) == count else []


# ---------------------------------------------------------------------- the loop
@dataclass(slots=True)
class _Progress:
    """Where a run stands, between two updates: which of its algorithms is at work, batches and steps that are done."""

    phase: int = 0
    updates: int = 0
    steps: int = 0
    history: list[dict[str, float]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


class _Loop:
    def __init__(
        self,
        model: Learnable,
        made: Plan,
        options: TrainOptions,
        on_step: Callable[[StepFigures], None],
        place: Path | None,
        name: str,
        cancel: Cancel | None,
    ) -> None:
        self._model, self._plan, self._options, self._on_step = model, made, options, on_step
        self._place, self._name, self._cancel = place, name, cancel
        self._parameters = model.trainable()
        self._optimiser = self._new_optimiser()
        self._progress = _Progress(counts=Counter(made.counts))
        self._saved = 0
        self._clock = time.monotonic()

    def run(self) -> Trained:
        resumed, stopped = self._resume(), ""
        progress = self._progress
        devices = [self._model.device] if self._model.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):  # the caller's random numbers are none of ours
            for number, phase in enumerate(self._plan.phases):
                if number < progress.phase:
                    continue
                if number > progress.phase:
                    progress.phase, progress.updates, resumed = number, 0, None
                    self._optimiser = self._new_optimiser()
                objective = phase.begin()
                if resumed is not None:
                    objective.load(resumed)
                stopped = self._phase(phase, objective)
                if stopped:
                    break
        return Trained(progress.steps, tuple(progress.history), stopped, self._plan.cold_start, dict(progress.counts))

    def _phase(self, phase: Phase, objective: Objective) -> str:
        """All updates of a phase; why the run ends in it, or nothing."""
        progress = self._progress
        seed = derive_seed(self._options.seed, progress.phase, "batches")
        for batch in islice(batches(objective.units, self._options.batch, seed), progress.updates, None):
            over, cancelled = progress.steps >= phase.until, self._cancelled()
            if over or cancelled or progress.steps - self._saved >= self._options.save_every:
                self._save(objective)
            if over or cancelled:
                return "" if over else CANCELLED
            stopped = self._update(phase, objective, batch)
            if stopped:
                return stopped
            progress.updates += 1
        return ""

    def _update(self, phase: Phase, objective: Objective, batch: Sequence[int]) -> str:
        """All steps on one batch; why the run ends with them, or nothing."""
        try:
            about = objective.begin(batch)
        except NotFinite:
            return self._note(phase, {"skipped": 1.0})
        divided = parts(objective.examples, batch, self._options.micro, self._model.sharing)
        for epoch in range(self._options.epochs_of(phase.algo)):
            if self._progress.steps >= phase.until:
                break
            figures = self._gradient(objective, divided)
            if figures is None:
                if not epoch:  # nothing of this batch has been applied
                    self._save(objective)
                return CANCELLED
            if epoch and objective.drifted(figures):
                self._progress.counts["epochs_cut_short"] += 1
                break
            figures = self._apply(figures)
            now = time.monotonic()
            described = _described(objective, batch, now - self._clock) | {"epoch": float(epoch)}
            self._clock = now
            stopped = self._note(phase, figures | dict(about) | described)
            if stopped:
                return stopped
        objective.end()
        return ""

    def _gradient(self, objective: Objective, divided: Sequence[Sequence[int]]) -> dict[str, float] | None:
        """Figures on a batch, whose gradient is left in the parameters; None where somebody asked to stop."""
        torch.manual_seed(derive_seed(self._options.seed, self._progress.steps, "dropout"))
        self._optimiser.zero_grad(set_to_none=True)
        divergence = self._progress.steps % self._options.kl_every == 0 or self._strayed()
        total = 0.0
        sums, weights = defaultdict[str, float](float), defaultdict[str, float](float)
        for part in divided:
            if self._cancelled():
                return None
            try:
                loss, figures = objective.loss(part, divergence=divergence)
            except NotFinite:
                return {"skipped": 1.0}
            with explain_out_of_memory("a step of the training"):
                torch.autograd.backward(loss)
            total += float(loss.detach())
            for name, (value, weight) in figures.items():
                sums[name] += value * weight
                weights[name] += weight
        means = {name: value / weights[name] for name, value in sums.items() if weights[name]}
        return {"loss": total, **means} if math.isfinite(total) else {"skipped": 1.0}

    def _strayed(self) -> bool:
        """Whether the divergence from the base was above its limit: it is then measured on each step."""
        history = self._progress.history
        last = _last(history, "kl_base", 1)
        return bool(last) and last[0] > _most_kl(history, self._options.collapse)

    def _apply(self, figures: dict[str, float]) -> dict[str, float]:
        """A step of the optimiser; nothing is changed where the gradient is not finite, or the learning rate is 0."""
        rate, norm = self._options.rate(self._progress.steps), math.nan
        if "skipped" not in figures:
            norm = float(torch.nn.utils.clip_grad_norm_(self._parameters, self._options.clip))
        if not math.isfinite(norm):
            return {"skipped": 1.0, "learning_rate": rate}
        if rate > 0:
            for group in self._optimiser.param_groups:
                group["lr"] = rate
            self._optimiser.step()
        return {**figures, "grad_norm": norm, "learning_rate": rate}

    def _note(self, phase: Phase, values: dict[str, float]) -> str:
        """Write a step down; why the run ends with it, or nothing."""
        progress = self._progress
        progress.steps += 1
        values = {name: value for name, value in values.items() if math.isfinite(value)}
        if phase.algo is Algo.SFT:
            values["cold_start"] = 1.0
        step = StepFigures(progress.steps, self._options.steps, phase.algo, values)
        progress.history.append(step.flat())
        progress.counts["steps_skipped"] += int("skipped" in values)
        self._on_step(step)
        last = progress.history[-PATIENCE:]
        if len(last) == PATIENCE and all("skipped" in each for each in last):
            return f"the gradients of {PATIENCE} steps in a row were not finite"
        return collapsed(progress.history, self._options.collapse)

    def _cancelled(self) -> bool:
        return self._cancel is not None and self._cancel.is_set()

    def _new_optimiser(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(
            self._parameters, lr=self._options.learning_rate, weight_decay=self._options.weight_decay
        )

    def _save(self, objective: Objective) -> None:
        """Between two updates: what holds only within one is never saved."""
        progress = self._progress
        self._saved = progress.steps
        if self._place is None:
            return
        state = {
            "phase": progress.phase,
            "updates": progress.updates,
            "steps": progress.steps,
            "adapter": self._model.adapter_state(),
            "optimiser": self._optimiser.state_dict(),
            "objective": objective.state(),
            "history": progress.history,
            "counts": dict(progress.counts),
        }
        write_checkpoint(self._name, state, self._place)

    def _resume(self) -> Mapping[str, Tensor] | None:
        """Go on from the checkpoint where there is one; what its algorithm must know."""
        state = None if self._place is None else read_checkpoint(self._place, self._name)
        if state is None:
            return None
        self._model.load_adapter_state(state["adapter"])
        self._optimiser.load_state_dict(state["optimiser"])
        self._saved = state["steps"]
        counts = Counter(state["counts"])
        self._progress = _Progress(state["phase"], state["updates"], self._saved, state["history"], counts)
        objective: Mapping[str, Tensor] = state["objective"]
        return objective


def _described(objective: Objective, batch: Sequence[int], seconds: float) -> dict[str, float]:
    """What a step learned from, and how fast."""
    chosen = [objective.examples[place] for place in batch]
    tokens = sum(each.tokens for each in chosen)
    return {
        "reward": math.fsum(each.reward for each in chosen) / len(chosen),
        "examples": float(len(chosen)),
        "tokens": float(tokens),
        "seconds": seconds,
        "tokens_per_s": tokens / seconds if seconds > 0 else 0.0,
    }


# ---------------------------------------------------------------------- checkpoints
def fingerprint(options: TrainOptions, trajectories: Iterable[Trajectory], hashes: Sequence[str]) -> str:
    """What tells one run from another: its options, its data and its base model.

    How often it is saved changes nothing, and more steps are the same run gone on with.
    """
    digest = hashlib.sha256(repr((FORMAT, replace(options, steps=1, save_every=1), tuple(hashes))).encode())
    for each in trajectories:
        shown = (each.key, each.group, each.prompt_hash, each.completion, each.token_ids, each.logprobs)
        digest.update(repr((shown, each.reward, each.label.value, each.error, each.feedback)).encode())
    return digest.hexdigest()


def write_checkpoint(run: str, state: Mapping[str, Any], target: Path) -> None:
    """Put a checkpoint in the place of the one before; whatever happens meanwhile, one of the two is there as a whole.

    run: its fingerprint. state: tensors, and plain values in dicts and lists. Raises EnvironmentFailure.
    """
    buffer = io.BytesIO()
    torch.save({"run": run, **state}, buffer)
    part = target.with_name(f"{target.name}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as stream:
            stream.write(hashlib.sha256(buffer.getbuffer()).digest())
            stream.write(buffer.getbuffer())
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(target)
        sync(target.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        again = "the run goes on from the checkpoint before" if target.is_file() else "the run then begins anew"
        raise EnvironmentFailure(
            f"the checkpoint {target} cannot be written: {error}",
            hint=f"free some disk space, or make the folder writable, and lift limits on the size of files; {again}",
        ) from error


def read_checkpoint(source: Path, run: str) -> dict[str, Any] | None:
    """The state of a run; None where there is none. Raises UsageError: it is damaged, or another run wrote it."""
    try:
        data = source.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"the checkpoint {source} cannot be read: {error}", hint="make it readable") from error
    if len(data) < _DIGEST or hashlib.sha256(data[_DIGEST:]).digest() != data[:_DIGEST]:
        raise UsageError(f"the checkpoint {source} is damaged", hint="delete it; the run then begins anew")
    # Nothing but tensors and plain values is unpickled.
    state: dict[str, Any] = torch.load(io.BytesIO(data[_DIGEST:]), map_location="cpu", weights_only=True)
    if state.get("run") != run:
        raise UsageError(
            f"the checkpoint {source} belongs to a run with other options, other data or another model",
            hint="delete it, or take the options of that run",
        )
    return state
