"""Every rental passes the contract of its port: the fake one, and SkyPilot's over a stand-in for its SDK."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from autoresearchd.domain.errors import EnvironmentFailure, Interrupted, MissingCapability
from autoresearchd.domain.task import Cloud
from autoresearchd.executor.cloud.rental import Rental
from autoresearchd.executor.cloud.skypilot import SkyPilot, find_python
from tests.fakes.rental import FakeRental, stand_in
from tests.timing import wait_until

NEVER = threading.Event()
WANT = Cloud(accelerators="H100:1", max_hourly_cost=40.0, setup=("true",))


class RentalContract:
    """What every rental promises."""

    def test_a_name_is_one_machine_however_often_it_is_launched(self, rental: Rental) -> None:
        """Else a daemon that comes back after a crash pays for two."""
        first = rental.launch("autoresearchd-t-000000-1", WANT, NEVER)
        again = rental.launch("autoresearchd-t-000000-1", WANT, NEVER)
        assert (first.up, again.id, len(rental.look("autoresearchd-t-"))) == (True, first.id, 1)
        assert first.ssh["HostName"] == "127.0.0.1"

    def test_one_that_was_ended_comes_back_as_another(self, rental: Rental) -> None:
        """Else the key of a new machine is taken for a forged one."""
        first = rental.launch("autoresearchd-t-000000-1", WANT, NEVER)
        rental.down([first.name])
        rental.down([first.name])
        assert list(rental.look("autoresearchd-")) == []
        assert rental.launch(first.name, WANT, NEVER).id != first.id

    def test_machines_of_other_names_are_left_alone(self, rental: Rental) -> None:
        rental.launch("autoresearchd-a-000000-1", WANT, NEVER)
        rental.launch("autoresearchd-b-000000-1", WANT, NEVER)
        assert [m.name for m in rental.look("autoresearchd-b-", 10)] == ["autoresearchd-b-000000-1"]
        rental.down(["autoresearchd-a-000000-1"])
        assert [m.name for m in rental.look("autoresearchd-")] == ["autoresearchd-b-000000-1"]

    def test_a_launch_that_is_given_up_leaves_what_can_be_ended(self, rental: Rental) -> None:
        """Else `stop` waits for minutes, and what was begun goes on and costs money."""
        self.hold(rental)
        cancel, errors = threading.Event(), []

        def launch() -> None:
            try:
                rental.launch("autoresearchd-t-000000-1", WANT, cancel)
            except Interrupted as error:
                errors.append(error)

        thread = threading.Thread(target=launch)
        thread.start()
        wait_until(lambda: [m.up for m in rental.look("autoresearchd-t-")] == [False])
        cancel.set()
        thread.join()
        assert len(errors) == 1
        rental.down(["autoresearchd-t-000000-1"])
        assert list(rental.look("autoresearchd-t-")) == []

    def hold(self, rental: Rental) -> None:
        raise NotImplementedError


class TestFakeRental(RentalContract):
    @pytest.fixture
    def rental(self) -> Rental:
        return FakeRental()

    def hold(self, rental: Rental) -> None:
        assert isinstance(rental, FakeRental)
        rental.hanging = True


class TestSkyPilot(RentalContract):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """Where the stand-in keeps its machines; it holds a launch up while there is a file of that name."""
        folder = stand_in(tmp_path, monkeypatch)
        self.held = folder / "hold"
        return folder

    @pytest.fixture
    def rental(self, tmp_path: Path) -> Rental:
        return SkyPilot(tmp_path / "skypilot.log")

    def hold(self, rental: Rental) -> None:
        self.held.touch()

    def test_what_is_wanted_is_asked_for_and_its_end_is_put_off(self, rental: Rental, folder: Path) -> None:
        """Else the wrong machine is paid for, or a machine ends while it is in use."""
        rental.launch("autoresearchd-t-000000-1", WANT, NEVER)
        [machine] = rental.look("autoresearchd-t-", 10)
        asked = (folder / "asked").read_text()
        assert all(word in asked for word in ("H100:1", "max_hourly_cost", "40.0", "python3.12", "true"))
        assert "cpus" not in asked
        assert '["autostop", "autoresearchd-t-000000-1", "10", "True"]' in asked
        assert (machine.usd, machine.ssh["User"]) == (36.0, "nobody")

    @pytest.mark.parametrize("kind", ["NoCloudAccessError", "ResourcesUnavailableError"])
    def test_what_no_waiting_changes_is_told_as_that(self, rental: Rental, folder: Path, kind: str) -> None:
        """Else a session waits for ever for an account, or for a GPU that nobody has."""
        (folder / "fails").write_text(kind)
        with pytest.raises(MissingCapability, match=kind):
            rental.check(WANT)

    def test_a_provider_that_is_full_is_asked_again(self, rental: Rental, folder: Path) -> None:
        (folder / "fails").write_text("ResourcesTakenError")
        with pytest.raises(EnvironmentFailure, match="as it was told to"):
            rental.launch("autoresearchd-t-000000-1", WANT, NEVER)
        assert "SkyPilot prints a lot" in (folder.parent / "skypilot.log").read_text()

    def test_an_unknown_gpu_is_told(self, rental: Rental) -> None:
        with pytest.raises(MissingCapability, match=r"H1000.*ambiguous"):
            rental.check(Cloud(accelerators="H1000"))

    def test_it_says_by_whom_it_would_rent(self, rental: Rental) -> None:
        assert rental.check(WANT) == "SkyPilot 0.14.1"


def test_without_skypilot_it_is_said_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("autoresearchd.executor.cloud.skypilot.find_spec", lambda name: None)
    with pytest.raises(MissingCapability, match="needs SkyPilot") as caught:
        find_python()
    assert "pip install" in caught.value.hint
    (tmp_path / "sky").write_text("#!/opt/sky/bin/python3\nimport sky\n")
    (tmp_path / "sky").chmod(0o755)
    assert find_python() == "/opt/sky/bin/python3"
