"""What a run does before it is scored: render the examples with the edited engine. Protected.

Wrong output ends the run here, before anybody measures its time; the figure that it prints is a first idea of the score
and no more, for this process runs the edited code.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from workload import render_all

REPEATS = 5


def main() -> int:
    """Print `examples_ms`; exit 1 where an example comes out differently."""
    import template

    examples = json.loads(Path("data/examples.json").read_text(encoding="utf-8"))
    payloads = [json.dumps(example["batch"]).encode() for example in examples]
    took, said = [], list[bytes]()
    for _ in range(REPEATS):
        began = time.perf_counter()
        said = [render_all(template.Template, template.TemplateError, payload) for payload in payloads]
        took.append(time.perf_counter() - began)
    print(f"examples_ms: {1000 * min(took):.2f}")
    wrong = [i for i, example in enumerate(examples) if said[i] != example["rendered"].encode()]
    if wrong:
        print(f"FAIL: of {len(examples)} examples in data/examples.json these come out differently: {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
