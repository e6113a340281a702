"""The tiers of isolation: what each can promise, and which of them works on this machine.

=================== ===========================================================================================
bubblewrap          namespaces for processes, network, IPC and mounts; the job sees a white list of read-only folders
                    and one writable one; nothing survives its end, or the daemon's
bubblewrap-noproc   the same where a container forbids mounting /proc: /proc is an empty folder
none                process groups and a clean environment only: the job can read, write and reach whatever its user
                    can; its processes are ended with it as long as the supervisor lives
=================== ===========================================================================================
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from autoresearchd.sandbox import bubblewrap
from autoresearchd.sandbox.view import View


class TierName(StrEnum):
    """Names of the tiers, as recorded with each run."""

    BUBBLEWRAP = "bubblewrap"
    BUBBLEWRAP_NOPROC = "bubblewrap-noproc"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Tier:
    """A tier that works here. program: bubblewrap, where it is one; reason: why it is no better one."""

    name: TierName
    program: Path | None = None
    reason: str = ""

    @property
    def isolates(self) -> bool:
        """Whether jobs are kept from what they are not given."""
        return self.program is not None

    @property
    def scratch(self) -> Path | None:
        """The folder for temporary files that is private to each process; None where there is none."""
        return bubblewrap.SCRATCH if self.isolates else None

    def command(self, view: View, command: Sequence[str]) -> tuple[str, ...]:
        """The command line that runs ``command`` with ``view``; in the tier ``none`` the command itself."""
        if self.program is None:
            return tuple(command)
        return bubblewrap.wrap(self.program, view, command, proc=self.name is TierName.BUBBLEWRAP)

    def warnings(self) -> list[str]:
        """What a user should know about this tier; empty for the best one."""
        if self.name is TierName.NONE:
            return [
                f"runs are not isolated ({self.reason}): edited code can read and change every file of this user and "
                "use the network; install bubblewrap (apt install bubblewrap) or allow user namespaces"
            ]
        if self.name is TierName.BUBBLEWRAP_NOPROC:
            return ["/proc cannot be mounted in the sandbox (a container forbids it): jobs see an empty /proc"]
        return []


PLAIN = Tier(TierName.NONE, reason="asked for")


def probe(programs: Sequence[Path] | None = None) -> Tier:
    """The best tier that works here, found by trying.

    Args:
        programs: bubblewrap programs to try; None: those of this machine.
    """
    programs = bubblewrap.candidates() if programs is None else programs
    reason = "bubblewrap is not installed"
    for program in programs:
        for name in (TierName.BUBBLEWRAP, TierName.BUBBLEWRAP_NOPROC):
            tier = Tier(name, program, reason if name is TierName.BUBBLEWRAP_NOPROC else "")
            problem = _problem(tier)
            if not problem:
                return tier
            reason = f"{program}: {problem}"
    return Tier(TierName.NONE, reason=reason)


def _problem(tier: Tier) -> str:
    """Why a tier does not work; empty when it does."""
    view = View(cwd=Path("/usr"), home=Path("/nonexistent"))
    try:
        done = subprocess.run(
            tier.command(view, ("/bin/sh", "-c", "exit 0")),
            stdin=subprocess.DEVNULL, capture_output=True, timeout=20, check=False, env={"PATH": "/usr/bin:/bin"},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return ""
    text = done.stderr.decode("utf-8", "replace").strip()
    return text.splitlines()[-1] if text else f"exit code {done.returncode}"
