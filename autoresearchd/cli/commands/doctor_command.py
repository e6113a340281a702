"""The command doctor: what this machine offers, found by looking, each fault with how to fix it.

Without --repair nothing is changed. Nothing is sent anywhere but to what `fleet` names, torch is not imported, and of
keys only the names are shown.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Annotated

import typer

from autoresearchd.app.project import Project
from autoresearchd.cli.command_options import JsonOption
from autoresearchd.cli.repository_here import find_place, here
from autoresearchd.cli.terminal_text import Paint, clean, json_text
from autoresearchd.domain.errors import AutoresearchdError, ConfigError, RepositoryError, StoreDamaged, UsageError
from autoresearchd.domain.quantities import counted
from autoresearchd.sandbox.process_tree import memory_of_machine
from autoresearchd.store import shared
from autoresearchd.workspace.command import OLDEST

_LEAST_DISK_GB, _LEAST_MEMORY_GB = 2.0, 2.0
_KEYS = (
    "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY", "MISTRAL_API_KEY", "GROQ_API_KEY",
    "DEEPSEEK_API_KEY", "OPENROUTER_API_KEY", "XAI_API_KEY", "TOGETHERAI_API_KEY", "AZURE_API_KEY", "HF_TOKEN",
)  # fmt: skip
_SHOWN = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "missing": ("✗", "red")}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. status: ``ok``, ``warning`` (works with less) or ``missing``."""

    name: str
    status: str
    value: str
    hint: str = ""


def doctor(
    as_json: JsonOption = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Rebuild a damaged database from a good backup, git and the runs' logs.")
    ] = False,
    session: Annotated[
        str | None,
        typer.Option("--session", metavar="TAG", help="With --repair: rebuild this one of those that only git knows."),
    ] = None,
) -> None:
    """Show what this machine offers.

    git, Python, sandbox, GPU, torch, keys (names only), memory, disk, the store, and how the session here stands. With
    --repair, repair the database of the repository here instead; the damaged one is kept.
    """
    if repair:
        from autoresearchd.app.repair import repair as repair_database

        report = repair_database(here(), session)
        print(json_text(report.as_dict(), indent=2) if as_json else "\n".join(clean(s, 1000) for s in report.lines()))
        return
    if session is not None:
        raise UsageError("--session goes with --repair", hint="autoresearchd status --session TAG shows one session")
    findings = list(_examine())
    if as_json:
        print(json_text([asdict(finding) for finding in findings], indent=2))
        return
    paint = Paint(sys.stdout)
    wide = max(len(finding.name) for finding in findings)
    for finding in findings:
        mark, colour = _SHOWN[finding.status]
        print(f"{paint(mark, colour, 'bold')} {finding.name:<{wide}}  {finding.value}")
        if finding.hint:
            print(f"  {'':<{wide}}  {paint('→ ' + finding.hint, 'dim')}")


def _examine() -> Iterator[Finding]:
    """All findings; one that fails to be found out is a warning and stops no other."""
    machine = _python, _git, _leftovers, _sandbox, _gpu, _torch, _cpu, _memory, _disk
    for probe in (*machine, _keys, _config, _store, _session):
        name = probe.__name__.strip("_")
        try:
            yield Finding(name, *probe())
        except (
            OSError,
            ValueError,
            subprocess.SubprocessError,
            AutoresearchdError,
            ImportError,
            AttributeError,
            RuntimeError,
        ) as error:
            yield Finding(name, "warning", f"cannot be found out: {clean(error, 160)}")
    try:
        yield from _fleet()
    except (OSError, RuntimeError) as error:
        yield Finding("fleet", "warning", f"cannot be found out: {clean(error, 160)}")


def _fleet() -> Iterator[Finding]:
    """Each host of ``fleet.slots``, and whether ``fleet.cloud`` could be rented, where a task.yaml lies here."""
    from autoresearchd.app.compose import examine_cloud, examine_fleet

    try:
        if (offer := examine_cloud(here())) is not None:
            yield Finding("cloud", "ok", f"{offer[0]}: could be rented with {offer[1]}")
    except AutoresearchdError as error:
        yield Finding("cloud", "missing", clean(error.what, 300), error.hint)
    try:
        for host, value, problems in examine_fleet(here()):
            status = "missing" if not value else "warning" if problems else "ok"
            said = [value, *(clean(what, 300) for what, _ in problems)]
            hint = "; ".join(clean(how, 300) for _, how in problems if how)
            yield Finding(host, status, "; ".join(text for text in said if text), hint)
    except AutoresearchdError as error:
        yield Finding("fleet", "missing", clean(error.what, 300), error.hint)


# Each gives the status, the value, and a hint where one is needed.
def _python() -> tuple[str, ...]:
    return "ok", f"{platform.python_version()} ({sys.executable})"


def _git() -> tuple[str, ...]:
    program = shutil.which("git")
    if program is None:
        return "missing", "not installed", "apt install git, or see https://git-scm.com/downloads"
    answer = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    found = re.search(r"(\d+)\.(\d+)(?:\.\d+)*", answer)
    if found is None or (int(found[1]), int(found[2])) < OLDEST:
        return "missing", f"{clean(answer, 60)} is too old", f"install git {OLDEST[0]}.{OLDEST[1]} or later"
    return "ok", found[0]


def _leftovers() -> tuple[str, ...]:
    from autoresearchd.sandbox.launch import end_abandoned

    ended = end_abandoned()
    return "ok", f"ended {counted(ended, 'process tree')} that killed commands had left running" if ended else "none"


def _sandbox() -> tuple[str, ...]:
    from autoresearchd.sandbox.tiers import available, probe

    tier = probe()
    if not tier.isolates:
        hint = "apt install bubblewrap, and allow user namespaces; or start --sandbox none, which isolates nothing"
        return "missing", f"none works here: {clean(tier.reason, 300)}", hint
    warnings = tier.warnings()
    others = ", ".join(other.name.value for other in available() if other.name is not tier.name)
    value = f"{tier.name.value} (also here: {others})" + (f": {clean(warnings[0], 300)}" if warnings else "")
    return "warning" if warnings else "ok", value


def _gpu() -> tuple[str, ...]:
    program = shutil.which("nvidia-smi")
    if program is None and (apple := _apple_gpu(platform.system(), platform.machine(), platform.mac_ver()[0])):
        return "ok", apple
    if program is None:
        return "warning", "none (no nvidia-smi); tasks run with their cpu profile"
    query = [program, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    names = [clean(line, 120) for line in done.stdout.splitlines() if line.strip()]
    if done.returncode != 0 or not names:
        return "warning", f"nvidia-smi fails: {clean(done.stderr or done.stdout, 120)}", "check the driver"
    return "ok", "; ".join(names)


def _apple_gpu(system: str, machine: str, version: str) -> str:
    """The GPU of a Mac with Apple silicon, which torch calls mps from macOS 12.3 on; empty where there is none."""
    numbers = [int(part) for part in version.split(".")[:2] if part.isdigit()]
    known = system == "Darwin" and machine == "arm64" and numbers >= [12, 3]
    return f"Apple GPU (MPS, macOS {version}): programs that choose the device mps use it" if known else ""


def _torch() -> tuple[str, ...]:
    try:
        return "ok", metadata.version("torch")
    except metadata.PackageNotFoundError:
        hint = "pip install 'autoresearchd[train]', or name the task's own interpreter in execution.python"
        return "warning", "not installed beside autoresearchd; bundled training tasks need it", hint


def _cpu() -> tuple[str, ...]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return "ok", counted(cores, "core")


def _memory() -> tuple[str, ...]:
    total, free = (size / 2**30 for size in memory_of_machine())
    value = f"{free:.1f} of {total:.1f} GiB free"
    if free < _LEAST_MEMORY_GB:
        return "warning", value, "close other programs, or choose a smaller model in the task"
    return "ok", value


def _disk() -> tuple[str, ...]:
    free = shutil.disk_usage(here()).free / 2**30
    if free < _LEAST_DISK_GB:
        return "warning", f"{free:.1f} GiB free", "free some space: the loop waits when it is full"
    return "ok", f"{free:.1f} GiB free"


def _keys() -> tuple[str, ...]:
    names = [name for name in _KEYS if os.environ.get(name)]
    return "ok", ", ".join(names) if names else "none set; none is needed for the search policy"


def _config() -> tuple[str, ...]:
    from autoresearchd.app.compose import usual_policy
    from autoresearchd.app.observers import targets_of
    from autoresearchd.config.settings import load_settings, settings_path

    try:
        settings = load_settings(os.environ)
        usual_policy(settings, os.environ)
        targets_of(settings.notify)
    except ConfigError as error:
        return "missing", clean(error.what, 300), error.hint
    path = settings_path(os.environ)
    return "ok", str(path) if path is not None and path.exists() else "no config.yaml; the defaults hold"


def _store() -> tuple[str, ...]:
    try:
        project = Project.at(here())
        place, notes = project.journal, project.notes()
    except RepositoryError:
        place, notes = None, []
    if not isinstance(place, shared.Shared):
        if notes or not (url := shared.configured()):
            return ("warning", notes[0]) if notes else ("ok", "SQLite, a file in each repository")
        place = shared.Shared(url, "", new=True)
    from autoresearchd.store.schema.postgresql import ServerDatabase

    try:
        with closing(ServerDatabase(place)) as database:
            return "ok", database.describe()
    except AutoresearchdError as error:
        return "missing", clean(error.what, 300), error.hint


def _session() -> tuple[str, ...]:
    try:
        place = find_place(here())
        running = [found.tag for found in place.reader.sessions() if place.alive(found.tag)]
        if len(running) > 1:
            value = f"{len(running)} run here and share this machine: {', '.join(running)}"
            return "warning", value, "autoresearchd status --session TAG shows one of them"
        tag = place.pick(None)
        session = place.status(tag)["session"]
    except StoreDamaged as error:
        return "missing", clean(error.what, 300), error.hint
    except AutoresearchdError as error:
        return "ok", f"none here ({clean(error.what, 160)})"
    tried = f"{counted(int(session.get('experiments') or 0), 'experiment')}, {session.get('keeps')} kept"
    value = f"{tag}: {session.get('state')}, {tried}"
    return ("warning", value, f"autoresearchd resume {tag}") if session.get("state") == "crashed" else ("ok", value)
