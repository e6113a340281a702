"""At every start: journal, git and processes are brought back into agreement, whatever the last daemon died of.

The store is right about what happened; git is made to follow it; processes that outlived their daemon are ended.
Nothing here decides anything: it hands the experiment found open to the loop, which advances it like any other.
"""

from __future__ import annotations

from autoresearchd.domain.events import EventKind
from autoresearchd.domain.experiment import Experiment
from autoresearchd.domain.labels import Phase, Status
from autoresearchd.errors import RepositoryError
from autoresearchd.loop.cycle import Cycle
from autoresearchd.loop.laboratory import Laboratory


def reconcile(lab: Laboratory, cycle: Cycle) -> Experiment | None:
    """The experiment to go on with, None when all are settled.

    Raises RepositoryError when the session branch points at a commit that this session did not put there.
    """
    latest = lab.store.latest(lab.session_id)
    if latest is not None and latest.phase is Phase.RUNNING:
        latest = _end_of_run(lab, cycle, latest)
    _check_branch(lab, latest)
    if latest is None or (latest.phase is Phase.DECIDED and latest.overhead_ms is not None):
        return None
    lab.emit(
        EventKind.RECOVERED,
        f"going on with experiment {latest.number}, found {latest.phase.value}",
        experiment=latest.number,
        phase=latest.phase.value,
    )
    return latest


def _end_of_run(lab: Laboratory, cycle: Cycle, e: Experiment) -> Experiment:
    """Finish what was measured; end what still runs, so that it is run again."""
    run = e.runs[-1]
    run_dir = lab.site.run_dir(e.number, run.index)
    result = lab.executor.recover(run_dir)
    if result is not None:
        return cycle.conclude(e, run, result)
    return cycle.advance(e)


def _check_branch(lab: Laboratory, latest: Experiment | None) -> None:
    """The branch is where the store says, or where a decision that was not yet carried out found it."""
    session = lab.store.session(lab.tag)
    tip = lab.workspace.tip()
    expected = {session.incumbent}
    if latest is not None and latest.phase is Phase.DECIDED and latest.overhead_ms is None:
        expected.add(latest.parent)
    if lab.task.history == "revert" or tip in expected:
        return
    kept = "the last kept experiment"
    if latest is not None and latest.decision is not None and latest.decision.status is Status.KEEP:
        kept = f"experiment {latest.number}"
    raise RepositoryError(
        f"branch {session.branch} points at {tip[:10]}, but this session left it at {session.incumbent[:10]} ({kept})",
        mend=f"git branch --force {session.branch} {session.incumbent[:10]}, then resume; "
        "to build on your own commit, start a new session from it",
    )
