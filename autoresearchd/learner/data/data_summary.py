"""What a user sees of a dataset: its figures, what an algorithm can learn from it, and its rows as a Parquet file."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoresearchd.domain.quantities import counted
from autoresearchd.learner.data.trajectories import Dataset, Split, Trajectory, all_equal, grouped
from autoresearchd.report.parquet_file import write_rows

LEAST_USABLE = 0.2
"""Below this share of usable answers the policy is shown first how one is written."""

_COLUMNS = {
    "session": "text", "number": "whole", "attempt": "whole", "index": "whole", "group": "text", "state_id": "text",
    "at": "time", "policy_version": "text", "messages": "text", "completion": "text",
    "token_ids": "wholes", "logprobs": "reals", "temperature": "real", "reward": "real", "censored": "flag",
    "label": "text", "error": "text", "feedback": "text",
}  # fmt: skip
"""What an export has of a trajectory, with its kinds."""


# ---------------------------------------------------------------------- signal
@dataclass(frozen=True, slots=True)
class Signal:
    """What rewards and feedback tell apart, in numbers of answers.

    groups: of several answers; informative: those whose rewards differ. singles: groups of one; comparable: those in
    whose session there is another reward. differ: whether any two rewards do. taught: with feedback.
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
        usable=sum(each.usable for each in trajectories),
        good=sum(each.good for each in trajectories),
        groups=len(several),
        informative=sum(not all_equal(given) for given in several),
        singles=len(singles),
        comparable=sum(each.session in mixed for each in singles),
        differ=bool(trajectories) and not all_equal([each.reward for each in trajectories]),
        taught=sum(bool(each.feedback.strip()) for each in trajectories),
    )


def lacking(what: Signal, algo: str) -> str:
    """Why an algorithm learns nothing from the rewards or the feedback as they are; empty where it does."""
    if not what.answers:
        return "there is no answer to learn from"
    if algo == "grpo" and not what.informative and not what.comparable:
        return "in no group do rewards differ, and no single answer has another reward in its session"
    if algo == "ppo" and not what.differ:
        return "all rewards are equal"
    if algo == "sdpo" and not what.taught:
        return "no answer has feedback"
    return ""


def cold_start(what: Signal, algo: str, least: float = LEAST_USABLE) -> str:
    """Why GRPO or PPO would begin by imitating the kept answers; empty: they would not. least: usable share."""
    if algo == "sdpo":
        return ""
    few = what.answers and what.usable / what.answers < least
    used = f"only {what.usable:,} of {counted(what.answers, 'answer')} held an edit that could be used"
    return lacking(what, algo) or (used if few else "")


def outlook(what: Signal, algo: str, *, least: float = LEAST_USABLE, allowed: bool = True) -> list[str]:
    """What an algorithm would do with it, in sentences. least: as in ``cold_start``; allowed: whether that may be."""
    answers = counted(what.answers, "answer")
    lines = [
        {
            "grpo": f"GRPO compares within {what.informative:,} of {counted(what.groups, 'group')} of several "
            f"answers, and {what.comparable:,} of {counted(what.singles, 'single answer')} with their neighbours, "
            "which is an approximation",
            "ppo": f"PPO learns from the order of {answers} in their sessions",
            "sdpo": f"SDPO is taught by the feedback on {what.taught:,} of {answers}",
        }[algo]
    ]
    cold, missing = cold_start(what, algo, least) if allowed else "", lacking(what, algo)
    if cold and what.good:
        how = "for all of its steps" if missing else "for its first steps"
        lines.append(f"cold start: {how} it imitates the {counted(what.good, 'kept answer')}, because {cold}")
    elif missing:
        imitated = ", and no answer was kept that could be imitated" if cold else ""
        lines.append(f"nothing can be learned: {missing}{imitated}")
    elif cold:
        lines.append(f"no cold start, though {cold}: no answer was kept that could be imitated")
    elif not allowed:
        lines.append("no cold start")
    return lines


# ---------------------------------------------------------------------- figures
def figures(data: Dataset) -> dict[str, Any]:
    """Figures on a dataset, by the names that ``--json`` has."""
    kept, what = data.trajectories, signal(data.trajectories)
    rewards, times = [each.reward for each in kept], [each.at for each in kept]
    return {
        "read": data.read,
        "kept": len(kept),
        "sessions": len({each.session for each in kept}),
        "first": min(times, default=None),
        "last": max(times, default=None),
        "groups": what.groups + what.singles,
        "singles": what.singles,
        "zero_variance": what.groups - what.informative,
        "mean": statistics.fmean(rewards) if rewards else None,
        "deviation": statistics.stdev(rewards) if len(rewards) > 1 else None,
        "least": min(rewards, default=None),
        "most": max(rewards, default=None),
        "censored": sum(each.censored for each in kept),
        "labels": dict(Counter(each.label.value for each in kept).most_common()),
        "versions": dict(Counter(each.policy_version for each in kept).most_common()),
        "tokens": sum(len(each.token_ids or ()) for each in kept),
        "with_feedback": what.taught,
    }


def describe(data: Dataset, parts: Split | None = None) -> str:
    """The figures in lines of text. parts: the dataset split, where it could be."""
    of = figures(data)
    days = f", {of['first']:%Y-%m-%d %H:%M} to {of['last']:%Y-%m-%d %H:%M} UTC" if of["kept"] else ""
    answers = counted(of["read"], "answer")
    lines = [f"{of['kept']:,} of {answers} can be learned from; sessions: {of['sessions']}{days}"]
    if data.dropped:
        lines.append("left out:")
        ordered = sorted(data.dropped.items(), key=lambda item: (-item[1], item[0].value))
        lines += [f"  {count:>6,}  {reason.value}" for reason, count in ordered]
    if not of["kept"]:
        return "\n".join(lines)
    spread = "" if of["deviation"] is None else f", standard deviation {of['deviation']:.3g}"
    lines += [
        f"groups: {of['groups']:,}; of one answer: {of['singles']:,}; "
        f"of several: {of['groups'] - of['singles']:,}, with equal rewards (no signal): {of['zero_variance']:,}",
        f"rewards: mean {of['mean']:.3g}{spread}, from {of['least']:.3g} to {of['most']:.3g}; "
        f"resting on a forecast: {of['censored']:,}",
        "outcomes: " + ", ".join(f"{name or 'kept'} {count:,}" for name, count in of["labels"].items()),
        "answered by: " + ", ".join(f"{name or 'base model'} {n:,}" for name, n in of["versions"].items()),
        f"stored tokens: {of['tokens']:,}; answers with feedback: {of['with_feedback']:,}",
    ]
    if parts is not None:
        how = "whole sessions" if parts.by == "session" else "what was made last"
        lines.append(
            f"training: {len(parts.train):,}; held out: {len(parts.held_out):,} ({how}); "
            f"left out of both, since their prompt is held out: {parts.leaked:,}"
        )
    return "\n".join(lines)


# ---------------------------------------------------------------------- export
def rows(trajectories: Iterable[Trajectory]) -> list[dict[str, Any]]:
    """One flat row for each trajectory; messages as JSON text, all else as it is."""
    made = []
    for each in trajectories:
        row = {name: getattr(each, name) for name in _COLUMNS}
        row["messages"] = json.dumps([dict(m) for m in each.messages], ensure_ascii=False, default=str)
        row["label"] = each.label.value
        made.append({name: list(value) if isinstance(value, tuple) else value for name, value in row.items()})
    return made


def write_parquet(trajectories: Iterable[Trajectory], target: Path) -> None:
    """Write one row for each trajectory; see ``write_rows``."""
    write_rows(_COLUMNS, rows(trajectories), target)
