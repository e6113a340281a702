"""No cheat raises a score, and none leaves anything behind: each is fed to a real session, at night in each tier."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from autoresearchd.sandbox.tiers import available
from tests.integrity.cheat import Cheat
from tests.integrity.cheats import ALL, BY_DAY
from tests.integrity.session import CheatSession, Outcome

pytest.importorskip("numpy")

TIERS = [tier.name.value for tier in available()]
NOBODY = 65534
TABLE_VARIABLE = "AUTORESEARCHD_CHEATS_TABLE"
"""Names a file that results are added to, for tests/integrity/table.py."""
EPSILON = 1e-6


def judge(outcome: Outcome, tier: str, baseline: float) -> list[str]:
    """What is wrong with what came of a cheat."""
    cheat, wrong = outcome.cheat, []
    if outcome.tier not in ("", tier):
        wrong.append(f"it ran in the tier {outcome.tier}")
    if outcome.label not in cheat.expects(tier):
        wrong.append(f"label {outcome.label!r}, not {sorted(cheat.expects(tier))}: {outcome.detail[:200]}")
    if outcome.status == "keep":
        wrong.append("it was kept" + (", and got on the branch" if outcome.confirmed else ""))
    if outcome.value is not None and outcome.value < baseline - EPSILON:
        wrong.append(f"its metric {outcome.value} was believed; that of the honest program is {baseline}")
    leaks = outcome.traces - cheat.not_promised.get(tier, frozenset())
    if leaks:
        wrong.append(f"it left traces: {sorted(leaks)}")
    return wrong


def run(folder: Path, cheats: list[Cheat], tier: str, **options: object) -> str:
    """Run cheats in a tier; what was wrong, a line each."""
    session = CheatSession(folder, cheats, tier=tier, **options)
    outcomes = session.run(session.build(), timeout=60 + 20 * len(cheats))
    baseline = session.results[0]["value"]
    rows = [[o.cheat.name, tier, o.label, sorted(o.traces)] for o in outcomes]
    if table := os.environ.get(TABLE_VARIABLE):
        with Path(table).open("a") as stream:
            stream.writelines(json.dumps([*row, "a normal user" if session.uid else "root"]) + "\n" for row in rows)
    for outcome in outcomes:
        print(f"{outcome.cheat.name:70} {tier:18} {outcome.label:18} {' '.join(sorted(outcome.traces))}")
    lines = [f"{o.cheat.name}: {'; '.join(wrong)}" for o in outcomes if (wrong := judge(o, tier, baseline))]
    return "\n".join(lines)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_cheats_are_caught_or_made_worthless_in_the_best_tier(place: Path) -> None:
    assert run(place, BY_DAY, TIERS[0]) == ""


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("tier", TIERS)
def test_every_cheat_is_caught_or_made_worthless_in_every_tier(place: Path, tier: str) -> None:
    assert run(place, ALL, tier) == ""


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.skipif(os.geteuid() != 0, reason="a normal user runs the other tests of this file as one")
@pytest.mark.parametrize("tier", TIERS)
def test_every_cheat_is_caught_or_made_worthless_for_a_normal_user(place: Path, python: str, tier: str) -> None:
    assert run(place, ALL, tier, uid=NOBODY, python=python) == ""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An interpreter with what the daemon and the tiny task need, which a normal user can read."""
    base = next((p for p in ("/usr/bin/python3", "/usr/local/bin/python3") if _fits(p)), None)
    if base is None:
        pytest.skip("there is no Python of this version that a normal user can read")
    folder = Path(tempfile.mkdtemp(prefix="cheats-python-"))
    folder.chmod(0o755)
    subprocess.run([base, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    target = next((folder / "venv" / "lib").glob("python3*")) / "site-packages"
    heavy = ("torch*", "nvidia*", "triton*", "sympy*", "ray*", "transformers*", "mypy*", "__pycache__")
    ignored = shutil.ignore_patterns(*heavy, "*.pth", "_editable*")
    for source in (Path(p) for p in sys.path if p.endswith("site-packages")):
        shutil.copytree(source, target, ignore=ignored, dirs_exist_ok=True, symlinks=True)
    yield str(folder / "venv" / "bin" / "python")
    shutil.rmtree(folder, ignore_errors=True)


def _fits(program: str) -> bool:
    code = f"import sys, venv; sys.exit(sys.version_info[:2] != {tuple(sys.version_info[:2])})"
    return Path(program).exists() and subprocess.run([program, "-c", code], check=False).returncode == 0
