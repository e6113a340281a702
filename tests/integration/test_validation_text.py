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
from autoresearchd.sandbox.tiers import PLAIN, Tier, probe

pytest.importorskip("torch")
np = pytest.importorskip("numpy")
tokenizers = pytest.importorskip("tokenizers")

SEARCH = """
import os, pathlib, subprocess, sys
here = pathlib.Path(__file__).resolve().parent
skip = ["proc", "sys", "dev"]
places = ["/" + name for name in os.listdir("/") if name not in skip and not os.path.islink("/" + name)]
if len(sys.argv) > 1:
    places = sys.argv[1:]
needles = str(here / "needles.txt")
grep = ["grep", "-rlaFs", "--exclude=*.so*", "-f", needles]
found = subprocess.run([*grep, *places], capture_output=True, text=True)
hits = [line for line in found.stdout.splitlines() if not line.endswith("needles.txt")]
token = (here / "needle.bin").read_bytes()[::-1]
own = sys.argv[-1:] if len(sys.argv) > 1 else ["/tmp", os.path.expanduser("~")]
for place in [str(here), os.environ["AUTORESEARCHD_OUTPUT_DIR"], *own]:
    for folder, _, names in os.walk(place, followlinks=True):
        for name in names:
            path = pathlib.Path(folder, name)
            if ".so" in path.suffixes:
                continue
            try:
                data = path.read_bytes() if path.is_file() else b""
            except OSError:
                continue
            if token in data:
                hits.append("tokens in " + os.path.join(folder, name))
print("HITS", len(hits), *hits[:20], sep="\\n")
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
    middle = len(values) // 2
    (top / "workspace" / "needle.bin").write_bytes(values[middle : middle + 64].tobytes()[::-1])
    (top / "workspace" / "train.py").write_text(SEARCH)
    return top


def search(top: Path, tier: Tier, *places: str) -> str:
    task = load_task(top / "pristine")
    command = " ".join(["python -I -S train.py", *places])
    task = replace(
        task, evaluation=replace(task.evaluation, command="true", model_command=None) if task.evaluation else None
    )
    task = replace(
        task,
        execution=replace(
            task.execution, run_command=command, budget=replace(task.execution.budget, training=800.0, wall=850.0)
        ),
    )
    request = RunRequest(
        key="search", task=task, commit="", seed=1, workspace=top / "workspace", pristine=top / "pristine",
        setup=top / "setup", run_dir=top / f"run-{tier.name}", source=top / "workspace",
    )  # fmt: skip
    result = LocalExecutor(tier=tier).start(request).wait(850)
    return f"{result}\n" + (request.run_dir / "training.log").read_text("utf-8", "replace")


@pytest.mark.nightly
def test_without_a_sandbox_the_text_is_found_so_the_search_works(prepared: Path) -> None:
    import networkx

    log = search(prepared, PLAIN, str(Path(networkx.__file__).parent), str(prepared / "setup"))
    assert "HITS\n0" not in log
    assert "networkx/algorithms/tests" in log, log
    assert "val.bin" in log


@pytest.fixture
def sandbox() -> Tier:
    tier = probe()
    if not tier.isolates:
        pytest.skip("bubblewrap does not work here")
    return tier


@pytest.mark.nightly
@pytest.mark.timeout(900)  # it reads every file of the machine's /usr
def test_in_the_sandbox_it_is_nowhere(prepared: Path, sandbox: Tier) -> None:
    log = search(prepared, sandbox)
    assert "HITS\n0" in log, log
