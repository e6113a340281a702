"""Two runs after each other in a tier, of which one leaves a key and the other looks for it; prints what they print."""

from __future__ import annotations

import sys
from pathlib import Path

from autoresearchd.sandbox.launch import RunLimits
from autoresearchd.sandbox.tiers import choose
from tests.integration.test_isolation_limits import LEAVES_A_KEY, LOOKS_FOR_THE_KEY, run

if __name__ == "__main__":
    tier, folder = choose(sys.argv[1]), Path(sys.argv[2])
    for name, source in (("first", LEAVES_A_KEY), ("second", LOOKS_FOR_THE_KEY)):
        (folder / name).mkdir()
        print(run(tier, folder / name, source, RunLimits(), "")[1])
