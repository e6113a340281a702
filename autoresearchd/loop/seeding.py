"""Whether the baseline's program ignores the seed of its runs, and what the user is told where that hides its noise."""

from __future__ import annotations

from autoresearchd.evaluator.variables import SEED_VARIABLE, ignores_seed
from autoresearchd.loop.artifacts import read_sources
from autoresearchd.loop.context import Context
from autoresearchd.loop.standing import Standing


class Seeding:
    """Looks at the program once per baseline."""

    def __init__(self, context: Context, standing: Standing) -> None:
        self._context, self._standing = context, standing
        self._known: tuple[str, bool] | None = None

    def ignored(self) -> bool:
        """Whether the program has a seed of its own in each run, as far as is known."""
        commit = self._standing.baseline_commit
        if commit is None:
            return False
        if self._known is None or self._known[0] != commit:
            texts = {**read_sources(self._context.task, self._context.site.pristine), **self._standing.code(commit)}
            self._known = commit, ignores_seed(self._context.task, texts)
        return self._known[1]

    def words(self) -> str:
        """What the user is to know once the baseline is measured; empty where its runs differ or it reads its seed."""
        values = [run.value for run in self._standing.baseline_runs]
        if len(values) < 2 or len(set(values)) > 1 or not self.ignored():
            return ""
        return (
            f"all {len(values)} runs of the baseline gave the same {self._context.task.metric.name}, and the program "
            f"does not read {SEED_VARIABLE}: no noise is seen, so what is kept may be the luck of the program's own seed"
        )
