"""Real daemons, started by fork from a process that has imported everything, so that hundreds of lives take minutes.

Run as ``python -m tests.chaos.nursery``: takes orders as JSON lines and answers each with a line. It is the subreaper
of all that it starts, so that a process which outlives its daemon is found here, whatever it did to get away.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.chaos.mortal import Doom, Fate, JumpingClock, MortalSink, command_of
from tests.chaos.world import TAG
from tests.fakes.bench import Mortal

LOOK_S = 0.002


class Nursery:
    """The harness's side: starts lives and asks after them."""

    def __init__(self, folder: Path) -> None:
        root = Path(__file__).parents[2]
        home = folder / "home"
        home.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "HOME": str(home), "PYTHONPATH": str(root), "GIT_CONFIG_GLOBAL": os.devnull}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.nursery"],
            cwd=root, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.pid = self._process.pid

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def start(self, root: Path, **order: Any) -> int:
        """Start a daemon; its pid. fate: where it kills itself."""
        fate = order.pop("fate", None)
        return int(self._ask("start", root=str(root), fate=asdict(fate) if fate else None, **order))

    def wait(self, pid: int, timeout: float) -> int | None:
        """Exit status of a daemon (−signal when killed), None when it still runs after ``timeout`` seconds."""
        answer = self._ask("wait", pid=pid, timeout=timeout)
        return None if answer is None else int(answer)

    def strays(self, patience: float) -> list[str]:
        """Processes that are left of dead daemons after ``patience`` seconds; they are ended then."""
        return [str(found) for found in self._ask("strays", patience=patience)]

    def _ask(self, what: str, **order: Any) -> Any:
        self._process.stdin.write(json.dumps({"what": what, **order}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise AssertionError("the nursery has died")
        return json.loads(answer)


# ---------------------------------------------------------------------- in the nursery
def main() -> None:
    """Take orders until standard input closes."""
    from autoresearchd.sandbox.isolation.kernel import PR_SET_CHILD_SUBREAPER, prctl

    prctl(PR_SET_CHILD_SUBREAPER, 1)
    _import_everything()
    ended: dict[int, int] = {}
    for line in sys.stdin:
        order = json.loads(line)
        match order.pop("what"):
            case "start":
                answer: Any = _fork(order)
            case "wait":
                answer = _wait(order["pid"], order["timeout"], ended)
            case _:
                answer = _strays(order["patience"], ended)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _import_everything() -> None:
    """All that a daemon imports while it starts; a thread started here would not survive the fork."""
    import git  # noqa: F401

    import autoresearchd.app.start
    import autoresearchd.policy.command_policy
    import autoresearchd.policy.search.search_policies  # noqa: F401


def _fork(order: Mapping[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        log = os.open(f"{order['root']}-life.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        null = os.open(os.devnull, os.O_RDWR)
        os.setsid()
        os.dup2(null, 0)
        os.dup2(null, 1)
        os.dup2(log, 2)
        code = _live(order)
    except BaseException:
        os.write(2, traceback.format_exc().encode("utf-8", "replace"))
        code = 1
    finally:
        os._exit(code)


def _wait(pid: int, timeout: float, ended: dict[int, int]) -> int | None:
    end = time.monotonic() + timeout
    while True:
        _reap(ended)
        if pid in ended:
            return ended[pid]
        if time.monotonic() >= end:
            return None
        time.sleep(LOOK_S)


def _reap(ended: dict[int, int]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        ended[pid] = os.waitstatus_to_exitcode(status)


def _strays(patience: float, ended: dict[int, int]) -> list[str]:
    from autoresearchd.sandbox.process_tree import descendants, send

    end = time.monotonic() + patience
    while True:
        _reap(ended)
        left = descendants(os.getpid())
        if not left:
            return []
        if time.monotonic() >= end:
            break
        time.sleep(LOOK_S)
    found = [f"{pid} {command_of(pid)[:200]!r}" for pid in left]
    for pid in left:
        send(pid, 9)
    _wait(left[-1], 1.0, ended)
    return found


# ---------------------------------------------------------------------- one life
def _live(order: Mapping[str, Any]) -> int:
    """The daemon's process: as ``autoresearchd resume --foreground``, but for ports that may end it."""
    from autoresearchd.domain.errors import AutoresearchdError

    root = Path(order["root"])
    fate = Fate(**order["fate"]) if order.get("fate") else None
    doom = Doom(fate)
    try:
        if fate is None and not {"often", "clock", "composed"} & {k for k, v in order.items() if v}:
            from autoresearchd.app.start import resume

            return resume(root, TAG, foreground=True)
        return _serve(root, doom, often=bool(order.get("often")), clock_seed=order.get("clock"))
    except AutoresearchdError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.stderr.flush()
        return error.exit_code


def _serve(root: Path, doom: Doom, *, often: bool, clock_seed: int | None) -> int:
    """What ``autoresearchd.app.start.run`` does, with every port mortal and no long waits after failures.

    often: housekeeping all the time; clock_seed: of a clock that jumps.
    """
    from autoresearchd.app.compose import ensure_segment, laboratory
    from autoresearchd.app.project import Project
    from autoresearchd.app.repair import check_database, check_journal
    from autoresearchd.loop.daemon import serve
    from autoresearchd.loop.session import Backoff
    from autoresearchd.loop.upkeep import housekeeping
    from autoresearchd.loop.upkeep.session_lock import SessionLock
    from autoresearchd.workspace import layout

    if often:
        housekeeping.PACK_EVERY, housekeeping.BACKUP_S, housekeeping.HEARTBEAT_S = 2, 0.2, 0.2
    start = import_module("autoresearchd.app.start")  # ``app.start`` is the function of that name
    project = Project.at(root)
    store = project.existing_store()
    session = project.pick(store, TAG)
    with SessionLock(project.lock(TAG), TAG) as lock:
        check_database(project.database)
        store.take_controls(session.id)
        lab = laboratory(project, session, store, root, [MortalSink(doom)])
        workspace = lab.workspace
        check_journal(store, workspace, session)
        mortal = replace(
            lab,
            store=Mortal(store, doom, "store"),
            workspace=Mortal(workspace, doom, "workspace"),
            executor=Mortal(lab.executor, doom, "executor"),
            policy=Mortal(lab.policy, doom, "policy"),
            clock=lab.clock if clock_seed is None else JumpingClock(clock_seed),
        )
        protected = lab.task.protected
        return serve(
            mortal,
            session.limits,
            lock,
            active_seconds=session.active_seconds,
            backup=layout.state_dir(root) / "state.db.backup",
            prepare=lambda: start._prepare(mortal, mortal.workspace, session, None),
            conditions=lambda: ensure_segment(mortal, workspace.fingerprint(session.base_commit, protected)),
            backoff=Backoff(first=0.05, most=0.5),
        )


if __name__ == "__main__":
    main()
