"""What a user sees of a dataset: the summary that ``--dry-run`` prints, and the trajectories as a Parquet file."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from autoresearchd.domain.errors import MissingCapability
from autoresearchd.domain.quantities import counted
from autoresearchd.learner.data.trajectories import Dataset, Reason, Split, Trajectory, all_equal, grouped

_COLUMNS = {
    "session": "text", "number": "whole", "attempt": "whole", "index": "whole", "group": "text", "state_id": "text",
    "at": "time", "policy_version": "text", "messages": "text", "prompt_ids": "wholes", "completion": "text",
    "token_ids": "wholes", "logprobs": "reals", "temperature": "real", "reward": "real", "censored": "flag",
    "label": "text", "error": "text", "feedback": "text",
}  # fmt: skip
"""What an export has of a trajectory, with its kinds."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures on a dataset.

    read, kept: answers; dropped: by reason. first, last: when the experiments began. groups: how many; singles: those
    with one member; zero_variance: those of several whose rewards are all equal. mean, deviation, least, most: of the
    rewards, None without any. censored: rewards that rest on a forecast. labels: outcomes, empty: kept for its value.
    versions: by adapter, empty: the model without one. tokens: of completions, where they are stored. train, held_out,
    split_by, leaked: as in ``Split``, None where it was not split.
    """

    read: int
    kept: int
    dropped: Mapping[Reason, int]
    sessions: int
    first: datetime | None
    last: datetime | None
    groups: int
    singles: int
    zero_variance: int
    mean: float | None
    deviation: float | None
    least: float | None
    most: float | None
    censored: int
    labels: Mapping[str, int]
    versions: Mapping[str, int]
    tokens: int
    with_feedback: int
    train: int | None = None
    held_out: int | None = None
    split_by: str | None = None
    leaked: int = 0


def summarise(data: Dataset, parts: Split | None = None) -> Summary:
    """Figures on a dataset, and on how it was split."""
    kept = data.trajectories
    rewards = [each.reward for each in kept]
    groups = [[each.reward for each in members] for members in grouped(kept).values()]
    times = [each.at for each in kept]
    return Summary(
        read=data.read,
        kept=len(kept),
        dropped=dict(data.dropped),
        sessions=len({each.session for each in kept}),
        first=min(times, default=None),
        last=max(times, default=None),
        groups=len(groups),
        singles=sum(len(group) == 1 for group in groups),
        zero_variance=sum(len(group) > 1 and all_equal(group) for group in groups),
        mean=statistics.fmean(rewards) if rewards else None,
        deviation=statistics.stdev(rewards) if len(rewards) > 1 else None,
        least=min(rewards, default=None),
        most=max(rewards, default=None),
        censored=sum(each.censored for each in kept),
        labels=dict(Counter(each.label.value for each in kept).most_common()),
        versions=dict(Counter(each.policy_version for each in kept).most_common()),
        tokens=sum(len(each.token_ids or ()) for each in kept),
        with_feedback=sum(bool(each.feedback) for each in kept),
        train=None if parts is None else len(parts.train),
        held_out=None if parts is None else len(parts.held_out),
        split_by=None if parts is None else parts.by,
        leaked=0 if parts is None else parts.leaked,
    )


def describe(found: Summary) -> str:
    """The summary in lines of text."""
    answers = counted(found.read, "answer")
    days = ""
    if found.first is not None and found.last is not None:
        days = f", {found.first:%Y-%m-%d %H:%M} to {found.last:%Y-%m-%d %H:%M} UTC"
    lines = [f"{found.kept:,} of {answers} can be learned from; sessions: {found.sessions}{days}"]
    if found.dropped:
        lines.append("left out:")
        ordered = sorted(found.dropped.items(), key=lambda item: (-item[1], item[0].value))
        lines += [f"  {count:>6,}  {reason.value}" for reason, count in ordered]
    if not found.kept:
        return "\n".join(lines)
    several = found.groups - found.singles
    lines.append(
        f"groups: {found.groups:,}; of one answer: {found.singles:,}; "
        f"of several: {several:,}, with equal rewards (no signal): {found.zero_variance:,}"
    )
    spread = "" if found.deviation is None else f", standard deviation {found.deviation:.3g}"
    lines.append(
        f"rewards: mean {found.mean:.3g}{spread}, from {found.least:.3g} to {found.most:.3g}; "
        f"resting on a forecast: {found.censored:,}"
    )
    lines.append("outcomes: " + ", ".join(f"{name or 'kept'} {count:,}" for name, count in found.labels.items()))
    lines.append("answered by: " + ", ".join(f"{name or 'base model'} {n:,}" for name, n in found.versions.items()))
    lines.append(f"stored tokens: {found.tokens:,}; answers with feedback: {found.with_feedback:,}")
    if found.train is not None and found.held_out is not None:
        how = "whole sessions" if found.split_by == "session" else "what was made last"
        lines.append(
            f"training: {found.train:,}; held out: {found.held_out:,} ({how}); "
            f"left out of both, since their prompt is held out: {found.leaked:,}"
        )
    return "\n".join(lines)


def rows(trajectories: Iterable[Trajectory]) -> list[dict[str, Any]]:
    """One flat row for each trajectory; messages as JSON text, all else as it is."""
    found = []
    for each in trajectories:
        row = {name: getattr(each, name) for name in _COLUMNS}
        row["messages"] = json.dumps([dict(m) for m in each.messages], ensure_ascii=False, default=str)
        row["label"] = each.label.value
        found.append({name: list(value) if isinstance(value, tuple) else value for name, value in row.items()})
    return found


def write_parquet(trajectories: Iterable[Trajectory], target: Path) -> None:
    """Write one row for each trajectory; ``target`` is there as a whole or not at all.

    Raises MissingCapability: pyarrow is not installed.
    """
    try:
        import pyarrow as pa  # type: ignore[import-not-found,import-untyped,unused-ignore]
        import pyarrow.parquet as pq  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        raise MissingCapability(
            "writing trajectories as Parquet needs pyarrow, which is not installed",
            hint="pip install pyarrow",
        ) from error
    named = {
        "text": pa.string(), "whole": pa.int64(), "real": pa.float64(), "flag": pa.bool_(),
        "wholes": pa.list_(pa.int64()), "reals": pa.list_(pa.float64()), "time": pa.timestamp("us", tz="UTC"),
    }  # fmt: skip
    schema = pa.schema([(name, named[kind]) for name, kind in _COLUMNS.items()])
    part = target.with_name(f"{target.name}.part")
    try:
        pq.write_table(pa.Table.from_pylist(rows(trajectories), schema=schema), part)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
