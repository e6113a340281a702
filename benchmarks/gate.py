"""How often the gate promotes: policies that are equal, and better ones, over simulated held-out states.

    python benchmarks/gate.py --gates 300

Rewards are spread as in logs (penalties of −2, and values from −1 to 5); four proposals for each state, drawn
independently for both policies, which is harder than the common random numbers of a real gate.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the simulated world is that of the tests

from autoresearchd.learner.gate.compare_policies import GateOptions, compare
from tests.unit.learner.fresh_outcomes import Policy, World

CASES = {
    "equal": Policy(),
    "+0.25": Policy(gain=0.25),
    "+0.5": Policy(gain=0.5),
    "+1.0": Policy(gain=1.0),
    "valid edits +15 points": Policy(validity=0.15),
    "gain +0.8, valid edits −15 points": Policy(validity=-0.15, gain=0.8),
}
OPTIONS = GateOptions(resamples=499)


def promoted(policy: Policy, states: int, gates: int, seed: int) -> float:
    """The share of gates that a policy passes."""
    random, passed = np.random.default_rng(seed), 0
    for _ in range(gates):
        world = World.drawn(random, states)
        old, new = world.outcomes(random, count=4), world.outcomes(random, policy, count=4)
        passed += compare(old, new, OPTIONS).promote
    return passed / gates


def main() -> int:
    """The table; 1 where equal policies are promoted more often than chance makes of one in twenty."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gates", type=int, default=300, help="in each cell; five times as many of equal policies")
    options = parser.parse_args()
    worst = 0.0
    print(f"| states | {' | '.join(CASES)} |\n|---|{'---|' * len(CASES)}")
    for states in (20, 40, 100):
        rates = {
            name: promoted(policy, states, options.gates * (5 if name == "equal" else 1), states + 7)
            for name, policy in CASES.items()
        }
        worst = max(worst, rates["equal"])
        print(f"| {states} | {' | '.join(f'{rate:.1%}' for rate in rates.values())} |", flush=True)
    return 0 if worst <= 0.05 + 2 * (0.05 * 0.95 / (5 * options.gates)) ** 0.5 else 1


if __name__ == "__main__":
    raise SystemExit(main())
