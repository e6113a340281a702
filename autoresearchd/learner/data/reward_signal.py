"""Whether there is anything in some trajectories that an algorithm can learn from; counted without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autoresearchd.domain.labels import RULES, Label, Status
from autoresearchd.domain.quantities import counted
from autoresearchd.learner.data.trajectories import Trajectory, all_equal, grouped

LEAST_USABLE = 0.2
"""Below this share of usable answers the policy is shown first how one is written."""


@dataclass(frozen=True, slots=True)
class Signal:
    """What rewards and feedback tell apart.

    answers: how many; usable: those with an edit that could be applied; good: those that were kept and earned more than
    0. groups: of several answers; informative: those of them whose rewards differ. singles: groups of one answer;
    comparable: those of them in whose session there is another reward, so that neighbours give them a baseline.
    differ: whether any two rewards do. taught: answers with feedback.
    """

    answers: int
    usable: int
    good: int
    groups: int
    informative: int
    singles: int
    comparable: int
    differ: bool
    taught: int


def signal(trajectories: Sequence[Trajectory]) -> Signal:
    """Count what an algorithm could learn from."""
    groups = list(grouped(trajectories).values())
    several = [[each.reward for each in members] for members in groups if len(members) > 1]
    singles = [members[0] for members in groups if len(members) == 1]
    rewards: dict[str, list[float]] = {}
    for each in trajectories:
        rewards.setdefault(each.session, []).append(each.reward)
    mixed = {session for session, given in rewards.items() if not all_equal(given)}
    return Signal(
        answers=len(trajectories),
        usable=sum(map(usable, trajectories)),
        good=sum(map(good, trajectories)),
        groups=len(several),
        informative=sum(not all_equal(given) for given in several),
        singles=len(singles),
        comparable=sum(each.session in mixed for each in singles),
        differ=bool(trajectories) and not all_equal([each.reward for each in trajectories]),
        taught=sum(bool(each.feedback.strip()) for each in trajectories),
    )


def usable(each: Trajectory) -> bool:
    """Whether an answer held an edit that could be applied."""
    return not each.error and each.label not in (Label.ILLEGAL_EDIT, Label.MALFORMED_ANSWER)


def good(each: Trajectory, above: float = 0.0, *, kept: bool = True) -> bool:
    """Whether an answer is worth imitating: it was kept (unless ``kept`` is False), and earned more than ``above``."""
    return not each.error and each.reward > above and (not kept or RULES[each.label].status is Status.KEEP)


def lacking(found: Signal, algo: str) -> str:
    """Why an algorithm learns nothing from the rewards or the feedback as they are; empty where it does."""
    if not found.answers:
        return "there is no answer to learn from"
    if algo == "grpo" and not found.informative and not found.comparable:
        return "in no group do rewards differ, and no single answer has another reward in its session"
    if algo == "ppo" and not found.differ:
        return "all rewards are equal"
    if algo == "sdpo" and not found.taught:
        return "no answer has feedback"
    return ""


def cold_start(found: Signal, algo: str, least: float = LEAST_USABLE) -> str:
    """Why GRPO or PPO would begin by imitating the kept answers; empty where they would not.

    SDPO, which learns from feedback, never starts cold. least: share of usable answers from which on none is shown
    first how to write one.
    """
    if algo == "sdpo":
        return ""
    few = found.answers and found.usable / found.answers < least
    used = f"only {found.usable:,} of {counted(found.answers, 'answer')} held an edit that could be used"
    return lacking(found, algo) or (used if few else "")


def outlook(found: Signal, algo: str, cold: str | None = None) -> list[str]:
    """What an algorithm would do with it, in sentences. cold: see ``cold_start``, None: as that says."""
    answers = counted(found.answers, "answer")
    lines = [
        {
            "grpo": f"GRPO compares within {found.informative:,} of {counted(found.groups, 'group')} of several "
            f"answers, and {found.comparable:,} of {counted(found.singles, 'single answer')} with their neighbours, "
            "which is an approximation",
            "ppo": f"PPO learns from the order of {answers} in their sessions",
            "sdpo": f"SDPO is taught by the feedback on {found.taught:,} of {answers}",
        }[algo]
    ]
    cold, missing = cold_start(found, algo) if cold is None else cold, lacking(found, algo)
    if cold and found.good:
        how = "for all of its steps" if missing else "for its first steps"
        lines.append(f"cold start: {how} it imitates the {counted(found.good, 'kept answer')}, because {cold}")
    elif missing:
        imitated = ", and no answer was kept that could be imitated" if cold else ""
        lines.append(f"nothing can be learned: {missing}{imitated}")
    elif cold:
        lines.append(f"no cold start, though {cold}: no answer was kept that could be imitated")
    return lines
