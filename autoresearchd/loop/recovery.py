"""At every start: journal, git and processes are brought back into agreement, whatever the last daemon died of.

The store is right about what happened; git is made to follow it; processes that outlived their daemon are ended.
Nothing here decides anything: it hands the experiment found open to the loop, which advances it like any other.
"""

from __future__ import annotations

from autoresearchd.domain.errors import RepositoryError
from autoresearchd.domain.experiment import Experiment
from autoresearchd.domain.labels import Phase
from autoresearchd.domain.ports import EventKind
from autoresearchd.loop import messages
from autoresearchd.loop.context import Context
from autoresearchd.loop.cycle import Cycle
from autoresearchd.loop.deciding import require_branch
from autoresearchd.loop.messages import is_baseline, is_keep
from autoresearchd.loop.run import Slot

RESTORED = 32


def reconcile(context: Context, cycle: Cycle, slot: Slot) -> Experiment | None:
    """The experiment to go on with, None when all are settled. RepositoryError: somebody else moved the branch."""
    latest = context.store.latest(context.session_id)
    _restore(context)
    if latest is not None and latest.phase is Phase.RUNNING:
        # What was measured is finished; what still runs is ended, so that it is run again.
        run = latest.runs[-1]
        result = context.executor.recover(context.site.run_dir(latest.number, run.index))
        latest = cycle.advance(latest, slot) if result is None else cycle.conclude(latest, slot, run, result)
    _check_branch(context, latest)
    if latest is None or messages.is_settled(latest):
        return None
    words = f"going on with experiment {latest.number}, found {latest.phase.value}"
    context.emit(EventKind.RECOVERED, words, experiment=latest.number)
    return latest


def _restore(context: Context) -> None:
    """Write commits and refs again that a power cut took: git flushes later than the journal, by seconds."""
    recent = context.store.experiments(context.session_id, last=RESTORED)
    written = {e.number: e.commit for e in recent if e.commit is not None and not is_baseline(e)}
    for number in context.workspace.damaged(written):
        _write_again(context, context.store.experiment(context.session_id, number))
    # Last: what the branch is to point at may be one of those.
    context.workspace.restore_branch(context.store.session(context.tag).incumbent)


def _write_again(context: Context, e: Experiment) -> None:
    kept = e.decision if is_keep(e) else None
    base = e.parent if kept is None else _base(context, e)
    files = messages.proposal_of(e).files
    if base != e.parent:
        files = {**{path: context.workspace.read(e.parent, path) for path in context.task.editable}, **files}
    message = context.redactor.text(messages.commit_message(e, context.task, kept))
    commit = context.workspace.commit(number=e.number, parent=base, files=files, message=message, when=e.started_at)
    context.emit(EventKind.RECOVERED, f"wrote commit {commit[:7]} again", experiment=e.number)
    if commit != e.commit:
        raise RepositoryError(
            f"commit {messages.commit_of(e)[:10]} of experiment {e.number} is lost, and the journal gives another one",
            hint="run `git fsck` and fetch it from a clone; or start a new session from the last kept commit",
        )


def _base(context: Context, e: Experiment) -> str:
    """What a keep was committed on: the keep before it, which need not be what it was written against."""
    if context.task.history == "revert":
        return e.parent
    before = [k.commit for k in context.store.experiments(context.session_id) if k.number < e.number and is_keep(k)]
    return before[-1] or e.parent if before else e.parent


def _check_branch(context: Context, latest: Experiment | None) -> None:
    """The branch is where the store says, or where a decision that was not yet carried out found it."""
    expected = {context.store.session(context.tag).incumbent}
    if latest is not None and latest.phase is Phase.DECIDED and not messages.is_settled(latest):
        kept = is_keep(latest) and not is_baseline(latest)
        expected.add(context.workspace.parent(messages.commit_of(latest)) if kept else latest.parent)
        # What lost its place beside it: the branch falls back once the decision is carried out.
        expected |= {messages.commit_of(context.store.experiment(context.session_id, n)) for n in latest.fallen}
    require_branch(context, expected)
