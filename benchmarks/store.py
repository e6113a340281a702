"""How long each method of the store takes, with few and with many experiments behind it, and how long ``status`` takes.

    python benchmarks/store.py [EXPERIMENTS ...]

The floor is one commit of one small row on the same disk at the same time, by plain ``sqlite3`` in WAL mode with
synchronous=FULL.
"""

from __future__ import annotations

import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import insert, update

from autoresearchd.domain.confirmation import Verdict
from autoresearchd.domain.experiment import CurvePoint, Decision, Measurement, RunResult, StageResult
from autoresearchd.domain.labels import Label, Outcome, Status
from autoresearchd.domain.ports import NewSession
from autoresearchd.domain.proposal import ASI, Answer, Cost, Generation, Proposal
from autoresearchd.store.repository import SqlStore
from autoresearchd.store.schema import tables as t
from autoresearchd.store.schema.database import Database

ROUNDS = 40
AT = datetime(2026, 1, 1, tzinfo=UTC)
SOURCE = "".join(f"def layer_{i}(x, width={i}):\n    return x * {i * 7919 % 1000} + width\n\n" for i in range(450))
CURVE = tuple(CurvePoint(i, 10 / (i + 1), i / 300) for i in range(300))
RESULT = RunResult((StageResult("training", "ok", 0, 300.0, "runs/1/training.log"),), 301.0, "bubblewrap")
PROMPT = ({"role": "system", "content": "You do research."}, {"role": "user", "content": SOURCE})
ANSWER = Answer("some/model", Cost(0.01, 12_000, 800, 9.0), Generation(PROMPT, SOURCE[:3000]), form="search_replace")


def proposal(number: int) -> Proposal:
    """A proposal of a usual size: the whole of a 30 kB file."""
    files = {"train.py": SOURCE.replace("width=7", f"width={number}")}
    return Proposal(files, f"width {number} is better", "search", f"width → {number}", 0.01, {"width": number})


def one(store: SqlStore, session_id: int, timed: Callable[[str, Callable[[], object]], object]) -> None:
    """One experiment, each step timed."""
    e = timed("open_experiment", lambda: store.open_experiment(session_id, parent="a" * 40, segment=0, at=AT))
    n = e.number
    p = proposal(n)
    timed("record_answer", lambda: store.record_answer(session_id, n, ANSWER, AT))
    timed("record_answer (again)", lambda: store.record_answer(session_id, n, ANSWER, AT))
    timed("find_duplicate", lambda: store.find_duplicate(session_id, f"h{n}"))
    timed(
        "record_proposal",
        lambda: store.record_proposal(session_id, n, p, diff="-width\n+width\n" * 9, code_hash=f"h{n}"),
    )
    timed("record_commit", lambda: store.record_commit(session_id, n, f"{n:040x}"))
    run = timed("open_run", lambda: store.open_run(session_id, n, 1, AT))
    value = 1 + (n * 7919 % 1000) / 1000
    m = Measurement(Label.NONE, value, {"val_bpb": value, "peak_vram_mb": 1.0}, curve=CURVE)
    timed("close_run", lambda: store.close_run(run.id, m, RESULT, AT, last=True))
    d = Decision(Status.DISCARD, Label.NO_GAIN, value, -0.1, m.metrics, 1.0, 0.01, -1.0, "no gain")
    asi = ASI(p.hypothesis, "", "no gain", "go down")
    timed("record_decision", lambda: store.record_decision(session_id, n, d, asi, AT, incumbent=None))
    k = timed(
        "open_confirmation", lambda: store.open_confirmation(session_id, experiment=n, against=n, why="asked", at=AT)
    )
    again = timed("open_confirmation_run", lambda: store.open_confirmation_run(session_id, k.number, 1, AT, of=None))
    timed("close_confirmation_run", lambda: store.close_confirmation_run(again.id, m, RESULT, AT))
    timed("open_confirmation_of", lambda: store.open_confirmation_of(session_id))
    verdict = Verdict(Outcome.UNDECIDED, 0.0, 0.1, 0.5, "no difference")
    timed("decide_confirmation", lambda: store.decide_confirmation(session_id, k.number, verdict, AT))
    timed("confirmations", lambda: store.confirmations(session_id, 0))
    timed("record_overhead", lambda: store.record_overhead(session_id, n, 50.0))
    timed("heartbeat", lambda: store.heartbeat(session_id, AT, 1.0))
    timed("experiment", lambda: store.experiment(session_id, n))
    timed("experiments(last=32)", lambda: store.experiments(session_id, last=32))
    timed("top(5)", lambda: store.top(session_id, 0, 5, False))
    timed("values", lambda: store.values(session_id, 0))
    timed("totals", lambda: store.totals(session_id))
    timed("trials(after)", lambda: store.trials(session_id, n - 2))
    timed("answers", lambda: store.answers(session_id, n))
    timed("charges_since (all)", lambda: store.charges_since(AT))
    timed("label_counts", lambda: store.label_counts(session_id))
    timed("role_stats", lambda: store.role_stats(session_id))
    timed("tree(after)", lambda: store.tree(session_id, 0, n - 2))
    timed("tree (all)", lambda: store.tree(session_id, 0))
    timed("add_visit", lambda: store.add_visit(session_id, n))
    timed("visits", lambda: store.visits(session_id))
    timed("take_controls (none)", lambda: store.take_controls(session_id))
    timed("unseen_notes", lambda: store.unseen_notes(session_id))


def fill(url: str, session_id: int, template: int, count: int) -> None:
    """Copies of one experiment, until there are ``count``."""
    database = Database(url)
    with database.write() as c:
        for table in (t.experiments, t.proposals, t.proposal_bodies, t.asi, t.runs, t.answers, t.answer_bodies):
            columns = [col.name for col in table.c if col.name != "id"]
            row = c.execute(table.select().where(table.c.number == template)).mappings().first()
            if row is None:  # no model was asked, for one
                continue
            base = {name: row[name] for name in columns}
            copies = []
            for n in range(template + 1, count):
                value = 1 + (n * 7919 % 1000) / 1000
                changed = {"number": n, "code_hash": f"h{n}", "value": value, "commit_sha": f"{n:040x}"}
                changed["parent"] = f"{n - 1:040x}"
                copies.append({k: changed.get(k, v) for k, v in base.items()})
            for i in range(0, len(copies), 1000):
                c.execute(insert(table), copies[i : i + 1000])
        done = {"opened": count, "experiments": count, "discards": count}
        c.execute(update(t.totals).where(t.totals.c.session_id == session_id).values(**done))
    database.close()


def open_floor(path: Path) -> sqlite3.Connection:
    """A database for the floor."""
    db = sqlite3.connect(path, isolation_level=None)
    for pragma in ("journal_mode=WAL", "synchronous=FULL"):
        db.execute(f"PRAGMA {pragma}")
    db.execute("CREATE TABLE t (a TEXT)")
    return db


def process(code: str) -> float:
    """Median of a whole process."""
    times = []
    for _ in range(9):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1000


def measure(count: int, folder: Path) -> dict[str, float]:
    """Medians in milliseconds."""
    path = folder / f"{count}.db"
    url = f"sqlite:///{path}"
    store = SqlStore.open(url)
    task = '{"name":"b","scoring":{"metric":"val_bpb","direction":"minimize"},"execution":{"budget":300}}'
    session = store.create_session(NewSession("b", "autoresearch/b", task, "search", "local", "a" * 40, 1), AT)
    store.open_segment(session.id, "f", "start", "cpu", AT)
    one(store, session.id, lambda _, call: call())
    if count > 1:
        fill(url, session.id, 0, count)
    times: dict[str, list[float]] = {}

    def timed(name: str, call: Callable[[], object]) -> object:
        started = time.perf_counter()
        value = call()
        times.setdefault(name, []).append(time.perf_counter() - started)
        return value

    floor = open_floor(folder / f"{count}.floor.db")
    for _ in range(ROUNDS):
        timed("floor: one commit", lambda: floor.execute("INSERT INTO t VALUES ('x')"))
        one(store, session.id, timed)
    floor.close()
    store.close()
    found = {name: statistics.median(values) * 1000 for name, values in times.items()}
    imports = "import json; from pathlib import Path; from autoresearchd.store.reader import Reader; "
    reader = f"r = Reader(Path({str(path)!r})); "
    found["process: pass"] = process("pass")
    found["process: status"] = process(imports + reader + "print(json.dumps(r.status('b')))")
    found["process: experiments"] = process(imports + reader + "print(json.dumps(list(r.experiments('b'))))")
    return found


def main() -> None:
    """Print the table."""
    counts = [int(a) for a in sys.argv[1:]] or [10, 10_000]
    with tempfile.TemporaryDirectory() as name:
        columns = [measure(count, Path(name)) for count in counts]
    print(f"{'median ms':24}" + "".join(f"{count:>12,}" for count in counts))
    for label in columns[0]:
        print(f"{label:24}" + "".join(f"{column[label]:12.2f}" for column in columns))


if __name__ == "__main__":
    main()
