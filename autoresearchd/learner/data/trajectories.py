"""What is learned from: answers of a model with their outcomes, filtered, grouped and split without leaks."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from autoresearchd.domain.errors import UsageError
from autoresearchd.domain.experiment import Experiment
from autoresearchd.domain.labels import RULES, Label, Status
from autoresearchd.domain.policy_versions import BaseModel
from autoresearchd.domain.proposal import Answer, Generation


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One step of the research MDP: what the policy was shown, what it answered, what it was worth.

    number, attempt, index: experiment, proposal within it, answer among those of the experiment. group: what answered
    the same prompt; unique within the session. policy_version: the adapter, empty: the model without one. temperature:
    at which tokens were drawn and log-probabilities taken. censored: the reward rests on a forecast. error: why the
    answer could not be used. segment: of the session; nothing that came before its beginning led to it.
    """

    session: str
    number: int
    attempt: int
    group: str
    state_id: str
    at: datetime
    policy_version: str
    messages: tuple[Mapping[str, Any], ...]
    completion: str
    token_ids: tuple[int, ...] | None
    logprobs: tuple[float, ...] | None
    reward: float
    censored: bool
    label: Label
    feedback: str
    index: int = 0
    temperature: float = 1.0
    error: str = ""
    segment: int = 0

    @property
    def key(self) -> tuple[str, int, int]:
        """What names it among all."""
        return self.session, self.number, self.index

    @property
    def usable(self) -> bool:
        """Whether it held an edit that could be applied."""
        return not self.error and self.label not in (Label.ILLEGAL_EDIT, Label.MALFORMED_ANSWER)

    @property
    def good(self) -> bool:
        """Whether it is worth imitating: it was kept, and earned something."""
        return not self.error and self.reward > 0 and RULES[self.label] is Status.KEEP

    @property
    def prompt_hash(self) -> str:
        """Of the messages: what was shown is the state, whatever it is called.

        The experiment's own number, which prompts mention, is left out: it alone makes no other state.
        """
        text = json.dumps([dict(m) for m in self.messages], sort_keys=True, ensure_ascii=True, default=str)
        if f"experiment {self.number}" in text.lower():  # else the pattern would take its time over a long prompt
            text = re.sub(rf"\bexperiment {self.number}\b", "experiment", text, flags=re.IGNORECASE)
        return hashlib.sha256(text.encode()).hexdigest()


class Reason(StrEnum):
    """Why an answer is not learned from, in the words that a user reads."""

    UNDECIDED = "its experiment has not been decided"
    INTERRUPTED = "its run was interrupted, or lost with its host"
    TAMPERED = "it tampered with what is measured, and has a reward for it"
    NO_TEXT = "there is no text, or no prompt"
    NO_REWARD = "its outcome says nothing about it (no reward)"
    BAD_REWARD = "its reward is none that the formula gives"
    DUPLICATE = "it was read twice"
    NO_TOKENS = "its tokens or their log-probabilities were not stored"
    BAD_TOKENS = "its tokens and log-probabilities do not fit each other"
    UNKNOWN_LOGPROBS = "its log-probabilities are not those of the distribution that it was drawn from"
    UNKNOWN_MODEL = "nobody knows which base model it comes from: the server told no hash"
    OTHER_MODEL = "it comes from another base model"
    OTHER_TOKENIZER = "it comes from another tokenizer, or one that is not known"
    OTHER_TEMPLATE = "it comes from another chat template, or one that is not known"
    OTHER_FORMULA = "its reward was given by another version of the formula, or one that is not known"
    PASSED = "it passed: what the search then did is no merit of it"
    AGENT_TURN = "it is one turn of an agent, whose outcome belongs to the whole conversation"
    CORRUPT = "it cannot be read from the database any more"


@dataclass(frozen=True, slots=True)
class Record:
    """An answer as it is learned from, and as it is stored. refusal: why it is not, whatever would learn from it."""

    trajectory: Trajectory
    answer: Answer
    refusal: Reason | None


@dataclass(frozen=True, slots=True)
class Dataset:
    """Trajectories in the order in which they were made, and how many answers were left out for which reason."""

    trajectories: tuple[Trajectory, ...]
    dropped: Mapping[Reason, int] = field(default_factory=dict)

    @property
    def read(self) -> int:
        """How many answers were read in all."""
        return len(self.trajectories) + sum(self.dropped.values())


@dataclass(frozen=True, slots=True)
class Split:
    """Training and held-out trajectories. by: ``session`` or ``time`` (what was made last).

    leaked: how many were taken out of the training part because a held-out one has the same prompt.
    """

    train: tuple[Trajectory, ...]
    held_out: tuple[Trajectory, ...]
    by: str
    leaked: int = 0


MOST_REWARD = 100.0
"""Far beyond what any formula gives: sums and squares of what a changed database says would have no end."""

SAME = 1e-9
"""Share of the largest reward by which equal rewards may differ."""

_INTERRUPTED = frozenset(label for label, status in RULES.items() if status is None)
_TAMPERED = frozenset({Label.METRIC_TAMPERING, Label.NOT_CAUSAL})


def all_equal(rewards: Sequence[float]) -> bool:
    """Whether rewards differ by no more than sums of floats do: a group of such gives no signal."""
    return max(rewards) - min(rewards) <= SAME * max(map(abs, rewards))


def record(
    session: str,
    e: Experiment,
    answer: Answer,
    label: Label | None,
    reward: float | None,
    feedback: str,
    index: int,
    round_id: str,
    state_id: str,
    *,
    unusable: Reason | None = None,
) -> Record:
    """The record of an answer. label, reward: None where it has none.

    feedback: the outcome in the policy's words. unusable: a reason that the rest does not tell.
    """
    g = answer.generation
    round_id, state_id = round_id or f"{session}/{e.number}", state_id or f"{session}/{e.number}"
    if answer.attempt or index:
        # A repair, or an answer after another one, was asked something that no other member of the round was asked.
        own = f"#{e.number}.{answer.attempt}.{index}"
        round_id, state_id = round_id + own, state_id + own
    trajectory = Trajectory(
        session=session,
        number=e.number,
        attempt=answer.attempt,
        group=round_id,
        state_id=state_id,
        at=e.started_at,
        policy_version=g.adapter or "",
        messages=g.messages,
        completion=g.completion,
        token_ids=g.token_ids,
        logprobs=g.logprobs,
        reward=math.nan if reward is None else float(reward),
        censored=label is Label.ABORTED_EARLY,
        label=label or Label.NONE,
        feedback=feedback,
        index=index,
        temperature=_temperature(g.sampling),
        error=answer.error,
        segment=e.segment,
    )
    return Record(trajectory, answer, unusable or _outcome_refusal(g, label, reward))


def dataset(
    records: Iterable[Record],
    base: BaseModel | None = None,
    *,
    tokens: bool = True,
    before: Mapping[Reason, int] | None = None,
) -> Dataset:
    """The trajectories that can be learned from; the others are counted by the first reason that holds.

    tokens: stored ids and log-probabilities are needed, of ``base``. before: answers that did not become records.
    """
    seen: set[tuple[str, int, int]] = set()
    kept: list[Trajectory] = []
    dropped: Counter[Reason] = Counter(before or {})
    for each in records:
        key = each.trajectory.key
        reason = Reason.DUPLICATE if key in seen else each.refusal
        if reason is None and tokens:
            reason = _token_refusal(each.answer.generation, base or BaseModel(""))
        seen.add(key)
        if reason is None:
            kept.append(each.trajectory)
        else:
            dropped[reason] += 1
    kept.sort(key=_order)
    return Dataset(tuple(kept), {reason: count for reason, count in dropped.items() if count})


def grouped(trajectories: Iterable[Trajectory]) -> dict[tuple[str, str], tuple[Trajectory, ...]]:
    """Trajectories by session and group, both in the order in which they were made."""
    groups: dict[tuple[str, str], list[Trajectory]] = {}
    for each in sorted(trajectories, key=_order):
        groups.setdefault((each.session, each.group), []).append(each)
    return {key: tuple(members) for key, members in groups.items()}


def split(trajectories: Sequence[Trajectory], share: float = 0.25, among: Collection[str] | None = None) -> Split:
    """Hold out about ``share`` of the trajectories, so that nothing of them is seen in training.

    Whole sessions are held out, the latest first, as long as half of all trajectories stay. Where that gives less than
    half of what is wanted, those that were made last are, whatever their session, cut between two groups. An earlier
    session is never held out in place of a later one, which would have been made knowing it. A training trajectory with
    a prompt that is also held out is taken out and counted. among: sessions that are split, where they have any; all of
    the others is trained on. Raises UsageError: there are too few.
    """
    mine = [each for each in trajectories if among is None or each.session in among] or trajectories
    sessions: dict[str, list[Trajectory]] = {}
    for each in sorted(mine, key=_order):
        sessions.setdefault(each.session, []).append(each)
    wanted, total = share * len(mine), len(mine)
    chosen: set[str] = set()
    held = 0
    for name in sorted(sessions, key=lambda s: (sessions[s][0].at, s), reverse=True):
        if held >= wanted or (total - held - len(sessions[name])) * 2 < total:
            break
        chosen.add(name)
        held += len(sessions[name])
    if chosen and held * 2 >= wanted:
        out, by = [each for each in mine if each.session in chosen], "session"
    else:
        out, by = _latest(mine, math.ceil(wanted)), "time"
    keys = {each.key for each in out}
    rest = [each for each in trajectories if each.key not in keys]
    prompts, states = {each.prompt_hash for each in out}, {(each.session, each.state_id) for each in out}
    train = [t for t in rest if t.prompt_hash not in prompts and (t.session, t.state_id) not in states]
    if not train or not out:
        raise UsageError(
            f"{len(trajectories)} trajectories of {len({t.session for t in trajectories})} sessions "
            "cannot be split into a training and a held-out part",
            hint="run more experiments, or join sessions with --from",
        )
    return Split(tuple(sorted(train, key=_order)), tuple(sorted(out, key=_order)), by, len(rest) - len(train))


def _latest(among: Sequence[Trajectory], wanted: int) -> list[Trajectory]:
    """The last groups, at least ``wanted`` trajectories; all others were made before the first of them."""
    groups = sorted(grouped(among).values(), key=lambda members: (members[-1].at, members[-1].number), reverse=True)
    taken: list[Trajectory] = []
    for members in groups:
        cut = min((each.at for each in taken), default=None)
        if len(taken) >= wanted and (cut is None or members[-1].at < cut):
            break
        taken.extend(members)
    return taken


def _outcome_refusal(g: Generation, label: Label | None, reward: float | None) -> Reason | None:
    if label is None:
        return Reason.UNDECIDED
    if label in _INTERRUPTED:
        return Reason.INTERRUPTED
    if not g.completion.strip() or not g.messages:
        return Reason.NO_TEXT
    if reward is None:
        return Reason.NO_REWARD
    if not abs(reward) <= MOST_REWARD:  # NaN is none, either
        return Reason.BAD_REWARD
    if label in _TAMPERED and reward > 0:  # the penalty teaches; a gain would teach the cheat
        return Reason.TAMPERED
    return None


def _token_refusal(g: Generation, base: BaseModel) -> Reason | None:
    if not g.token_ids or not g.logprobs:
        return Reason.NO_TOKENS
    if len(g.token_ids) != len(g.logprobs) or not all(math.isfinite(p) and p <= 1e-6 for p in g.logprobs):
        return Reason.BAD_TOKENS
    if not _sampled(g.sampling):
        return Reason.UNKNOWN_LOGPROBS
    if base.model_hash is not None and g.model_hash is None:
        return Reason.UNKNOWN_MODEL
    compared = (
        (base.model_hash, g.model_hash, Reason.OTHER_MODEL),
        (base.tokenizer_hash, g.tokenizer_hash, Reason.OTHER_TOKENIZER),
        (base.template_hash, g.template_hash, Reason.OTHER_TEMPLATE),
    )
    return next((why for own, other, why in compared if own is not None and own != other), None)


def _sampled(sampling: Mapping[str, Any]) -> bool:
    """Whether the stored log-probabilities are those of the distribution that the tokens were drawn from.

    Servers give them before a temperature is applied: only a 1 that they were told makes the two the same.
    """
    temperature = _temperature(sampling)
    if sampling.get("logprobs_of") == "server" and sampling.get("temperature") != 1:
        return False
    top_p, top_k, min_p = (_number(sampling.get(name)) for name in ("top_p", "top_k", "min_p"))
    return temperature > 0 and not (top_p is not None and top_p < 1) and not (top_k or 0) > 0 and not (min_p or 0) > 0


def _temperature(sampling: Mapping[str, Any]) -> float:
    """1 where none is stored."""
    stored = _number(sampling.get("temperature"))
    return 1.0 if stored is None else stored


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def _order(each: Trajectory) -> tuple[datetime, str, int, int]:
    return each.at, each.session, each.number, each.index
