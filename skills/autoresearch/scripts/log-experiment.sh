#!/bin/sh
# Append one experiment to autoresearch.jsonl, in the format that pi-autoresearch and `autoresearchd import` read.
#
#   bash log-experiment.sh --config --name "Optimize val_bpb" --metric-name val_bpb --unit bpb --direction lower
#   bash log-experiment.sh --run 2 --commit "$(git rev-parse --short HEAD)" --metric 0.993 --status keep \
#       --description "increase LR to 0.04" --metrics '{"peak_memory_mb":44200}' --segment 0 --asi '{"hypothesis":"…"}'
#
# --config writes the header line: first in a new log, and again where what is measured changes (a new segment).
# --run, --segment: counted from the log where they are left out. --commit: empty where it is left out. --metric: 0 or
# left out for a crash. --file: another log ($AUTORESEARCH_LOG, else autoresearch.jsonl). The line is printed as well, with
# the confidence of the segment so far: |best keep − baseline| / median absolute deviation, null before there are three.
# What cannot be read is refused with exit code 2, and nothing is written. Needs python3.
exec python3 -c '
import argparse, fcntl, json, math, os, sys, time
from statistics import median

STATUSES = ("keep", "discard", "crash", "checks_failed")


def number(text):
    value = float(text)
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not finite")
    return int(value) if value.is_integer() and "." not in text and "e" not in text.lower() else value


def count(text):
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number")
    return int(text)


def refuse(name):
    raise ValueError(f"{name} is no value of JSON")


def mapping(text):
    try:
        found = json.loads(text, parse_constant=refuse)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError("a JSON object is needed: {\"name\": value}")
    return found


def metrics(text):
    found = mapping(text)
    for name, value in found.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise argparse.ArgumentTypeError(f"{name} is no finite number")
    return found


def entries(stream):
    for line in stream:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict):
            yield entry


def confidence(direction, runs):
    """|best keep - baseline| / MAD over the runs of a segment that have a value."""
    valued = [run for run in runs if isinstance(run.get("metric"), (int, float)) and valid(run)]
    kept = [run["metric"] for run in valued if run.get("status") == "keep"]
    if len(valued) < 3 or not kept:
        return None
    values = [run["metric"] for run in valued]
    best = max(kept) if direction == "higher" else min(kept)
    centre = median(values)
    spread = median(abs(value - centre) for value in values)
    if spread <= 0 or best == values[0]:
        return None
    return round(abs(best - values[0]) / spread, 4)


def valid(run):
    return run.get("status") in ("keep", "discard") or run["metric"] != 0


def arguments():
    parser = argparse.ArgumentParser(prog="log-experiment.sh", allow_abbrev=False)
    parser.add_argument("--file", default=os.environ.get("AUTORESEARCH_LOG", "autoresearch.jsonl"))
    parser.add_argument("--config", action="store_true")
    parser.add_argument("--name", default="autoresearch")
    parser.add_argument("--metric-name", default="metric")
    parser.add_argument("--unit", default="")
    parser.add_argument("--direction", choices=("lower", "higher"), default="lower")
    parser.add_argument("--run", type=count)
    parser.add_argument("--commit", default="")
    parser.add_argument("--metric", type=number)
    parser.add_argument("--status", choices=STATUSES)
    parser.add_argument("--description", default="")
    parser.add_argument("--metrics", type=metrics, default={})
    parser.add_argument("--segment", type=count)
    parser.add_argument("--asi", type=mapping)
    given = parser.parse_args()
    if not given.config and given.status is None:
        parser.error("--status is needed: " + ", ".join(STATUSES))
    if not given.config and given.metric is None and given.status in ("keep", "discard"):
        parser.error(f"--metric is needed for a {given.status}")
    return given


def run_entry(given, before):
    configs = [entry for entry in before if entry.get("type") == "config"]
    runs = [entry for entry in before if entry.get("type", "run") == "run" and "status" in entry]
    seen, segment = False, 0
    for entry in before:  # a header after a result opens a new segment, as readers of the format have it
        if entry.get("type") == "config":
            segment, seen = segment + seen, False
        elif entry in runs:
            seen = True
    segment = segment if given.segment is None else given.segment
    entry = {
        "run": given.run if given.run is not None else len(runs) + 1,
        "commit": given.commit,
        "metric": 0 if given.metric is None else given.metric,
        "metrics": given.metrics,
        "status": given.status,
        "description": given.description,
        "timestamp": int(time.time()),
        "segment": segment,
    }
    direction = configs[-1].get("bestDirection", "lower") if configs else "lower"
    entry["confidence"] = confidence(direction, [run for run in runs if run.get("segment", 0) == segment] + [entry])
    if given.asi is not None:
        entry["asi"] = given.asi
    return entry


def main():
    given = arguments()
    try:
        with open(given.file, "a+", encoding="utf-8", errors="surrogateescape") as log:
            fcntl.flock(log, fcntl.LOCK_EX)
            log.seek(0)
            text = log.read()
            if given.config:
                entry = {"type": "config", "name": given.name, "metricName": given.metric_name,
                         "metricUnit": given.unit, "bestDirection": given.direction}
            else:
                entry = run_entry(given, list(entries(text.split("\n"))))
            line = json.dumps(entry, ensure_ascii=False, separators=(",", ":"))
            log.write(("" if not text or text.endswith("\n") else "\n") + line + "\n")
    except OSError as error:
        print(f"log-experiment.sh: {given.file}: {error.strerror}", file=sys.stderr)
        return 1
    print(line)
    return 0


sys.exit(main())
' "$@"
