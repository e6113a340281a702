"""Machines of clouds, Kubernetes and Slurm through SkyPilot, each request to it in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from autoresearchd.domain.cleaning import one_line
from autoresearchd.domain.errors import EnvironmentFailure, Interrupted, MissingCapability
from autoresearchd.domain.ports import Cancel
from autoresearchd.domain.task import Cloud
from autoresearchd.executor.cloud import skypilot_process
from autoresearchd.executor.cloud.rental import Rented

_LOOK_EVERY_S = 0.2
_MOST_S = 300.0
"""For all but a launch, which may wait in a queue."""
_GRACE_S = 60.0
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_TOLD = 600


def find_python() -> str:
    """The interpreter that has SkyPilot: ours, or that of the program ``sky``. MissingCapability: there is none."""
    if find_spec("sky") is not None:
        return sys.executable
    program = shutil.which("sky")
    if program is not None:
        with contextlib.suppress(OSError), Path(program).open("rb") as script:
            first = script.readline(1000).decode("utf-8", "replace").strip()
            if first.startswith("#!/") and "python" in first:
                return first[2:]
    raise MissingCapability(
        "--executor cloud needs SkyPilot, and neither Python here nor a program `sky` on the PATH has it",
        hint="pip install 'skypilot[aws]==0.14.1' (or gcp, kubernetes, slurm …) in an environment of its own whose "
        "`sky` is on the PATH, or pip install 'autoresearchd[cloud]'; then `sky check`",
    )


class SkyPilot:
    """A ``rental.Rental``. log: where what SkyPilot says goes; None: nowhere."""

    def __init__(self, log: Path | None = None) -> None:
        self.log = log

    def check(self, want: Cloud) -> str:
        return f"SkyPilot {self._ask('check', want=asdict(want))}"

    def launch(self, name: str, want: Cloud, cancel: Cancel) -> Rented:
        found = self._ask("launch", cancel, name=name, want=asdict(want))
        if found is None or not found["up"]:
            raise EnvironmentFailure(f"{name}: it was launched, and is {found['state'] if found else 'gone'}")
        return Rented(**found)

    def look(self, prefix: str, keep: int | None = None) -> Sequence[Rented]:
        return [Rented(**found) for found in self._ask("look", prefix=prefix, keep=keep)]

    def down(self, names: Sequence[str]) -> None:
        if names:
            self._ask("down", names=list(names))

    def _ask(self, verb: str, cancel: Cancel | None = None, **told: Any) -> Any:
        try:
            return self._talk(verb, cancel, told)
        except OSError as error:
            raise EnvironmentFailure(f"SkyPilot cannot be asked for {verb}: {error}") from error

    def _talk(self, verb: str, cancel: Cancel | None, told: Mapping[str, Any]) -> Any:
        patience, wait = time.monotonic() + _MOST_S, cancel or threading.Event()
        own = {name: value for name, value in os.environ.items() if not name.startswith("AUTORESEARCHD_")}
        environment = {"SKYPILOT_DISABLE_USAGE_COLLECTION": "1", **own}
        words = [find_python(), skypilot_process.__file__, verb]
        with contextlib.ExitStack() as files:
            answer = files.enter_context(tempfile.TemporaryFile("w+"))
            said = tempfile.TemporaryFile() if self.log is None else self.log.open("ab+")  # noqa: SIM115
            files.callback(said.close)
            process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=answer, stderr=said, env=environment, text=True,
                start_new_session=True,
            )  # fmt: skip
            try:
                assert process.stdin is not None
                with contextlib.suppress(BrokenPipeError), process.stdin:
                    process.stdin.write(json.dumps(told))
                while process.poll() is None and not wait.wait(_LOOK_EVERY_S):
                    if cancel is None and time.monotonic() > patience:
                        break
            finally:
                _end(process)
            if cancel is not None and cancel.is_set() and process.returncode:
                raise Interrupted(f"{verb} was given up")
            answer.seek(0)
            try:
                found = json.load(answer)
            except ValueError as error:
                what = f"SkyPilot ended with {process.returncode} at {verb}: {_last(said)}"
                raise EnvironmentFailure(what, hint="`sky check` may say more") from error
        if "error" not in found:
            return found["value"]
        what = f"SkyPilot: {one_line(_COLOURS.sub('', found['error']), _TOLD)}"
        if found["final"]:
            hint = "`sky check` shows which accounts work, `sky gpus list` what there is; see fleet.cloud in task.yaml"
            raise MissingCapability(what, hint=hint)
        raise EnvironmentFailure(what, hint="it may pass; `sky status` and `sky check` say more")


def _end(process: subprocess.Popen[str]) -> None:
    """It cancels what it asked for first."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
        process.kill()
        process.wait()


def _last(said: Any) -> str:
    said.seek(max(0, said.seek(0, os.SEEK_END) - _TOLD))
    return one_line(_COLOURS.sub("", said.read().decode("utf-8", "replace")), _TOLD)
