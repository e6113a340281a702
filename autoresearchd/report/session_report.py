"""A session as a report: one HTML file that needs no script and nothing from elsewhere, or Markdown for a pull request.

All that comes from models, jobs and tasks is escaped where it is put in: in HTML by Jinja2's autoescape, in Markdown by
``escape_markdown``, which every value goes through that a template shows.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoresearchd.domain.confirmation import ablates
from autoresearchd.domain.labels import LIVING
from autoresearchd.domain.quantities import counted, format_duration
from autoresearchd.report import charts, story
from autoresearchd.report.plain_text import (
    asked_words,
    clean,
    diff_lines,
    gained,
    measured,
    money,
    number,
    outcome_words,
    price,
    real,
)
from autoresearchd.report.plot import chart_of
from autoresearchd.store.story_reader import Edit, Origin, StoryReader

if TYPE_CHECKING:
    from jinja2 import Environment

Record = Mapping[str, Any]
WIDTHS = (940, 380)
"""Of the charts: on a desk, and on a phone; the page shows the one that fits."""
_MOST_ROWS, _MOST_BARS, _MOST_THEMES, _MOST_NUMBERS = 300, 15, 15, 12
_MOST_DIFF_LINES, _MOST_DIFF = 200, 20_000
_FITS, _MARKDOWN_DIFFS = 60_000, 30_000
"""Characters of Markdown, and of all diffs in it: a pull request of GitHub takes 65,536."""
WHY = {
    "": "measured, and not better",
    "simpler": "as good, and simpler",
    "no_gain": "measured, and no gain to be expected over the tip",
    "aborted_early": "ended early: the forecast was hopeless",
    "gate_miss": "missed a gate",
    "size_blocked": "larger than allowed",
    "constraint": "broke a constraint of the task",
    "stale_parent": "made on a tip that is gone; proposed again",
    "error": "the program failed",
    "oom": "out of memory",
    "nan_loss": "the loss became NaN",
    "metric_missing": "it ended without the metric",
    "non_finite": "the metric is not finite",
    "timeout": "took longer than the hard wall",
    "budget_overrun": "trained for longer than the budget",
    "illegal_edit": "an edit that is not allowed; never ran",
    "malformed_answer": "an answer that could not be read; never ran",
    "metric_tampering": "tampered with the metric",
    "not_causal": "the model looks into the future",
    "check_failed": "a check of the task failed",
    "duplicate": "tried before; never ran",
    "no_op": "changes nothing; never ran",
}


@dataclass(frozen=True)
class SessionReport:
    """All that a report tells of a session; what is derived from the rows is computed when it is asked for."""

    tag: str
    status: Record
    records: Sequence[Record]
    edits: Sequence[Edit]
    confirmations: Sequence[Record]
    beliefs: Sequence[tuple[float, float, float]]
    slots: story.Slots
    origin: Origin
    written_at: datetime
    re_added: Sequence[story.ReAdded] = ()

    @classmethod
    def read(cls, reader: StoryReader, tag: str, status: Record, now: datetime) -> SessionReport:
        """Unknown session: KeyError. status: as ``status --json``; now: what goes on is told up to it.

        In a session that is dead nothing goes on: it is told up to its last sign of life.
        """
        records, start = list(reader.experiments(tag)), datetime.fromisoformat(status["session"]["started_at"])
        until = now if status["session"]["state"] in LIVING else reader.heartbeat(tag)
        slots = story.slots(reader.slot_runs(tag), records, start, until)
        rows = (records, reader.edits(tag), reader.confirmations(tag), reader.beliefs(tag))
        back = story.re_added(records, rows[1], lambda number: reader.files(tag, number).values())
        return cls(tag, status, *rows, slots, reader.origin(tag), now, back)

    # ------------------------------------------------------------------ facts
    @property
    def metric(self) -> Record:
        return self.status["metric"]  # type: ignore[no-any-return]

    @cached_property
    def edit(self) -> dict[int, Edit]:
        return {edit.number: edit for edit in self.edits}

    @cached_property
    def credit(self) -> dict[int, story.Credit]:
        return story.credits(self.records, self.confirmations, self.metric["direction"])

    @cached_property
    def comparable(self) -> list[Record]:
        """Of the latest segment: what is added up is of these alone."""
        return story.comparable(self.records)

    @property
    def segments(self) -> int:
        return len({record.get("segment") or 0 for record in self.records})

    @cached_property
    def latest_credit(self) -> dict[int, story.Credit]:
        own = {int(record["experiment"]) for record in self.comparable}
        return {number: credit for number, credit in self.credit.items() if number in own}

    @cached_property
    def shares(self) -> story.Shares:
        return story.shares(self.latest_credit, self.edits)

    @cached_property
    def held(self) -> list[story.Held]:
        return story.held(self.records, self.confirmations)

    @cached_property
    def open_keeps(self) -> list[Record]:
        """Kept, and neither confirmed nor fallen back."""
        first = story.baselines(self.records)
        kept = (r for r in self.records if r.get("status") == "keep" and r.get("confirmed") is None)
        return [r for r in kept if r["experiment"] not in first]

    @cached_property
    def not_held(self) -> list[Record]:
        """Tests that took keeps back, and those that could not tell of a keep that is open still.

        What only compared programs (an ablation, another budget, an experiment that was not kept) is no part of it.
        """
        still_open = {record["experiment"] for record in self.open_keeps}
        return [
            test
            for test in self.confirmations
            if not ablates(str(test.get("why")))
            and test.get("budget") is None
            and (
                test.get("moved")
                if test.get("outcome") == "fell"
                else test.get("outcome") == "undecided" and test["experiment"] in still_open
            )
        ]

    @cached_property
    def failures(self) -> list[story.Failure]:
        return story.failures(self.records, {edit.number: edit.reason for edit in self.edits})

    @cached_property
    def constants(self) -> list[story.Constant]:
        sigma, direction = real(self.metric["sigma"]), self.metric["direction"]
        first = int(self.comparable[0]["experiment"]) if self.comparable else 0
        beliefs = [belief for belief in self.beliefs if belief[0] >= first]
        return story.importance(self.comparable, self.edits, direction, sigma=sigma, beliefs=beliefs)

    @cached_property
    def themes(self) -> list[story.Theme]:
        return story.themes(self.records, self.edits)[:_MOST_THEMES]

    @cached_property
    def workers(self) -> list[story.Worker]:
        return story.workers(self.comparable, self.edits, self.latest_credit)

    @property
    def asked(self) -> list[str]:
        """What became of the turns of a hybrid's model."""
        return asked_words(self.status.get("asked"))

    @cached_property
    def returned(self) -> list[story.Returned]:
        return story.returned(self.re_added)

    @cached_property
    def kept_returns(self) -> list[tuple[int, str, int, int]]:
        """Keeps that bring lines back: number, one of the lines, who had removed it, and how many more there are."""
        kept = (one for one in self.re_added if one.kept and one.back.lines)
        return [(one.number, *next(iter(one.back.lines.items())), len(one.back.lines) - 1) for one in kept]

    @property
    def latest(self) -> Sequence[Record]:
        return [record for record in self.records if record.get("status")][-_MOST_ROWS:]

    # ------------------------------------------------------------------ words
    @cached_property
    def verdict(self) -> str:
        """What came of it, in a sentence."""
        m, confirmed = self.metric, self.metric["confirmed"] or {}
        name, baseline = clean(m["name"] or "the metric", 60), real(m["baseline"])
        if baseline is None:
            return f"The baseline has no {name} yet."
        if m["best"] is None or confirmed.get("experiment") == m["baseline_experiment"]:
            kept = f"; {counted(len(self.open_keeps), 'keep')} not tested yet" if self.open_keeps else ""
            return f"Nothing better than the baseline, {name} {number(baseline)}, is confirmed{kept}."
        found, error = gained(m), real(confirmed.get("error"))
        told = f"{name} went from {number(found.base if found else baseline)} to {number(m['best'])}"
        percent = f", {found.percent:+.2f}%" if found and found.percent is not None else ""
        if found and real(confirmed.get("gain")) is not None:
            spread = f" ± {error:.2g}" if error else ""
            told += f" side by side, better by {measured(found.gain, m['sigma'])}{spread}{percent}"
            drifted = abs(found.base - baseline) > (real(m["sigma"]) or 0.0)
            told += f" (the baseline was first measured at {number(baseline)})" if drifted else ""
        else:
            told += percent
        runs = f" over {counted(confirmed['runs'], 'run')}" if confirmed["runs"] else ""  # an imported log has none
        return f"{told}, confirmed in experiment {confirmed['experiment']}{runs}."

    @property
    def length(self) -> str:
        return format_duration(self.slots.at_work) if self.slots.spans else "—"

    @property
    def cost(self) -> str:
        """In dollars; what has no known price is not taken for free."""
        return price(self.status["cost"]["usd"], self.status["cost"]["unpriced"])

    @property
    def commands(self) -> list[tuple[str, str]]:
        """Commands with what they are for. Nothing in them is of a model; a tag and a branch are checked names."""
        tag, branch = shlex.quote(clean(self.tag)), shlex.quote(clean(self.status["session"]["branch"]))
        if not self.status["session"]["branch"]:
            return [(f"autoresearchd show N --session {tag}", "everything about experiment N")]
        confirm = (
            "test the tip beside the confirmed program" if self.open_keeps else "compare it with the baseline again"
        )
        base = shlex.quote(clean(self.origin.base_commit)[:12])
        return [
            (f"git diff {base}..{branch}", "all that is confirmed"),
            (f"git log {base}..{branch}", "the commits, with what each was expected to bring"),
            (f"git show refs/autoresearch/{tag}/N", "what experiment N changed, kept or not"),
            (f"autoresearchd show N --diff --log --session {tag}", "everything about experiment N"),
            (f"autoresearchd confirm --session {tag}", confirm),
            (f"autoresearchd finalize --session {tag}", "branches to review"),
        ]

    def why(self, label: str) -> str:
        return WHY.get(label, label)

    def hypothesis(self, record: Record) -> str:
        """Why it was tried, where that is more than what was done."""
        edit = self.edit.get(record["experiment"])
        told = str((record.get("asi") or {}).get("hypothesis") or (edit.hypothesis if edit else ""))
        return "" if told == record.get("description") else told

    def measured(self, value: Any) -> str:
        return measured(value, self.metric["sigma"])

    def share(self, experiment: int) -> str:
        """Of a confirmed gain, without an error: the parts were not measured."""
        return measured(self.credit[experiment].value, self.metric["sigma"], sign="+")

    def gain(self, gain: story.Gain) -> str:
        """With its error, as many digits as σ allows."""
        sigma = self.metric["sigma"]
        return f"{measured(gain.value, sigma, sign='+')}" + (f" ± {gain.error:.2g}" if gain.error else "")

    def numbers(self, found: Sequence[int]) -> str:
        shown = ", ".join(f"#{n}" for n in found[:_MOST_NUMBERS])
        return shown + (f" and {len(found) - _MOST_NUMBERS:,} more" if len(found) > _MOST_NUMBERS else "")

    def diff_lines(self, experiment: int) -> list[tuple[str, str]]:
        """Lines of a diff with their kinds (``add``, ``del``, ``head``, nothing), cut where it is long."""
        diff = self.edit[experiment].diff[:_MOST_DIFF] if experiment in self.edit else ""
        lines = list(diff_lines(diff))
        found = [(line, "head" if kind in ("hunk", "file") else kind) for line, kind in lines[:_MOST_DIFF_LINES]]
        if len(lines) > _MOST_DIFF_LINES or len(diff) == _MOST_DIFF:
            found.append((f"… cut here; `autoresearchd show {experiment} --diff` shows all", "head"))
        return found

    # ------------------------------------------------------------------ pictures
    def pictures(self, kind: str) -> list[tuple[int, str]]:
        """A chart in each width, as SVG."""
        draw = {
            "progress": self._progress, "slots": self._slots, "constants": self.constants_chart,
            "shares": self.shares_chart,
        }  # fmt: skip
        return [(width, draw[kind](width)) for width in WIDTHS]

    def _progress(self, width: int) -> str:
        facts = {"metric": self.metric["name"] or "metric", "direction": self.metric["direction"]}
        chart = chart_of(self.records, confirmations=self.confirmations, beliefs=self.beliefs, **facts)
        height = 420 if width > 600 else 300
        sigma = real(self.metric["sigma"])
        return charts.staircase(chart, name=f"progress-{width}", sigma=sigma, width=width, height=height)

    def _slots(self, width: int) -> str:
        refused = self.slots.refused
        return charts.timeline(self.slots.spans, refused, name=f"slots-{width}", until=self.slots.length, width=width)

    def constants_chart(self, width: int) -> str:
        short = story.short_names(c.name for c in self.constants)
        rows = [
            charts.Bar(short[c.name], c.moved.value, c.moved.error, counted(c.tries, "try", "tries"))
            for c in self.constants[:_MOST_BARS]
            if c.moved.value > 0
        ]
        title = "How far a change of each constant moves the metric"
        return charts.bars(rows, name=f"constants-{width}", title=title, width=min(width, 640))

    def shares_chart(self, width: int) -> str:
        names = {"structure": "Structure", "tuning": "Constants", "unknown": "Not known"}
        rows = [charts.Bar(names[kind], *gain) for kind, gain in self.shares._asdict().items() if any(gain)]
        return charts.bars(rows, name=f"shares-{width}", title="Where the gain is from", width=min(width, 640))


# ---------------------------------------------------------------------- files
def render(report: SessionReport, redact: Callable[[str], str], *, markdown: bool = False) -> str:
    """The report as HTML, or as Markdown. redact: takes keys out of a text, before and after it is escaped."""
    environment = _environment(redact, markdown=markdown)
    if not markdown:
        return redact(environment.get_template("report.html.j2").render(report=report, style=charts.STYLE))
    text = ""
    for most, budget in ((40, _MARKDOWN_DIFFS), (10, _MARKDOWN_DIFFS), (3, _MARKDOWN_DIFFS), (3, 0)):
        diffs, steps = {}, report.held[-most:]  # the latest; so many keeps of each
        for keep in (keep for step in reversed(steps) for keep in step.keeps[-most:]):
            diff = "\n".join(line for line, _ in report.diff_lines(keep["experiment"]))
            if 0 < len(diff) <= budget:
                diffs[keep["experiment"]], budget = _fenced(diff), budget - len(diff)
        shown = {"report": report, "diffs": diffs, "steps": steps, "most": most}
        text = redact(environment.get_template("report.md.j2").render(shown))
        if len(text) <= _FITS:
            return text
    # Without diffs, its commands at the end are the only fenced block: nothing is left open but that.
    told = text[:_FITS].rpartition("\n")[0]
    told += "\n```" if told.count("\n```") % 2 else ""
    return f"{told}\n\nThis is cut here: `autoresearchd report` tells all.\n"


def _environment(redact: Callable[[str], str], *, markdown: bool) -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
    from markupsafe import Markup

    def shown(value: Any) -> Any:
        if isinstance(value, Markup):
            return value
        return escape_markdown(redact(str(value))) if markdown else redact(str(value))

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=False if markdown else select_autoescape(default=True, default_for_string=True),  # noqa: S701
        finalize=shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "clean": clean,
        "good": lambda runs: [run for run in runs if run["metric"] is not None and not run["label"]],
        "money": money,
        "outcome": outcome_words,
        "hex": lambda text: Markup(re.sub(r"\W", "", str(text), flags=re.ASCII)),  # noqa: S704 - letters and digits
    }
    return environment


_MARKDOWN = re.compile(r"([\\`*_\[\]<>|~$&])")
_LINKS = re.compile(r"(?i)([@#]|(?<![A-Za-z])(?:https?|ftp|www|gh)(?=[:.-]))")
_SPACE = "\N{ZERO WIDTH SPACE}"


def escape_markdown(text: str) -> str:
    """A foreign text as one line of Markdown in which nothing is a link, a mention, a tag, a formula or a table's end.

    What GitHub links in a text (``@name``, ``#12``, addresses), it links in spite of a backslash: a space without width
    keeps it from that.
    """
    line = _MARKDOWN.sub(r"\\\1", clean(text))
    return re.sub(r"^(\d*)([-+.)=])(?=\s|$)", r"\1\\\2", _LINKS.sub(rf"\1{_SPACE}", line))


def _fenced(text: str) -> Any:
    from markupsafe import Markup

    longest = max(map(len, re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return Markup(f"{fence}diff\n{text}\n{fence}")  # noqa: S704 - nothing within ends the fence
