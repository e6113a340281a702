"""Learners that keep and promote a version, killed at every instant of it; what each death leaves is written down.

Run as a process of its own (``python -m tests.chaos.registrar FOLDER STEP``): it forks, and must have no threads.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from autoresearchd.domain.errors import AdapterDamaged
from autoresearchd.domain.policy_versions import BaseModel
from autoresearchd.learner.versions.adapter_shelf import AdapterShelf, Made
from autoresearchd.store.repository import SqlStore
from tests.chaos.mortal import Doom, Fate
from tests.fakes.bench import Mortal
from tests.fakes.models import saves

BASE = BaseModel("/models/small", "m" * 64, "t" * 64, "c" * 64)
MOST = 500


def shelf_of(root: Path, store: Any) -> AdapterShelf:
    return AdapterShelf(root / "adapters", store, lambda: datetime.now(UTC))


def open_store(root: Path) -> SqlStore:
    return SqlStore.open(f"sqlite:///{root / 'state.db'}")


def learn(root: Path, store: Any) -> str:
    """The end of a learner run: its version is kept, judged better, promoted. The same however often."""
    shelf = shelf_of(root, store)
    version = shelf.add(saves(b"better"), Made(BASE, "grpo", store.versions()[0].version)).version
    shelf.promote(version, "better")
    return version


def die(root: Path, nth: int) -> bool:
    """A learner that is killed at its ``nth`` instant; False: it was done before."""
    pid = os.fork()
    if pid == 0:
        doom = Doom(Fate(nth=nth))
        with open_store(root) as store:
            doom.watch_files(root)
            learn(root, Mortal(store, doom, "store"))
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0, f"the learner failed: {status}"
    return False


def versions(shelf: AdapterShelf, store: SqlStore) -> dict[str, Any]:
    """What a death left: versions as they are listed, the one in use, those whose files are not whole."""
    torn = []
    for version in store.versions():
        try:
            shelf.folder_of(version)
        except AdapterDamaged as error:
            torn.append(error.what)
    listed, in_use = ([v.version for v in them] for them in (store.versions(), store.promoted_versions()))
    return {"listed": listed, "in_use": in_use, "torn": torn}


def found(root: Path) -> dict[str, Any]:
    """What a death left, with the folders under way."""
    folders = sorted(path.name for path in (root / "adapters").iterdir() if path.name != ".lock")
    with open_store(root) as store:
        return versions(shelf_of(root, store), store) | {"folders": folders}


def main(folder: Path, step: int) -> None:
    """Kill at the first instant, ``step`` later, … until one learner lives to its end; a line of JSON for each."""
    template = folder / "template"
    template.mkdir()
    with open_store(template) as store:
        shelf = shelf_of(template, store)
        shelf.promote(shelf.add(saves(b"good"), Made(BASE, "sft")).version)
    for nth in itertools.islice(itertools.count(1, step), MOST):
        root = folder / f"life-{nth}"
        shutil.copytree(template, root)
        died = die(root, nth)
        after = found(root)
        with open_store(root) as store:
            shelf_of(root, store).sweep()
        swept = found(root)
        with open_store(root) as store:
            again = learn(root, store)
        print(json.dumps({"died": died, "after": after, "swept": swept, "again": again, "end": found(root)}))
        shutil.rmtree(root)
        if not died:
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
