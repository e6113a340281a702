"""The tiers of isolation, and which of them works on this machine. docs/security.md has what each can promise."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from autoresearchd.domain.errors import EnvironmentFailure, MissingCapability, UsageError
from autoresearchd.sandbox.launch import PROBE_PREFIX, Plan, Program, Stage, launch, new_token, remove
from autoresearchd.sandbox.view import SCRATCH, View, bubblewraps, confined, in_bubblewrap

AUTO = "auto"
_PATIENCE_S = 20.0
_HINT = "apt install bubblewrap and allow user namespaces; or, to run edited code without isolation, --sandbox none"
_HINT_NAMED = "use --sandbox auto; `autoresearchd doctor` says what works here"


class TierName(StrEnum):
    """Names of the tiers, as recorded with each run, best first.

    The two of our own launcher hide no names: what is not on the white list can be looked up, but not read or written.
    """

    BUBBLEWRAP = "bubblewrap"
    BUBBLEWRAP_NOPROC = "bubblewrap-noproc"  # where a container forbids mounting /proc
    NAMESPACES = "namespaces"
    LANDLOCK = "landlock"  # where namespaces are forbidden
    NONE = "none"


_WARNINGS = {
    TierName.NONE: "runs are not isolated«why»: edited code can read and change every file of this user and use the "
    "network; install bubblewrap (apt install bubblewrap) or allow user namespaces",
    TierName.BUBBLEWRAP_NOPROC: "/proc cannot be mounted in the sandbox (a container forbids it): jobs see no more of "
    "it than cpuinfo and meminfo",
    TierName.NAMESPACES: "the sandbox is the tier 'namespaces'«why»: jobs have no unix sockets (data loaders with "
    "worker processes may need them) and can see that a file exists, but read none that is not theirs",
    TierName.LANDLOCK: "the sandbox is the tier 'landlock'«why»: jobs have no sockets and no named shared memory (data "
    "loaders with worker processes need both), and can see that a file or a process exists",
}


@dataclass(frozen=True, slots=True)
class Tier:
    """A tier that works here. program: bubblewrap, where it is one; reason: why it is no better one."""

    name: TierName
    program: Path | None = None
    reason: str = ""

    @property
    def isolates(self) -> bool:
        """Whether jobs are kept from what they are not given."""
        return self.name is not TierName.NONE

    @property
    def confines(self) -> bool:
        """Whether it is one of our own launcher's, which hides no paths and gives a job no empty home."""
        return self.name in (TierName.NAMESPACES, TierName.LANDLOCK)

    @property
    def scratch(self) -> Path | None:
        """The folder for temporary files that is private to each process; None where one has to be made."""
        return SCRATCH if self.program is not None else None

    def command(self, view: View, command: Sequence[str]) -> tuple[str, ...]:
        """The command line that runs ``command`` with ``view``; in the tier ``none`` the command itself."""
        if self.confines:
            return confined(view, command, namespaces=self.name is TierName.NAMESPACES)
        if self.program is None:
            return tuple(command)
        return in_bubblewrap(self.program, view, command, proc=self.name is TierName.BUBBLEWRAP)

    def warnings(self) -> list[str]:
        """What a user should know about this tier; empty for the best one."""
        because = f" ({self.reason})" if self.reason else ""
        return [text.replace("«why»", because) for name, text in _WARNINGS.items() if name is self.name]


PLAIN = Tier(TierName.NONE, reason="asked for")


def candidates() -> Iterator[Tier]:
    """All tiers but ``none``, best first, whether they work here or not."""
    for program in bubblewraps():
        yield Tier(TierName.BUBBLEWRAP, program)
        yield Tier(TierName.BUBBLEWRAP_NOPROC, program)
    yield Tier(TierName.NAMESPACES)
    yield Tier(TierName.LANDLOCK)


def probe(tiers: Iterable[Tier] | None = None) -> Tier:
    """The first of all tiers, or of some, that works here, found by trying; else ``none``, with the reasons."""
    reasons = ["bubblewrap is not installed"] if tiers is None and not bubblewraps() else []
    for tier in candidates() if tiers is None else tiers:
        problem = _problem(tier)
        if not problem:
            return Tier(tier.name, tier.program, "; ".join(reasons))
        reasons.append(problem)
    return Tier(TierName.NONE, reason="; ".join(dict.fromkeys(reasons)))


def available() -> list[Tier]:
    """Every tier that works on this machine, best first; the last is always the tier ``none``."""
    found: dict[TierName, Tier] = {}
    for tier in candidates():
        if tier.name not in found and not _problem(tier):
            found[tier.name] = tier
    return [*(found[name] for name in TierName if name in found), PLAIN]


def check_name(name: str) -> str:
    """The name of a tier or ``auto``, as given. Raises UsageError when it is neither."""
    if name != AUTO and name not in set(TierName):
        raise UsageError(f"{name[:60]!r} is not a tier of the sandbox", hint=f"one of {AUTO}, {', '.join(TierName)}")
    return name


def choose(name: str = AUTO, tiers: Iterable[Tier] | None = None, *, gpu: bool = False) -> Tier:
    """The tier that ``--sandbox`` asks for; ``none`` only where it is asked for by name. tiers: see `probe`.

    gpu: whether jobs may want one: CUDA does not start without /proc, so a tier without it is taken last.

    Raises MissingCapability: it does not work here, or, for ``auto``, none does; UsageError: there is no such tier.
    """
    if check_name(name) == TierName.NONE:
        return PLAIN
    what, hint = "no sandbox works on this machine", _HINT
    if name == AUTO and gpu:
        tiers = sorted(candidates() if tiers is None else tiers, key=lambda t: t.name == TierName.BUBBLEWRAP_NOPROC)
    if name != AUTO:
        tiers = [tier for tier in (candidates() if tiers is None else tiers) if tier.name == name]
        what, hint = f"the sandbox {name!r} does not work on this machine", _HINT_NAMED
    found = probe(tiers)
    if not found.isolates:
        raise MissingCapability(f"{what}: {found.reason or 'bubblewrap is not installed'}", hint=hint)
    return found


def _problem(tier: Tier) -> str:
    """Why a tier does not work; empty when it does: a command runs in it and reads no file that it was not given.

    It runs as a job does, behind the supervisor's filter and ended with all that belongs to it where this process dies.
    """
    token = new_token()
    folder = Path(tempfile.gettempdir()) / f"{PROBE_PREFIX}{token}"
    secret, log = folder / "secret", folder / "log"
    attempt = 'if (true < "$0") 2>/dev/null; then echo "it hides nothing" >&2; exit 1; fi'
    try:
        folder.mkdir(mode=0o700)
        secret.touch()
        view = View(cwd=Path("/usr"), home=Path("/nonexistent"))
        argv = tier.command(view, ("/bin/sh", "-c", attempt, str(secret)))
        stage = Stage("probe", Program(argv, Path("/"), {"PATH": os.defpath}, log), timeout=_PATIENCE_S)
        result = launch(Plan(folder, (stage,), plain=False, output=folder, token=token)).wait()
        said = log.read_text("utf-8", "replace").split("\n") if log.exists() else []
    except (OSError, EnvironmentFailure) as error:
        return str(error)
    finally:
        remove([folder])
    assert result is not None  # it was waited for without an end
    if result.stages[-1].outcome == "ok":
        return ""
    what = next((line for line in reversed(said) if line.strip()), result.stages[-1].detail)
    return f"{tier.program}: {what}" if tier.program else what
