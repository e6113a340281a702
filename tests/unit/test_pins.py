"""litellm is installed in one version only, wherever it is named, and can be checked byte for byte."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_checked_litellm_is_the_one_that_the_extra_installs() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["llm"]
    [extra] = [requirement for requirement in extras if requirement.startswith("litellm")]
    checked = (ROOT / "requirements-litellm.txt").read_text()
    pins = {extra, *re.findall(r"^litellm==\S+", checked, re.MULTILINE)}
    pins |= set(re.findall(r"^litellm==\S+", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    assert len(pins) == 1, "litellm is pinned to different versions"
    assert len(set(re.findall(r"--hash=sha256:[0-9a-f]{64}\b", checked))) == 5
