"""A night of research as the store would hold it, written through the store's own methods, stage by stage."""

from __future__ import annotations

import json
import math
import random
import sqlite3
from collections.abc import Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

from autoresearchd.domain.confirmation import Verdict
from autoresearchd.domain.experiment import CurvePoint, Decision, Measurement, RunResult, StageResult
from autoresearchd.domain.labels import NEVER_RUN, Label, Outcome, SessionState, Status
from autoresearchd.domain.policy_versions import BaseModel, LearnerStatus
from autoresearchd.domain.ports import NewSession
from autoresearchd.domain.proposal import ASI, Answer, Cost, Generation, Proposal
from autoresearchd.loop.upkeep.session_lock import SessionLock
from autoresearchd.store.schema import tables as t
from autoresearchd.workspace import layout
from tests.fakes.stores import open_store
from tests.unit.learner.sessions import make_root

BUDGET, SIGMA = 300.0, 0.0011
_TAIL = "b7d4f2a91c3e58607d4f2a91c3e58607d4"
IDEAS = (
    ("MATRIX_LR 0.04 → 0.03", {"train.py:MATRIX_LR": 0.03}, 0.0062, "optimiser"),
    ("DEPTH 8 → 9, width kept", {"train.py:DEPTH": 9}, -0.004, "architecture"),
    ("Squared ReLU in the MLP instead of GELU", {}, 0.0071, "architecture"),
    ("WARMDOWN_RATIO 0.5 → 0.65", {"train.py:WARMDOWN_RATIO": 0.65}, 0.0034, "schedule"),
    ("Value embeddings in every second layer", {}, 0.0058, "architecture"),
    ("TOTAL_BATCH_SIZE 2**19 → 2**18", {"train.py:TOTAL_BATCH_SIZE": 2**18}, 0.0049, "optimiser"),
    ("Rotary base 10,000 → 200,000", {"train.py:ROPE_BASE": 200000}, 0.0012, "architecture"),
    ("WEIGHT_DECAY 0.2 → 0.1", {"train.py:WEIGHT_DECAY": 0.1}, 0.0016, "optimiser"),
    ("Soft-cap the logits at 15", {}, -0.0015, "architecture"),
    ("EMBEDDING_LR 0.6 → 0.8", {"train.py:EMBEDDING_LR": 0.8}, 0.0011, "optimiser"),
    ("Short windows in all layers but the last", {}, 0.0021, "systems"),
)
DIFF = """\
--- a/train.py
+++ b/train.py
@@ -41,5 +41,6 @@ class MLP(nn.Module):
     def forward(self, x: torch.Tensor) -> torch.Tensor:
         x = self.c_fc(x)
-        x = F.gelu(x)
+        # sparse activations: cheaper to fit at this width
+        x = F.relu(x).square()
         return self.c_proj(x)
{blank}
@@ -118,4 +119,4 @@ TOTAL_BATCH_SIZE = 2**19
 DEPTH = 8
 EMBEDDING_LR = 0.6
-MATRIX_LR = 0.04
+MATRIX_LR = 0.03  # {number}
 SCALAR_LR = 0.5
"""
PROMPT = "You do research on train.py. The metric is val_bpb; lower is better.\n\n## Current train.py\n…"
ANSWER = "The matrix rate is high for a batch of this size: late steps overshoot.\n\n<<<<<<< SEARCH\nMATRIX_LR = 0.04\n"
ANSWER += "=======\nMATRIX_LR = 0.03\n>>>>>>> REPLACE"


class Demo:
    """A session in the making. alive: whether its daemon seems to run: this process holds its lock."""

    def __init__(self, root: Path, tag: str = "nov21", *, seed: int = 3) -> None:
        if not (root / ".git").exists():
            make_root(root)
        self.root, self.tag, self._stack, self._lock = root, tag, ExitStack(), ExitStack()
        self.store = self._stack.enter_context(open_store(layout.database_path(root)))
        self.now, self._dice = datetime.now(UTC) - timedelta(hours=3, minutes=10), random.Random(seed)
        scoring = {"metric": "val_bpb", "direction": "minimize", "source": "evaluator"}
        task = {"name": "autoresearch", "scoring": scoring, "execution": {"budget": {"training": BUDGET}}}
        new = NewSession(
            tag, f"autoresearch/{tag}", json.dumps(task), "litellm:anthropic/claude-sonnet-4-5", "local", "0" * 40, 7
        )
        self.id = self.store.create_session(new, self.now).id
        self.store.open_segment(self.id, "f", "first", "H100 · x86_64", self.now)
        self.level, self._confirmed, self._tip, self._proven = 0.9979, 0, 0, 0.9979
        self.number = -1

    def __enter__(self) -> Self:
        self._stack.enter_context(self._lock)
        self.lock = self._lock.enter_context(SessionLock(layout.lock_path(self.root, self.tag), self.tag))
        self.state(SessionState.RUNNING)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def state(self, state: SessionState, reason: str = "") -> None:
        self.store.set_state(self.id, state, self.now, pid=1 if state is SessionState.RUNNING else None, reason=reason)

    def end(self, reason: str) -> None:
        """What runs is decided, and the daemon leaves."""
        for e in self.store.unsettled(self.id):
            for run in e.runs:
                measured = Measurement(
                    Label.NONE, self.level + SIGMA, {"val_bpb": self.level + SIGMA}, curve=self.curve(1)
                )
                took = RunResult((), BUDGET + 12, "bubblewrap", "gpu-box", "cuda:0")
                self.store.close_run(run.id, measured, took, datetime.now(UTC), last=True)
            decision = Decision(
                Status.DISCARD, Label.NO_GAIN, self.level + SIGMA, -SIGMA, {}, 3.1, SIGMA, reason="as measured"
            )
            self.store.record_decision(self.id, e.number, decision, ASI(), datetime.now(UTC), incumbent=None)
        self.now = datetime.now(UTC)
        self.state(SessionState.STOPPED, reason)
        self._lock.close()

    # ------------------------------------------------------------------ experiments
    def baseline(self) -> None:
        values = [self.level + SIGMA * d for d in (-0.6, 0.5, 0.1)]
        self.experiment("baseline", Status.KEEP, values=values, policy="baseline", diff="")

    def night(self, count: int) -> None:
        """Experiments as they come; a confirmation after every few keeps."""
        for _ in range(count):
            words, changes, gain, role = self._dice.choice(IDEAS)
            kind = self._dice.random()
            if kind < 0.06:
                self.experiment(
                    words, Status.CRASH, Label.OOM, changes=changes, role=role, reason="out of memory: 81 GiB"
                )
            elif kind < 0.1:
                self.experiment(words, Status.CRASH, Label.MALFORMED_ANSWER, role=role, reason="no edit block in it")
            elif kind < 0.12:
                self.experiment(
                    words, Status.CHECKS_FAILED, Label.NOT_CAUSAL, role=role, reason="a future token moves it"
                )
            elif kind < 0.3:
                self.experiment(words, Status.DISCARD, Label.ABORTED_EARLY, changes=changes, role=role)
            else:
                true = gain * self._dice.uniform(-0.9, 1.0) / (1 + self.number / 18)
                value = self.level - true + self._dice.gauss(0, SIGMA)
                believed = max(SIGMA / 3, 0.8 * true)
                if value < self.level - SIGMA:
                    self.experiment(words, Status.KEEP, values=[value], changes=changes, role=role, gain=believed)
                    self.level -= believed
                    self.store.record_belief(self.id, float(self.number), self.level, SIGMA * 0.7)
                    if self._proven - self.level > 2 * SIGMA:  # as the daemon does: once there is something to prove
                        self.confirm(Outcome.CONFIRMED if self._dice.random() < 0.85 else Outcome.FELL)
                else:
                    self.experiment(words, Status.DISCARD, Label.NO_GAIN, values=[value], changes=changes, role=role)

    def experiment(
        self, words: str, status: Status | None, label: Label = Label.NONE, *, values: Sequence[float] = (),
        changes: dict[str, float] | None = None, role: str = "", policy: str = "litellm:anthropic/claude-sonnet-4-5",
        diff: str | None = None, reason: str = "", gain: float | None = None, hypothesis: str = "",
    ) -> int:  # fmt: skip
        """One experiment through all its phases; status None: its run goes on."""
        parent = commit_of(self._tip) if self.number >= 0 else "f" * 40
        e = self.store.open_experiment(self.id, parent=parent, segment=0, at=self.now)
        self.number = e.number
        hypothesis = hypothesis or f"{words}: what the last runs lacked was signal late in training."
        asked = not policy.startswith("baseline")
        cost = Cost(0.0214, 18_400, 912, 7.4) if asked else Cost()
        generation = Generation(({"role": "user", "content": PROMPT},), ANSWER) if asked else Generation()
        if asked:
            answer = Answer("anthropic/claude-sonnet-4-5", cost, generation, form="search_replace", finish="stop")
            self.store.record_answer(self.id, e.number, answer, self.now)
        self.now += timedelta(seconds=8)
        proposal = Proposal(
            {"train.py": ""}, hypothesis, policy, description=words, role=role, cost=cost, generation=generation,
            changes=changes or {}, charged=True,
        )  # fmt: skip
        diff = DIFF.replace("{number}", str(e.number)).replace("{blank}", " ") if diff is None else diff
        self.store.record_proposal(self.id, e.number, proposal, diff=diff, code_hash=f"h{self.tag}{e.number}")
        if label not in NEVER_RUN:
            self._runs(e.number, status, label, values)
        if status is None:
            return e.number
        value = sum(values) / len(values) if values else None
        delta = gain if gain is not None else None if value is None else self.level - value
        decision = Decision(
            status, label, value, delta, {"val_bpb": value, "peak_vram_mb": 45060.2} if value else {}, 3.1, SIGMA,
            reward=0.4, reason=reason or self._why(status, label, delta),
        )  # fmt: skip
        asi = ASI(hypothesis, result=decision.reason, next_action_hint="combine it with the shorter warmdown")
        commit = commit_of(e.number) if status is Status.KEEP else None
        first = e.number == 0
        self.store.record_decision(self.id, e.number, decision, asi, self.now, incumbent=commit, confirmed=first)
        self.store.record_overhead(self.id, e.number, 31.0)
        self._tip = e.number if status is Status.KEEP else self._tip
        return e.number

    def _why(self, status: Status, label: Label, delta: float | None) -> str:
        if status is Status.KEEP and self.number:
            return f"expected {delta:+.4f} over the tip (σ {SIGMA:.2g}): kept until a test of repeated runs says more"
        return (
            "the curve lies too high for a run that reaches the bar" if label is Label.ABORTED_EARLY else "as measured"
        )

    def _runs(self, number: int, status: Status | None, label: Label, values: Sequence[float]) -> None:
        self.store.record_commit(self.id, number, commit_of(number))
        for seed, value in enumerate(values or [None]):
            run = self.store.open_run(self.id, number, 100 + seed, self.now)
            if status is None:
                return
            share = 0.55 if label is Label.ABORTED_EARLY else 0.2 if label else 1.0
            took = BUDGET * share + 12
            if label is Label.ABORTED_EARLY:
                for at in (0.2, 0.3, 0.4, 0.55):
                    self.look(run.id, at, ended=at == 0.55)
            of_run = Label.NONE if label is Label.NO_GAIN else label
            measured = Measurement(
                of_run,
                value,
                {} if value is None else {"val_bpb": value},
                curve=self.curve(share, self._dice.uniform(-0.04, 0.05) + 0.16 * (label is Label.ABORTED_EARLY)),
            )
            stage = StageResult("training", "ok" if not label else "failed", 0, took, "training.log")
            self.now += timedelta(seconds=took)
            result = RunResult((stage,), took, "bubblewrap", "gpu-box", "cuda:0")
            self.store.close_run(run.id, measured, result, self.now, last=seed >= len(values) - 1)

    def curve(self, share: float, worse: float = 0.0) -> tuple[CurvePoint, ...]:
        points = range(1, int(60 * share) + 1)
        return tuple(CurvePoint(float(10 * i), loss_at(i / 60) + worse, i / 60, BUDGET * i / 60) for i in points)

    def look(self, run_id: int, at: float, *, ended: bool = False) -> None:
        spread, centre = 0.02 * (1.1 - at), self.level + (0.012 if ended else 0.002)
        figures = {"progress": at, "level": loss_at(at), "forecast": centre, "low": centre - spread,
                   "high": centre + spread, "bar": self.level - 2 * SIGMA}  # fmt: skip
        sentence = f"at {at:.0%} of the budget: forecast {centre:.4f}, bar {self.level - 2 * SIGMA:.4f}."
        more = {"probability": 0.97 if ended else 0.41 + at / 4, "sentence": sentence, "abort": ended}
        self.store.record_look(run_id, {**figures, **more})

    def running(self, words: str, *, share: float = 0.6) -> int:
        """An experiment whose run goes on, with a log so far and looks; its number."""
        self.now = datetime.now(UTC) - timedelta(seconds=BUDGET * share + 20)
        self.store.heartbeat(self.id, datetime.now(UTC), 30_000.0)
        number = self.experiment(words, None, changes={"train.py:WARMDOWN_RATIO": 0.65}, role="schedule")
        run = self.store.experiment(self.id, number).runs[-1]
        self.log(number, [i / 60 for i in range(1, int(60 * share) + 1)])
        for at in (0.1, 0.2, 0.3, 0.4, 0.5):
            if at < share:
                self.look(run.id, at)
        return number

    def log(self, number: int, shares: Sequence[float], words: str = "") -> None:
        folder = layout.run_dir(self.root, self.tag, number, 0)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "training.log").open("a", encoding="utf-8") as log:
            for at in shares:
                log.write(f"step {600 * at:05.0f} ({100 * at:.1f}%) | loss: {loss_at(at):.6f} | dt: 480ms\n")
            log.write(words)

    # ------------------------------------------------------------------ what follows
    def confirm(self, outcome: Outcome) -> None:
        """A test of the tip beside the confirmed program."""
        tip, against = self._tip, self._confirmed
        found = self.store.open_confirmation(self.id, experiment=tip, against=against, why="gain", at=self.now)
        gain = self._proven - self.level if outcome is not Outcome.FELL else -0.0004
        for pair in range(3):
            for of in (None, against):
                run = self.store.open_confirmation_run(self.id, found.number, 500 + pair, self.now, of=of)
                self.now += timedelta(seconds=BUDGET + 15)
                value = self._proven - (gain if of is None else 0.0) + self._dice.gauss(0, SIGMA / 2)
                stage = StageResult("training", "ok", 0, BUDGET + 12, "training.log")
                took = RunResult((stage,), BUDGET + 12, "bubblewrap", "gpu-box", "cuda:0")
                self.store.close_confirmation_run(run.id, Measurement(Label.NONE, value), took, self.now)
        better = outcome is Outcome.CONFIRMED
        words = f"Over 3 pairs of runs experiment {tip} is {abs(gain):.4f} {'better' if better else 'worse'} than"
        words += f" experiment {against}."
        verdict = Verdict(outcome, gain, SIGMA / math.sqrt(3), 0.998 if better else 0.12, words)
        self.store.decide_confirmation(self.id, found.number, verdict, self.now)
        if better:
            self._confirmed, self._proven = tip, self.level
        else:
            self._tip, self.level = self._confirmed, self._proven
        self.store.record_belief(self.id, self.number + 0.5, self.level, SIGMA * 0.4)

    def learn(self) -> None:
        base = BaseModel("smollm2", "aa11")
        for version, promoted in (("v1", True), ("v2", False), ("v3", True)):
            run = self.store.open_learner_run("grpo", "replay", 212, self.now)
            self.store.record_learner_run(run.id, LearnerStatus.DONE, self.now, steps=60, detail="60 steps, loss 0.21")
            parent = None if version == "v1" else "v1"
            self.store.add_version(version, "d" * 64, base, self.now, parent=parent, learner_run_id=run.id)
            won = "34 of 60 held-out states better, 19 worse: promoted"
            lost = "21 of 60 held-out states better, 24 worse: not put to use"
            if promoted:
                self.store.promote_version(version, self.now, reason=won)
            else:
                self.store.refuse_version(version, reason=lost)
            self.now += timedelta(minutes=12)


def commit_of(number: int) -> str:
    """Like a hash; begins with the number, so that a database can count on."""
    return f"{number:06d}{_TAIL}"


def loss_at(share: float) -> float:
    """A learning curve of a small language model."""
    return 2.9 + 5.6 * math.exp(-7 * share) + 0.55 * (1 - share) + 0.012 * math.sin(90 * share)


_SHIFTED = {
    "number": "number + :shift", "after": "after + :shift", "value": "value - 1e-6 * :shift",
    "code_hash": "code_hash || '-' || :shift", "commit_sha": f"printf('%06d', number + :shift) || '{_TAIL}'",
    "parent": f"printf('%06d', CAST(parent AS INTEGER) + :shift) || '{_TAIL}'",
    "started_at": "started_at + :shift * 360000000", "finished_at": "finished_at + :shift * 360000000",
}  # fmt: skip


def multiply(demo: Demo, count: int) -> None:
    """The same night again and again with other numbers, until there are ``count`` experiments beside the baseline."""
    tables = (t.experiments, t.proposals, t.proposal_bodies, t.asi, t.runs, t.answers, t.answer_bodies, t.beliefs)
    with closing(sqlite3.connect(layout.database_path(demo.root))) as db:
        for table in tables:
            key = "after" if table is t.beliefs else "number"
            names = [column.name for column in table.c if column.name != "id"]
            values = ", ".join(_SHIFTED.get(name, f'"{name}"') for name in names)
            own = " AND attempt >= 0" if table is t.runs else ""
            some = f"{key} > 0 AND {key} <= :block AND {key} + :shift <= :count AND session_id = :session{own}"
            columns = ", ".join(f'"{name}"' for name in names)
            for shift in range(demo.number, count, demo.number):
                known = {"shift": shift, "block": demo.number, "count": count, "session": demo.id}
                db.execute(
                    f'INSERT INTO "{table.name}" ({columns}) SELECT {values} FROM "{table.name}" WHERE {some}', known
                )
        counted = "UPDATE totals SET opened = ? + 1, experiments = ? + 1, discards = ? * 0.8 WHERE session_id = ?"
        db.execute(counted, (count, count, count, demo.id))
        db.commit()
