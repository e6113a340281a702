"""Experiments that a learner runs: without the limit on its own memory, and in folders that no other learner uses."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path

from autoresearchd.domain.errors import UsageError
from autoresearchd.domain.ports import Cancel, Executor, Store
from autoresearchd.learner.data.read_sessions import ReadSession
from autoresearchd.learner.gate.held_out_states import Ground, HeldOut, opened
from autoresearchd.learner.gate.judge_answers import RealJudge
from autoresearchd.learner.training.out_of_memory import lift_memory_limit
from autoresearchd.sandbox.file_locks import hold
from autoresearchd.sandbox.launch import reap
from autoresearchd.workspace.files import disk_errors, remove_tree

_LOCK = "lock"
_PREFIX = "learner-"


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
        with opened(sessions, names, self._store) as held, apart(held, self._run(held)):
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


# ---------------------------------------------------------------------- folders
@contextmanager
def apart(held: HeldOut, names: Iterable[str]) -> Iterator[None]:
    """Have the experiments of these sessions run in folders of this process as long as the context lasts.

    Two learners, of different repositories, may judge for the same session at the same time (``--from``).
    """
    with ExitStack() as stack:
        own = cache(lambda home: stack.enter_context(own_folder(home)))
        for number, name in enumerate(names):
            ground = held.ground(name)
            ground.scratch = own(ground.scratch.parent) / str(number)
        yield


@contextmanager
def own_folder(home: Path) -> Iterator[Path]:
    """A new folder below ``home``, gone at the end; those of learners that were killed go first, with their jobs."""
    with ExitStack() as own:
        with disk_errors(f"making a folder in {home}"):
            home.mkdir(parents=True, exist_ok=True)
            with hold(home / _LOCK, patience=math.inf):  # nobody sweeps what has no lock yet
                for left in home.glob(f"{_PREFIX}*"):  # the lock of a process that has died has died with it
                    with suppress(BlockingIOError), hold(left / _LOCK):
                        reap(list(left.glob("*/*/run")))
                        remove_tree(left)
                folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=home))
                own.enter_context(hold(folder / _LOCK))
        try:
            yield folder
        finally:
            # Under the lock, so that nobody sweeps what is half gone; without one where all of it went meanwhile.
            with suppress(OSError), hold(home / _LOCK, patience=math.inf):
                remove_tree(folder)
