"""What the user is to know of the measuring: the baseline's time and seed, a larger σ, a failing job."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from autoresearchd.domain.errors import RepositoryError
from autoresearchd.domain.experiment import CALM, TIMES, Experiment, explain_noise, noise_has_grown
from autoresearchd.domain.quantities import format_duration
from autoresearchd.evaluator.measure.measurement import is_read_only, missing_module, missing_paths
from autoresearchd.evaluator.rules.program_text import SEED_VARIABLE
from autoresearchd.evaluator.rules.run_time import needed
from autoresearchd.loop.messages import is_baseline
from autoresearchd.loop.session_view import SessionView
from autoresearchd.workspace.objects import FETCH
from autoresearchd.workspace.preflight import absent_submodules


class Advice:
    """Warnings after decisions; what was said before a restart is not said again."""

    def __init__(self, view: SessionView) -> None:
        self._view, self._busy, self._last = view, False, 0.0
        for e in view.recent:
            self._changes(e)

    def after(self, e: Experiment) -> Iterator[str]:
        sigma, first = e.decision.sigma if e.decision else None, self._first_sigma
        if is_baseline(e):
            yield from self._of_baseline()
        elif self._changes(e) and sigma is not None and first is not None:
            down = f"σ is down to {sigma:.2g}, from too much: gains of that size can be told again"
            yield explain_noise(sigma, first) if self._busy else down

    def _changes(self, e: Experiment) -> bool:
        """Whether σ has become too much with an experiment, or calm again."""
        sigma, before = e.decision.sigma if e.decision else None, self._busy
        if sigma is not None and not is_baseline(e):
            steady = (max if before else min)(sigma, self._last)  # two in a row: one reading may mislead for once
            self._busy, self._last = noise_has_grown(steady, self._first_sigma, CALM if before else TIMES), sigma
        return self._busy is not before

    @property
    def _first_sigma(self) -> float | None:
        return self._view.baseline.sigma if self._view.baseline else None

    def _of_baseline(self) -> Iterator[str]:
        """What training is held to, that a run may take longer or should be allowed to, and that no noise is seen."""
        view, task = self._view, self._view.context.task
        pace, execution, wall, words = view.pace, task.execution, task.execution.budget.wall, []
        if pace is not None and pace.most is not None and execution.training_time == "auto":
            words.append(
                f"the program does not end by its budget, so training is held to the baseline's own time: it took "
                f"{pace.whole:.3g} s, and a result that took over a quarter more is not kept"
            )
        took = [run.duration_s for run in view.baseline_runs]
        needs = needed(execution.budget, took) if took else 0.0
        if needs > wall:
            more = f": from now on it may take {format_duration(needs)} (execution.timeout in task.yaml fixes it)"
            if execution.timeout_named:
                more = (
                    f", so an experiment may be ended for a slow moment of this machine: "
                    f"raise execution.timeout in task.yaml to {needs:.0f} or more"
                )
            limit = format_duration(wall)
            words.append(f"the baseline took {format_duration(max(took))} of the {limit} that a run may take{more}")
        if words:
            yield "; ".join(words)
        values = [run.value for run in view.baseline_runs]
        if len(values) > 1 and len(set(values)) == 1 and view.baseline and view.baseline.ignores_seed:
            yield (
                f"all {len(values)} runs of the baseline gave the same {task.metric.name}, and the program does not "
                f"read {SEED_VARIABLE}: no noise is seen, so what is kept may be the luck of its own seed"
            )


_ENVIRONMENTS = (".venv", "venv", "env")
_SOURCES = ("src", "lib", "python")
"""Where a project keeps packages that are not at its top, and that may be installed from the user's checkout."""
_SYSTEM = ("bin", "dev", "etc", "lib", "lib32", "lib64", "proc", "sbin", "sys", "usr")
"""Folders at the top that jobs see: what is missing there is missing for everybody."""


def hint_job(detail: str, source: Path, committed: Path) -> str:
    """What a user can do about a job that failed; empty when its surroundings are not to blame.

    detail: why, in the evaluator's words. source: the task's folder in the user's checkout, where only names are looked
    at; committed: the same as it was committed, which is all that a job sees.
    """
    absent: Sequence[str] = ()
    hint = _hint(detail, source, committed)
    if missing_module(detail) or missing_paths(detail):
        with suppress(RepositoryError):  # a task that is in no repository
            absent = absent_submodules(source, source)
    if not absent:
        return hint
    fetch = f"{FETCH}: the files of {', '.join(absent)} are not on this machine, and jobs see an empty folder there"
    return f"{fetch}\nif that is not it: {hint}" if hint else fetch


def _hint(detail: str, source: Path, committed: Path) -> str:
    denied = "ermission denied" in detail  # a relative path is then there, and is not to be written
    for name in missing_paths(detail):
        hint = "" if denied and not name.startswith("/") else _hint_missing(name, source, committed)
        if hint:
            return hint
    module = missing_module(detail)
    package = module.partition(".")[0]
    for below in _SOURCES if package.isidentifier() else ():
        if (committed / below / package).is_dir() or (committed / below / f"{package}.py").is_file():
            return (
                f"{module} is in {below}/ of the commit; jobs import that copy, never your checkout, when task.yaml "
                f"says execution.env: {{PYTHONPATH: {below}}}"
            )
    if module and (own := next((e for e in _ENVIRONMENTS if (source / e / "bin" / "python").exists()), "")):
        return (
            f"jobs run with the Python that runs autoresearchd, which has no {module}: name your own in task.yaml, "
            f"execution.python: {source.resolve() / own}/bin/python"
        )
    if module:
        return (
            f"the Python that jobs run with has no {module}: install it there, or name another one in task.yaml, "
            "execution.python: /path/to/env/bin/python"
        )
    if is_read_only(detail):
        return (
            "a job may write only to the folder that AUTORESEARCHD_OUTPUT_DIR names: "
            "let the program write its files there"
        )
    return ""


def set_bit(path: str) -> str:
    """How a file of the task's folder is made executable, in the commit as well (git may look at no bits)."""
    name = shlex.quote(path)
    return f"chmod +x -- {name} && git add --chmod=+x -- {name} && git commit -m 'executable'"


def _hint_missing(name: str, source: Path, committed: Path) -> str:
    try:
        path = Path(name).expanduser()
        place = path if path.is_absolute() else source / path
        seen = (committed / path).exists() if not path.is_absolute() else path.parts[1:2] in [(p,) for p in _SYSTEM]
        if seen or not place.exists() or place.resolve() == source.resolve():
            return ""
    except (OSError, RuntimeError, ValueError):
        return ""
    if path.name.startswith("python") and path.parent.name == "bin":
        return (
            "a job sees no environment in your folder unless task.yaml names it, "
            f"execution.python: {place.absolute()}; then write `python` in run_command"
        )
    where, entry = "is on this machine, but a job does not see it", str(place.resolve())
    if not path.is_absolute() and ".." not in path.parts:
        where, entry = "is in your folder but not in the commit", path.as_posix()
    return f"{name} {where}; let jobs read it by naming it in task.yaml, workspace.data: [{entry}]"
