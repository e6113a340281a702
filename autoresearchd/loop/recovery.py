"""At every start: journal, git and processes are brought back into agreement, whatever the last daemon died of.

The store is right about what happened; git is made to follow it; processes that outlived their daemon are ended.
Nothing here decides anything: it hands the experiment found open to the loop, which advances it like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from autoresearchd.domain.errors import RepositoryError
from autoresearchd.domain.experiment import Experiment
from autoresearchd.domain.labels import Phase
from autoresearchd.domain.ports import EventKind
from autoresearchd.loop import messages
from autoresearchd.loop.confirming import follow_tip
from autoresearchd.loop.context import Context
from autoresearchd.loop.cycle import Cycle
from autoresearchd.loop.deciding import require_branch
from autoresearchd.loop.messages import is_baseline, is_keep
from autoresearchd.loop.run import Slot

RESTORED = 32


def reconcile(
    context: Context, cycle: Cycle, began: float, last_seen: datetime | None
) -> list[tuple[Experiment, Slot]]:
    """The experiments to go on with, none when all are settled. RepositoryError: somebody else moved the branch.

    A confirmation that was cut off is found by the loop itself, which goes on with it first. began, last_seen: see
    ``Slot``.
    """
    found = context.store.unsettled(context.session_id)
    _restore(context)
    _reconcile_confirmation(context, cycle, found, Slot(began, last_seen=last_seen))
    follow_tip(context)
    left = [_reconcile_run(context, cycle, e, Slot(began, last_seen=last_seen)) for e in found]
    _check_branch(context, [e for e, _ in left])
    for e, _ in left:
        words = f"going on with experiment {e.number}, found {e.phase.value}"
        context.emit(EventKind.RECOVERED, words, experiment=e.number)
    return left


def _reconcile_run(context: Context, cycle: Cycle, e: Experiment, slot: Slot) -> tuple[Experiment, Slot]:
    """What was measured is finished; what still runs is ended, so that it is run again."""
    if e.phase is Phase.RUNNING:
        run = e.runs[-1]
        result = context.executor.recover(context.site.run_dir(e.number, run.index))
        e = cycle.advance(e, slot) if result is None else cycle.conclude(e, slot, run, result)
    return e, slot


def _restore(context: Context) -> None:
    """Write commits and refs again that a power cut took: git flushes later than the journal, by seconds."""
    recent = context.store.experiments(context.session_id, last=RESTORED)
    written = {e.number: e.commit for e in recent if e.commit is not None and not is_baseline(e)}
    for number in context.workspace.damaged(written):
        _write_again(context, context.store.experiment(context.session_id, number))
    # Last: what the branch is to point at may be one of those.
    context.workspace.restore_branch(context.store.session(context.tag).confirmed)


def _reconcile_confirmation(context: Context, cycle: Cycle, found: Sequence[Experiment], slot: Slot) -> None:
    """Read what a run gave that outlived its daemon; carry out a verdict that was not."""
    past, latest = context.store.confirmations(context.session_id), context.store.latest(context.session_id)
    if not past or latest is None:
        return
    last = past[-1]
    if last.verdict is not None:
        next_one = min((e.number for e in found if e.phase is not Phase.DECIDED), default=latest.number + 1)
        at = context.store.session(context.tag).confirmed_experiment
        # Else it was carried out before the next decision; with several slots what was under way was decided meanwhile.
        if next_one == last.after + 1 or (last.confirmed and at == last.experiment and context.slots > 1):
            cycle.confirming.settle(last)
    elif last.runs and last.runs[-1].open:
        run = last.runs[-1]
        result = context.executor.recover(context.site.run_dir(last.experiment, run.index))
        if result is None:
            cycle.confirming.advance(last, slot)
        else:
            cycle.confirming.conclude(last, slot, run, result)


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
    """What a keep was committed on: the tip of its time, which need not be what it was written against."""
    if context.task.history == "revert":
        return e.parent
    store, session_id = context.store, context.session_id
    past = store.confirmations(session_id, e.segment)
    falls = [(c.against, c.after) for c in past if c.fell]

    def stood(keep: Experiment) -> bool:
        return keep.confirmed is not False or not any(to < keep.number <= after < e.number for to, after in falls)

    before = [k for k in store.experiments(session_id) if k.number < e.number and k.segment == e.segment and is_keep(k)]
    return next((messages.commit_of(keep) for keep in reversed(before) if stood(keep)), e.parent)


def _check_branch(context: Context, found: Sequence[Experiment]) -> None:
    """The branch is where the store says, or where a baseline's decision that was not yet carried out found it."""
    expected = {context.store.session(context.tag).confirmed}
    expected |= {e.parent for e in found if is_baseline(e) and e.phase is Phase.DECIDED}
    require_branch(context, expected)
