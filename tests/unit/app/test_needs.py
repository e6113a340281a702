"""`task list` says what to install before a task is started, not the traceback of its first run."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoresearchd.app.tasks import required_extras
from autoresearchd.app.tasks.required_extras import needs_of
from autoresearchd.resources import bundled

_BUNDLED = sorted(path.parent for path in bundled("templates").glob("*/task.yaml"))


def test_what_is_missing_is_named_as_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("import os\ndef f():\n    from sklearn.svm import SVC\n    import numpy as np\n")
    (tmp_path / "broken.py").write_text("import torch (\n")
    monkeypatch.setattr(required_extras, "find_spec", lambda name: None if name == "sklearn" else object())
    assert needs_of(tmp_path).words == "train, tasks (missing: scikit-learn)"
    (tmp_path / "train.py").write_text("import json\nfrom .torch import x\n")
    assert needs_of(tmp_path).words == "—"


@pytest.mark.parametrize(("name", "extra"), [("autoresearch", "train"), ("baseball-pitch-synthetic", "tasks")])
def test_the_bundled_tasks_are_told_with_their_extra(name: str, extra: str) -> None:
    (folder,) = [folder for folder in _BUNDLED if folder.name == name]
    assert extra in needs_of(folder).extras
