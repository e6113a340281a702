"""The real SkyPilot, as far as it goes without an account: in a home of its own, with an API server of its own."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from autoresearchd.domain.errors import MissingCapability
from autoresearchd.domain.task import Cloud
from autoresearchd.executor.cloud.skypilot import SkyPilot, find_python
from tests.integration.ssh_hosts import free_port

try:
    PYTHON, WHY = find_python(), ""
except MissingCapability as error:
    PYTHON, WHY = "", f"{error.what} (330 MB, so not part of the dev install): {error.hint}"
pytestmark = [pytest.mark.skipif(bool(WHY), reason=WHY), pytest.mark.slow]
WANT, NAME = Cloud(cpus="2+", use_spot=True, max_hourly_cost=1.0, disk_gb=64), "autoresearchd-t-000000-1"


@pytest.fixture
def sky(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SkyPilot]:
    for name in [n for n in os.environ if n.startswith(("AWS_", "AZURE_", "GOOGLE_", "KUBE", "SKYPILOT_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SKYPILOT_API_SERVER_LOCAL_PORT", str(free_port()))
    yield SkyPilot(tmp_path / "skypilot.log")
    subprocess.run([PYTHON, "-c", "import sky; sky.api_stop()"], check=True, timeout=200, stdout=subprocess.DEVNULL)


def test_without_an_account_each_request_gets_an_answer_and_nothing_is_rented(sky: SkyPilot) -> None:
    """Else a change of the SDK is found out by somebody who pays for it."""
    for ask in (lambda: sky.check(WANT), lambda: sky.launch(NAME, WANT, threading.Event())):
        with pytest.raises(MissingCapability, match="NoCloudAccessError") as caught:
            ask()
        assert "sky check" in caught.value.hint
    with pytest.raises(MissingCapability, match="'nowhere' is not a valid cloud"):
        sky.check(Cloud(infra="nowhere"))
    assert list(sky.look("autoresearchd-", 10)) == []
    sky.down([NAME])
