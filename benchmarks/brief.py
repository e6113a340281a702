"""How a small model answers the brief prompt: on states of sessions that were really run, one question each.

    python benchmarks/brief.py --base-url http://127.0.0.1:8801/v1 --model NAME --sessions DIR… --states 40
    python benchmarks/brief.py … --text          # without a JSON schema
    python benchmarks/brief.py … --alone         # no search stands by, so that there is nobody to pass to
    python benchmarks/tables.py --dir DIR --keep --arms search … && python benchmarks/brief.py … --tables

DIR: a repository with a session, which is opened, and upgraded where an older version wrote it: give a copy. An answer
is usable where it is well formed, in range, a real change, legal, and no program that was run before; a pass is.
Sampling is the model's own, but for --temperature. Each answer is printed where --show is given.

--tables: the sessions are those of tables.py, whose tables tell without a run what each answer is worth: its true gain
over the program that it edits, as a share of what lies between the session's start and the best recipe, and nothing
where it is worse, for that is not kept. Beside it, in the same states: what an answer drawn from the menu is worth on
average (a constant, then one of its values), the best one on the menu, and what the search would do. Differences are
taken within a session; ± is half a 95% interval of Student's t over sessions. It tells far more for each answer than
whole sessions with and without a model.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from policies import interval, show
from tables import AXES, SEEDS, Problem, Recipe, recipe_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the fakes are those of the tests

from autoresearchd.app.project import Project
from autoresearchd.config.settings import MOST_BRIEF, ModelSettings
from autoresearchd.domain.errors import Passed, PolicyError
from autoresearchd.domain.labels import Status
from autoresearchd.domain.outlook import Value
from autoresearchd.domain.ports import ResearchState
from autoresearchd.domain.randomness import derive_seed
from autoresearchd.evaluator.rules.legality import code_hash
from autoresearchd.learner.gate.held_out_states import Ground
from autoresearchd.loop.session_view import RECENT
from autoresearchd.models.openai_client import OpenAIClient
from autoresearchd.policy.model_policy import ModelPolicy
from autoresearchd.policy.prompt.brief import BRIEF, menu
from autoresearchd.policy.search.find_constants import constants, new_files
from autoresearchd.policy.search.parameter import Parameter
from autoresearchd.policy.search.search_policies import SearchPolicy
from tests.fakes.models import MemoryAnswers, OpenPurse
from tests.fakes.policies import MemoryHistory

TOP, PROGRAM = 5, "train.py"
Worth = Mapping[str, float]
"""What something is worth, by what it is: "model", "drawn", "best", "search"."""


def state_of(ground: Ground, number: int, *, alone: bool) -> ResearchState:
    """The state that an experiment was proposed in, with what a search would do in it."""
    e, metric = ground.experiments[number], ground.task.metric
    before = [x for n, x in ground.experiments.items() if n < number]
    kept = [x for x in before if x.decision and x.decision.status is Status.KEEP and x.decision.value is not None]
    best = sorted(kept, key=lambda x: -metric.improvement(x.decision.value, 0.0) if x.decision else 0.0)
    tip = ground.incumbent(number)
    state = ResearchState(
        ground.session.tag,
        number,
        e.parent,
        ground.task,
        ground.programs.code(e.parent),
        recent=tuple(before[-RECENT:]),
        top=tuple(best[:TOP]),
        baseline=before[0].decision.value if before[0].decision else None,
        incumbent_value=tip.decision.value if tip.decision else None,
        sigma=e.decision.sigma if e.decision else None,
        seed=derive_seed(ground.session.seed, number, "brief"),
        incumbent=tip.commit or "",
    )
    history = MemoryHistory(t for t in ground.store.trials(ground.session.id) if t.number < number)
    outlook = SearchPolicy(history, ground.programs.code).outlook(state)
    return replace(state, outlook=replace(outlook, proposal={}) if alone else outlook)


def grounds(folders: list[str]) -> list[Ground]:
    """The last session of each repository."""
    found = []
    for folder in folders:
        project = Project.at(Path(folder))
        store = project.open_store()
        found.append(Ground(project.root, store, store.sessions()[-1]))
    return found


@cache
def problem_of(ground: Ground) -> Problem:
    """The table of a session on one."""
    table = np.fromfile(ground.pristine / "table.f64", "<f8").reshape(*(len(axis) for axis in AXES.values()), SEEDS)
    return Problem(table, recipe_of(ground.programs.code(ground.session.base_commit)[PROGRAM]))


def recipes(state: ResearchState, files: Mapping[str, str]) -> tuple[Recipe, Recipe]:
    """Of the program in a state of a session on a table, and of what files make of it."""
    return recipe_of(state.code[PROGRAM]), recipe_of({**state.code, **files}[PROGRAM])


def worth(ground: Ground, state: ResearchState, answer: Mapping[str, str] | None, *, anonymous: bool) -> Worth:
    """In a state of a session on a table. answer: the files that the model has changed, None where it gave none."""
    problem, known = problem_of(ground), constants(ground.task, state.code)

    def gain(files: Mapping[str, str]) -> float:
        before, after = map(problem.share, recipes(state, files))
        return max(after - before, 0.0)

    def moved(names: Mapping[str, Parameter], values: Mapping[str, Value]) -> float:
        return gain(new_files(state.code, [(names[name], value) for name, value in values.items()]))

    offered = menu(state, anonymous=anonymous)
    offers = [[moved(offered.known, {n: v}) for v in p.values] for n, p in offered.offers.items()]
    found = {"drawn": statistics.fmean(map(statistics.fmean, offers)), "best": max(map(max, offers))}
    if state.outlook is not None and state.outlook.proposal:
        found["search"] = moved(known, state.outlook.proposal)
    return found if answer is None else {**found, "model": gain(answer)}


def compared(found: Mapping[str, Sequence[Worth]]) -> None:
    """Print the means over sessions, and what each thing is worth beyond a drawn answer, where the model gave one."""
    answered = {tag: own for tag, every in found.items() if (own := [w for w in every if "model" in w])}
    print(f"worth of {sum(map(len, answered.values()))} answers in {len(answered)} sessions, share of the table:")
    for what in ("model", "drawn", "search", "best"):
        there = {tag: own for tag, every in answered.items() if (own := [w for w in every if what in w])}
        if len(there) > 1:
            mean = [statistics.fmean(w[what] for w in own) for own in there.values()]
            beyond = [statistics.fmean(w[what] - w["drawn"] for w in own) for own in there.values()]
            than = "" if what == "drawn" else f"   beyond a drawn one {show(*interval(beyond))}"
            print(f"  {what:8} {show(*interval(mean))}{than}")


def main() -> int:
    """Ask, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--sessions", nargs="+", required=True)
    parser.add_argument("--states", type=int, default=40)
    parser.add_argument("--temperature", type=float)
    for flag in ("text", "alone", "anonymous", "show", "tables"):
        parser.add_argument(f"--{flag}", action="store_true")
    options = parser.parse_args()
    every = [(g, n) for g in grounds(options.sessions) for n in g.experiments if n > 1]
    chosen = [every[i * len(every) // options.states] for i in range(min(options.states, len(every)))]
    settings = ModelSettings(
        prompt=BRIEF, structured=not options.text, reasks=0, retries=0, timeout=3600, temperature=options.temperature,
        max_tokens=MOST_BRIEF, anonymous=options.anonymous,
    )  # fmt: skip
    client, answers = OpenAIClient(options.base_url, options.model), MemoryAnswers()
    came, named = Counter[str](), Counter[str]()
    worths: dict[str, list[Worth]] = defaultdict(list)
    for ground, number in chosen:
        state = state_of(ground, number, alone=options.alone)
        policy = ModelPolicy(
            [client],
            settings,
            name=f"local:{options.model}",
            answers=answers,
            purse=OpenPurse(),
            check=lambda s, files, g=ground: g._check.legal(s, files),
        )
        try:
            proposal = policy.propose(state, threading.Event())
        except Passed:
            result = "passes"
        except PolicyError as error:
            result = f"{error.label.value or 'error'}: {error.what[:100]}"
        else:
            named.update(proposal.changes.keys())
            segment = ground.experiments[number].segment
            twin = ground.store.find_duplicate(
                ground.session.id, f"{segment}:{code_hash({**state.code, **proposal.files})}"
            )
            same = proposal.changes == state.outlook.proposal if state.outlook else False
            result = "tried before" if twin is not None and twin < number else "as the search" if same else "own"
        came[result] += 1
        if options.tables:
            given = proposal.files if result in ("own", "as the search") else None
            worths[str(ground.folder)].append(worth(ground, state, given, anonymous=options.anonymous))
        if options.show:
            last, where = answers.answers[-1], f"{ground.session.tag} {number}"
            print(f"{where}: {last.generation.completion[:100]!r} {last.cost.seconds:.1f} s {result}")
    costs = [answer.cost for answer in answers.answers]
    usable = came["own"] + came["as the search"] + came["passes"]
    top = ", ".join(f"{name.rpartition(':')[2]} {count}" for name, count in named.most_common(5))
    print(f"{options.model}: {usable} of {len(chosen)} usable ({usable / len(chosen):.0%})")
    print("\n".join(f"  {count:4} {what}" for what, count in came.most_common()))
    print(f"  {len(named)} constants named: {top}")
    print(f"  tokens of the prompt: median {statistics.median(c.tokens_in for c in costs):.0f}", end="")
    print(f", most {max(c.tokens_in for c in costs)}")
    seconds = sorted(c.seconds for c in costs)
    print(
        f"  seconds an answer: median {statistics.median(seconds):.1f}, 90% {seconds[9 * len(seconds) // 10]:.1f}",
        end="",
    )
    print(f", most {seconds[-1]:.1f}; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    if options.tables:
        compared(worths)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
