"""What a run will do: which answers each algorithm can learn from, and whether the policy must be warmed up first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from autoresearchd.domain.errors import UsageError
from autoresearchd.domain.quantities import counted
from autoresearchd.learner.algorithms.grpo import GrpoObjective, advantages_of
from autoresearchd.learner.algorithms.learnable import Learnable
from autoresearchd.learner.algorithms.ppo import PpoObjective
from autoresearchd.learner.algorithms.scoring import Objective, Scorer, SftObjective
from autoresearchd.learner.algorithms.sdpo import SdpoObjective, lessons
from autoresearchd.learner.algorithms.train_options import Algo, TrainOptions
from autoresearchd.learner.data.examples import Examples, imitable, replayable
from autoresearchd.learner.data.reward_signal import usable
from autoresearchd.learner.data.trajectories import Trajectory, all_equal

Begin = Callable[[], Objective]
"""Makes an algorithm ready, from the policy as it is then."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of a run with one algorithm.

    until: the step with which it ends. warm_up: it stands in for the algorithm that was asked for, or goes before it.
    """

    algo: Algo
    until: int
    begin: Begin
    warm_up: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """The phases of a run. cold_start: why it begins with a warm-up; empty: it does not. counts: of what it has."""

    phases: tuple[Phase, ...]
    cold_start: str
    counts: Mapping[str, int]


def plan(model: Learnable, trajectories: Sequence[Trajectory], options: TrainOptions) -> Plan:
    """Look at what there is to learn from, and decide. Raises UsageError: there is nothing, in words that say why."""
    answers = counted(len(trajectories), "answer")
    counts = Counter(trajectories=len(trajectories), usable=sum(map(usable, trajectories)))

    def imitation(kept: Examples, until: int, *, warm_up: bool) -> Phase:
        return Phase(
            Algo.SFT, until, lambda: SftObjective(Scorer(model, kept.kept, options.micro), options.batch), warm_up
        )

    imitated = options.algo is Algo.SFT
    examples = imitable(model, trajectories, options.sft) if imitated else replayable(model, trajectories)
    counts["examples"] = len(examples.kept)
    counts.update(examples.left_out)
    if not examples.kept and imitated:
        raise UsageError(
            f"none of {answers} was kept with a reward above {options.sft.above:g}: there is nothing to imitate",
            hint="run more experiments, or begin with a larger model",
        )
    if not examples.kept:
        why = ", ".join(f"{name} {count}" for name, count in sorted(examples.left_out.items()))
        raise UsageError(
            f"none of {answers} can be replayed: {why}",
            hint="let a local model propose, whose tokens and log-probabilities are stored",
        )
    if imitated:
        return Plan((imitation(examples, options.steps, warm_up=False),), "", dict(counts))
    begin, silent = _ALGORITHMS[options.algo](Scorer(model, examples.kept, options.micro), options, counts)
    reason, steps, kept = silent, options.steps, Examples((), {})
    share, cold = counts["usable"] / len(trajectories), options.cold_start
    if options.algo is not Algo.SDPO and not silent and share < cold.valid_share and options.steps > 1:
        steps = min(cold.steps, options.steps // 2)
        few = f"{share:.0%}, below {cold.valid_share:.0%}"
        reason = f"{counts['usable']} of {answers} could be used ({few})"
    if reason:
        kept = imitable(model, trajectories, options.sft) if cold.allowed else kept
        counts["kept"] = len(kept.kept)
    if silent and not kept.kept:
        tried = "no answer was kept that" if cold.allowed else "no warm-up is allowed in which"
        raise UsageError(
            f"there is nothing to learn: {silent}, and {tried} the policy could be warmed up on",
            hint="run more experiments, several from one state (--group), or begin with a larger model",
        )
    main = Phase(options.algo, options.steps, begin)
    if not kept.kept:
        return Plan((main,), "", dict(counts))
    warm_up = imitation(kept, steps, warm_up=True)
    return Plan((warm_up,) if silent else (warm_up, main), reason, dict(counts))


def _grpo(scorer: Scorer, options: TrainOptions, counts: Counter[str]) -> tuple[Begin, str]:
    """What begins the algorithm, and why the rewards tell it nothing; empty: they do."""
    found = advantages_of(scorer.examples, options.groups)
    for name in ("groups", "zero_variance", "singles", "approximated", "alone"):
        counts[name] = getattr(found, name)
    counts["with_signal"] = int(found.signal.sum())
    silent = "" if counts["with_signal"] else f"none of {counted(found.groups, 'group')} has rewards that differ"
    return lambda: GrpoObjective(scorer, found, options), silent


def _ppo(scorer: Scorer, options: TrainOptions, counts: Counter[str]) -> tuple[Begin, str]:
    rewards = [each.reward for each in scorer.examples]
    counts["sessions"] = len({each.trajectory.session for each in scorer.examples})
    silent = f"all {len(rewards)} rewards are {rewards[0]:g}" if all_equal(rewards) else ""
    return lambda: PpoObjective(scorer, options), silent


def _sdpo(scorer: Scorer, options: TrainOptions, counts: Counter[str]) -> tuple[Begin, str]:
    taught = lessons(scorer.model, scorer.examples, options.sdpo.feedback_chars)
    counts["untaught"] = sum(lesson is None for lesson in taught)
    if counts["untaught"] == len(taught):
        raise UsageError(
            f"none of {counted(len(taught), 'answer')} has feedback that the teacher could read",
            hint="learn from decided experiments, or by --algo grpo, which needs rewards only",
        )
    return lambda: SdpoObjective(scorer, taught, options), ""


_ALGORITHMS = {Algo.GRPO: _grpo, Algo.PPO: _ppo, Algo.SDPO: _sdpo}
