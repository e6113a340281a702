"""Runs a real session on a folder in a given tier, as ``autoresearchd start --foreground`` does, and tells its results.

``python driver.py FOLDER TIER USER``: FOLDER as `tests.integrity.session` makes it; USER: a number, or ``same``.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path

from autoresearchd.app.project import Project
from autoresearchd.domain.errors import AutoresearchdError
from autoresearchd.domain.experiment import Limits
from autoresearchd.sandbox.tiers import available

start = importlib.import_module("autoresearchd.app.start")  # the package offers a function of that name


def main() -> int:
    folder, tier_name, experiments = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    if tier_name not in {tier.name.value for tier in available()}:
        (folder / "results.json").write_text(json.dumps({"missing": tier_name}))
        return 0
    repository = folder / "repo"
    os.chdir(repository)
    command = f"{sys.executable} -I {Path(__file__).with_name('policy.py')} {folder}"
    options = start.StartOptions(
        task=None, directory=repository, tag="cheats", policy=f"command:{command}", sandbox=tier_name,
        limits=Limits(max_experiments=experiments), foreground=True,
    )  # fmt: skip
    try:
        code = start.start(options)
    except AutoresearchdError as error:
        (folder / "results.json").write_text(json.dumps({"error": str(error)}))
        return error.exit_code
    store = Project.at(repository).existing_store()
    session = store.session("cheats")
    results = [
        {
            "number": e.number,
            "status": e.decision.status.value if e.decision else "",
            "confirmed": e.confirmed,
            "label": e.decision.label.value if e.decision else "open",
            "value": e.decision.value if e.decision else None,
            "reason": e.decision.reason if e.decision else "",
            "detail": e.runs[-1].detail if e.runs else "",
            "tier": e.runs[-1].tier if e.runs else "",
        }
        for e in store.experiments(session.id)
    ]
    store.close()
    (folder / "results.json").write_text(json.dumps({"results": results}))
    return code


if __name__ == "__main__":
    sys.exit(main())
