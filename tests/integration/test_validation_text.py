"""The validation text of the bundled task is nowhere on the file system that a job can see."""

from __future__ import annotations

import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from autoresearchd.config import load_task
from autoresearchd.domain.ports import RunRequest
from autoresearchd.executor.local import LocalExecutor
from autoresearchd.resources import bundled
from autoresearchd.sandbox.tiers import PLAIN, Tier
from tests.integration.local_jobs import BEST, needs_sandbox

pytest.importorskip("torch")
np = pytest.importorskip("numpy")
tokenizers = pytest.importorskip("tokenizers")

SEARCH = """
import os, subprocess, sys
top = [f"/{name}" for name in os.listdir("/") if name not in ("proc", "sys", "dev") and not os.path.islink(f"/{name}")]
grep = ["grep", "-rlaFs", "--exclude=*.so*", "--exclude=needles.txt", "-f", "needles.txt", *(sys.argv[1:] or top)]
found = subprocess.run(grep, capture_output=True, text=True).stdout.splitlines()
print("HITS", len(found), *found[:20], sep="\\n")
"""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pristine/, workspace/ and setup/ of the bundled task."""
    top = tmp_path_factory.mktemp("autoresearch")
    for name in ("pristine", "workspace"):
        shutil.copytree(bundled("templates") / "autoresearch", top / name, ignore=shutil.ignore_patterns("__pycache__"))
    task = load_task(top / "pristine")
    LocalExecutor(tier=PLAIN).setup(task, top / "pristine", top / "setup", top / "setup.log", threading.Event())
    values = np.fromfile(top / "setup" / "data" / "val.bin", dtype=np.uint16)
    text = tokenizers.Tokenizer.from_file(str(top / "setup" / "data" / "tokenizer.json")).decode(values.tolist())
    lines = sorted({line.strip() for line in text.splitlines() if 70 <= len(line.strip()) <= 118})
    chosen = lines[:: max(1, len(lines) // 40)]
    assert len(chosen) >= 20
    (top / "workspace" / "needles.txt").write_text("\n".join(chosen) + "\n")
    (top / "workspace" / "train.py").write_text(SEARCH)
    return top


def search(top: Path, tier: Tier, *places: str) -> str:
    task = load_task(top / "pristine")
    budget = replace(task.execution.budget, training=800.0, wall=850.0)
    execution = replace(task.execution, run_command=" ".join(["python -I -S train.py", *places]), budget=budget)
    evaluation = replace(task.evaluation, command="true", model_command=None)
    request = RunRequest(
        key="search", task=replace(task, execution=execution, evaluation=evaluation), commit="", seed=1,
        workspace=top / "workspace", pristine=top / "pristine", setup=top / "setup",
        run_dir=top / f"run-{tier.name}", source=top / "workspace",
    )  # fmt: skip
    result = LocalExecutor(tier=tier).start(request).wait()
    return f"{result}\n" + (request.run_dir / "training.log").read_text("utf-8", "replace")


@pytest.mark.nightly
def test_without_a_sandbox_the_text_is_found_so_the_search_works(prepared: Path) -> None:
    import networkx

    log = search(prepared, PLAIN, str(Path(networkx.__file__).parent))
    assert "HITS\n0" not in log
    assert "networkx/algorithms/tests" in log, log


@needs_sandbox
@pytest.mark.nightly
@pytest.mark.timeout(900)  # it reads every file of the machine's /usr
def test_in_the_sandbox_it_is_nowhere(prepared: Path) -> None:
    log = search(prepared, BEST)
    assert "HITS\n0" in log, log
