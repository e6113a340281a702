"""Rented machines: what is launched, kept, counted, and above all ended."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from autoresearchd.domain.errors import EnvironmentFailure, Interrupted, LimitReached, MissingCapability, PlaceTaken
from autoresearchd.domain.ports import EventKind, RunRequest
from autoresearchd.domain.task import Cloud, RemoteSlot
from autoresearchd.executor.cloud.executor import LEDGER, CloudExecutor, Pace
from autoresearchd.executor.cloud.rental import NAME, Terms
from tests.contract.executor_contract import HANG, SUCCEED, ended, make_request, make_task
from tests.fakes.executors import FakeExecutor, Script
from tests.fakes.rental import FakeRental
from tests.timing import wait_until

PREFIX = "autoresearchd-t-123abc-"
ONE, TWO = f"{PREFIX}1", f"{PREFIX}2"
AT_ONCE = Pace(turn=0.01, look=0.01, cool=0.01, coolest=0.01)
SELDOM = Pace(turn=600.0)


class Hosts(FakeExecutor):
    """What runs on machines of the rental: nothing where there are none. prepares: they are sent data yet."""

    prepares = False

    def __init__(self, rental: FakeRental, slots: Sequence[RemoteSlot]) -> None:
        super().__init__(lambda request: SCRIPTS[request.task.execution.run_command], slots=len(slots))
        self._rental, self.given = rental, slots

    def start(self, request: RunRequest) -> Any:
        if not any(slot.host in self._rental.there for slot in self.given):
            raise EnvironmentFailure("no host can take a run")
        if self.prepares:
            raise PlaceTaken(f"{ONE}: its data is being sent")
        return super().start(request)


SCRIPTS: dict[str, Script | str] = {SUCCEED: "val_bpb: 1.5\n", HANG: Script("begun\n", hang=True)}


class World:
    """One session's: what it was told, and what it was charged."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.rental, self.cancel = folder, FakeRental(), threading.Event()
        self.told: list[str] = []
        self.charged: list[float] = []
        self.bills: list[str] = []
        self.lost = 0
        """How many bills are counted without an answer to tell so."""
        self.left = float("inf")
        self.broke = threading.Event()
        self.hosts: list[Hosts] = []

    def executor(self, want: Cloud | None = None, *, prefix: str = PREFIX, pace: Pace = SELDOM) -> CloudExecutor:
        def tell(kind: EventKind, text: str) -> None:
            self.told.append(f"{kind.value} {text}")

        def hosts(slots: Sequence[RemoteSlot], config: Path) -> Hosts:
            self.hosts.append(Hosts(self.rental, slots))
            return self.hosts[-1]

        terms = Terms(
            prefix, self.folder, self.cancel, tell, charge=self.charge, left=lambda: self.left,
            broke=self.broke.set,
        )  # fmt: skip
        return CloudExecutor(
            self.rental, want or Cloud(), terms, pace=pace, hosts=hosts, greet=lambda name, config: "a new key"
        )

    def charge(self, usd: float, bill: str) -> None:
        if bill not in self.bills[-1:]:
            self.bills.append(bill)
            self.charged.append(usd)
            if self.lost:
                self.lost -= 1
                raise EnvironmentFailure("the server does not answer")

    def says(self, words: str) -> bool:
        return any(words in text for text in self.told)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "cloud")


@pytest.fixture
def opened(world: World) -> Iterator[Callable[..., CloudExecutor]]:
    """Makes executors, and closes them."""
    with ExitStack() as stack:
        yield lambda *args, **more: stack.enter_context(closing(world.executor(*args, **more)))


def run(executor: CloudExecutor, tmp_path: Path) -> None:
    assert ended(executor, make_request(tmp_path, make_task(SUCCEED))).stages[-1].outcome == "ok"


def test_machines_are_there_from_the_first_run_to_the_end(world: World, tmp_path: Path) -> None:
    """Else money is spent before anything runs, or after all is done."""
    with closing(world.executor(Cloud(machines=2, accelerators="H100:2"))) as executor:
        assert executor.slots == 4 and "2 machines will be rented" in executor.warnings()[0]
        assert world.rental.launches == []
        executor.describe()
        assert sorted(world.rental.launches) == [ONE, TWO]
        run(executor, tmp_path)
        config = (world.folder / "ssh_config").read_text()
        assert f"Host {ONE}\n" in config and f"HostKeyAlias {ONE}-" in config
        assert f'UserKnownHostsFile "{world.folder}/known_hosts"' in config
        assert executor.rate == 4.0
    assert world.rental.there == {}
    assert world.says("a new key") and world.says("ended 2 rented machines")


def test_what_a_dead_daemon_has_left_is_used_again_or_ended(world: World, tmp_path: Path) -> None:
    """Else a crash leaves machines that nobody ends, or the next daemon pays for them a second time."""
    run(world.executor(), tmp_path)  # never closed
    with closing(world.executor()) as executor:
        run(executor, tmp_path)
        assert world.rental.launches == [ONE]
    run(world.executor(), tmp_path)
    world.executor().close()  # one that never needed a machine
    assert world.rental.there == {}


def test_a_session_ends_no_machine_of_another(world: World, tmp_path: Path) -> None:
    """Else two sessions at once take each other's machines away."""
    with closing(world.executor(prefix="autoresearchd-t-ffffff-")) as other:
        run(other, tmp_path / "other")
        with closing(world.executor()) as executor:
            run(executor, tmp_path)
        assert list(world.rental.there) == ["autoresearchd-t-ffffff-1"]


def test_a_launch_that_fails_half_way_is_ended(world: World, opened: Callable[..., CloudExecutor]) -> None:
    """Else a machine that never took a run is paid for until somebody looks."""
    world.rental.failing = [EnvironmentFailure("set-up failed on it")]
    with pytest.raises(EnvironmentFailure, match="set-up failed"):
        opened().describe()
    assert (world.rental.ended, world.rental.there) == ([ONE], {})
    assert world.says("set-up failed on it")


def test_some_machines_are_enough_to_go_on(world: World, tmp_path: Path, opened: Callable[..., CloudExecutor]) -> None:
    """Else a quota of one GPU stops a session that asked for two."""
    world.rental.failing = [EnvironmentFailure("quota")]
    executor = opened(Cloud(machines=2))
    executor.describe()
    run(executor, tmp_path)
    assert sorted(executor.ready(slot) for slot in range(2)) == [False, True]


def test_what_waiting_does_not_change_is_told_as_that(world: World, opened: Callable[..., CloudExecutor]) -> None:
    world.rental.failing = [MissingCapability("no account")]
    with pytest.raises(MissingCapability, match="no account"):
        opened().describe()


def test_one_that_was_taken_away_is_launched_anew(
    world: World, tmp_path: Path, opened: Callable[..., CloudExecutor]
) -> None:
    """Else the end of a spot machine is the end of the session."""
    executor = opened()
    run(executor, tmp_path)
    world.rental.take(ONE)
    run(executor, tmp_path)
    assert world.rental.launches == [ONE, ONE]
    assert world.says(f"{ONE} was taken away (gone)")


def test_the_last_hour_of_a_cap_is_used_also_where_a_machine_was_taken_away(
    world: World, tmp_path: Path, opened: Callable[..., CloudExecutor]
) -> None:
    """Else a session ends as if its cap were too low for any machine, with what it leaves unspent."""
    executor = opened()
    run(executor, tmp_path)
    world.left = 1.0
    world.rental.take(ONE)
    run(executor, tmp_path)
    assert world.rental.launches == [ONE, ONE]


def test_a_machine_that_nothing_runs_on_is_ended_until_a_run_comes(
    world: World, tmp_path: Path, opened: Callable[..., CloudExecutor]
) -> None:
    """Else a paused session, or one that waits for its model, pays for nothing."""
    executor = opened(Cloud(idle_minutes=0), pace=AT_ONCE)
    run(executor, tmp_path)
    wait_until(lambda: not world.rental.there)
    run(executor, tmp_path)
    assert world.rental.launches == [ONE, ONE]


def test_a_machine_that_is_in_use_is_kept(world: World, tmp_path: Path, opened: Callable[..., CloudExecutor]) -> None:
    """Else a run that takes longer than the idle time is cut off."""
    executor = opened(Cloud(idle_minutes=0), pace=AT_ONCE)
    handle = executor.start(make_request(tmp_path, make_task(HANG)))
    settled = len(world.charged)
    wait_until(lambda: len(world.charged) > settled + 5)
    kept = list(world.rental.there)
    handle.kill()
    assert kept == [ONE]


def test_a_machine_that_is_sent_its_data_is_kept(
    world: World, tmp_path: Path, opened: Callable[..., CloudExecutor]
) -> None:
    """Else a task with much data never begins: the machine is ended under the transfer, again and again."""
    executor = opened(Cloud(idle_minutes=0), pace=AT_ONCE)
    [hosts] = world.hosts
    hosts.prepares = True
    with pytest.raises(PlaceTaken, match="its data is being sent"):
        executor.start(make_request(tmp_path, make_task(SUCCEED)))
    settled = len(world.charged)
    wait_until(lambda: len(world.charged) > settled + 5)
    kept = list(world.rental.there)
    hosts.prepares = False
    wait_until(lambda: not world.rental.there)
    assert (kept, world.rental.launches) == ([ONE], [ONE])


def test_what_machines_cost_is_counted_as_time_goes_by(
    world: World, tmp_path: Path, opened: Callable[..., CloudExecutor]
) -> None:
    """Else `--max-cost` holds for models only, and a night costs what a cluster does."""
    world.rental.usd = 3600.0
    began = time.time()
    executor = opened(pace=AT_ONCE)
    run(executor, tmp_path)
    wait_until(lambda: sum(world.charged) > 0.05)
    executor.close()
    assert sum(world.charged) <= time.time() - began + 0.1
    world.left = 0.0
    assert not world.broke.is_set()


def test_a_bill_that_was_counted_without_a_word_is_not_counted_again(
    world: World, tmp_path: Path, opened: Callable[..., CloudExecutor]
) -> None:
    world.rental.usd, world.lost = 3600.0, 1000
    began = time.time()
    executor = opened(pace=AT_ONCE)
    run(executor, tmp_path)
    wait_until(lambda: len(world.charged) > 5)
    executor.close()
    assert sum(world.charged) <= time.time() - began + 0.1


def test_a_session_whose_money_is_spent_is_ended(
    world: World, tmp_path: Path, opened: Callable[..., CloudExecutor]
) -> None:
    executor = opened(pace=AT_ONCE)
    run(executor, tmp_path)
    world.left = 0.0
    assert world.broke.wait(200)


def test_nothing_is_rented_once_the_money_is_spent(world: World, opened: Callable[..., CloudExecutor]) -> None:
    world.left = 0.0
    with pytest.raises(Interrupted, match="spend limit") as caught:
        opened().describe()
    assert world.rental.launches == [] and "--max-cost" in caught.value.hint


def test_time_after_a_crash_is_paid_for_as_far_as_a_machine_can_have_lasted(
    world: World, opened: Callable[..., CloudExecutor]
) -> None:
    """Else a daemon that dies often spends more than its cap."""
    world.folder.mkdir()
    for ago, expected in ((60.0, 60.0), (1e6, 600.0)):
        (world.folder / LEDGER).write_text(json.dumps({ONE: [time.time() - ago, 3600.0]}))
        world.charged.clear()
        opened().describe()
        assert expected <= world.charged[0] < expected + 200


@pytest.mark.parametrize(
    ("want", "left", "kind"),
    [(Cloud(max_hourly_cost=1.0), float("inf"), MissingCapability), (Cloud(machines=2), 3.9, LimitReached)],
)
def test_a_machine_that_costs_too_much_is_given_back(
    world: World, opened: Callable[..., CloudExecutor], want: Cloud, left: float, kind: type[Exception]
) -> None:
    """More than the task allows, or than the session's cap pays for an hour."""
    world.left = left
    with pytest.raises(kind, match="an hour"):
        opened(want).describe()
    assert world.rental.there == {}


def test_an_unknown_price_is_told_where_there_is_a_cap(
    world: World, tmp_path: Path, opened: Callable[..., CloudExecutor]
) -> None:
    world.rental.usd, world.left = None, 5.0
    run(opened(), tmp_path)
    assert world.says("nobody says what")


def test_a_stop_does_not_wait_for_a_launch(world: World, opened: Callable[..., CloudExecutor]) -> None:
    """Else `stop` takes as long as a cloud does, and leaves a machine behind."""
    world.rental.hanging = True
    executor = opened()
    threading.Thread(target=lambda: (wait_until(lambda: world.rental.launches), world.cancel.set())).start()
    with pytest.raises(Interrupted, match="stopped"):
        executor.describe()
    executor.close()
    assert world.rental.there == {}


def test_a_machine_that_cannot_be_ended_is_not_kept_quiet(world: World, tmp_path: Path) -> None:
    """Else it costs money until the bill comes."""
    executor = world.executor()
    run(executor, tmp_path)
    world.rental.stuck = True
    executor.close()
    assert world.says(f"{ONE} may still run and cost money") and world.says("cloud down")


def test_a_machine_that_could_not_be_ended_is_ended_later(
    world: World, tmp_path: Path, opened: Callable[..., CloudExecutor]
) -> None:
    """Else a network that is away for a minute at the idle end costs the rest of the night."""
    executor, world.rental.stuck = opened(Cloud(idle_minutes=0), pace=AT_ONCE), True
    run(executor, tmp_path)
    wait_until(lambda: world.says(f"{ONE} may still run and cost money"))
    world.rental.stuck = False
    wait_until(lambda: not world.rental.there)


def test_what_failed_half_way_is_ended_also_by_who_cannot_see_it(world: World) -> None:
    """Else a machine whose launch failed before it had an idle end runs for ever."""
    executor = world.executor()
    world.rental.failing, world.rental.stuck = [EnvironmentFailure("set-up failed on it")], True
    with pytest.raises(EnvironmentFailure, match="set-up failed"):
        executor.describe()
    world.rental.stuck, world.rental.blind = False, True
    executor.close()
    assert (world.rental.ended, world.rental.there) == ([ONE], {})


def test_a_fault_does_not_end_looking_after_machines(
    world: World, tmp_path: Path, opened: Callable[..., CloudExecutor]
) -> None:
    """Else nobody counts what they cost, or ends them, after the first one."""
    run(opened(pace=AT_ONCE), tmp_path)
    world.left = None  # type: ignore[assignment]
    wait_until(lambda: world.says("rented machines: ") and world.says("Traceback"))
    world.left = 0.0
    assert world.broke.wait(200)


def test_names_tell_whose_a_machine_is() -> None:
    found = NAME.fullmatch("autoresearchd-night-1.b-0a1b2c-12")
    assert found and (found["tag"], found["key"], found["number"]) == ("night-1.b", "0a1b2c", "12")
