"""The gate of a learner run: what can be asked and judged is looked at before the training, the rest after it.

Experiments are run where the sessions ran theirs, without the learner's own limit on memory, and by one learner at a
time in a repository.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from autoresearchd.domain.errors import Interrupted, UsageError
from autoresearchd.domain.ports import Cancel, Executor
from autoresearchd.domain.quantities import counted
from autoresearchd.domain.randomness import derive_seed
from autoresearchd.learner.data.read_sessions import TRAINED, ReadSession, Seen
from autoresearchd.learner.data.trajectories import Trajectory, grouped
from autoresearchd.learner.gate.compare_policies import GateOptions, Verdict, compare
from autoresearchd.learner.gate.held_out_states import (
    UNUSABLE,
    Gathered,
    Ground,
    HeldOut,
    HeldOutState,
    opened,
    reason_of,
    unusable,
)
from autoresearchd.learner.gate.judge_answers import Attempt, CheckingJudge, Outcome, RealJudge
from autoresearchd.learner.gate.promotion_needs import GateSettings
from autoresearchd.learner.training.load_model import lift_memory_limit
from autoresearchd.models.client import SHORTEST_REPLY
from autoresearchd.sandbox.file_locks import hold
from autoresearchd.sandbox.launch import reap
from autoresearchd.store.repository import SqlStore
from autoresearchd.workspace.files import disk_errors, remove_tree

if TYPE_CHECKING:
    from autoresearchd.learner.algorithms.learnable import Sampler, Who

_LOCK = "lock"


class Gate:
    """The gate of one learner run: ``rehearse`` before the training, ``verdict`` after it.

    A session that cannot be used here is left out, by name. seen: what the new version's ancestors have learned from.
    """

    def __init__(
        self,
        jobs: LearnerJobs,
        sessions: Sequence[ReadSession],
        held_out: Sequence[Trajectory],
        settings: GateSettings,
        tell: Callable[[str], None],
        cancel: Cancel,
        *,
        seed: int = 0,
        seen: Seen | None = None,
        options: GateOptions | None = None,
    ) -> None:
        self._jobs, self._sessions, self._held_out, self._settings = jobs, sessions, held_out, settings
        self._tell, self._cancel, self._seed = tell, cancel, seed
        self._seen, self._options = seen or Seen(), options or GateOptions()
        self._names = {each.session for each in held_out}
        self._lost: dict[str, str] = {}

    def rehearse(self) -> int:
        """Say before anything is trained what will not be asked about, and why; how many states are left.

        Where experiments are to be run, each task is set up, and what was the best in its session runs once.
        """
        with self._jobs.opened(self._sessions, self._names) as held:
            gathered = self._gathered(held)
            if self._runs(held, gathered.states):
                self._lost |= self._jobs.real(held).rehearse(gathered.states)
                gathered = self._gathered(held)
        self._tell_left_out(gathered)
        count = len(gathered.states)
        if count < self._options.least:
            self._tell(
                f"{counted(count, 'held-out state') if count else 'no held-out states'} can be asked about, and a "
                f"promotion takes at least {self._options.least}: what is learned now will be kept and not used"
            )
        return count

    def verdict(self, model: Sampler, old: Who, new: Who, max_tokens: int) -> Verdict:
        """Compare what two policies propose at the held-out states, in at most so many tokens."""
        settings = self._settings
        with self._jobs.opened(self._sessions, self._names) as held:
            gathered = self._gathered(held)
            fit = fitting(model, gathered.states, max_tokens)
            self._tell_left_out(fit)
            states = fit.states
            asked = f"{counted(len(states), 'held-out state')}, {counted(settings.count, 'proposal')} each"
            self._tell(f"the new and the old policy are asked about {asked}")
            how = settings.count, max_tokens, settings.temperature, self._seed
            attempts = [fresh(model, states, who, *how, cancel=self._cancel) for who in (old, new)]
            judge = self._jobs.real(held) if self._runs(held, states) else CheckingJudge(held)
            outcomes = self._outcomes(judge, attempts)
        left_out = Counter({**gathered.left_out, **fit.left_out})
        left_out.update(unusable(s.session, self._lost[s.session]) for s in states if s.session in self._lost)
        return compare(*outcomes, self._options, left_out=left_out)

    def _outcomes(
        self, judge: CheckingJudge, attempts: Sequence[Sequence[Attempt]]
    ) -> tuple[list[Outcome], list[Outcome]]:
        """What came of both policies' proposals, session by session: one that fails takes no other with it."""
        found: tuple[list[Outcome], list[Outcome]] = ([], [])
        for session in dict.fromkeys(state.session for side in attempts for state, _ in side):
            if session in self._lost:
                continue
            mine = [[attempt for attempt in side if attempt[0].session == session] for side in attempts]
            try:
                judged = judge.judge_all([attempt for side in mine for attempt in side])
            except UNUSABLE as error:
                self._lost[session] = reason_of(error)
                self._tell(f"nothing is judged for session {session}: {self._lost[session]}")
                continue
            found[0].extend(judged[: len(mine[0])])
            found[1].extend(judged[len(mine[0]) :])
        return found

    def _gathered(self, held: HeldOut) -> Gathered:
        """The states that are asked about, and how many others there are, by reason."""
        left_out: Counter[str] = Counter()
        usable: list[Trajectory] = []
        for (session, _), members in grouped(self._held_out).items():
            if session in self._lost:
                left_out[unusable(session, self._lost[session])] += 1
            elif any(self._seen.holds(each) for each in members):
                left_out[TRAINED] += 1
            else:
                usable += members
        found = held.states(usable, most=self._settings.states)
        return Gathered(found.states, {**left_out, **found.left_out})

    def _runs(self, held: HeldOut, states: Iterable[HeldOutState]) -> bool:
        """Whether proposals are run, and not only checked."""
        return self._settings.runs([held.ground(state.session) for state in states])

    def _tell_left_out(self, gathered: Gathered) -> None:
        for why, count in gathered.left_out.items():
            self._tell(f"{counted(count, 'held-out state')} {'is' if count == 1 else 'are'} not asked about: {why}")


def fitting(model: Sampler, states: tuple[HeldOutState, ...], max_tokens: int) -> Gathered:
    """The states whose prompt leaves room for an answer, and how many others there are, by the reason in words."""
    if model.context is None:
        return Gathered(states)
    least = min(max_tokens, SHORTEST_REPLY)  # a long prompt shortens its answers
    found = tuple(state for state in states if len(model.encode(state.messages)) + least <= model.context)
    why = f"its prompt and an answer of {least:,} tokens are longer than the model's context of {model.context:,}"
    return Gathered(found, {why: len(states) - len(found)} if len(found) < len(states) else {})


def fresh(
    model: Sampler,
    states: Sequence[HeldOutState],
    who: Who,
    count: int,
    max_tokens: int,
    temperature: float,
    seed: int,
    *,
    batch: int = 8,
    cancel: Cancel | None = None,
) -> list[Attempt]:
    """Ask a policy ``count`` times at each state, all of which fit; the completions in order of the states.

    The seed of each completion follows from ``seed``, the state and its place alone: two policies that are asked with
    the same arguments draw with the same random numbers, so that what differs is what they believe.
    """
    questions: list[tuple[HeldOutState, tuple[int, ...], int]] = []
    for state in states:
        prompt = model.encode(state.messages)
        questions += [(state, prompt, derive_seed(seed, i, f"fresh {state.key}")) for i in range(count)]
    # Prompts of like length share a batch: there is less padding to compute.
    order = sorted(range(len(questions)), key=lambda i: len(questions[i][1]))
    found: dict[int, Attempt] = {}
    for begin in range(0, len(order), batch):
        if cancel is not None and cancel.is_set():
            raise Interrupted("the learner was stopped while it drew fresh proposals")
        chosen = order[begin : begin + batch]
        drawn = model.generate(
            [questions[i][1] for i in chosen],
            max_tokens=max_tokens,
            temperature=temperature,
            seeds=[questions[i][2] for i in chosen],
            who=who,
        )
        found |= {i: (questions[i][0], each.text) for i, each in zip(chosen, drawn, strict=True)}
    return [found[i] for i in range(len(questions))]


# ---------------------------------------------------------------------- experiments
class LearnerJobs:
    """Opens the sessions that a learner run judges for, and makes the judge that runs their experiments.

    executor: makes the one of a spec. store: of the repository that is learned for.
    """

    def __init__(
        self,
        executor: Callable[[str], Executor],
        store: SqlStore | None,
        cancel: Cancel,
        tell: Callable[[str], None],
        *,
        run_foreign: bool = False,
    ) -> None:
        self._executor, self._store = executor, store
        self._cancel, self._tell, self._run_foreign = cancel, tell, run_foreign
        self._told: set[str] = set()

    @contextmanager
    def opened(self, sessions: Iterable[ReadSession], names: Iterable[str]) -> Iterator[HeldOut]:
        """The sessions of these names, open until the end of the context."""
        with opened(sessions, names, self._store) as held, ExitStack() as stack:
            homes = {held.ground(name).scratch.parent for name in self._run(held)}
            for home in sorted(homes):  # in one order, so that no two wait for each other
                stack.enter_context(judging_alone(home, self._tell, self._cancel))
            yield held

    def real(self, held: HeldOut) -> RealJudge:
        """The judge that runs experiments where the sessions ran theirs; UsageError where that is not one place."""
        executor = self._executor(self.place(held))
        return RealJudge(
            held, executor, cancel=self._cancel, run_foreign=self._run_foreign, unlimited=lift_memory_limit
        )

    def place(self, held: HeldOut) -> str:
        """Where experiments of these sessions are run, as in ``--executor``; what is run of foreign ones is told."""
        run = self._run(held)
        for name in run:
            if held.ground(name).foreign and name not in self._told:
                self._told.add(name)
                for line in commands_of(name, held.ground(name)):
                    self._tell(line)
        specs = {held.ground(name).executor for name in run}
        if len(specs) > 1:
            raise UsageError(
                f"experiments of these sessions ran in different places: {', '.join(sorted(specs))}",
                hint="add --set judge=checks, or learn from sessions of one place",
            )
        return specs.pop() if specs else "local"

    def _run(self, held: HeldOut) -> list[str]:
        """Names of the sessions whose experiments may be run."""
        return [name for name in held.grounds if self._run_foreign or not held.ground(name).foreign]


def commands_of(name: str, ground: Ground) -> Iterator[str]:
    """What will be run for a foreign session and what its jobs get, a line each; nothing of it is shortened.

    The commands of a task, which are a stranger's, run as the user, those of its set-up even outside of the sandbox.
    """
    task = ground.task
    execution, evaluation = task.execution, task.evaluation
    yield f"of the other repository {str(ground.folder)!r}, session {name!r}, these commands are run as this user:"
    for command in execution.setup_commands:
        yield f"  set-up, outside of the sandbox and with the network: {command!r}"
    yield f"  each experiment: {execution.run_command!r}"
    if evaluation is not None:
        yield f"  its evaluation: {evaluation.command!r}"
        yield f"  which reads: {evaluation.private!r}"
        if evaluation.model_command:
            yield f"  its model, for the evaluation: {evaluation.model_command!r}"
    for check in task.checks:
        yield f"  a check: {check.command!r}"
    yield f"  executor: {ground.executor!r}; interpreter: {execution.python or 'that of its set-up'!r}"
    yield f"  network: {'yes' if execution.network else 'no'}; environment: {execution.env!r}"
    yield f"  its jobs read: {task.data!r}"


@contextmanager
def judging_alone(home: Path, tell: Callable[[str], None], cancel: Cancel) -> Iterator[None]:
    """Have the folder of a repository where experiments are judged; what a killed learner left goes, with its jobs.

    Learners of different repositories may judge for the same session (``--from``): one waits for the other.
    """
    waits = iter([f"waiting for another learner that judges in {home.parent}"])

    def pause(seconds: float) -> bool:
        for text in waits:
            tell(text)
        return cancel.wait(seconds)

    stopped = Interrupted("the learner was stopped while another one judged")
    with ExitStack() as stack:
        with disk_errors(f"making {home}"):
            home.mkdir(parents=True, exist_ok=True)
            stack.enter_context(hold(home / _LOCK, patience=math.inf, pause=pause, busy=lambda: stopped))
            _clear(home)
        try:
            yield
        finally:
            with suppress(OSError):  # all of it may have gone meanwhile
                _clear(home)


def _clear(home: Path) -> None:
    reap(list(home.glob("*/*/run")))
    for folder in home.iterdir():
        if folder.name != _LOCK:
            remove_tree(folder)
