"""Who proposes next on which commit, what it is told of the machine, and what makes two results comparable."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from autoresearchd.app.compose import segment_fingerprint
from autoresearchd.domain.labels import Status
from autoresearchd.domain.ports import Cancel, ResearchState
from autoresearchd.domain.proposal import Proposal
from autoresearchd.domain.task import Task
from autoresearchd.models.client import estimate_tokens
from autoresearchd.policy.edits.read_answer import FORMS
from autoresearchd.policy.prompt import sections
from tests.fakes.bench import TASK, Bench, Writing, failing, job
from tests.fakes.executors import FakeExecutor

ROLES = "roles: [{name: a, surface: SCALE}, {name: b, surface: WIDTH}, {name: c}]\n"
PUCT = "proposing: {parents: puct}\n"
GROUP = TASK + "proposing: {group: 3}\n"


class Endless:
    """The n-th value for experiment n; then never the same program twice, and never a better one than the first."""

    name, repairs = "endless", 0

    def __init__(self, *values: float) -> None:
        self._values, self.states = values or (2.0,), list[ResearchState]()

    def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
        self.states.append(state)
        value = self._values[state.number - 1] if state.number <= len(self._values) else 3.0 + state.number
        text = re.sub(r"SCALE = .*", f"SCALE = {value}", state.code["train.py"])
        origin = {"role": state.role, "state_id": state.state_id, "round_id": state.round_id}
        return Proposal({"train.py": text}, "h", self.name, f"→ {value}", **origin)


def test_roles_take_turns_and_each_turn_is_stored(tmp_path: Path) -> None:
    bench = Bench(tmp_path, task=TASK + ROLES)
    bench.policy = Endless()
    bench.run(5)
    assert [e.proposal.role for e in bench.experiments()[1:]] == ["a", "b", "c", "a", "b"]


def test_with_puct_edits_are_made_on_other_experiments_than_the_best_too(tmp_path: Path) -> None:
    bench = Bench(tmp_path, task=TASK + PUCT)
    policy = bench.policy = Endless()
    bench.run(12)
    assert len({state.parent for state in policy.states}) >= 3
    assert len({state.incumbent for state in policy.states[2:]}) == 1
    assert sum(bench.store.visits(bench.session.id).values()) >= 10
    assert [e.number for e in bench.experiments() if e.decision.status == "keep"] == [0, 1]
    assert bench.workspace().confirmed() == bench.store.session("t").incumbent


def climbing(state: ResearchState) -> str:
    """On whatever parent: half of the way to the best program."""
    scale = float(re.search(r"SCALE = (.*)", state.code["train.py"])[1])
    return f"SCALE = {round((scale + 2.0) / 2 + 1e-3 * state.number, 6)}\n"


def test_a_keep_on_an_older_parent_is_committed_on_the_incumbent(tmp_path: Path) -> None:
    bench = Bench(tmp_path, task=TASK + PUCT)
    bench.policy = Writing(climbing)
    bench.run(10)
    kept = [e for e in bench.experiments() if e.decision.status is Status.KEEP]
    assert bench.line()[-len(kept) :] == [e.commit for e in kept]
    for e in kept[1:]:
        assert bench.workspace().read(e.commit, "train.py") == bench.experiment(e.number).proposal.files["train.py"]


def test_members_of_a_round_see_one_state_and_build_on_one_commit(tmp_path: Path) -> None:
    bench = Bench(tmp_path, task=GROUP)
    policy = bench.policy = Endless(1.5, 2.0, 1.8, 1.9)
    bench.run(4)
    first = policy.states[:3]
    assert len({(state.state_id, state.round_id, state.parent) for state in first}) == 1
    assert len({state.seed for state in first}) == 3, "or they would all propose the same"
    assert all(state.code["train.py"] == "SCALE = 1.0\n" for state in first)
    assert policy.states[3].round_id != first[0].round_id
    assert policy.states[3].code["train.py"] == "SCALE = 2.0\n", "the next round builds on the best of this one"


def test_the_best_of_a_round_stays_whichever_came_first(tmp_path: Path) -> None:
    bench = Bench(tmp_path, task=GROUP)
    bench.policy = Endless(1.5, 2.0, 1.8)
    bench.run(3)
    status = [e.decision.status for e in bench.experiments()]
    assert status == [Status.KEEP, Status.KEEP, Status.KEEP, Status.DISCARD]
    assert bench.program() == "SCALE = 2.0\n"


METRICS = TASK.replace("metric_source: stdout", "metric_source: stdout, metrics: [score, peak_vram_mb, num_steps]")
TRACE = "step 1\nTraceback (most recent call last):\nRuntimeError: CUDA error: an illegal memory access\n"


def test_a_policy_is_told_of_device_memory_throughput_and_the_end_of_the_last_failed_log(tmp_path: Path) -> None:
    bench = Bench(tmp_path, task=METRICS)
    bench.job = failing("SCALE = 2.5", TRACE, lambda request: f"{job(request)}peak_vram_mb: 4711.5\nnum_steps: 77\n")
    policy = bench.policy = Endless(4.0, 2.5, 2.0)
    bench.run(3)
    before, after = policy.states[1].diagnostics, policy.states[2].diagnostics
    assert before["device"] == "cpu"
    assert before["run of the tip"].startswith("experiment 0, ")
    assert before["latest run"].startswith("experiment 1, ")
    assert before["latest run"].endswith("peak_vram_mb 4711.5, num_steps 77")
    assert "last_failure" not in before
    assert "illegal memory access" in after["last_failure"]
    assert after["last_failure_log"].endswith("RuntimeError: CUDA error: an illegal memory access")
    told = sections.messages(policy.states[2], forms=FORMS, budget=64_000, count=estimate_tokens)[1]["content"]
    assert "last_failure_log: " in told.split("The machine, and the last failure:")[1].split("# ")[0]


def test_results_compare_only_where_all_that_they_depend_on_is_the_same(bench: Bench) -> None:
    lab, e = bench.laboratory(), bench.task.execution
    usual = segment_fingerprint(lab, "f")[0]
    assert segment_fingerprint(bench.laboratory(), "f")[0] == usual != segment_fingerprint(lab, "g")[0]
    executions = [
        replace(e, budget=replace(e.budget, training=6.0)),
        replace(e, run_command="python train.py --fast"),
        replace(e, env={"OMP_NUM_THREADS": "2"}),
    ]
    others = [replace(lab, task=replace(bench.task, execution=execution)) for execution in executions]
    others += [replace(lab, executor=_Elsewhere(fact)) for fact in ({"device": "NVIDIA H100"}, {"python": "3.12.1"})]
    for other in others:
        assert segment_fingerprint(other, "f")[0] != usual


class _Elsewhere(FakeExecutor):
    """An executor of another machine."""

    def __init__(self, facts: Mapping[str, str]) -> None:
        super().__init__(job)
        self._facts = facts

    def describe(self, task: Task | None = None, setup: Path | None = None) -> Mapping[str, str]:
        return {**super().describe(), **self._facts}
