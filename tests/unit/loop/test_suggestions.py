"""Proposals from outside: none is lost or run twice, whatever dies, and they are held to what any proposal is."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from autoresearchd.domain.labels import Label, Phase, Status
from autoresearchd.domain.proposal import Suggestion
from autoresearchd.policy.outside_policy import OutsidePolicy
from tests.fakes.bench import LOCKED, Bench, Doom, fails, run_until_killed
from tests.unit.loop.test_slots import Slots

PROGRAM = "SCALE = 1.0\nFIRST = 1\nSECOND = 2\nTHIRD = 3\n"


def suggest(bench: Bench, text: str, parent: str = "", **said: str) -> int:
    made = Suggestion({"train.py": text}, parent or bench.session.base_commit, said, "an agent")
    return bench.store.add_suggestion(bench.session.id, made, datetime.now(UTC))


def taken(bench: Bench) -> list[Any]:
    return [e for e in bench.experiments() if e.proposal and e.proposal.policy == "outside"]


def test_it_is_the_next_experiment_beside_the_sessions_own_policy(bench: Bench) -> None:
    suggest(bench, "SCALE = 1.95\n", hypothesis="nearer", description="SCALE → 1.95", next_action_hint="2")
    bench.run(2)
    first, second = bench.experiments()[1:]
    assert (first.proposal.policy, second.proposal.policy) == ("outside", "scripted")
    assert first.decision.status is Status.KEEP
    assert (first.proposal.hypothesis, first.proposal.description) == ("nearer", "SCALE → 1.95")
    assert first.asi.next_action_hint == "2" and first.asi.extra["proposer"] == "an agent"
    assert second.parent != bench.session.base_commit, "what follows is made on it"


@pytest.mark.parametrize(("slots", "step"), [pytest.param(1, 61, marks=pytest.mark.nightly), (3, 97)])
def test_a_daemon_that_is_killed_at_any_instant_neither_loses_nor_doubles_one(
    tmp_path: Path, slots: int, step: int
) -> None:
    with closing(begun(tmp_path / "undisturbed", slots)) as undisturbed:
        run_until_killed(undisturbed, doom := Doom(), 5)
        check(undisturbed)
    for at in range(1, doom.count, step):
        with closing(begun(tmp_path / str(at), slots)) as bench:
            if run_until_killed(bench, Doom(at), 5):
                bench.run(5)
            check(bench)


def begun(folder: Path, slots: int) -> Slots:
    bench = Slots(folder, slots, program=PROGRAM)
    for name in ("FIRST", "SECOND", "THIRD"):
        suggest(bench, PROGRAM.replace(f"{name} = ", f"{name} = 10"), hypothesis=name)
    return bench


def check(bench: Bench) -> None:
    assert sorted(e.proposal.hypothesis for e in taken(bench)) == ["FIRST", "SECOND", "THIRD"]
    assert bench.store.waiting_suggestions(bench.session.id) == 0
    assert [(e.number, e.phase) for e in bench.experiments()] == [(n, Phase.DECIDED) for n in range(6)]


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_as_it_takes_one_it_takes_that_one_again_or_goes_on_with_it(bench: Bench, when: str) -> None:
    suggest(bench, "SCALE = 1.95\n")
    assert run_until_killed(bench, Strike(when))
    bench.run(3)
    [e] = taken(bench)
    assert e.number == 1 and e.decision.value is not None


class Strike(Doom):
    """Kills at the first call that takes a proposal from outside: the one before was of the baseline."""

    def __init__(self, when: str) -> None:
        super().__init__(at=2)
        self._when = when

    def instant(self, call: str, moment: str) -> None:
        if call.endswith("record_proposal") and moment == self._when:
            super().instant(call, moment)


def test_what_was_written_on_an_older_tip_goes_together_with_what_was_kept_since(tmp_path: Any) -> None:
    bench = Bench(tmp_path, program=PROGRAM)
    bench.run(3)  # of the script, SCALE 2.5 or 2.0 is kept
    suggest(bench, PROGRAM.replace("THIRD = 3", "THIRD = 4"))
    suggest(bench, PROGRAM.replace("SCALE = 1.0", "SCALE = 1.1"))
    bench.run(5)
    fits, clashes = taken(bench)
    text = bench.workspace().read(fits.commit, "train.py")
    assert "THIRD = 4" in text and "SCALE = 1.0" not in text, "a keep would be undone in silence"
    assert (clashes.decision.status, clashes.decision.label) == (Status.CRASH, Label.MALFORMED_ANSWER)
    assert "moved on" in clashes.decision.reason and clashes.commit is None
    bench.close()


def test_one_that_breaks_a_rule_spends_no_run_and_holds_nothing_up(bench: Bench) -> None:
    made = Suggestion({"evaluate.py": "print('score: 0')\n"}, bench.session.base_commit, {}, "")
    bench.store.add_suggestion(bench.session.id, made, datetime.now(UTC))
    suggest(bench, "SCALE = (\n")
    suggest(bench, "SCALE = 1.0\n", parent="f" * 40)
    bench.run(4)
    refused = taken(bench)
    assert [e.decision.label for e in refused] == [Label.ILLEGAL_EDIT, Label.ILLEGAL_EDIT, Label.MALFORMED_ANSWER]
    assert not any(e.runs for e in refused)
    assert bench.experiment(4).proposal.policy == "scripted"


def test_where_all_proposals_come_from_outside_the_session_waits_for_them_and_can_be_stopped(bench: Bench) -> None:
    bench.policy = OutsidePolicy()
    context = bench.laboratory()
    loop = bench.loop(None, context)

    def look(seconds: float | None = None) -> bool:  # in the place of time that passes
        looks.append(bench.store.session("t").reason)
        if len(looks) == 1:
            suggest(bench, "SCALE = 1.9\n")
        elif len(looks) == 2:
            context.stop.request("enough")
        return context.stop.is_set()

    looks: list[str] = []
    context.stop.wait = look  # type: ignore[method-assign]
    assert loop.run() == "enough"
    assert looks == ["waiting for a proposal from outside"] * 2
    assert [e.number for e in taken(bench)] == [1]
    assert len(bench.experiments()) == 2, "no number is used up by waiting"


def test_a_store_that_fails_while_a_proposal_from_outside_is_waited_for_ends_nothing(bench: Bench) -> None:
    bench.policy = OutsidePolicy()
    bench.run(0)
    suggest(bench, "SCALE = 1.9\n")
    left = fails(bench.store, "waiting_suggestions", LOCKED, LOCKED)
    bench.run(1)
    assert not left and [e.number for e in taken(bench)] == [1]
