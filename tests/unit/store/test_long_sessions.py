"""What is asked with every proposal costs the same in a long session as in a short one, in steps of SQLite."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, insert, select, update

from autoresearchd.domain.labels import Status
from autoresearchd.store.repository import SqlStore
from autoresearchd.store.schema import tables as t
from tests.unit.store.driver import AT, Driver, begin, commit_of, new_answer

SHORT, LONG = 20, 2000


def session_of(path: Path, count: int) -> tuple[SqlStore, Driver]:
    """A session whose experiments, but the last, are copies of the first with values and commits of their own."""
    store = SqlStore.open(f"sqlite:///{path}")
    lab = begin(store)
    lab.decided(Status.DISCARD, 1.0)
    with store._db.write() as c:
        for table in (t.experiments, t.proposals, t.proposal_bodies, t.runs):
            columns = [column for column in table.c if column.name != "id"]
            (first,) = c.execute(select(*columns)).mappings().all()
            copies = []
            for n in range(1, count - 1):
                changed = {"number": n, "code_hash": f"h{n}", "value": 1.0 + n, "commit_sha": commit_of(n)}
                changed["parent"] = commit_of(n - 1)
                copies.append({name: changed.get(name, value) for name, value in first.items()})
            c.execute(insert(table), copies)
        c.execute(update(t.totals).values(opened=count - 1))
    lab.decided(Status.DISCARD, 2.0)
    return store, lab


def steps(store: SqlStore, call: Callable[[], object]) -> int:
    """Instructions of SQLite's machine that a call takes."""
    taken = 0

    def tick() -> int:
        nonlocal taken
        taken += 1
        return 0

    def watch(connection: Any, *_: Any) -> None:
        connection.set_progress_handler(tick, 1)

    event.listen(store._db.engine, "checkout", watch)
    try:
        call()
    finally:
        event.remove(store._db.engine, "checkout", watch)
    return taken


ASKED: dict[str, Callable[[SqlStore, int, int], object]] = {
    "find_duplicate": lambda store, session, last: store.find_duplicate(session, f"h{last}"),
    "find_duplicate, none": lambda store, session, last: store.find_duplicate(session, "h-1"),
    "experiments of a role": lambda store, session, last: store.experiments(session, last=8, role="optimizer"),
    "label_counts": lambda store, session, last: store.label_counts(session),
    "role_stats": lambda store, session, last: store.role_stats(session),
    "role_turns": lambda store, session, last: store.role_turns(session, 8),
    "tree": lambda store, session, last: store.tree(session, 0, after=last - 1),
    "add_visit": lambda store, session, last: store.add_visit(session, last),
    "visits": lambda store, session, last: store.visits(session),
    "record_answer": lambda store, session, last: store.record_answer(session, last, new_answer(), AT),
    "answers": lambda store, session, last: store.answers(session, last),
    "totals": lambda store, session, last: store.totals(session),
}


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[tuple[SqlStore, Driver, int]]]:
    """A short and a long one, each with the number of its last experiment."""
    folder = tmp_path_factory.mktemp("sessions")
    made = [(*session_of(folder / f"{count}.db", count), count - 1) for count in (SHORT, LONG)]
    yield made
    for store, _, _ in made:
        store.close()


@pytest.mark.parametrize("name", ASKED)
def test_a_long_session_is_no_slower_to_ask(name: str, sessions: list[tuple[SqlStore, Driver, int]]) -> None:
    taken = [steps(store, lambda: ASKED[name](store, lab.id, last)) for store, lab, last in sessions]  # noqa: B023
    assert 0 < taken[1] <= taken[0] + 20
