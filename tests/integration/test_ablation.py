"""Which improvements an ablation drops: real git, the real loop and its test, and jobs that take no time."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from autoresearchd.app.finalize import Ablation
from autoresearchd.domain.confirmation import ABLATED, Verdict, ablates
from autoresearchd.domain.errors import Interrupted, UsageError
from autoresearchd.domain.experiment import Limits
from autoresearchd.domain.labels import Outcome
from autoresearchd.domain.ports import RunRequest
from autoresearchd.loop.confirming import Asked
from autoresearchd.loop.messages import BASELINE
from autoresearchd.loop.session import SessionLoop
from autoresearchd.report.finalize import improvements_of
from tests.fakes.bench import TASK, Writing, program_of
from tests.integration.bench import Bench

PROGRAM = "A = 0\nB = 0\nC = 0\nD = 0\nF = 0\nif A:\n    G = [x * x for x in range(9)]\n"
EDITS = (
    ("A = 0", "A = 1"),  # a gain
    ("B = 0", "B = 1"),  # the same gain in another way
    ("C = 0", "C = 1"),  # nothing by itself
    ("C = 1", "C = 2"),  # a gain
    ("if A:\n    G = [x * x for x in range(9)]\n", ""),  # nothing, but less of it
    ("D = 0", "D = 1"),  # a gain
    ("F = 0", "F = 1"),  # nothing
)


def confirmed(folder: Path, edits: Sequence[tuple[str, str]] = EDITS) -> Bench:
    """A session that has kept all edits, as each was lucky, and has confirmed them together."""
    bench = Bench(folder, TASK.replace("stdout", "stdout, confirm_every: 1000000"), PROGRAM)
    bench.policy = Writing(lambda state: state.code["train.py"].replace(*edits[state.number - 1]))

    def job(request: RunRequest) -> str:
        number, index = (int(part) for part in request.key.split("/")[1:])
        text = program_of(request)
        a, b, c, d = (int(re.search(f"{name} = (.)", text)[1]) for name in "ABCD")  # type: ignore[index]
        luck = bench.experiment(number).runs[index].attempt >= 0
        value = 9.0 - 0.5 * number if luck else 9.0 - max(a, b) - 0.5 * (c == 2) - d
        return f"score: {value + random.Random(request.seed).gauss(0.0, 0.03):.6f}\n"

    bench.job = job
    bench.run(len(edits))
    assert all(e.confirmed for e in bench.experiments()), [e.decision for e in bench.experiments()]
    return bench


@contextmanager
def ablating(bench: Bench) -> Iterator[Ablation]:
    store, session = bench.store, bench.store.session("t")
    with closing(bench.workspace()) as workspace:
        branches, tests = workspace.branches(), store.confirmations(session.id)
        found = improvements_of(branches, session.base_commit, bench.experiments(), tests, baseline=BASELINE)
        yield Ablation(store, session, workspace, branches.tree(session.base_commit), found)


def run(bench: Bench, ablation: Ablation) -> None:
    def compare(asked: Asked) -> int:
        SessionLoop(bench.laboratory(), Limits(), asked=asked).run()
        return 0

    ablation.run(compare)


def ablated(bench: Bench) -> list[int]:
    return [c.experiment for c in bench.store.confirmations(bench.session.id) if ablates(c.why)]


def test_of_two_that_do_the_same_one_stays_and_what_others_need_or_is_simpler_too(tmp_path: Path) -> None:
    bench = confirmed(tmp_path)
    tip = bench.store.session("t")
    with closing(bench), ablating(bench) as ablation:
        run(bench, ablation)
        assert ablation.dropped == [7, 2] and set(ablation.tests) == {1, 2, 4, 6, 7}
        assert ablated(bench) == [7, 6, 4, 2, 1, 7], "and all that was dropped, at the end"
        assert ablation.notes[3] == "experiment 4 builds on it, in train.py"
        assert ablation.notes[5] == "it makes the program simpler"
        program = ablation.tree
        assert ablation.last and ablation.last.verdict and ablation.last.verdict.reason == ablation.remark
        after = bench.store.session("t")
        assert (after.confirmed, after.incumbent) == (tip.confirmed, tip.incumbent)
        with ablating(bench) as again:
            run(bench, again)
            assert (again.tree, again.dropped, len(ablated(bench))) == (program, [7, 2], 6), "nothing ran again"


def test_what_passed_by_luck_is_used_only_where_all_of_it_passes_together(tmp_path: Path) -> None:
    bench = confirmed(tmp_path, [EDITS[0], EDITS[6]])
    job = bench.job

    def unlucky(request: RunRequest) -> str:
        last = bench.store.confirmations(bench.session.id)[-1]
        own = request.commit != bench.store.session("t").confirmed
        value = float(str(job(request)).split()[1])
        return f"score: {value + (ablates(last.why) == ABLATED and own):.6f}\n"

    bench.job = unlucky
    with closing(bench), ablating(bench) as ablation:
        whole = ablation.tree
        run(bench, ablation)
        assert (ablation.dropped, ablation.tree) == ([], whole)
        assert ablation.remark.startswith("Nothing is dropped: without experiments 2 it may be worse. The confirmed")


def test_the_one_improvement_that_was_confirmed_by_itself_is_not_tested_again(tmp_path: Path) -> None:
    with closing(confirmed(tmp_path, EDITS[:1])) as bench, ablating(bench) as ablation:
        run(bench, ablation)
        assert (ablation.dropped, ablation.notes, ablated(bench)) == ([], {1: "it was confirmed by itself"}, [])


def test_an_ablation_that_is_cut_short_says_so_and_waits_for_what_may_move_the_branch(tmp_path: Path) -> None:
    with closing(confirmed(tmp_path, EDITS[:2])) as bench, ablating(bench) as ablation:
        with pytest.raises(Interrupted, match="no branch was made"):
            ablation.run(lambda asked: 130)
        c = bench.store.open_confirmation(
            bench.session.id, experiment=2, against=0, why="gain", at=bench.session.started_at
        )
        with pytest.raises(UsageError, match="is not through"):
            run(bench, ablation)
        cut = Verdict(Outcome.UNDECIDED, None, None, None, "cut")
        bench.store.decide_confirmation(bench.session.id, c.number, cut, bench.session.started_at)
        bench.store.open_segment(bench.session.id, "g", "another machine", "cpu", bench.session.started_at)
        with pytest.raises(UsageError, match="not measured under the conditions of today"):
            run(bench, ablation)
