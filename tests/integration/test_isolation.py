"""What each tier of isolation promises: every attack works without a sandbox, and in no tier that works here.

As the user who runs the tests and, where that is root, as a normal user too.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from autoresearchd.sandbox.tiers import TierName, available
from autoresearchd.sandbox.view import bubblewraps
from tests.integration.isolation_job import ATTACKS

TOP = Path(__file__).parents[2]
SCENARIO = Path(__file__).with_name("isolation_scenario.py")
TIERS = [tier for tier in available() if tier.isolates]
BWRAP = [str(program.parent) for program in bubblewraps()]
"""Where bwrap lies: another interpreter than that of these tests has not the package that brings it."""
OF_ROOT = {"write_the_system", "write_the_kernels_settings"}
NOBODY = 65534
USERS = ["this user", "a normal user"] if os.geteuid() == 0 else ["this user"]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder that every user can reach, unlike those of pytest."""
    made = Path(tempfile.mkdtemp(prefix="autoresearchd-isolation-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def as_user(user: str) -> list[str]:
    """The start of a command line: who runs it, and with which interpreter."""
    if user == "this user":
        return [sys.executable]
    if shutil.which("setpriv") is None:
        pytest.skip("no setpriv here to become a normal user")
    become = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--bounding-set=-all"]
    plant = ["/bin/sh", "-c", "made=$(mktemp -d /dev/shm/autoresearchd-XXXXXX) && rmdir $made"]
    if subprocess.run([*become, *plant], capture_output=True, check=False).returncode != 0:
        pytest.skip("a normal user has no shared memory here, and so no victim to plant in it")
    question = f"import sys; sys.path.append({str(TOP)!r}); sys.version_info >= (3, 11) or 1 / 0; import autoresearchd"
    for python in (sys.executable, "/usr/bin/python3"):
        # By a shell: else root could run it on the way to becoming that user, and the user not.
        command = [*become, "env", "-i", "/bin/sh", "-c", 'exec "$0" -c "$1"', python, question]
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            return [*become, python]
    pytest.skip("a normal user can read neither this project nor a Python that would run it")


@cache
def outcomes(tier: TierName, user: str, folder: Path) -> dict[str, str]:
    """What came of each attack in a tier."""
    start = as_user(user)
    root = folder / f"{tier.value}-{user.replace(' ', '-')}"
    root.mkdir(exist_ok=True)
    if user != "this user":
        os.chown(root, NOBODY, NOBODY)
    path = os.pathsep.join([os.environ["PATH"], *BWRAP])
    done = subprocess.run(
        [*start, str(SCENARIO), tier.value, str(root)],
        capture_output=True, text=True, check=False, timeout=280, cwd="/",
        env={"PATH": path, "PYTHONPATH": str(TOP), "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("user", USERS)
def test_an_attack_works_without_a_sandbox_and_in_no_tier(attack: str, user: str, folder: Path) -> None:
    if attack in OF_ROOT and (os.geteuid() != 0 or user != "this user"):
        pytest.skip("nothing to fear from a normal user")
    assert outcomes(TierName.NONE, user, folder)[attack] == "worked"
    assert {
        t.name: outcomes(t.name, user, folder)[attack]
        for t in TIERS
        if outcomes(t.name, user, folder)[attack] == "worked"
    } == {}


@pytest.mark.parametrize("user", USERS)
def test_the_victims_are_unharmed(user: str, folder: Path) -> None:
    """An attack that says it failed must have failed."""
    for tier in (tier.name for tier in TIERS):
        outcomes(tier, user, folder)
        root = folder / f"{tier.value}-{user.replace(' ', '-')}"
        assert not list(root.rglob("planted*"))
        assert not (root / "elsewhere" / "made").exists()
        assert {p.name for p in (root / "elsewhere").iterdir()} == {"secret", "movable", "deletable"}
        assert {p.read_text() for p in (root / "setup" / "data").glob("*.txt")} == {"data\n", "the secret"}
        assert all(p.stat().st_mode & 0o777 == 0o644 for p in (root / "setup" / "data").glob("*.txt"))
        assert all(p.stat().st_mtime > 1e9 for p in (root / "setup" / "data").iterdir())


def test_there_is_a_sandbox_here_to_be_tested() -> None:
    """Else all tests above would pass for want of anything to do."""
    if not TIERS:
        pytest.skip(f"no sandbox works here: {available()[-1].reason}")
