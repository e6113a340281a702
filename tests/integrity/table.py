"""Writes the table cheat × tier → label into the documents: ``python -m tests.integrity.table RESULTS DOCUMENT``.

RESULTS is what the tests leave in the file that AUTORESEARCHD_CHEATS_TABLE names (``make cheats`` does both).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.integrity.cheats import GROUPS

BEGIN, END = "<!-- cheats: begin -->", "<!-- cheats: end -->"


def table(results: Path) -> str:
    """Markdown: a row for each cheat, a column for each tier and user; traces in italics."""
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for line in results.read_text().splitlines():
        name, tier, label, traces, user = json.loads(line)
        text = label or "kept"
        seen = ", ".join(traces)
        cells.setdefault((tier, user), {})[name] = f"{text} *({seen})*" if seen else text
    columns = sorted({tier for tier, _ in cells}, key=[t for t, _ in cells].index)
    lines = [f"| cheat | {' | '.join(columns)} |", "|---|" + "---|" * len(columns)]
    for group, cheats in GROUPS.items():
        lines.append(f"| **{group}** |" + " |" * len(columns))
        for cheat in cheats:
            row = []
            for tier in columns:
                found = {user: cells[t, user].get(cheat.name, "–") for t, user in cells if t == tier}
                distinct = list(dict.fromkeys(found.values()))
                told = [f"{value} ({user})" for user, value in found.items()]
                row.append(distinct[0] if len(distinct) == 1 else "; ".join(told))
            lines.append(f"| {cheat.name} | {' | '.join(row)} |")
    return "\n".join(lines)


def main() -> int:
    """Print the table and put it between its marks in a document."""
    results, document = map(Path, sys.argv[1:3])
    found = table(results)
    print(found)
    text = document.read_text()
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    document.write_text(f"{head}{BEGIN}\n{found}\n{END}{tail}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
