"""What happens beside the loop never ends a session."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autoresearchd.domain.events import EventKind
from autoresearchd.loop.housekeeping import Housekeeping
from autoresearchd.store import backups
from tests.integration.bench import Bench


class ByTheClock:
    """Learner runs at a time that somebody wrote."""

    def __init__(self, cron: str) -> None:
        self.cron, self.ended = cron, False

    def request(self) -> None:
        raise AssertionError("it is never due")

    def between(self) -> None:
        pass

    def end(self) -> None:
        self.ended = True


@pytest.mark.parametrize("cron", ["*/0 * * * *", "5-1 * * * *", "0 4 * *", "no time"])
def test_a_time_that_the_scheduler_does_not_know_is_a_warning_and_the_session_goes_on(
    tmp_path: Path, cron: str
) -> None:
    bench, learning = Bench(tmp_path), ByTheClock(cron)
    lab = replace(bench.laboratory(), learning=learning)
    backups.make(lab.store.backup, tmp_path / "backups", lab.clock.now())  # a young one: none is begun at once
    with Housekeeping(lab, lambda: 0.0, tmp_path / "backups") as housekeeping:
        housekeeping.between()
    assert learning.ended
    (told,) = [event for event in bench.events.events if event.kind is EventKind.WARNING]
    assert "nothing is learned by the clock" in told.message
    assert cron in told.message
    bench.close()
