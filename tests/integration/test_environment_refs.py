"""How far a session has come is read from git's refs however they are stored: a journal set back is found by it."""

from __future__ import annotations

from pathlib import Path

from tests.integration.bench import Bench


def test_the_newest_experiment_of_git_is_found_loose_and_packed(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    history = bench.workspace().history()
    assert history.newest() == 0
    base = bench.git("rev-parse", "HEAD")
    for number in (3, 12):
        bench.git("update-ref", f"refs/autoresearch/t/{number}", base)
    assert history.newest() == 12
    bench.git("pack-refs", "--all")
    assert not (bench.root / ".git/refs/autoresearch/t/12").exists()
    assert history.newest() == 12
    bench.git("update-ref", "refs/autoresearch/t/9", base)
    bench.git("update-ref", "refs/autoresearch/other/99", base)
    (bench.root / ".git/refs/autoresearch/t/77.lock").touch()
    assert history.newest() == 12 == max(history.experiments())
    bench.close()
