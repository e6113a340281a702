"""Learners of a repository in which a daemon is at work, killed at random instants; what each death leaves is told.

Run as a process of its own (``python -m tests.chaos.learners FOLDER SEED KILLS``): it forks, and must have no threads.
Its first line tells of a session with answers and of a learner that ran to its end; the kills begin with a line on its
standard input. Each learner is the real one, on a tiny random model.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autoresearchd.app.learning import learn
from autoresearchd.app.project import Project
from autoresearchd.domain.labels import Label
from autoresearchd.learner.versions.adapter_shelf import AdapterShelf
from tests.chaos.mortal import Doom, Fate
from tests.chaos.registrar import versions
from tests.integration.test_learning import MIXED, request, researched, sized_model
from tests.timing import wait_until

LIVE = "live"
"""The session whose daemon is at work."""


def alone(work: Callable[[], None]) -> int:
    """Begin something in a process of its own; its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work()
        code = 0
    finally:
        sys.stderr.flush()
        os._exit(code)


def ended(pid: int) -> None:
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, f"it failed: {status}"


def learner(root: Path, model: Path, doom: Doom) -> None:
    """A whole learner run, with an instant before each file that it opens, makes, renames or removes."""

    doom.watch_files(root)
    small = {"states": "4", "count": "1", "max_tokens": "4"}
    learn(request(model, steps=3, **small), root, lambda line: print(line, file=sys.stderr, flush=True))


def killed(root: Path, model: Path, stream: random.Random, whole: dict[str, Any], life: int) -> dict[str, Any]:
    """A learner that is killed: by turns at one of its instants, and after a part of the time that it would take."""
    if life % 2:
        nth = stream.randint(1, whole["instants"])
        _, status = os.waitpid(alone(lambda: learner(root, model, Doom(Fate(nth=nth)))), 0)
        return {"at": f"instant {nth}", "died": os.WIFSIGNALED(status), "code": os.waitstatus_to_exitcode(status)}
    seconds = stream.uniform(0, whole["seconds"])
    pid = alone(lambda: learner(root, model, Doom(None)))
    signal.sigtimedwait({signal.SIGCHLD}, seconds)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return {"at": f"{seconds:.2f} s", "died": os.WIFSIGNALED(status), "code": os.waitstatus_to_exitcode(status)}


def found(project: Project) -> dict[str, Any]:
    with project.existing_store() as store:
        return versions(AdapterShelf.of(project.root, store), store)


def made(project: Project) -> list[str]:
    """The versions that made the daemon's decided experiments, but for those for which no answer could be used."""
    with project.existing_store() as store:
        experiments = store.experiments(store.session(LIVE).id)
    return [
        e.proposal.adapter
        for e in experiments
        if e.number and e.proposal and e.decision and e.decision.label is not Label.MALFORMED_ANSWER
    ]


def goes_on(project: Project) -> dict[str, Any]:
    """Which version made the latest experiment, once the daemon has decided another one since."""
    before = len(made(project))
    return {"by": wait_until(lambda: (now := made(project))[before + 1 :] and now[-1])}


def tell(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


def main(folder: Path, seed: int, kills: int) -> None:
    """A learner that runs to its end; then those that are killed; then one that runs to its end again."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    model, count = folder / "model", folder / "instants"
    ended(alone(lambda: researched(folder, sized_model(model), MIXED).close()))
    project = Project.at(folder / "project")

    def counted() -> None:
        doom = Doom(Fate(nth=-1))
        learner(project.root, model, doom)
        count.write_text(str(doom.count))

    began = time.monotonic()
    ended(alone(counted))
    whole = {"instants": int(count.read_text()), "seconds": time.monotonic() - began}
    tell(whole | found(project))
    sys.stdin.readline()
    stream = random.Random(seed)
    for life in range(kills):
        signal.sigtimedwait({signal.SIGCHLD}, 0)  # that of the one before
        tell(killed(project.root, model, stream, whole, life) | found(project) | goes_on(project))
    ended(alone(lambda: learner(project.root, model, Doom(None))))
    with project.existing_store() as store:
        AdapterShelf.of(project.root, store).sweep()
        runs = [run.status.value for run in store.learner_runs()]
    state = project.root / ".git/autoresearchd"
    left = [path.name for path in (state / "judging").iterdir() if path.name != "lock"]
    folders = sorted(path.name for path in (state / "adapters").iterdir() if path.name != ".lock")
    tell(found(project) | goes_on(project) | {"runs": runs, "left": left, "folders": folders})


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
