"""Live learning: proposals are made, run as experiments and learned from, round by round."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from autoresearchd.domain.errors import UsageError
from autoresearchd.domain.labels import Label
from autoresearchd.domain.quantities import counted
from autoresearchd.domain.randomness import derive_seed
from autoresearchd.learner.algorithms.learnable import Generated, Learnable, Who
from autoresearchd.learner.algorithms.train_options import Algo
from autoresearchd.learner.data.trajectories import Trajectory, all_equal, grouped
from autoresearchd.learner.gate.held_out_states import HeldOut
from autoresearchd.learner.gate.judge_answers import HeldOutState, Judge, Outcome
from autoresearchd.learner.learn_options import Constants
from autoresearchd.learner.training.train import CANCELLED, StepFigures, Trained, train

STATES = 4
"""States of one round."""


class LiveRounds:
    """The rounds of a live run: G proposals for each of a few states, experiments, one stretch of steps.

    The optimiser begins anew in each round, and no checkpoint is kept: what a round has learned is in the adapter, and
    its experiments are not run twice, for the judge remembers what a program was worth at a state.

    constants: of the run: ``rounds``, ``gate.count`` proposals for each state, ``train.steps`` over all rounds.
    max_tokens: of a proposal.
    """

    def __init__(
        self,
        held: HeldOut,
        judge: Judge,
        constants: Constants,
        max_tokens: int,
        tell: Callable[[str], None],
        cancel: threading.Event,
    ) -> None:
        self._held, self._judge, self._constants = held, judge, constants
        self._max_tokens, self._tell, self._cancel = max_tokens, tell, cancel

    def train(
        self, model: Learnable, trajectories: Sequence[Trajectory], on_step: Callable[[StepFigures], None]
    ) -> Trained:
        """Make the model better at the states of some trajectories; UsageError: none can be asked about again."""
        states = self._held.states(trajectories).states
        if not states:
            raise UsageError(
                "no state of these sessions can be asked about again", hint="run more experiments in this repository"
            )
        constants, counts, history = self._constants, Counter[str](), list[dict[str, float]]()
        each = max(1, constants.train.steps // constants.rounds)
        stopped = ""
        for number in range(constants.rounds):
            if self._cancel.is_set():
                stopped = CANCELLED
                break
            chosen = [states[(number * STATES + i) % len(states)] for i in range(min(STATES, len(states)))]
            made, about = self._round(model, chosen, number)
            counts.update(rounds=1, proposals=len(made))
            if not made or self._silent(made):
                counts["rounds_without_signal"] += 1
                self._tell(f"round {number + 1}: all proposals of each state earned the same, nothing to learn")
                continue
            mean = sum(one.reward for one in made) / len(made)
            self._tell(f"round {number + 1}: mean reward {mean:.2f} over {counted(len(made), 'proposal')}")
            seed = derive_seed(constants.train.seed, number, "live")
            # Proposals of a round do not follow from each other: none is paid for what came of its neighbours.
            alone = replace(constants.train.ppo, gamma=0.0)
            options = replace(constants.train, steps=each, seed=seed, warmup=0, ppo=alone)
            before = len(history)

            def told(step: StepFigures, before: int = before, about: Mapping[str, float] = about) -> None:
                values = {**step.values, **about}
                on_step(replace(step, step=before + step.step, steps=each * constants.rounds, values=values))

            trained = train(model, made, options, on_step=told, cancel=self._cancel)
            history += trained.history
            counts.update(trained.counts)
            if trained.stopped:
                stopped = trained.stopped
                break
        if not history and not stopped:
            raise UsageError(
                f"nothing was learned in {constants.rounds} rounds: all proposals of each state earned the same",
                hint="begin with `--mode replay`, which can warm the policy up on kept answers; or take a larger model",
            )
        return Trained(len(history), tuple(history), stopped, "", dict(counts))

    def _silent(self, made: Sequence[Trajectory]) -> bool:
        """Whether a round tells nothing: GRPO compares within a state, PPO over all, SDPO learns from words."""
        match self._constants.train.algo:
            case Algo.SDPO:
                return False
            case Algo.PPO:
                return all_equal([one.reward for one in made])
            case _:
                return all(all_equal([one.reward for one in group]) for group in grouped(made).values())

    def _round(
        self, model: Learnable, states: Sequence[HeldOutState], number: int
    ) -> tuple[list[Trajectory], dict[str, float]]:
        """Fresh proposals for some states with what they earned, and figures on all of them."""
        gate = self._constants.gate
        asked = [state for state in states for _ in range(gate.count)]
        drawn = model.generate(
            [model.encode(state.messages) for state in asked],
            max_tokens=self._max_tokens,
            temperature=gate.temperature,
            seeds=[derive_seed(self._constants.train.seed, number * 10_000 + i, "live") for i in range(len(asked))],
            who=Who.POLICY,
        )
        outcomes = self._judge.judge_all([(state, one.text) for state, one in zip(asked, drawn, strict=True)])
        rows = enumerate(zip(asked, drawn, outcomes, strict=True))
        made = [self._trajectory(state, one, outcome, number, i) for i, (state, one, outcome) in rows]
        valid = [one.novelty for one in outcomes if one.valid]
        rewards = [one.reward for one in outcomes if one.reward is not None]
        figures = {"round/valid": len(valid) / len(outcomes)}
        if valid:
            figures["round/novelty"] = math.fsum(valid) / len(valid)
        if rewards:
            figures["round/reward"] = math.fsum(rewards) / len(rewards)
        return [one for one in made if one is not None], figures

    def _trajectory(
        self, state: HeldOutState, drawn: Generated, outcome: Outcome, number: int, index: int
    ) -> Trajectory | None:
        """What was proposed as something to learn from; None where its outcome says nothing."""
        if outcome.reward is None or not drawn.ids:
            return None
        return Trajectory(
            session=state.session,
            number=number,
            attempt=0,
            group=f"{state.key}#{number}",
            state_id=state.key,
            at=datetime.now(UTC),
            policy_version="",
            messages=state.messages,
            completion=drawn.text,
            token_ids=drawn.ids,
            logprobs=drawn.logprobs,
            reward=outcome.reward,
            censored=outcome.label is Label.ABORTED_EARLY,
            label=outcome.label,
            feedback=outcome.feedback or outcome.error,
            index=index,
            temperature=self._constants.gate.temperature,
            error="" if outcome.valid else outcome.error,
        )
