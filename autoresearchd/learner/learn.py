"""The program of a learner run: read, split, train, compare with the policy in place, promote or refuse."""

from __future__ import annotations

import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from autoresearchd.config.settings import load_settings
from autoresearchd.domain.errors import AdapterDamaged, AutoresearchdError, Interrupted, UsageError
from autoresearchd.domain.labels import Label
from autoresearchd.domain.policy_versions import LearnerStatus, PolicyVersion, VersionStatus
from autoresearchd.domain.ports import Executor
from autoresearchd.domain.quantities import counted
from autoresearchd.domain.randomness import derive_seed
from autoresearchd.learner.algorithms.learnable import Generated, Learnable, Sample, Who
from autoresearchd.learner.algorithms.scoring import parts
from autoresearchd.learner.algorithms.train_options import (
    GSPO,
    Algo,
    ColdStart,
    Collapse,
    GrpoOptions,
    Level,
    PpoOptions,
    Scale,
    SdpoOptions,
    TrainOptions,
)
from autoresearchd.learner.data.data_summary import describe
from autoresearchd.learner.data.examples import Example, prompt_tokens, within
from autoresearchd.learner.data.read_sessions import Seen, lesson, locate, material, read_sessions, seen
from autoresearchd.learner.data.trajectories import Trajectory, all_equal, grouped
from autoresearchd.learner.gate.compare_policies import Verdict
from autoresearchd.learner.gate.gate import Gate, LearnerJobs
from autoresearchd.learner.gate.held_out_states import UNUSABLE, HeldOut, HeldOutState, reason_of
from autoresearchd.learner.gate.judge_answers import CheckingJudge, Outcome
from autoresearchd.learner.gate.promotion_needs import GateSettings
from autoresearchd.learner.learner_process import GOES_ON, Tell, stopped_mark
from autoresearchd.learner.training.constant_values import SHARE, asks_at_home, values_of
from autoresearchd.learner.training.load_model import ModelOptions, trial_step
from autoresearchd.learner.training.local_model import LocalModel
from autoresearchd.learner.training.trackers import Log, tracking
from autoresearchd.learner.training.train import CANCELLED, StepFigures, Trained, fingerprint, train
from autoresearchd.learner.versions.adapter_shelf import AdapterShelf, Made
from autoresearchd.loop.context import SystemClock
from autoresearchd.models.model_files import base_model, fetched, model_place
from autoresearchd.store.repository import SqlStore
from autoresearchd.workspace import layout

STATES = 4
"""States of one round of a live run."""


@dataclass(frozen=True, slots=True)
class LearnRequest:
    """What ``learn`` is asked for.

    model: folder or name of the base model, empty: that of config.yaml. steps: None: the algorithm's own number.
    places: other repositories to read.
    """

    algo: str
    mode: str = "replay"
    model: str = ""
    steps: int | None = None
    places: tuple[Path, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Constants:
    """All of a run. share: of the answers that are held out. rounds: of new experiments, in live mode.

    max_length: tokens of a prompt with its answer; what is longer is left out, None: nothing is.
    """

    train: TrainOptions
    model: ModelOptions
    gate: GateSettings = field(default_factory=GateSettings)
    share: float = SHARE
    rounds: int = 8
    max_length: int | None = None
    trackers: tuple[str, ...] = ()


def constants_of(request: LearnRequest) -> Constants:
    """The constants that a request names, and the usual ones for all others; UsageError as ``values_of`` raises it."""
    values = values_of(request.options, request.algo)
    if request.steps is not None:
        values["steps"] = request.steps

    def some(*names: str, **renamed: str) -> dict[str, Any]:
        """Of the constants that are named, these; renamed: the option's name by which a constant goes."""
        return {name: values[key] for name, key in ({name: name for name in names} | renamed).items() if key in values}

    for name, kind in (("level", Level), ("scale", Scale)):
        if name in values:
            values[name] = kind(values[name])
    grpo = GrpoOptions()
    if request.algo == Algo.GRPO.value:  # other algorithms have some of the names, and other bounds for them
        # GSPO is more than a level: its range and its mean are its paper's.
        grpo = GSPO if values.get("level") is Level.SEQUENCE else GrpoOptions(**some("level"))
        grpo = replace(grpo, **some("clip_low", "clip_high", "beta", "leave_one_out", "neighbours", "scale"))
    train = TrainOptions(
        Algo(request.algo),
        **some("steps", "learning_rate", "weight_decay", "batch", "micro", "epochs", "clip", "warmup", "seed"),
        **some("save_every", "shuffle_rewards", "kl_every"),
        grpo=grpo,
        ppo=PpoOptions(
            **some("level", "clip_high", "gamma", "lam", "horizon", "target_kl"),
            **some(clip="clip_low", value_weight="c1", entropy_weight="c2"),
        ),
        sdpo=SdpoOptions(**some("top", alpha="sdpo_alpha", rate="teacher_rate")),
        cold_start=ColdStart(**some("valid_share", allowed="cold_start")),
        collapse=Collapse(**some(entropy="least_entropy", kl="most_kl")),
    )
    model = ModelOptions(
        value_head=request.algo == "ppo",
        seed=train.seed,
        **some("rank", "alpha", "dropout", "device", "dtype", "threads", "checkpointing", "generated", "share_prompts"),
    )
    return Constants(train, model, GateSettings.of(values), **some("share", "rounds", "max_length", "trackers"))


class LearnerRun:
    """One learner run in a repository, of which it is the only one. What there is to learn from is read at once.

    directory: where the command stands. root: top of the checkout. Raises UsageError: there is nothing to learn from.
    """

    def __init__(
        self,
        request: LearnRequest,
        constants: Constants,
        directory: Path,
        root: Path,
        store: SqlStore,
        shelf: AdapterShelf,
        executor: Callable[[str], Executor],
        tell: Tell,
        cancel: threading.Event,
    ) -> None:
        self._request, self._constants, self._root = request, constants, root
        self._store, self._shelf, self._tell, self._cancel = store, shelf, tell, cancel
        self._jobs = LearnerJobs(executor, store, cancel, tell, run_foreign=constants.gate.run_foreign)
        self._checkpoints = layout.state_dir(root) / "learner"
        self._now, self._steps = SystemClock().now, 0
        name = request.model or load_settings(os.environ).local.model
        if not name:
            raise UsageError(
                "no model is named that is to learn",
                hint="give --model DIR, or `local: {model: DIR}` in config.yaml, as --policy local has it",
            )
        self._place = model_place(name, directory) or fetched(name)
        self._base = base_model(self._place)
        roots, warnings = locate(directory, request.places)
        reading, gate = read_sessions(roots, root), constants.gate
        at_home = asks_at_home(gate.judge, run_foreign=gate.run_foreign)
        found = material(reading, request.mode, self._base, constants.share, at_home=at_home)
        for text in (*warnings, *reading.warnings, describe(found.data, found.parts)):
            tell(text)
        if found.parts is None:
            raise UsageError(f"not enough to learn from: {found.problem}", hint=found.hint)
        self._sessions, self._parts = reading.sessions, found.parts
        # The version in use for this model, whose adapter is trained on.
        self._parent = next((version for version in store.promoted_versions() if version.fits(self._base)), None)
        self._adapter = None if self._parent is None else shelf.folder_of(self._parent)
        self._parent_name = None if self._parent is None else self._parent.version
        tell(f"base model {self._place}, beginning with {self._parent_name or 'the plain model'}")
        if self._parent is None and (others := shelf.in_use()):
            tell(f"what is in use was made for another model, and is not trained on: {others}")

    def go(self) -> Mapping[str, Any]:
        """All of it: what came of it, as ``--json`` prints it. How it ended is recorded, whatever happens.

        A run that was stopped or killed goes on from its checkpoint when the same is asked for again.
        """
        for part in self._checkpoints.glob("*.part"):  # that a killed learner was writing
            part.unlink(missing_ok=True)
        request = self._request
        config = {"model": str(self._place), "set": dict(request.options), "from": list(map(str, request.places))}
        run = self._store.open_learner_run(request.algo, request.mode, len(self._parts.train), self._now(), config)
        stopped_mark(self._root).unlink(missing_ok=True)
        try:
            outcome = self._learned(run.id)
        except BaseException as error:
            stopped = isinstance(error, (Interrupted, KeyboardInterrupt))
            status = LearnerStatus.STOPPED if stopped else LearnerStatus.FAILED
            said = error.what if isinstance(error, AutoresearchdError) else f"{type(error).__name__}: {error}"
            self._store.record_learner_run(run.id, status, self._now(), steps=self._steps, detail=said[:2000])
            raise
        self._store.record_learner_run(
            run.id,
            LearnerStatus.DONE,
            self._now(),
            steps=outcome["steps"],
            metrics=outcome["figures"],
            detail="; ".join(outcome["reasons"])[:2000],
        )
        return outcome

    def _learned(self, run_id: int) -> Mapping[str, Any]:
        constants, mode = self._constants, self._request.mode
        count, most, live = prompt_tokens(self._place), constants.max_length, mode == "live"
        lengths = within(self._parts, count, answer=constants.gate.max_tokens, most=most, live=live)
        if lengths.left_out:
            left_out = counted(lengths.left_out, "answer")
            self._tell(f"longer than {constants.max_length} with the prompt, and left out: {left_out}")
        self._parts, answer = lengths.parts, lengths.answer
        lessons = lesson(self._parts.train, self._sessions)  # as it was read, whatever goes meanwhile
        about = self._jobs, self._sessions, self._parts.held_out, constants.gate, self._tell, self._cancel
        gate = Gate(*about, seed=constants.train.seed, seen=self._seen())
        gate.rehearse()
        model = LocalModel.load(self._place, replace(constants.model, adapter=self._adapter))
        if model.sharing is None:
            self._tell(f"each answer is scored with a prompt of its own: {model.apart}")
        else:
            self._tell("answers to one prompt are scored together: it is computed once for all of them")
        # With their stored answers, or with some of the length that a fresh answer may have.
        fresh = (model.padding,) * answer if live else None
        longest = [
            Example(e, Sample(model.encode(e.messages), tuple(fresh or e.token_ids or model.tokens(e.completion))))
            for e in lengths.longest_first[: constants.train.batch]
        ]
        largest = parts(longest, range(len(longest)), constants.train.micro, model.sharing)[0]
        trial_step(model, [longest[i].sample for i in largest])
        before = model.adapter_state()
        folder = layout.public_dir(self._root) / "learner" / str(run_id)
        with tracking(folder, constants.trackers, f"{self._request.algo}-{run_id}", self._tell) as log:
            trained = self._train(model, log, answer)
            version = self._kept(model, trained, run_id, lessons)
            if trained.stopped:
                verdict = Verdict(False, (trained.stopped,), {})
            else:
                rival = Who.BASE
                if self._adapter is not None:
                    model.set_teacher(before)
                    rival = Who.TEACHER
                verdict = gate.verdict(model, rival, Who.POLICY, answer)
                log(trained.steps, {f"gate/{name}": value for name, value in verdict.figures.items()})
        outcome = self._decided(version, verdict, trained)
        for old in self._checkpoints.glob("*.checkpoint*"):  # those of runs that nobody went on with, too
            old.unlink(missing_ok=True)
        return outcome

    def _seen(self) -> Seen:
        """What the version that is trained on has learned from, and those that it comes from."""
        lessons: list[Mapping[str, Any]] = []
        for version in () if self._parent is None else (self._parent, *self._shelf.ancestors(self._parent)):
            try:
                lessons.append(self._shelf.manifest_of(version).data)
            except AdapterDamaged as error:
                self._tell(f"what {version.version} learned from is not known any more: {error.what}")
        return seen(lessons, self._sessions)

    def _train(self, model: LocalModel, log: Log, answer: int) -> Trained:
        began, first = time.monotonic(), list[int]()
        shape = self._constants.model
        start = (self._parent_name, shape.rank, shape.alpha, shape.dropout, model.sharing)
        options = replace(self._constants.train, start=repr(start))

        def on_step(step: StepFigures) -> None:
            first.append(step.step)
            log(step.step, step.flat())
            self._steps = step.step
            self._tell(progress(step, time.monotonic() - began, first[0]))

        if self._request.mode == "live":
            own = {s.name for s in self._sessions if self._constants.gate.run_foreign or not s.foreign}
            asked = [each for each in self._parts.train if each.session in own]
            with self._jobs.opened(self._sessions, {each.session for each in asked}) as held:
                found = model, asked, held, self._jobs.real(held), self._constants, answer
                return train_live(*found, on_step, self._tell, self._cancel)
        run = fingerprint(options, self._parts.train, model.hashes)
        place = self._checkpoints / f"{run[:24]}.checkpoint"
        return train(model, self._parts.train, options, on_step=on_step, checkpoint=place, cancel=self._cancel)

    def _kept(self, model: LocalModel, trained: Trained, run_id: int, lessons: Mapping[str, Any]) -> PolicyVersion:
        """The version that was learned; Interrupted where the training was stopped before its end."""
        self._steps = trained.steps
        if trained.stopped == CANCELLED:
            raise Interrupted(
                f"the learner was stopped after {counted(trained.steps, 'step')}; {GOES_ON[self._request.mode]}"
            )
        if trained.cold_start:
            self._tell(f"cold start, on kept answers first: {trained.cold_start}")
        if trained.stopped:
            self._tell(trained.stopped)
        last = trained.history[-1] if trained.history else {}
        made = Made(
            base=self._base,
            algo=self._request.algo,
            parent=self._parent_name,
            data={**lessons, "held_out": len(self._parts.held_out)},
            metrics={"steps": trained.steps, **last},
            learner_run=run_id,
        )
        version = self._shelf.add(model.save, made)
        self._tell(f"learned: {version.version} ({counted(trained.steps, 'step')})")
        return version

    def _decided(self, version: PolicyVersion, verdict: Verdict, trained: Trained) -> Mapping[str, Any]:
        version = self._shelf.find(version.version)  # somebody may have decided meanwhile
        using = next((v.version for v in self._store.promoted_versions() if v.fits(self._base)), None)
        if using not in (version.version, self._parent_name):
            why = f"it was compared with what is not in use any more: {using} is by now"
            verdict = Verdict(False, (why, *verdict.reasons), verdict.figures)
        figures, reason = dict(verdict.figures), "; ".join(verdict.reasons)
        if version.status is VersionStatus.CANDIDATE:  # a run that went on may have made one that is judged already
            decide = self._shelf.promote if verdict.promote else self._shelf.refuse
            version = decide(version.version, reason, figures)
        used = version.status is VersionStatus.PROMOTED
        now = "the policy local answers with it from the next experiment on" if used else "it is not used"
        self._tell(f"{version.version} {version.status.value}: {now}")
        for text in verdict.reasons:
            self._tell(f"  {text}")
        return {
            "version": version.version,
            "status": version.status.value,
            "parent": version.parent,
            "algo": self._request.algo,
            "mode": self._request.mode,
            "steps": trained.steps,
            "stopped": trained.stopped,
            "cold_start": trained.cold_start,
            "counts": dict(trained.counts),
            "reasons": list(verdict.reasons),
            "figures": figures,
            "constants": asdict(self._constants.gate),
        }


def progress(step: StepFigures, elapsed: float, first: int) -> str:
    """A step in a line: how far it is, the figures that tell whether it goes well, the time that is left."""
    left = (step.steps - step.step) * elapsed / max(1, step.step - first + 1)
    bar = "█" * round(20 * step.step / step.steps)
    values = step.flat()
    names = (name for name in ("loss", "reward", "kl_base", "entropy") if name in values)
    shown = " ".join(f"{name} {values[name]:.3g}" for name in names)
    speed = f" {values['tokens_per_s']:.0f} tok/s" if "tokens_per_s" in values else ""
    return f"{bar:<20} {step.step}/{step.steps} {step.algo} {shown}{speed}, {left / 60:.0f} min left"


def train_live(
    model: Learnable,
    trajectories: Sequence[Trajectory],
    held: HeldOut,
    judge: CheckingJudge,
    constants: Constants,
    max_tokens: int,
    on_step: Callable[[StepFigures], None],
    tell: Tell,
    cancel: threading.Event,
) -> Trained:
    """Live learning at the states of some trajectories: G proposals for each of a few, run as experiments; in rounds.

    The optimiser begins anew in each round, and no checkpoint is kept: what a round has learned is in the adapter, and
    its experiments are not run twice, for the judge remembers what a program was worth at a state. Raises UsageError:
    no state can be asked about again, or nothing was learned.
    """
    states = held.states(trajectories).states
    if not states:
        raise UsageError(
            "no state of these sessions can be asked about again", hint="run more experiments in this repository"
        )
    counts, history, stopped = Counter[str](), list[dict[str, float]](), ""
    rounds = min(constants.rounds, constants.train.steps)
    each = constants.train.steps // rounds
    lost, collapse = dict[str, str](), constants.train.collapse
    for number in range(rounds):
        if cancel.is_set():
            stopped = CANCELLED
            break
        states = tuple(state for state in states if state.session not in lost)
        if not states:
            break
        chosen = [states[(number * STATES + i) % len(states)] for i in range(min(STATES, len(states)))]
        made, about = _round(model, judge, constants, chosen, number, max_tokens, tell, lost)
        counts.update(rounds=1, proposals=len(made))
        if not made or _silent(made, constants.train.algo):
            counts["rounds_without_signal"] += 1
            tell(f"round {number + 1}: all proposals of each state earned the same, nothing to learn")
            continue
        mean = sum(one.reward for one in made) / len(made)
        tell(f"round {number + 1}: mean reward {mean:.2f} over {counted(len(made), 'proposal')}")
        seed = derive_seed(constants.train.seed, number, "live")
        # Proposals of a round do not follow from each other: none is paid for what came of its neighbours.
        alone = replace(constants.train.ppo, gamma=0.0)
        options = replace(constants.train, steps=each, seed=seed, warmup=0, ppo=alone, collapse=collapse)
        before = len(history)

        def told(step: StepFigures, before: int = before, about: Mapping[str, float] = about) -> None:
            values = {**step.values, **about}
            on_step(replace(step, step=before + step.step, steps=each * rounds, values=values))

        trained = train(model, made, options, on_step=told, cancel=cancel)
        history += trained.history
        counts.update(trained.counts)
        if collapse.began is None:
            began = next((step["kl_base"] for step in history if "kl_base" in step), None)
            collapse = replace(collapse, began=began)
        if trained.stopped:
            stopped = trained.stopped
            break
    if not history and not stopped:
        if not states:
            raise UsageError(f"no session can be used: {'; '.join(lost.values())}", hint="see `autoresearchd doctor`")
        raise UsageError(
            f"nothing was learned in {rounds} rounds: all proposals of each state earned the same",
            hint="begin with `--mode replay`, which can warm the policy up on kept answers; or take a larger model",
        )
    return Trained(len(history), tuple(history), stopped, "", dict(counts))


def _silent(made: Sequence[Trajectory], algo: Algo) -> bool:
    """Whether a round tells nothing: GRPO compares within a state, PPO over all, SDPO learns from words."""
    if algo is Algo.SDPO:
        return False
    groups = [made] if algo is Algo.PPO else grouped(made).values()
    return all(all_equal([one.reward for one in group]) for group in groups)


def _round(
    model: Learnable,
    judge: CheckingJudge,
    constants: Constants,
    states: Sequence[HeldOutState],
    number: int,
    max_tokens: int,
    tell: Tell,
    lost: dict[str, str],
) -> tuple[list[Trajectory], dict[str, float]]:
    """Fresh proposals for some states with what they earned, but for those that say nothing; figures on all of them.

    lost: gets the sessions of which nothing can be run here any more, and why.
    """
    gate = constants.gate
    asked = [state for state in states for _ in range(gate.count)]
    drawn = model.generate(
        [model.encode(state.messages) for state in asked],
        max_tokens=max_tokens,
        temperature=gate.temperature,
        seeds=[derive_seed(constants.train.seed, number * 10_000 + i, "live") for i in range(len(asked))],
        who=Who.POLICY,
    )
    answers = list(zip(asked, drawn, strict=True))
    judged = list[tuple[HeldOutState, Generated, Outcome]]()
    for session in dict.fromkeys(state.session for state in states):
        mine = [(state, one) for state, one in answers if state.session == session]
        try:
            found = judge.judge_all([(state, one.text) for state, one in mine])
        except UNUSABLE as error:
            lost[session] = f"{session}: {reason_of(error)}"
            tell(f"nothing is run for session {lost[session]}")
            continue
        judged += [(*answer, outcome) for answer, outcome in zip(mine, found, strict=True)]
    outcomes = [outcome for _, _, outcome in judged]
    valid = [one.novelty for one in outcomes if one.valid]
    rewards = [one.reward for one in outcomes if one.reward is not None]
    figures = dict[str, float]()
    usable = [float(one.valid) for one in outcomes]
    for name, values in (("round/valid", usable), ("round/novelty", valid), ("round/reward", rewards)):
        if values:
            figures[name] = math.fsum(values) / len(values)
    made = [
        Trajectory(
            session=state.session,
            number=number,
            attempt=0,
            group=f"{state.key}#{number}",
            state_id=state.key,
            at=datetime.now(UTC),
            policy_version="",
            messages=state.messages,
            completion=one.text,
            token_ids=one.ids,
            logprobs=one.logprobs,
            reward=outcome.reward,
            censored=outcome.label is Label.ABORTED_EARLY,
            label=outcome.label,
            feedback=outcome.feedback or outcome.error,
            index=index,
            temperature=gate.temperature,
            error="" if outcome.valid else outcome.error,
        )
        for index, (state, one, outcome) in enumerate(judged)
        if outcome.reward is not None and one.ids
    ]
    return made, figures
