"""Does GRPO teach a small model to choose better, on tables of which it has learned nothing?

    python benchmarks/tables.py --dir KEPT --keep --starts defaults,far --arms search --runs 40 --repeats 2 --first 100
    python benchmarks/learn_to_choose.py --model FILE.gguf --sessions KEPT/*/ --dir DIR

Each table is held out once (``--held-out``: of which), and with each of ``--seeds`` an adapter is trained on the
others. The states are those of sessions of `search` on HPOLib's tables, and what is asked is what a hybrid asks in
them, as text (a schema's answers cannot be learned from). The model answers each state of the other tables several
times; the reward is the learner's own, of the true gain that the table tells, so that no reward is luck; `learn`'s GRPO
trains an adapter on these answers; then it answers other states, and so on, for so many rounds. Passes are left out, as
`learn` does. Then states of the held-out table are answered, and what the answers are worth is told as in brief.py: a
share of what the table has to give, nothing where an answer is worse or cannot be used. Beside it: one drawn from the
same menus, and the search's choice.

Arms: untrained; grpo; shuffled: the same with outcomes permuted among the answers; rate0: learning rate 0; each also
with the constants called C1, C2 and so on (``--anonymous``). Intervals: Student's t at 95%, over the held-out states'
sessions. What DIR has is not made again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from brief import grounds, problem_of, recipes, state_of, worth
from policies import interval, show
from tables import TABLES

from autoresearchd.domain.labels import Label
from autoresearchd.domain.ports import ResearchState
from autoresearchd.domain.randomness import derive_seed
from autoresearchd.evaluator.feedback import reward
from autoresearchd.learner.algorithms.learnable import Generated
from autoresearchd.learner.algorithms.train_options import TrainOptions
from autoresearchd.learner.data.trajectories import Trajectory
from autoresearchd.learner.gate.held_out_states import Ground
from autoresearchd.learner.training.load_model import ModelOptions
from autoresearchd.learner.training.local_model import LocalModel
from autoresearchd.learner.training.train import StepFigures, train
from autoresearchd.models.client import Message, estimate_tokens
from autoresearchd.policy.edits.answer_parts import EditError
from autoresearchd.policy.prompt.brief import Menu, menu, messages, passes, read_answer

ARMS: Mapping[str, Mapping[str, Any]] = {
    "grpo": {}, "shuffled": {"shuffle_rewards": True}, "rate0": {"learning_rate": 0.0},
}  # fmt: skip
MAX_TOKENS = 24
BUDGET = 1_500
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Question:
    """A state of a session on a table, and what is asked in it."""

    ground: Ground
    number: int
    state: ResearchState
    offered: Menu
    asked: tuple[Message, ...]

    @property
    def session(self) -> str:
        """The folder's name."""
        return str(self.ground.folder)


def questions(every: Sequence[Ground], count: int, *, first: int, anonymous: bool) -> list[Question]:
    """So many states of each session, evenly over it, from the first on; the sessions in turn."""
    found = []
    for at in range(count):
        for ground in every:
            numbers = [n for n in ground.experiments if n > 1]
            number = numbers[(first + at * len(numbers) // count) % len(numbers)]
            state = state_of(ground, number, alone=False)
            offered = menu(state, anonymous=anonymous)
            asked = messages(state, budget=BUDGET, count=estimate_tokens, offered=offered)
            found.append(Question(ground, number, state, offered, asked))
    return found


def outcome(question: Question, text: str) -> tuple[Label, float]:
    """What the learner would be told of an answer: its label, and how much better the true loss is, if it has one."""
    try:
        edit = read_answer(text, question.state.code, "cpu", question.ground.task, question.offered)
    except EditError as error:
        return error.label, 0.0
    problem = problem_of(question.ground)
    before, after = (float(problem.losses(r).mean()) for r in recipes(question.state, edit.files))
    return Label.NONE if after < before else Label.NO_GAIN, before - after


def draw(model: LocalModel, every: Sequence[Question], count: int, seed: int, what: str) -> list[list[Generated]]:
    """So many answers to each question. what: of what the seeds are, beside the question's place."""
    prompts = [model.encode(question.asked) for question in every for _ in range(count)]
    seeds = [derive_seed(seed, i, f"{what} {place}") for place in range(len(every)) for i in range(count)]
    written = model.generate(prompts, max_tokens=MAX_TOKENS, temperature=1.0, seeds=seeds)
    return [written[at : at + count] for at in range(0, len(written), count)]


def answers(model: LocalModel, every: Sequence[Question], group: int, number: int, seed: int) -> list[Trajectory]:
    """Answers of a round to each question, with their rewards; passes are left out."""
    made = []
    for place, (question, drawn) in enumerate(zip(every, draw(model, every, group, seed, f"{number}"), strict=True)):
        for index, each in enumerate(drawn):
            if passes(each.text):
                continue
            label, gain = outcome(question, each.text)
            earned = reward(label, gain, question.state.sigma, question.state.incumbent_value)
            assert earned is not None
            unusable = "" if label in (Label.NONE, Label.NO_GAIN) else label.value
            one = Trajectory(
                session=f"{number}", number=place, attempt=0, group=f"{place}", state_id=f"{place}",
                at=BEGAN + timedelta(seconds=place), policy_version="", messages=question.asked, completion=each.text,
                token_ids=each.ids, logprobs=each.logprobs, reward=earned.total, censored=False, label=label,
                feedback="", index=index, error=unusable,
            )  # fmt: skip
            made.append(one)
    return made


@dataclass(frozen=True)
class Judged:
    """A held-out state. worth: mean over the answers, 0 of one that cannot be used; usable: share of them.

    several: share that set more than one constant. drawn, search, best: of one drawn from the menu, of what the search
    would do, and of the best on the menu, which has single constants.
    """

    session: str
    worth: float
    usable: float
    several: float
    drawn: float
    search: float
    best: float


def judge(question: Question, said: Sequence[Generated]) -> Judged:
    """Of the policy in a state, by some answers."""
    ground, state = question.ground, question.state
    worths, usable, several = [], 0, 0
    for each in said:
        try:
            edit = read_answer(each.text, state.code, "cpu", ground.task, question.offered)
        except EditError:
            worths.append(0.0)
            continue
        before, after = recipes(state, edit.files)
        usable, several = usable + 1, several + (sum(before[name] != after[name] for name in before) > 1)
        worths.append(worth(ground, state, edit.files, anonymous=False)["model"])
    beside = worth(ground, state, None, anonymous=False)
    return Judged(
        question.session, statistics.fmean(worths), usable / len(said), several / len(said), beside["drawn"],
        beside.get("search", 0.0), beside["best"],
    )  # fmt: skip


def main() -> int:
    """Train the arms that are missing, and print what came of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--sessions", nargs="+", required=True)
    parser.add_argument("--held-out", default=",".join(TABLES), help="names of tables: each is held out once")
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--anonymous", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--states", type=int, default=36, help="of a round")
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--steps", type=int, default=9, help="of a round")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", type=float, default=2e-4)
    parser.add_argument("--judged", type=int, default=40, help="held-out states")
    parser.add_argument("--draws", type=int, default=4, help="answers to each of them")
    parser.add_argument("--seeds", default="1", help="of the training")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--at-once", type=int, default=8, help="answers that are written at once: more for a GPU")
    o = parser.parse_args()
    found: dict[str, dict[int, list[Judged]]] = {}
    for table in o.held_out.split(","):
        for arm in ("untrained", *filter(None, o.arms.split(","))):
            seeds = [0] if arm == "untrained" else [int(seed) for seed in o.seeds.split(",")]
            for seed in seeds:
                found.setdefault(arm, {}).setdefault(seed, []).extend(of_arm(table, arm, seed, o))
        print(table)
        tell({arm: {s: j[-o.judged :] for s, j in seeds.items()} for arm, seeds in found.items()})
    if "," in o.held_out:
        print("all")
        tell(found)
    return 0


def of_arm(table: str, arm: str, seed: int, o: argparse.Namespace) -> list[Judged]:
    """The arm's answers on the table that it has not learned from; trained, and judged, where DIR does not have it."""
    mine = [f for f in o.sessions if table not in Path(f).name]
    others = [f for f in o.sessions if table in Path(f).name]
    if not mine or not others:
        raise SystemExit(f"sessions of {table} and of other tables are needed")
    name = f"{table}{'-anonymous' if o.anonymous else ''}-{arm}"
    folder = o.dir.resolve() / name / (f"{seed}" if seed else "")
    done, learned = folder / f"judged-{len(others)}-{o.judged}-{o.draws}.json", folder / "rounds.json"
    folder.mkdir(parents=True, exist_ok=True)
    options = ModelOptions(dtype=o.dtype, threads=o.threads, seed=seed or 1, generated=o.at_once)
    if seed and not learned.exists():
        model = LocalModel.load(o.model.resolve(), options)
        learned.write_text(json.dumps(learn(model, grounds(mine), arm, seed, folder, o)))
    if not done.exists():
        every = grounds(others)
        test = questions(every, -(-o.judged // len(every)), first=0, anonymous=o.anonymous)[: o.judged]
        model = LocalModel.load(o.model.resolve(), replace(options, adapter=folder if seed else None))
        said = draw(model, test, o.draws, 0, "judged")
        done.write_text(json.dumps([asdict(judge(*each)) for each in zip(test, said, strict=True)], indent=1))
    return [Judged(**row) for row in json.loads(done.read_text())]


def tell(found: Mapping[str, Mapping[int, Sequence[Judged]]]) -> None:
    """Print what came of each arm: the mean over its seeds in each state, and beside it each seed's own worth."""
    plain = found["untrained"][0]
    for what in ("drawn", "search", "best"):
        print(f"  {what:12} worth {show(*over_sessions(plain, lambda j, w=what: getattr(j, w)))}")
    for arm, seeds in found.items():
        judged = [
            replace(p, **{n: statistics.fmean(getattr(j, n) for j in each) for n in ("worth", "usable", "several")})
            for p, *each in zip(plain, *seeds.values(), strict=True)
        ]
        less = [replace(j, worth=j.worth - p.worth) for j, p in zip(judged, plain, strict=True)]
        print(
            f"  {arm:12} worth {show(*over_sessions(judged, lambda j: j.worth))}"
            f"   beyond a drawn answer {show(*over_sessions(judged, lambda j: j.worth - j.drawn))}"
            f"   beyond the search {show(*over_sessions(judged, lambda j: j.worth - j.search))}"
            f"   beyond untrained {show(*over_sessions(less, lambda j: j.worth))}"
            f"   usable {statistics.fmean(j.usable for j in judged):.0%}, several constants "
            f"{statistics.fmean(j.several for j in judged):.0%}"
            f"   each seed {[round(statistics.fmean(j.worth for j in each), 4) for each in seeds.values()]}"
        )


def over_sessions(every: Sequence[Judged], of: Any) -> tuple[float, float]:
    """(mean, half the width of its interval), a session's mean being one observation."""
    sessions: dict[str, list[float]] = {}
    for each in every:
        sessions.setdefault(each.session, []).append(of(each))
    return interval([statistics.fmean(values) for values in sessions.values()])


def told(step: StepFigures) -> None:
    """That a step is done."""
    print(f"\r  step {step.step}/{step.steps}    ", end="", flush=True, file=sys.stderr)


def learn(
    model: LocalModel, sessions: Sequence[Ground], arm: str, seed: int, folder: Path, o: argparse.Namespace
) -> list[Any]:
    """Train the model's adapter for some rounds, keep it in a folder; what came of each round."""
    facts = []
    for number in range(o.rounds):
        began = time.monotonic()
        asked = questions(sessions, -(-o.states // len(sessions)), first=number, anonymous=o.anonymous)[: o.states]
        made = answers(model, asked, o.group, number, seed)
        drew = time.monotonic()
        usual = TrainOptions(
            steps=o.steps, batch=o.batch, learning_rate=o.rate, warmup=1, seed=seed + number, micro=o.group,
            kl_every=o.steps - 1,
        )  # fmt: skip
        ended = train(model, made, replace(usual, **ARMS[arm]), on_step=told)
        labels = Counter(each.label.value or "used" for each in made)
        facts.append({
            "answers": len(made), "reward": round(statistics.fmean(t.reward for t in made), 3), **labels,
            "kl": round(ended.history[-1].get("kl_base", 0.0), 4), "stopped": ended.stopped, "cold": ended.cold_start,
            "drawn_s": round(drew - began), "trained_s": round(time.monotonic() - drew),
        })  # fmt: skip
        print(f"\n{arm} round {number}: {facts[-1]}", file=sys.stderr)
    model.save(folder)
    return facts


if __name__ == "__main__":
    raise SystemExit(main())
