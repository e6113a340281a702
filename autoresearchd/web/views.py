"""What each page shows: facts of the store as a template's context. Nothing here writes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from markupsafe import Markup

from autoresearchd.app.place import Place
from autoresearchd.app.project import NoSession
from autoresearchd.domain.errors import UsageError
from autoresearchd.domain.labels import LIVING, NEVER_RUN, Label, Status
from autoresearchd.domain.redaction import Redactor
from autoresearchd.loop.measuring.run_files import read_end
from autoresearchd.report import charts, story
from autoresearchd.report.plain_text import clean, gained, names_of_runs, real
from autoresearchd.report.plot import Chart, chart_of
from autoresearchd.report.session_report import SessionReport
from autoresearchd.store.page_reader import OPEN, SORTS, PageReader, Wanted
from autoresearchd.web import rendering, small_charts
from autoresearchd.web.source import Signature, Source
from autoresearchd.workspace import layout

Record = Mapping[str, Any]
Context = dict[str, Any]
ROWS, MOST_PAGES = 50, 10**6
_LATEST, _MOST_PROGRAMS, _MOST_RUNS, _LOG_BYTES, _LOG_LINES, _MOST_TEXT = 8, 200, 300, 32 * 1024, 60, 120_000
_WIDE, _NARROW = 1120, 400
"""Of charts: for a desk, and for a telephone, where a scaled one could not be read."""
_CARD, _BARS = 400, 520
"""Of one that stands beside others; of bars."""
_MOST_THEMES = 10


class NotHere(Exception):
    """There is no such session or experiment; in words."""


class Seen(NamedTuple):
    """A session as a page sees it. signature: of all that it rests on; version: its word for that.

    Both are of before the rest was read: what has changed meanwhile is news, and not missed.
    """

    tag: str
    place: Place
    reader: PageReader
    status: dict[str, Any]
    signature: Signature
    version: str


class Views:
    """The pages over a source of sessions. Safe to use from several threads."""

    def __init__(self, source: Source) -> None:
        self._source = source

    # ------------------------------------------------------------------ all sessions
    def sessions(self, narrow: bool = False) -> Context:
        """The sessions side by side, newest first; none: how to begin one."""
        try:
            place, reader = self._source.open()
        except NoSession as none:
            return {"sessions": [], "how": none.hint, **self._frame("")}
        frame, listed, lines = self._frame(""), [], list[charts.Line]()
        for row in reader.sessions()[::-1]:
            seen = self._see(row.tag)
            chart = self._staircase(seen, _CARD, 190, explained=False)
            line = charts.line_of(row.tag, self._chart(seen))
            lines += [line] if line else []
            facts = {"status": seen.status, "facts": headline(seen), "chart": chart}
            listed.append({"tag": row.tag, "policy": row.policy, **facts})
        together = None
        if len(lines) > 1:
            svg = charts.side_by_side(lines[: charts.MOST_LINES], name="together", width=_NARROW if narrow else _WIDE)
            together = Markup(svg)  # noqa: S704 it escapes what it is given
        some = len(lines) > charts.MOST_LINES
        return {"sessions": listed, "together": together, "some": some, "how": layout.how_to_begin(place.root), **frame}

    # ------------------------------------------------------------------ one session
    def overview(self, tag: str, narrow: bool = False) -> Context:
        """Headline, staircase, what runs, what the slots did, and the newest experiments."""
        seen = self._see(tag)
        status, reader = seen.status, seen.reader
        newest = _rows(reader.page(tag, Wanted(), _LATEST + len(status["under_way"]), 0))
        words = {row["experiment"]: row["description"] for row in newest}
        width, height = (_NARROW, 280) if narrow else (_WIDE, 380)
        return {
            **self._frame(tag, seen, "overview"),
            "facts": headline(seen),
            "staircase": self._staircase(seen, width, height),
            "under_way": [{**one, "description": words.get(one["experiment"], "")} for one in status["under_way"]],
            "slots": self._source.kept(tag, seen.signature, f"slots {width}", lambda: self._slots(seen, width)),
            "newest": newest[:_LATEST],
        }

    def experiments(self, tag: str, query: Mapping[str, str]) -> Context:
        """The table. UsageError: the query asks for what there is not."""
        seen = self._see(tag)
        labels = seen.reader.labels(tag)
        wanted, page = wanted_of(query, labels)
        total = seen.reader.count(tag, wanted)
        pages = max(1, -(-total // ROWS))
        page = min(page, pages)
        asked = {"status": wanted.status, "label": wanted.label, "text": wanted.text}
        asked["sort"] = ("-" if wanted.descending else "") + wanted.sort

        def address(**changes: Any) -> str:
            return "?" + urlencode(
                {name: value for name, value in {**asked, **changes}.items() if value not in ("", 1)}
            )

        return {
            **self._frame(tag, seen, "experiments"),
            "rows": _rows(seen.reader.page(tag, wanted, ROWS, (page - 1) * ROWS)),
            "total": total, "page": page, "pages": pages, "wanted": wanted, "labels": labels, "address": address,
            "statuses": [*Status, OPEN],
        }  # fmt: skip

    def lineage(self, tag: str) -> Context:
        """The programs that something was made of, each with what was tried on it."""
        seen = self._see(tag)
        tip = (seen.status["metric"]["tip"] or {}).get("experiment")
        programs, left_out = self._source.kept(
            tag, seen.signature, "lineage", lambda: tree(self._source.points(tag, seen.signature), tip)
        )
        return {**self._frame(tag, seen, "lineage"), "programs": programs, "left_out": left_out}

    def insights(self, tag: str) -> Context:
        """What mattered: constants, structure against tuning, roles and policies, why things failed."""
        seen = self._see(tag)
        facts = self._source.kept(tag, seen.signature, "insights", lambda: _insights(seen))
        return {**self._frame(tag, seen, "insights"), **facts}

    def learner(self, tag: str) -> Context:
        """Runs and versions of the learner; what it all cost."""
        seen = self._see(tag)
        own = [version for version in seen.reader.versions() if version["session"] in (tag, None)]
        return {
            **self._frame(tag, seen, "learner"),
            "versions": own[::-1], "learner_runs": seen.reader.learner_runs(tag)[::-1],
            "spending": seen.reader.spending(tag),
            **{name: seen.status[name] for name in ("cost", "overhead", "abort")},
        }  # fmt: skip

    # ------------------------------------------------------------------ one experiment
    def experiment(self, tag: str, number: int) -> Context:
        """Everything about one."""
        seen = self._see(tag)
        hide = seen.place.redactor(tag)  # a job that still runs may print what it was given
        try:
            record = hide.value(dict(seen.reader.show(tag, number, full=True)))
        except KeyError:
            raise NotHere(f"session {tag} has no experiment {number}") from None
        record["baseline"] = _is_baseline(record)
        tests = [
            {
                **test,
                **rendering.words_of_test(test),
                "chart": small_charts.test_path(test["path"], f"test-{test['number']}", _path_words(test)),
            }
            for test in record["confirmations"]
        ]
        whose = names_of_runs(record, seen.reader.programs(tag, number))
        return {
            **self._frame(tag, seen, "experiment"),
            "x": record, "around": seen.reader.around(tag, number), "tests": tests,
            "diff": rendering.diff_lines(record["diff"]) if record["diff"].strip() else [],
            "answers": [_answer(answer) for answer in record["answers"]],
            "logs": log_tails(seen.place.root, tag, number, hide, whose),
            "back": next(iter((record["re_added"] or {}).get("removed", ())), None),
            "running": record["phase"] == "running" and seen.status["session"]["state"] in LIVING,
        }  # fmt: skip

    # ------------------------------------------------------------------ parts
    def _see(self, tag: str) -> Seen:
        try:
            place, reader = self._source.open()
            signature = reader.signature(tag)
            version = self._source.version(tag, signature)
            return Seen(tag, place, reader, place.status(tag), signature, version)
        except (KeyError, NoSession):
            raise NotHere(f"there is no session {tag[:60]!r} here") from None

    def _frame(self, tag: str, seen: Seen | None = None, here: str = "") -> Context:
        """What is around every page. version: of what it shows."""
        around = {"tag": tag, "status": seen.status if seen else None, "here": here, "root": self._source.project.root}
        return {**around, "version": seen.version if seen else self._source.version(tag)}

    def _chart(self, seen: Seen) -> Chart:
        """What has happened, as charts have it."""
        metric = seen.status["metric"]

        def chart() -> Chart:
            return chart_of(
                self._source.points(seen.tag, seen.signature), metric=metric["name"] or "metric",
                direction=metric["direction"], confirmations=seen.reader.confirmations(seen.tag),
                beliefs=seen.reader.beliefs(seen.tag),
            )  # fmt: skip

        return self._source.kept(seen.tag, seen.signature, "chart", chart)

    def _staircase(self, seen: Seen, width: int, height: int, explained: bool = True) -> Markup | None:
        """The chart; None while nothing is measured."""
        found, sigma = self._chart(seen), real(seen.status["metric"]["sigma"])

        def drawn() -> Markup:
            svg = charts.staircase(
                found, name=f"progress-{_word(seen.tag)}", sigma=sigma, width=width, height=height,
                link=lambda n: f"/s/{seen.tag}/x/{n}", explained=explained,
            )  # fmt: skip
            return Markup(svg)  # noqa: S704 it escapes what it is given

        if not found.keeps and not found.discards:
            return None
        return self._source.kept(seen.tag, seen.signature, f"staircase {width} {height}", drawn)

    def _slots(self, seen: Seen, width: int) -> dict[str, Any]:
        """What the slots did lately; ``chart`` is None before the first run."""
        runs = seen.reader.slot_runs(seen.tag, _MOST_RUNS)
        if not runs:
            return {"chart": None}
        living = seen.status["session"]["state"] in LIVING
        until = datetime.now(UTC) if living else seen.reader.heartbeat(seen.tag)
        refused = [
            {"label": one["label"], "finished_at": one["ended"].isoformat()}
            for one in self._source.points(seen.tag, seen.signature)
            if one["label"] in NEVER_RUN and one["ended"] and one["ended"] >= runs[0].start
        ]
        found = story.slots(runs, refused, runs[0].start, until)
        svg = charts.timeline(found.spans, found.refused, name="slots-chart", until=found.length, width=width)
        chart = Markup(svg)  # noqa: S704 it escapes what it is given
        return {"chart": chart, "busy": found.busy, "some": len(runs) == _MOST_RUNS}


def _word(tag: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in tag)


def _rows(records: Sequence[Record]) -> list[dict[str, Any]]:
    return [{**record, "baseline": _is_baseline(record)} for record in records]


# ---------------------------------------------------------------------- the headline
def headline(seen: Seen) -> Context:
    """The figures that matter most."""
    status, hours = seen.status, seen.reader.active_seconds(seen.tag) / 3600
    metric, counts = status["metric"], status["session"]
    confirmed, baseline, sigma = metric["confirmed"] or {}, metric["baseline"], real(metric["sigma"])
    moved = baseline is not None and confirmed.get("experiment") not in (None, metric["baseline_experiment"])
    found = gained(metric) if moved else None
    tip = metric["tip"] or {}
    return {
        "metric": metric["name"], "better": "lower" if metric["direction"] == "minimize" else "higher",
        "baseline": baseline, "best": metric["best"], "moved": moved, "confirmed": confirmed,
        "percent": found.percent if found else None,
        "sigmas": found.gain / sigma if found and sigma else None, "sigma": sigma,
        "tip": tip if tip and tip.get("experiment") != metric["best_experiment"] else None,
        "pace": counts["experiments"] / hours if hours > 0.02 else None,  # experiments an hour of work
        "self_reported": metric["source"] == "self-reported", "too_noisy": metric["too_noisy"],
        "counts": counts, "aborted": status["abort"]["aborted"], "cost": status["cost"],
    }  # fmt: skip


# ---------------------------------------------------------------------- the table
def wanted_of(query: Mapping[str, str], labels: Sequence[str]) -> tuple[Wanted, int]:
    """What the query of an address asks for, and which page of it. UsageError: it asks for what there is not."""
    status, label, sort = (query.get(name, "") for name in ("status", "label", "sort"))
    text = " ".join(query.get("text", "").split())[:200]
    if status not in ("", *Status, OPEN):
        raise UsageError(f"there is no status {status[:40]!r}", hint=f"one of {', '.join([*Status, OPEN])}")
    if label not in ("", *Label):
        known = ", ".join(labels) or "none yet"
        raise UsageError(f"there is no label {label[:40]!r}", hint=f"labels of this session: {known}")
    column = sort.removeprefix("-")
    if column not in ("", *SORTS):
        raise UsageError(f"there is no column {column[:40]!r} to sort by", hint=f"one of {', '.join(SORTS)}")
    page = query.get("page", "1")
    if not (page.isascii() and page.isdigit() and 1 <= int(page[:9]) <= MOST_PAGES and len(page) < 9):
        raise UsageError(f"{page[:40]!r} is no page", hint="a number from 1 on")
    return Wanted(status, label, text, column or "experiment", sort.startswith("-") or not sort), int(page)


def number_of(text: str) -> int:
    """The number of an experiment in an address. NotHere: it is none that a store can hold."""
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise NotHere(f"{text[:40]!r} is no number of an experiment: they count from 0")
    return int(text)


def _is_baseline(record: Record) -> bool:
    return record.get("policy") == "baseline" or record.get("experiment") == 0


# ---------------------------------------------------------------------- the tree
def tree(points: Sequence[Record], tip: int | None) -> tuple[list[Context], int]:
    """Programs that were kept, or that something was made of, oldest first, and how many older ones are left out.

    depth: 0 on the way to the tip, else 1. marks: what became of the experiments on it.
    """
    first, parents, children = story.baselines(points), story.parents(points), defaultdict[int, list[Record]](list)
    for point in points:
        if (parent := parents.get(point["experiment"])) is not None:
            children[parent].append(point)
    line, at = set[int](), tip
    while at is not None:
        line.add(at)
        at = parents.get(at)
    programs = [p for p in points if p["status"] == "keep" or p["experiment"] in children]
    shown = programs[-_MOST_PROGRAMS:]
    found = []
    for program in shown:
        own = [c for c in children.get(program["experiment"], []) if c["status"] != "keep"]
        marks = [rendering.outcome(c)[1] for c in own]
        told = Counter(rendering.outcome(c)[0] for c in own)
        words = ", ".join(f"{n:,} {name}" for name, n in told.most_common())
        found.append(
            {
                **program,
                "baseline": program["experiment"] in first,
                "parent_number": parents.get(program["experiment"]),
                "depth": int(program["experiment"] not in line),
                "tried": words,
                "strip": small_charts.strip(marks, f"strip-{program['experiment']}", words) if marks else "",
            }
        )
    return found, len(programs) - len(shown)


# ---------------------------------------------------------------------- what mattered
def _insights(seen: Seen) -> Context:
    told = SessionReport.read(seen.reader, seen.tag, seen.status, datetime.now(UTC))
    moving = any(constant.moved.value > 0 for constant in told.constants)
    return {
        "workers": told.workers, "asked": told.asked, "themes": told.themes[:_MOST_THEMES], "failures": told.failures,
        "importance": Markup(told.constants_chart(_BARS)) if moving else None,  # noqa: S704 it escapes
        "parts": Markup(told.shares_chart(_BARS)) if told.latest_credit else None,  # noqa: S704 it escapes
    }  # fmt: skip


# ---------------------------------------------------------------------- parts of an experiment
def _answer(answer: Record) -> Context:
    messages = [
        {"role": clean(m.get("role") or "message", 20), "content": _shortened(m.get("content"))}
        if isinstance(m, Mapping) else {"role": "message", "content": _shortened(m)}
        for m in answer["messages"]
    ]  # fmt: skip
    return {**answer, "messages": messages, "completion": _shortened(answer["completion"])}


def _shortened(content: Any) -> str:
    told = rendering.pretty(content if content is not None else "")
    if len(told) <= _MOST_TEXT:
        return told
    return f"{told[:_MOST_TEXT]}\n… {len(told) - _MOST_TEXT:,} characters more: `autoresearchd show N --answers`"


def _path_words(test: Record) -> str:
    told = ", ".join(f"{value:+.4g}" for value in test["path"][-40:])
    return f"Mean gain after each pair of runs: {told}" if told else "No pair of runs has ended yet"


def log_tails(root: Path, tag: str, number: int, hide: Redactor, names: Mapping[int, str]) -> list[Context]:
    """The ends of the logs of an experiment's runs, newest run first; without secrets, links are not followed."""
    if not layout.valid_tag(tag):  # an imported one has no runs here
        return []
    found = []
    for log in sorted(layout.run_logs(root, tag, number), key=lambda log: -int(log.parent.name))[:8]:
        try:
            lines = rendering.text(read_end(log, hide, _LOG_BYTES)).rstrip("\n").split("\n")
        except OSError:
            continue
        name = names.get(int(log.parent.name), f"run {log.parent.name}")
        found.append({"name": f"{name}: {clean(log.stem, 40)}", "text": "\n".join(lines[-_LOG_LINES:])})
    return found
