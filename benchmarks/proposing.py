"""How long it takes to propose, beside the model: the state and its prompt, an edit, a duplicate, a step of the search.

    python benchmarks/proposing.py                      # 100 and 10,000 experiments, 100,000 for duplicates
    OMP_NUM_THREADS=1 taskset -c 1 python benchmarks/proposing.py --rounds 100

The history is one experiment with a program of 1,000 lines, copied. A state is taken as the daemon takes it: by an
object that has kept up with the session, for the turn of a specialist as well; once also by a daemon that was just
started. A specialist is shown more: its own last experiments beside the latest of all. Times are processor times: what
else a machine does is not counted.

What an edit brings back is what one in twenty experiments, the keeps, had removed: half of it here.

Wordy histories are those whose every field has as many characters as a prompt shows of it, or more: prose of the field.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the fakes are those of the tests

from sqlalchemy import insert, update

from autoresearchd.config.settings import ModelSettings
from autoresearchd.domain.experiment import Decision, Experiment, Measurement, RunResult, StageResult, Trial
from autoresearchd.domain.labels import Label, Status
from autoresearchd.domain.ports import NewSession, ResearchState, Workspace
from autoresearchd.domain.proposal import ASI, Proposal
from autoresearchd.domain.randomness import derive_seed
from autoresearchd.domain.task import Role
from autoresearchd.loop.context import Context, Site, SystemClock
from autoresearchd.loop.proposing.build_state import Research, Turns
from autoresearchd.loop.proposing.proposals import EditCheck
from autoresearchd.loop.session_view import SessionView
from autoresearchd.models.client import estimate_tokens
from autoresearchd.policy.edits.read_answer import FORMS, read_answer
from autoresearchd.policy.hybrid_policy import HybridPolicy, luck
from autoresearchd.policy.model_policy import ModelPolicy
from autoresearchd.policy.prompt import sections
from autoresearchd.policy.search.find_constants import find
from autoresearchd.policy.search.parameter import Value
from autoresearchd.policy.search.search_policies import SearchPolicy
from autoresearchd.resources import bundled
from autoresearchd.store.journal.experiment_records import recount
from autoresearchd.store.repository import SqlStore
from autoresearchd.store.schema import tables as t
from tests.fakes.executors import FakeExecutor
from tests.fakes.models import MemoryAnswers, OpenPurse, ScriptedClient
from tests.fakes.policies import MemoryHistory, ScriptedPolicy, make_state, make_task

AT = datetime(2026, 1, 1, tzinfo=UTC)
BASE = "a" * 40
CONSTANTS = "".join(f"CONSTANT_{i} = {i + 1}.5  # a rate\n" for i in range(20))
FUNCTIONS = "".join(f"def layer_{i}(x):\n    y = x + {i}\n    z = y * {i}\n    return z\n" for i in range(245))
PROGRAM = CONSTANTS + FUNCTIONS
"""1,000 lines."""
LINES = PROGRAM.split("\n")
LENGTHS = (300, 1000)
"""Characters in a field of a wordy history: all of 300 are shown, more are cut."""
ROLES = tuple(Role(name, "rate", "Look at the rates.") for name in ("data", "schedule", "systems"))
RARE = Role("rare", "rate", "It had its turns long ago.")


# ---------------------------------------------------------------------- a long session
class Texts:
    """A workspace that has one program."""

    def read(self, commit: str, path: str) -> str:
        """The program."""
        return PROGRAM

    def tip(self) -> str:
        """Its commit."""
        return BASE


def first(store: SqlStore, session: int, role: str) -> Experiment:
    """One experiment with words in every field that a prompt shows."""
    e = store.open_experiment(session, parent=BASE, segment=0, at=AT)
    what = f"CONSTANT_{e.number % 20} {e.number} → {e.number + 1}"
    asi = ASI(
        hypothesis=f"a larger rate of layer {e.number} may reach the plateau sooner, as the last three gained by it",
        arch_change="the second linear layer of each block is gated by the first",
        result="the loss fell faster until the middle and ended a little higher",
        next_action_hint=f"warm up over {e.number} steps with the larger rate",
    )
    files = {"train.py": PROGRAM.replace("x + 77", f"x + {e.number}")}
    proposal = Proposal(
        files, asi.hypothesis, "local:m", what, 0.01, {f"train.py:CONSTANT_{e.number % 20}": 2.0}, asi=asi
    )
    store.record_proposal(
        session, e.number, replace(proposal, role=role), diff="-x\n+y\n" * 9, code_hash=f"h{e.number}"
    )
    store.record_commit(session, e.number, f"{e.number:040x}")
    run = store.open_run(session, e.number, 1, AT)
    value = 2.0 - 1e-4 * e.number
    measurement = Measurement(Label.NONE, value, {"val_loss": value, "num_steps": 99.0, "peak_vram_mb": 4711.0})
    result = RunResult((StageResult("training", "ok", 0, 300.0, "runs/1/training.log"),), 301.0, "bubblewrap")
    store.close_run(run.id, measurement, result, AT, last=True)
    kept = e.number == 0
    decision = (
        Decision(Status.KEEP, Label.NONE, value, 0.1, measurement.metrics, 1.0, 0.01, 1.0)
        if kept
        else Decision(Status.DISCARD, Label.NO_GAIN, value, -0.1, measurement.metrics, 1.0, 0.01, -1.0, "no gain: −0.1")
    )
    return store.record_decision(session, e.number, decision, asi, AT, incumbent=BASE if kept else None)


def fill(store: SqlStore, session: int, count: int, *, bodies: bool = True) -> None:
    """Copies of experiment 2, with roles in turn, until there are ``count``; the rare role had the first two.

    bodies: with their programs.
    """
    for role in ("", RARE.name, RARE.name):
        first(store, session, role)
    with store._db.write() as c:
        more = (t.proposal_bodies, t.asi, t.runs) if bodies else ()
        for table in (t.experiments, t.proposals, *more):
            columns = [column for column in table.c if column.name != "id"]
            base = c.execute(table.select().with_only_columns(*columns).where(table.c.number == 2)).mappings().one()
            copies = []
            for n in range(3, count):
                value = 2.0 + (n * 7919 % 1000) / 1000
                changed: dict[str, Any] = {"number": n, "code_hash": f"h{n}", "value": value, "commit_sha": f"{n:040x}"}
                changed |= {"role": ROLES[n % len(ROLES)].name, "description": f"CONSTANT_{n % 20} {n} → {n + 1}"}
                copies.append({name: changed.get(name, old) for name, old in base.items()})
            for i in range(0, len(copies), 1000):
                c.execute(insert(table), copies[i : i + 1000])
        done = {"opened": count, "experiments": count, "discards": count - 1, "keeps": 1}
        c.execute(update(t.totals).where(t.totals.c.session_id == session).values(**done))
        c.execute(update(t.sessions).where(t.sessions.c.id == session).values(incumbent=BASE))
        recount(c, session)


def session_of(folder: Path, count: int, *, bodies: bool = True) -> tuple[SqlStore, int]:
    """A store with one long session."""
    store = SqlStore.open(f"sqlite:///{folder / f'{count}.db'}")
    session = store.create_session(NewSession("b", "autoresearch/b", "{}", "search", "local", BASE, 1), AT)
    store.open_segment(session.id, "f", "start", "cpu", AT)
    fill(store, session.id, count, bodies=bodies)
    return store, session.id


def laboratory(store: SqlStore, session: int, folder: Path, roles: tuple[Role, ...]) -> Context:
    """What the loop works with, as far as a state needs it."""
    task = replace(make_task(), roles=roles)
    nowhere = Site(folder, folder, folder, folder / "runs")
    return Context(
        session_id=session,
        tag="b",
        seed=1,
        task=task,
        store=store,
        workspace=cast(Workspace, Texts()),
        executor=FakeExecutor(lambda request: ""),
        policy=ScriptedPolicy(()),
        clock=SystemClock(),
        sink=_Silence(),
        site=nowhere,
    )


class _Silence:
    def emit(self, event: object) -> None:
        """Nobody listens."""


@dataclass
class Daemon:
    """Takes states of one session, one after the other, as the loop does."""

    lab: Context

    def __post_init__(self) -> None:
        self.view = SessionView(self.lab)
        self.turns = Turns(self.view)
        self.research = Research(self.view, self.turns)
        self._opened = 0

    def state(self) -> ResearchState:
        """The state for the next experiment, which is never opened."""
        self._opened += 1
        latest = self.lab.store.latest(self.lab.session_id)
        assert latest is not None
        parent = self.turns.next_parent()
        opened = replace(
            latest, number=latest.number + self._opened, parent=parent, proposal=None, decision=None, runs=()
        )
        return self.research.state(opened)

    def prompt(self, state: ResearchState) -> int:
        """Length of the whole prompt for a model."""
        return sum(
            len(m["content"]) for m in sections.messages(state, forms=FORMS, budget=64_000, count=estimate_tokens)
        )


# ---------------------------------------------------------------------- many words
PROSE = """\
    the loss fell rose sooner later than before because each layer of attention takes its token keys from a wider
    window and gradients stay small while learning rate warmup decay over 300 steps at 3e-4 lets momentum settle so
    embedding norm at 0.02 may help if batch size 64 is kept with rotary heads gated mlp depth 8 width 512
"""


def prose(length: int, seed: int) -> str:
    """Words of the field, so many characters of them."""
    random, words = Random(seed), PROSE.split()
    return " ".join(random.choices(words, k=length))[:length]


def worded(e: Experiment, length: int) -> Experiment:
    """The experiment with so many characters in each of its fields."""
    if e.proposal is None or e.decision is None:
        return e
    texts = iter(prose(length, 100 * e.number + i) for i in range(20))
    asi = ASI(next(texts), next(texts), next(texts), next(texts), {f"observation_{i}": next(texts) for i in range(4)})
    proposal = replace(e.proposal, hypothesis=next(texts), description=next(texts), asi=asi)
    return replace(e, proposal=proposal, decision=replace(e.decision, reason=next(texts)), asi=asi)


def wordy(state: ResearchState, length: int) -> ResearchState:
    """The state with so many characters in each field of its history; its notes and its memo are as long as many."""
    recent, top, own = ([worded(e, length) for e in each] for each in (state.recent, state.top, state.own))
    notes = tuple(prose(10 * length, i) for i in range(3))
    return replace(state, recent=tuple(recent), top=tuple(top), own=tuple(own), notes=notes, memo=prose(20 * length, 9))


# ---------------------------------------------------------------------- measuring
def median(call: Callable[[], object], rounds: int) -> float:
    """Processor time of so many goes, in ms."""
    times = []
    for _ in range(rounds):
        began = time.process_time()
        call()
        times.append(time.process_time() - began)
    return statistics.median(times) * 1000


def states(folder: Path, count: int, rounds: int) -> dict[str, float]:
    """Medians of what a state costs after so many experiments."""
    store, session = session_of(folder, count)
    found = {}
    for name, roles in (("no roles", ()), ("three roles in turn", ROLES), ("a role of long ago", (RARE,))):
        lab = laboratory(store, session, folder, roles)
        began = time.process_time()
        daemon = Daemon(lab)
        daemon.view.totals  # noqa: B018 - read at the start
        found[f"start, {name}"] = (time.process_time() - began) * 1000
        began = time.process_time()
        state = daemon.state()
        found[f"first state, {name}"] = (time.process_time() - began) * 1000
        for _ in range(len(roles)):
            daemon.state()  # each role's own history is read at its first turn
        found[f"state, {name}"] = median(daemon.state, rounds)
        found[f"prompt, {name}"] = median(partial(daemon.prompt, state), rounds)
        for length in LENGTHS:
            found[f"prompt of {length} a field, {name}"] = median(partial(daemon.prompt, wordy(state, length)), rounds)
    store.close()
    return found


EDITS: Mapping[str, str] = {
    "search/replace": "".join(
        f"<<<<<<< SEARCH\n    y = x + {n}\n    z = y * {n}\n=======\n    y = x - {n}\n    z = y\n>>>>>>> REPLACE\n"
        for n in range(5, 240, 50)
    ),
    "lines": json.dumps(
        {"edits": [{"op": "replace", "line": n, "expect": LINES[n - 1], "text": "x"} for n in (30, 500, 999)]}
    ),
    "diff": "--- a/train.py\n+++ b/train.py\n"
    + "".join(f"@@ -1,3 +1,3 @@\n def layer_{n}(x):\n-    y = x + {n}\n+    y = 1\n" for n in (3, 200)),
    "whole file": f"```python train.py\n{PROGRAM.replace('x + 77', 'x - 77')}```",
}


def duplicates(folder: Path, count: int, rounds: int) -> float:
    """Median of looking a program up among so many."""
    store, session = session_of(folder, count, bodies=False)
    wanted = iter(range(1, count, count // (rounds + 1)))
    took = median(lambda: store.find_duplicate(session, f"h{next(wanted)}"), rounds)
    store.close()
    return took


def re_added(folder: Path, count: int, rounds: int) -> dict[str, float]:
    """Looking for what edits of thirty lines bring back: the first time in a daemon, and the median of later ones."""
    store, session = session_of(folder, count)
    keeps = range(20, count, 20)
    row = {"session_id": session, "attempt": 0}
    with store._db.write() as c:
        c.execute(update(t.experiments).where(t.experiments.c.number.in_(keeps)).values(status=Status.KEEP))
        for n in keeps:
            gone = "".join(f"-    y = layer_{n}_{i}(x, z)\n+    y = block_{n}_{i}(x, z)\n" for i in range(15))
            body = {"diff": f"--- a/train.py\n+++ b/train.py\n{gone}", "files": {"train.py": PROGRAM}}
            c.execute(update(t.proposal_bodies).filter_by(**row, number=n).values(**body))
    check = EditCheck(make_task(), store, session, folder)
    edits = iter(range(rounds + 1))

    def look() -> str:
        k = next(edits)
        back = "".join(f"    y = layer_{keeps[-1 - k % 50]}_{i}(x, z)\n" for i in range(15))
        new = "".join(f"    y = fresh_{k}_{i}(x, z)\n" for i in range(15))
        (words,) = check.re_added({"train.py": PROGRAM}, {"train.py": f"{PROGRAM}{back}{new}"}).values()
        assert words.startswith("15 of 30 new lines"), words
        return words

    first = median(look, 1)
    took = median(look, rounds)
    store.close()
    return {"the first": first, "later": took}


def search(count: int, rounds: int) -> tuple[float, dict[str, float]]:
    """Medians after so many experiments: of one proposal of the search, of a turn of a model that passes beside it."""
    program = (bundled("templates") / "autoresearch" / "train.py").read_text()
    parameters, history = find(program), MemoryHistory([Trial(0, BASE, BASE, {}, Status.KEEP, Label.NONE, 1.0)])
    for number in range(1, count + 1):
        digest = hashlib.sha256(str(number).encode()).digest()
        changes: dict[str, Value] = {}
        for byte in digest[: 1 + digest[9] % 3]:
            parameter = parameters[byte % len(parameters)]
            low, high = parameter.bounds if parameter.numeric else (0.0, 0.0)
            value = parameter.at(low + (high - low) * digest[8] / 255) if parameter.numeric else parameter.others()[0]
            changes[parameter.name] = value
        loss = 1.0 + digest[10] / 2560
        history.add(Trial(number, BASE, f"{number:040x}", changes, Status.DISCARD, Label.NO_GAIN, loss))
    policy, cancel = SearchPolicy(history), threading.Event()
    seeds = iter(range(rounds + 1))

    def propose() -> object:
        seed = derive_seed(1, next(seeds), "benchmark")
        return policy.propose(make_state(program, number=count + 1, seed=seed, parent=BASE, sigma=0.002), cancel)

    propose()  # the history is read once
    turns = [seed for seed in range(100) if luck(seed) < 0.1]  # are the model's, whatever pays

    def turn(hybrid: HybridPolicy) -> object:
        seed = turns[next(seeds) % len(turns)]
        return hybrid.propose(make_state(program, number=count + 1, seed=seed, parent=BASE, sigma=0.002), cancel)

    took = median(propose, rounds)
    shown = {}
    for prompt in ("brief", "full"):
        answers, purse = MemoryAnswers(), OpenPurse()
        model = ModelPolicy(
            [ScriptedClient(then="PASS")],
            ModelSettings(prompt=prompt),
            name="local:m",
            answers=answers,
            purse=purse,
            check=lambda state, files: None,
        )
        seeds = iter(range(rounds + 1))
        shown[prompt] = median(partial(turn, HybridPolicy(model, policy)), rounds)
        assert all(answer.form == "pass" for answer in answers.answers)
    return took, shown


def main() -> int:
    """Print the table; 1 when a bound does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--few", type=int, default=100)
    parser.add_argument("--many", type=int, default=10_000)
    parser.add_argument("--programs", type=int, default=100_000, help="among which a duplicate is looked up")
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="proposing-") as name:
        folder = Path(name)
        few, many = (states(folder, count, options.rounds) for count in (options.few, options.many))
        known = duplicates(folder, options.programs, options.rounds)
        with tempfile.TemporaryDirectory(dir=folder) as own:
            back = re_added(Path(own), options.many, options.rounds)
    edits = {
        form: median(partial(read_answer, text, {"train.py": PROGRAM}), options.rounds) for form, text in EDITS.items()
    }
    step, turns = search(1000, options.rounds)
    print(f"{'median ms':44}{options.few:>12,}{options.many:>12,} experiments")
    for what in few:
        print(f"{what:44}{few[what]:12.2f}{many[what]:12.2f}")
    print()
    for form, took in edits.items():
        print(f"{f'edit of {len(LINES) - 1:,} lines, {form}':44}{took:12.2f}")
    print(f"{f'duplicate among {options.programs:,}':44}{known:12.3f}")
    for which, took in back.items():
        print(f"{f'what comes back, {which}, of {options.many:,}':44}{took:12.2f}")
    print(f"{'proposal of search after 1,000 experiments':44}{step:12.2f}")
    for prompt, took in turns.items():
        print(f"{f'turn of a model beside it, prompt {prompt}':44}{took:12.2f}")
    print()
    names = ("no roles", "three roles in turn")
    whole = {n: max(c[f"state, {n}"] + c[f"prompt, {n}"] for c in (few, many)) for n in names}
    wordiest = max(
        c[f"state, {n}"] + c[f"prompt of {length} a field, {n}"]
        for c in (few, many)
        for n in names
        for length in LENGTHS
    )
    growth = max(many[what] - few[what] for what in few if what.startswith("state"))
    bounds = {
        "state and prompt ≤ 20 ms": max(whole.values()) <= 20,
        "state and prompt of many words ≤ 20 ms": wordiest <= 20,
        "state flat: at most 1 ms more": growth <= 1,
        "edit of 1,000 lines ≤ 10 ms": max(edits.values()) <= 10,
        "duplicate ≤ 1 ms": known <= 1,
        "what comes back ≤ 10 ms": back["later"] <= 10,
        "search ≤ 20 ms": step <= 20,
        "turn of a hybrid ≤ 20 ms beside the model": max(turns.values()) <= 20,
    }
    for bound, holds in bounds.items():
        print(f"{'holds' if holds else 'FAILS'}  {bound}")
    return 0 if all(bounds.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
