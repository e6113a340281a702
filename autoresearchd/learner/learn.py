"""The program of a learner run: read, split, train, compare with the policy in place, promote or refuse."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from autoresearchd.config.settings import load_settings
from autoresearchd.domain.errors import AdapterDamaged, AutoresearchdError, Interrupted, UsageError
from autoresearchd.domain.policy_versions import BaseModel, LearnerStatus, NewLearnerRun, PolicyVersion, VersionStatus
from autoresearchd.domain.ports import Executor
from autoresearchd.domain.quantities import counted
from autoresearchd.learner.algorithms.learnable import Sample, Who
from autoresearchd.learner.data.data_summary import describe
from autoresearchd.learner.data.examples import Lengths, prompt_tokens, within
from autoresearchd.learner.data.read_sessions import (
    Material,
    Reading,
    Seen,
    lesson,
    locate,
    material,
    read_sessions,
    seen,
)
from autoresearchd.learner.data.trajectories import Split, Trajectory
from autoresearchd.learner.gate.compare_policies import Verdict
from autoresearchd.learner.gate.gate import Exam, Gate
from autoresearchd.learner.gate.learner_jobs import LearnerJobs
from autoresearchd.learner.learn_options import Constants, LearnRequest
from autoresearchd.learner.learner_process import GOES_ON, Tell, stopped_mark
from autoresearchd.learner.live_rounds import LiveRounds
from autoresearchd.learner.training import checkpoint
from autoresearchd.learner.training.local_model import LocalModel
from autoresearchd.learner.training.out_of_memory import trial_step
from autoresearchd.learner.training.trackers import Log, tracking
from autoresearchd.learner.training.train import CANCELLED, StepFigures, Trained, train
from autoresearchd.learner.versions.adapter_shelf import AdapterShelf, Made
from autoresearchd.learner.versions.base_models import base_model, fetched, model_place
from autoresearchd.loop.context import SystemClock
from autoresearchd.store.repository import SqlStore
from autoresearchd.workspace import layout


@dataclass(frozen=True, slots=True)
class _Ground:
    """What a run begins with. parent: the version in use for this model, whose adapter is trained on."""

    place: Path
    base: BaseModel
    reading: Reading
    found: Material
    parts: Split
    parent: PolicyVersion | None
    adapter: Path | None


class LearnerRun:
    """One learner run in a repository, of which it is the only one.

    directory: where the command stands. root: top of the checkout. executor: makes the one of a spec, as in
    ``--executor``.
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
        self._request, self._constants, self._directory = request, constants, directory
        self._root, self._store, self._shelf = root, store, shelf
        self._tell, self._cancel, self._now = tell, cancel, SystemClock().now
        self._jobs = LearnerJobs(executor, store, cancel, tell, run_foreign=constants.gate.run_foreign)
        self._steps = 0
        self._checkpoints = layout.state_dir(root) / "learner"

    def go(self) -> Mapping[str, Any]:
        """All of it: what came of it, as ``--json`` prints it. How it ended is recorded, whatever happens.

        A run that was stopped or killed goes on from its checkpoint when the same is asked for again, with the same
        answers to learn from. Raises UsageError: there is nothing to learn from, or no model to train;
        MissingCapability: a package is missing, or memory; EnvironmentFailure: the disk is full, or a hub cannot be
        reached; Interrupted: it was asked to stop; the checkpoint is there.
        """
        for part in self._checkpoints.glob("*.part"):  # that a killed learner was writing
            part.unlink(missing_ok=True)
        ground = self._ground()
        places = list(map(str, self._request.places))
        config = {"model": str(ground.place), "set": dict(self._request.options), "from": places}
        run = self._store.open_learner_run(
            NewLearnerRun(self._request.algo, self._request.mode, len(ground.parts.train), config), self._now()
        )
        stopped_mark(self._root).unlink(missing_ok=True)
        try:
            outcome = self._learned(ground, run.id)
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

    # -- what there is
    def _ground(self) -> _Ground:
        place = self._place()
        base = base_model(place)
        roots, warnings = locate(self._directory, self._request.places)
        reading = read_sessions(roots, self._root)
        at_home = self._constants.gate.at_home
        found = material(reading, self._request.mode, base, self._constants.share, at_home=at_home)
        for text in (*warnings, *reading.warnings):
            self._tell(text)
        self._tell(describe(found.data, found.parts))
        if found.parts is None:
            raise UsageError(f"not enough to learn from: {found.problem}", hint=found.hint)
        parent = next((version for version in self._store.promoted_versions() if version.fits(base)), None)
        adapter = None if parent is None else self._shelf.folder_of(parent)
        self._tell(f"base model {place}, beginning with {'the plain model' if parent is None else parent.version}")
        if parent is None and (others := self._shelf.in_use()):
            self._tell(f"what is in use was made for another model, and is not trained on: {others}")
        return _Ground(place, base, reading, found, found.parts, parent, adapter)

    def _place(self) -> Path:
        """The base model's folder or file."""
        name = self._request.model or load_settings(os.environ).local_model
        if not name:
            raise UsageError(
                "no model is named that is to learn",
                hint="give --model DIR, or `local: {model: DIR}` in config.yaml, as --policy local has it",
            )
        return model_place(name, self._directory) or fetched(name)

    # -- training
    def _learned(self, ground: _Ground, run_id: int) -> Mapping[str, Any]:
        constants = self._constants
        options = replace(constants.model, adapter=ground.adapter)
        lengths = self._within(ground)
        ground = replace(ground, parts=lengths.parts)
        lessons = lesson(ground.parts.train, ground.reading.sessions)  # as it was read, whatever goes meanwhile
        held_out, seed = ground.parts.held_out, constants.train.seed
        exam = Exam(ground.reading.sessions, held_out, constants.gate, seed, self._seen(ground))
        gate = Gate(exam, self._jobs, self._tell, self._cancel)
        gate.rehearse()
        model = LocalModel.load(ground.place, options)
        if model.sharing is None:
            self._tell(f"each answer is scored with a prompt of its own: {model.apart}")
        else:
            self._tell("answers to one prompt are scored together: it is computed once for all of them")
        largest = lengths.longest_first[: constants.train.micro]
        trial_step(model, [self._sample(model, each, lengths.answer) for each in largest])
        before = model.adapter_state()
        folder = layout.public_dir(self._root) / "learner" / str(run_id)
        with tracking(folder, constants.trackers, f"{self._request.algo}-{run_id}", self._tell) as log:
            trained = self._train(model, ground, log, lengths.answer)
            version = self._kept(model, ground, trained, run_id, lessons)
            if trained.stopped:
                verdict = Verdict(False, (trained.stopped,), {})
            else:
                rival = Who.BASE
                if ground.adapter is not None:
                    model.set_teacher(before)
                    rival = Who.TEACHER
                verdict = gate.verdict(model, rival, Who.POLICY, lengths.answer)
                log(trained.steps, {f"gate/{name}": value for name, value in verdict.figures.items()})
        outcome = self._decided(version, ground, verdict, trained)
        for old in self._checkpoints.glob("*.checkpoint*"):  # those of runs that nobody went on with, too
            old.unlink(missing_ok=True)
        return outcome

    def _sample(self, model: LocalModel, each: Trajectory, answer: int) -> Sample:
        """The question with its stored answer, or with one of the length that a fresh answer may have."""
        live = self._request.mode == "live"
        tokens = (model.padding,) * answer if live else each.token_ids or model.tokens(each.completion)
        return Sample(model.encode(each.messages), tuple(tokens))

    def _within(self, ground: _Ground) -> Lengths:
        """What is not too long for the run."""
        constants = self._constants
        found = within(
            ground.parts,
            prompt_tokens(ground.place),
            answer=constants.gate.max_tokens,
            most=constants.max_length,
            live=self._request.mode == "live",
        )
        if found.left_out:
            self._tell(
                f"longer than {constants.max_length} with the prompt, and left out: {counted(found.left_out, 'answer')}"
            )
        return found

    def _kept(
        self, model: LocalModel, ground: _Ground, trained: Trained, run_id: int, lessons: Mapping[str, Any]
    ) -> PolicyVersion:
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
            base=ground.base,
            algo=self._request.algo,
            parent=None if ground.parent is None else ground.parent.version,
            data={**lessons, "held_out": len(ground.parts.held_out)},
            metrics={"steps": trained.steps, **last},
            learner_run_id=run_id,
        )
        version = self._shelf.add(model.save, made)
        self._tell(f"learned: {version.version} ({counted(trained.steps, 'step')})")
        return version

    def _train(self, model: LocalModel, ground: _Ground, log: Log, answer: int) -> Trained:
        began = time.monotonic()
        parent = None if ground.parent is None else ground.parent.version
        shape = self._constants.model
        start = (parent, shape.rank, shape.alpha, shape.dropout, model.sharing)
        options = replace(self._constants.train, start=repr(start))
        first: list[int] = []

        def on_step(step: StepFigures) -> None:
            first.append(step.step)
            log(step.step, step.flat())
            self._steps = step.step
            self._tell(progress(step, time.monotonic() - began, first[0]))

        if self._request.mode == "live":
            own = {s.name for s in ground.reading.sessions if self._constants.gate.run_foreign or not s.foreign}
            asked = [each for each in ground.parts.train if each.session in own]
            with self._jobs.opened(ground.reading.sessions, {each.session for each in asked}) as held:
                rounds = LiveRounds(held, self._jobs.real(held), self._constants, answer, self._tell, self._cancel)
                return rounds.train(model, asked, on_step)
        run = checkpoint.fingerprint(options, ground.parts.train, model.hashes)
        place = self._checkpoints / f"{run[:24]}.checkpoint"
        return train(model, ground.parts.train, options, on_step=on_step, checkpoint=place, cancel=self._cancel)

    # -- the gate
    def _seen(self, ground: _Ground) -> Seen:
        """What the version that is trained on has learned from, and those that it comes from."""
        lessons: list[Mapping[str, Any]] = []
        for version in () if ground.parent is None else (ground.parent, *self._shelf.ancestors(ground.parent)):
            try:
                lessons.append(self._shelf.manifest_of(version).data)
            except AdapterDamaged as error:
                self._tell(f"what {version.version} learned from is not known any more: {error.what}")
        return seen(lessons, ground.reading.sessions)

    def _decided(
        self, version: PolicyVersion, ground: _Ground, verdict: Verdict, trained: Trained
    ) -> Mapping[str, Any]:
        version = self._shelf.find(version.version)  # somebody may have decided meanwhile
        using = next((v.version for v in self._store.promoted_versions() if v.fits(ground.base)), None)
        if using not in (version.version, None if ground.parent is None else ground.parent.version):
            told = f"it was compared with what is not in use any more: {using} is by now"
            verdict = Verdict(False, (told, *verdict.reasons), verdict.figures)
        figures, reason = dict(verdict.figures), "; ".join(verdict.reasons)
        if verdict.promote and version.status is VersionStatus.CANDIDATE:
            version = self._shelf.promote(version.version, reason, figures)
        elif version.status is VersionStatus.CANDIDATE:  # a run that went on may have made one that is judged already
            version = self._shelf.refuse(version.version, reason, figures)
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
    done = step.step - first + 1
    left = (step.steps - step.step) * elapsed / max(1, done)
    bar = "█" * round(20 * step.step / step.steps)
    values = step.flat()
    shown = " ".join(
        f"{name} {values[name]:.3g}" for name in ("loss", "reward", "kl_base", "entropy") if name in values
    )
    speed = f" {values['tokens_per_s']:.0f} tok/s" if "tokens_per_s" in values else ""
    return f"{bar:<20} {step.step}/{step.steps} {step.algo} {shown}{speed}, {left / 60:.0f} min left"
