"""Make `data/examples.json`: batches as the scorer draws them, and how they have to come out. Protected.

They are for a run to check itself against. The scorer draws its own, anew each time.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import reference
from workload import batch, render_all, site

EXAMPLES = 24
SEED = 4


def main() -> None:
    """Write the file; the same each time."""
    rng = random.Random(SEED)
    found, about = [], site(rng)
    for _ in range(EXAMPLES):
        drawn = batch(rng, about)
        rendered = render_all(reference.Template, reference.TemplateError, json.dumps(drawn).encode())
        found.append({"batch": drawn, "rendered": rendered.decode()})
    Path("data").mkdir(exist_ok=True)
    Path("data/examples.json").write_text(json.dumps(found, indent=1, ensure_ascii=False), encoding="utf-8")
    print(f"{EXAMPLES} batches in data/examples.json")


if __name__ == "__main__":
    main()
