"""Experiments that a learner runs: where, without the limit on its own memory, and only one learner at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from autoresearchd.domain.errors import Interrupted, UsageError
from autoresearchd.domain.ports import Cancel, Executor, Store
from autoresearchd.learner.data.read_sessions import ReadSession
from autoresearchd.learner.gate.held_out_states import Ground, HeldOut, opened
from autoresearchd.learner.gate.judge_answers import RealJudge
from autoresearchd.learner.training.out_of_memory import lift_memory_limit
from autoresearchd.sandbox.file_locks import hold
from autoresearchd.sandbox.launch import reap
from autoresearchd.workspace.files import disk_errors, remove_tree

_LOCK = "lock"


class LearnerJobs:
    """Opens the sessions that a learner run judges for, and makes the judge that runs their experiments.

    executor: makes the one of a spec, as in ``--executor``. store: of the repository that is learned for. run_foreign:
    whether experiments of other repositories' sessions are run, too; their commands are told before.
    """

    def __init__(
        self,
        executor: Callable[[str], Executor],
        store: Store | None,
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

    What its database says is a stranger's: the commands of a task run as the user, set-up commands even outside of the
    sandbox.
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

    with disk_errors(f"making {home}"):
        home.mkdir(parents=True, exist_ok=True)
    stopped = Interrupted("the learner was stopped while another one judged")
    with hold(home / _LOCK, patience=math.inf, pause=pause, busy=lambda: stopped):
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
