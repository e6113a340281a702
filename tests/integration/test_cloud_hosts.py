"""Machines of a rental that are reached over ssh: real sshds, whose keys nobody knows beforehand."""

from __future__ import annotations

import getpass
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from autoresearchd.domain.errors import EnvironmentFailure
from autoresearchd.domain.task import Cloud
from autoresearchd.executor.cloud.executor import CloudExecutor
from autoresearchd.executor.cloud.rental import Terms
from tests.contract.executor_contract import SUCCEED, ended, make_request, make_task
from tests.fakes.rental import FakeRental
from tests.integration.ssh_hosts import AS_ANOTHER, USER, Fleet, Sshd, make_fleet, needs_sshd

pytestmark = needs_sshd


def ssh_of(fleet: Fleet, host: Sshd) -> dict[str, str]:
    user = USER if AS_ANOTHER else getpass.getuser()
    return {"HostName": host.address, "Port": str(host.port), "User": user, "IdentityFile": str(fleet.folder / "key")}


def test_a_new_machine_takes_runs_and_is_held_to_the_key_that_it_came_with(tmp_path: Path) -> None:
    """Else no rented machine can be used, or anybody can take its place later."""
    told: list[str] = []
    with make_fleet() as fleet:
        first, second = (fleet.add(name, known=False) for name in ("first", "second"))
        rental = FakeRental(ssh=ssh_of(fleet, first))
        terms = Terms(
            "autoresearchd-t-000000-", tmp_path / "cloud", threading.Event(), lambda kind, text: told.append(text)
        )

        def executor() -> CloudExecutor:
            return CloudExecutor(rental, Cloud(remote_dir=str(first.home)), terms)

        with closing(executor()) as rented:
            request = make_request(tmp_path, make_task(SUCCEED))
            assert ended(rented, request).stages[-1].outcome == "ok"
            rental.stuck = True  # it is there when its daemon is not
        assert any("host key was taken as it came" in text for text in told)
        told.clear()
        with closing(executor()) as again:
            assert again.describe()["cpu"]
        assert not any("host key" in text for text in told)
        [name] = rental.there
        rental.there[name] = replace(rental.there[name], ssh=ssh_of(fleet, second))
        with closing(executor()) as forged, pytest.raises(EnvironmentFailure, match="first login failed"):
            forged.describe()
