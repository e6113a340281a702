"""The search proposes, a model may override it, and the search tunes what the model brought that is new."""

from __future__ import annotations

import json
import math
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoresearchd.config.settings import ModelSettings
from autoresearchd.domain.errors import (
    EnvironmentFailure,
    ModelsRefused,
    Passed,
    PolicyError,
    SpendCapReached,
    UsageError,
)
from autoresearchd.domain.experiment import Decision, Experiment, Trial
from autoresearchd.domain.labels import Label, Status
from autoresearchd.domain.outlook import Outlook
from autoresearchd.domain.ports import HOOK_SAYS, Cancel, Policy, ResearchState
from autoresearchd.domain.proposal import ASI, Proposal, Repair
from autoresearchd.domain.task import Proposing
from autoresearchd.models.client import estimate_tokens
from autoresearchd.policy.command_policy import CommandPolicy
from autoresearchd.policy.hybrid_policy import HybridPolicy, luck
from autoresearchd.policy.policy_names import parse_spec
from autoresearchd.policy.prompt import brief
from autoresearchd.policy.search.find_constants import find
from autoresearchd.policy.search.search_policies import SearchPolicy
from tests.fakes.policies import MemoryHistory, ScriptedPolicy, make_state, make_task

from .histories import experiment
from .model_bench import COST, Bench, edit
from .synthetic import TOY

BASE = "a" * 40
GATED = f"GATE_LR = 0.001\nGATE_SCALE = 1.0\n{TOY}"
MODEL = "litellm:m"
SEEDS = [seed for seed in range(999) if luck(seed) < 0.1]
"""Seeds with which it is the model's turn, however badly it does; and one with which it is not, however well."""
MODELS = SEEDS[0]
SEARCHES = next(seed for seed in range(99) if luck(seed) > 0.6)
BRIEF = ModelSettings(prompt="brief", reasks=0)
NEVER = threading.Event()


def loss(text: str) -> float:
    """A gate is worth having, and more so once its constants fit."""
    v = {p.label: p.value for p in find(text)}
    if "GATE_LR" not in v:
        return 1.0
    return 0.5 + 0.02 * math.log2(float(v["GATE_LR"]) / 0.02) ** 2 + 0.02 * math.log2(float(v["GATE_SCALE"]) / 4) ** 2


class Session:
    """Experiments one after the other, each better one kept; it is the model's turn but where the search tunes."""

    def __init__(self, steps: Sequence[str | Proposal], *, tuned: bool = True) -> None:
        self.history, self.codes = MemoryHistory(), {BASE: {"train.py": TOY}}
        model = ScriptedPolicy(steps, name=MODEL, repairs=2)
        self.search = SearchPolicy(self.history, self.codes.__getitem__)
        self.policy: Policy = HybridPolicy(model, self.search) if tuned else model
        self.recent = [replace(experiment(0, "baseline", Label.NONE, value=1.0, policy="baseline"), parent=BASE)]
        self.history.add(Trial(0, BASE, BASE, {}, Status.KEEP, Label.NONE, 1.0))
        self.parent, self.value = BASE, 1.0

    def ask(self, number: int, repair: Repair | None = None) -> Proposal:
        """The proposal of an experiment."""
        code, recent = self.codes[self.parent], tuple(self.recent)
        same = {"parent": self.parent, "incumbent_value": self.value, "sigma": 0.004, "recent": recent}
        return self.policy.propose(
            make_state(code, number=number, seed=SEEDS[number], repair=repair, **same), threading.Event()
        )

    def go(self, count: int) -> list[Proposal]:
        """What is proposed in so many experiments."""
        return [self.decide(number, self.ask(number)) for number in range(1, count + 1)]

    def decide(self, number: int, proposal: Proposal) -> Proposal:
        value, commit = loss(proposal.files["train.py"]), f"{number:040x}"
        kept = value < self.value - 0.002
        status, label = (Status.KEEP, Label.NONE) if kept else (Status.DISCARD, Label.NO_GAIN)
        self.history.add(Trial(number, self.parent, commit, proposal.changes, status, label, value))
        done = experiment(number, proposal.description, label, value=value, policy=proposal.policy)
        done = replace(done, parent=self.parent)
        self.recent.append(replace(done, proposal=proposal, decision=Decision(status, label, value), commit=commit))
        if kept:
            self.parent, self.value, self.codes[commit] = commit, value, dict(proposal.files)
        return proposal


def moved(proposals: list[Proposal]) -> Counter[str]:
    return Counter(name for p in proposals for name in p.changes)


def test_what_a_model_brought_is_worth_more_once_its_constants_are_tuned() -> None:
    steps = [GATED, *(f"{GATED}# {i}\n" for i in range(8))]
    tuned, plain = Session(steps), Session(steps, tuned=False)
    proposals = tuned.go(8)
    plain.go(8)
    assert [p.policy for p in proposals] == [MODEL, *4 * ["search"], *3 * [MODEL]]
    assert any(name.startswith("train.py:GATE") for name in moved(proposals[1:4]))
    assert tuned.value < plain.value - 0.1


def test_a_keep_that_fell_is_not_tuned() -> None:
    session = Session([GATED, f"{GATED}# again\n"])
    session.go(1)
    session.recent[-1] = replace(session.recent[-1], confirmed=False)
    assert session.ask(2).policy == MODEL


def test_a_program_without_constants_is_the_models_alone() -> None:
    session = Session(["import math\nprint(1)\n", "import math\nprint(2)\n"])
    session.go(1)
    session.codes[session.parent] = {"train.py": "import math\nprint(1)\n"}
    kept: Experiment = session.recent[-1]
    session.recent[-1] = replace(kept, decision=Decision(Status.KEEP, Label.NONE, 0.9))
    assert session.ask(2).policy == MODEL


def test_a_model_repairs_its_own_edit() -> None:
    session = Session([GATED, f"{GATED}# repaired\n"])
    session.go(1)
    broken: Mapping[str, str] = {"train.py": "x"}
    assert session.ask(2, Repair(1, broken, "error", "NameError: name 'x' is not defined")).policy == MODEL


def test_what_only_sets_constants_is_not_tuned() -> None:
    files = {"train.py": TOY.replace("DEPTH = 4", "DEPTH = 5")}
    session = Session([Proposal(files, "deeper", MODEL, changes={"train.py:DEPTH": 5}), f"{TOY}# more\n"])
    session.go(1)
    kept = replace(session.recent[-1], decision=Decision(Status.KEEP, Label.NONE, 0.9, 0.1))
    session.recent[-1] = kept
    assert session.ask(2).policy == MODEL
    session.recent[-1] = replace(kept, proposal=replace(kept.proposal, changes={}))  # type: ignore[type-var]
    assert session.ask(2).policy == "search"


def test_what_was_under_way_before_a_keep_does_not_tune_it() -> None:
    session = Session([GATED, f"{GATED}# again\n"])
    session.go(1)
    late = [replace(e, number=2 + i) for i, e in enumerate(turns("search", Status.DISCARD, 5))]
    session.recent += [replace(e, parent=BASE) for e in late]
    assert session.ask(7).policy == "search"
    session.recent[-5:] = [replace(e, parent=session.parent) for e in late]
    assert session.ask(7).policy == MODEL


# ---------------------------------------------------------------------- whose turn it is
def turns(policy: str, status: Status, times: int, extra: Mapping[str, Any] = {}) -> list[Experiment]:
    changes = {"train.py:DEPTH": 5}
    made = experiment(1, "x", Label.NONE, value=1.0, policy=policy, changes=changes)
    assert made.proposal is not None
    label = Label.NONE if status is Status.KEEP else Label.NO_GAIN
    proposal = replace(made.proposal, asi=ASI(extra=extra))
    return [replace(made, number=7, proposal=proposal, decision=Decision(status, label, 1.0, 0.1))] * times


class QuickSearch(SearchPolicy):
    """Proposes nothing new, at once."""

    def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
        return Proposal({}, "", self.name)

    def outlook(self, state: ResearchState) -> Outlook:
        raise PolicyError("there is nothing to tune")


def share(recent: list[Experiment]) -> float:
    model = ScriptedPolicy([f"{TOY}# {i}\n" for i in range(400)], name=MODEL)
    policy = HybridPolicy(model, QuickSearch(MemoryHistory()))
    state = make_state(TOY, parent=BASE, recent=tuple(recent), sigma=0.01)
    return sum(policy.propose(replace(state, seed=s), NEVER).policy == MODEL for s in range(400)) / 400


def test_who_pays_has_more_turns_within_bounds() -> None:
    assert share([]) == pytest.approx(0.3, abs=0.05)
    kept, lost = (turns(MODEL, status, 16) for status in (Status.KEEP, Status.DISCARD))
    searched = turns("search", Status.DISCARD, 16)
    assert share([*kept, *searched]) == pytest.approx(0.6, abs=0.05)
    assert share([*lost, *turns("search", Status.KEEP, 16)]) == pytest.approx(0.1, abs=0.05)
    passed = turns("search", Status.KEEP, 16, {"passed_by": MODEL})
    assert share([*passed, *turns("search", Status.KEEP, 16)]) == pytest.approx(0.1, abs=0.05), (
        "it was paid for nothing"
    )


def test_all_members_of_a_round_are_one_policys_and_are_shown_the_same() -> None:
    task = make_task(proposing=Proposing(group=4))
    for first in range(8):
        session = Session([f"{TOY}# {i}\n" for i in range(4)])
        state = make_state(TOY, task=task, parent=BASE, round_id=f"toy/{first}")
        made = {session.policy.propose(replace(state, number=first + i, seed=i), NEVER).policy for i in range(4)}
        assert len(made) == 1
        shown = [session.search.outlook(replace(state, number=first + i, seed=i)) for i in range(4)]
        assert shown.count(shown[0]) == 4


def test_notes_of_the_user_are_for_the_model() -> None:
    policy, state = Session([f"{TOY}# 1\n"]).policy, make_state(TOY, parent=BASE, seed=SEARCHES)
    assert policy.propose(state, NEVER).policy == "search"
    assert policy.propose(replace(state, notes=("wider",)), NEVER).policy == MODEL
    hook = replace(state, notes=(f"{HOOK_SAYS}try a larger batch",))
    assert policy.propose(hook, NEVER).policy == "search", "it would pay a model in each turn"


# ---------------------------------------------------------------------- what a model may answer
def hybrid(bench: Bench, *trials: Trial) -> HybridPolicy:
    return HybridPolicy(bench.policy, SearchPolicy(MemoryHistory(trials), {BASE: {"train.py": TOY}}.__getitem__))


TRIED = Trial(1, BASE, "c" * 40, {"train.py:DEPTH": 5}, Status.DISCARD, Label.NO_GAIN, 1.1)


@pytest.mark.parametrize(
    ("answer", "unused"),
    [
        ("PASS", None),
        ('<think>{"constant": "DEPTH", "value": 3} is too low.</think>\nPASS', None),
        ("<thinking>\nDEPTH = 3?\n</thinking>\nPASS", None),
        ("`pass`.\n", None),
        ('{"pass": true}', None),
        ("DEPTH = 5", "was tried already"),
        ("DEPTH = 4", "has this value already"),
        ("DEPTH = 400", "is out of its range"),
        ("DEEPNESS = 5", "there is no constant DEEPNESS"),
        ("DROPOUT = nan", "DROPOUT cannot be nan"),
        ('{"constant": "DROPOUT", "value": NaN}', "DROPOUT cannot be None"),
        ('{"constant": "DROPOUT", "value": [[[1]]]}', "DROPOUT cannot be"),
        (f'{{"constant": "DEPTH", "value": {10**400}}}', "DEPTH cannot be 1000"),
        (f'{{"constant": "DROPOUT", "value": "{10**400}"}}', "DROPOUT cannot be 1000"),
        ("<think>DEPTH = 3 or 5, say. Or", "no line of the answer"),
        ("Well.\n<reasoning>\nDEPTH = 3, say. Or", "no line of the answer"),
        (json.dumps({"DEPTH": 3} | {f"X{i}": i for i in range(9_999)}), "the answer sets 10000 constants"),
        ("\n".join(f"X{i} = {i}" for i in range(10_000)), "there is no constant X0"),
        ("I would go deeper, for depth is what this model lacks.", "no line of the answer"),
        ("{" * 50_000, "no line of the answer"),
        ("", "no line of the answer"),
    ],
)
def test_where_a_model_passes_or_its_answer_is_of_no_use_the_search_proposes_at_its_cost(
    answer: str, unused: str | None
) -> None:
    bench = Bench(answer, settings=BRIEF)
    made = hybrid(bench, TRIED).propose(make_state(TOY, parent=BASE, seed=MODELS), NEVER)
    alone = SearchPolicy(MemoryHistory([TRIED])).propose(make_state(TOY, parent=BASE, seed=MODELS), NEVER)
    assert (made.policy, made.changes) == ("search", alone.changes)
    assert (made.cost, made.charged) == (COST, True)
    assert made.asi.extra["passed_by"] == "litellm:m/one"
    assert made.asi.extra.get("unused", "").count(unused or "") and ("unused" in made.asi.extra) is (unused is not None)
    stored = bench.answers.answers[0]
    assert (stored.form == "pass", stored.error == "") == (unused is None, unused is None)


@pytest.mark.parametrize(
    ("answer", "changes"),
    [
        ("DEPTH = 3", {"DEPTH": 3}),
        ('<think>\n{"pass": true}? DEPTH = 5?\n</think>\n\nDEPTH = 3', {"DEPTH": 3}),
        ("<thinking>\nDEPTH = 2?\n</thinking>\nDEPTH = 3", {"DEPTH": 3}),
        ("DEPTH = 2?</think>DEPTH = 3\n<think>\nDEPTH = 1?", {"DEPTH": 3}),
        ('{"constant": "USE_BIAS", "value": false}', {"USE_BIAS": False}),
        ("DEPTH = 3\nDROPOUT = 0.1\nMLP_RATIO = 3\nWARMUP_RATIO = 0.1", {"DEPTH": 3, "DROPOUT": 0.1, "MLP_RATIO": 3}),
        ("DEPTH = 4\nDROPOUT = 0.1\n\nTried:\nDEPTH = 2: worse", {"DROPOUT": 0.1}),
        ('```json\n{"DEPTH": 3, "DROPOUT": 0.1}\n```', {"DEPTH": 3, "DROPOUT": 0.1}),
    ],
)
def test_a_model_sets_one_to_three_constants(answer: str, changes: Mapping[str, Any]) -> None:
    # What was tried before on another program may be on the menu again, and is run as it is offered.
    settings = ModelSettings(prompt="brief", reasks=1)
    bench = Bench(answer, settings=settings, near=lambda state, files, changes: "was tried before")
    made = hybrid(bench, TRIED).propose(make_state(TOY, parent=BASE, seed=MODELS), NEVER)
    assert made.policy == "litellm:m/one" and "passed_by" not in made.asi.extra
    assert made.changes == {f"train.py:{name}": value for name, value in changes.items()}


SETTINGS = {
    "YAML": ("conf.yaml", "optimizer:\n  lr: 0.1\n", "optimizer.lr"),
    "JSON": ("conf.json", '{"optimizer": {"lr": 0.1}}\n', "optimizer.lr"),
    "TOML": ("conf.toml", "[optimizer]\nlr = 0.1\n", "optimizer.lr"),
    "dict": ("train.py", 'CONFIG = {\n    "lr": 0.1,\n}\n', "CONFIG.lr"),
    "dataclass": ("train.py", "@dataclass\nclass Config:\n    lr: float = 0.1\n", "Config.lr"),
    "option": (
        "train.py",
        'parser = ArgumentParser()\nparser.add_argument("--lr", type=float, default=0.1)\n',
        "args.lr",
    ),
    "call": ("train.py", "def main():\n    optimizer = AdamW(model.parameters(), lr=0.1)\n", "AdamW.lr#1"),
}


@pytest.mark.parametrize("prompt", ["brief", "full"])
@pytest.mark.parametrize(("path", "text", "name"), SETTINGS.values(), ids=SETTINGS)
def test_what_a_model_sets_is_on_record_wherever_it_stands_and_is_offered_no_more(
    path: str, text: str, name: str, prompt: str
) -> None:
    state = make_state({path: text}, parent=BASE, seed=MODELS)
    search = SearchPolicy(MemoryHistory(), lambda _: {path: text})
    menu = brief.menu(replace(state, outlook=search.outlook(state)))
    value = menu.offers[name].values[-1]
    bench = Bench(f"{name} = {value}", settings=ModelSettings(prompt=prompt, reasks=0))
    made = HybridPolicy(bench.policy, search).propose(state, NEVER)
    assert made.changes == {f"{path}:{name}": value} and made.policy == "litellm:m/one"
    trial = Trial(1, BASE, "c" * 40, made.changes, Status.DISCARD, Label.NO_GAIN, 1.1)
    after = SearchPolicy(MemoryHistory([trial]), lambda _: {path: text}).outlook(replace(state, number=2))
    offered = brief.menu(replace(state, number=2, outlook=after))
    [form, _] = offered.schema["anyOf"]
    assert value not in form["properties"]["value"]["enum"]
    with pytest.raises(PolicyError, match="was tried already"):
        offered.check(name, value)


def test_what_a_failed_edit_left_is_no_constant_of_its_repair() -> None:
    failed = Repair(1, {"train.py": f"{TOY}import nothing\n"}, "error", "ModuleNotFoundError: nothing")
    made = Bench("DEPTH = 3", settings=BRIEF).propose(make_state(TOY, parent=BASE, repair=failed))
    assert "DEPTH = 3" in made.files["train.py"] and made.changes == {}


@pytest.mark.parametrize("structured", [False, True])
def test_with_the_full_prompt_it_edits_or_passes(structured: bool) -> None:
    passes = '{"hypothesis": "none", "edits": []}' if structured else "PASS"
    settings = ModelSettings(structured=structured, reasks=0)
    gate = {"file": "train.py", "search": "DEPTH = 4", "replace": "DEPTH = 4\nGATE = 0.5"}
    edits = json.dumps({"edits": [gate]}) if structured else edit("DEPTH = 4", "DEPTH = 4\nGATE = 0.5")
    bench = Bench(passes, edits, "DROPOUT = 0.1", settings=settings)
    policy, state = hybrid(bench), make_state(TOY, parent=BASE, seed=MODELS)
    assert policy.propose(state, NEVER).asi.extra == {"passed_by": "litellm:m/one"}
    made = policy.propose(state, NEVER)
    assert made.policy == "litellm:m/one" and "GATE = 0.5" in made.files["train.py"]
    if not structured:
        assert policy.propose(state, NEVER).changes == {"train.py:DROPOUT": 0.1}
    asked = bench.told(0)
    assert "What the search would do" in asked and "answer PASS" in asked and "±" in asked
    alone = Bench(edits, settings=settings)
    alone.propose(make_state(TOY))
    assert "What the search would do" not in alone.told(0), "there is nobody to pass to"


REASON = '{"hypothesis": "none", "description": "leave it"}'


@pytest.mark.parametrize(
    ("answer", "passes"),
    [
        (f"PASS\n\n{REASON}", True),
        (f"{REASON}\n\nPASS", True),
        (f"PASS\n```json\n{REASON}\n```", True),
        ("```\nPASS\n```", True),
        ("PASS: the search's choice is fine", True),
        ("PASS — fine", True),
        ("**Answer: PASS**", True),
        ("**My final answer:** PASS", True),
        ("1. PASS", True),
        ("Fine.\n\nPASS</s>", True),
        ("PASS<|im_end|>", True),
        ("PASS, the search knows better", True),
        ("PASS because the value is fine", True),
        ("PASS (agree)", True),
        ("Pass: fine", True),
        ("Its choice is what I would do.\n\nPASS", True),
        ("", False),
        ("Pass-through of the gate helps.", False),
        ("PASS is not what I want.", False),
        ("Pass: no\nDEPTH = 3", False),
        ("pass: it is slow, so set DEPTH = 3", False),
        ("pass (because of it)", False),
        ("def idle():\n    pass</s>", False),
        ("DEPTH = 3\n\nPASS", False),
        ('PASS\n{"DEPTH": 3}', False),
        ("def idle():\n    pass", False),
        (f"PASS\n{REASON}\n{edit('DEPTH = 4', 'DEPTH = 3')}", False),
        ("```python\ndef idle():\n    pass\n```", False),
    ],
)
def test_a_model_passes_in_its_first_or_last_line_and_may_say_why(answer: str, passes: bool) -> None:
    assert brief.passes(answer) is passes


@pytest.mark.parametrize("tag", ["think", "thinking", "thought", "reasoning"])
def test_code_that_a_model_only_thought_of_is_no_edit(tag: str) -> None:
    bench = Bench(f"<{tag}>\n```python\nDROPOUT = 0.2\n```\n</{tag}>\nDROPOUT = 0.1", settings=ModelSettings(reasks=0))
    made = hybrid(bench).propose(make_state(TOY, parent=BASE, seed=MODELS), NEVER)
    assert (made.policy, made.changes) == ("litellm:m/one", {"train.py:DROPOUT": 0.1})


class Server(ScriptedPolicy):
    """A model whose server is down, or answers that it has no idea."""

    error: Exception = EnvironmentFailure("it cannot be reached", hint="is it running?")

    def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
        raise self.error


def test_while_a_server_is_down_the_search_goes_on_and_says_so_once() -> None:
    server, told = Server([], name=MODEL), list[str]()
    policy = HybridPolicy(server, SearchPolicy(MemoryHistory()), told.append)
    state = make_state(TOY, parent=BASE, notes=("wider",))
    made = [policy.propose(replace(state, seed=seed), NEVER) for seed in (SEARCHES, MODELS, MODELS, SEARCHES)]
    unused = {"unused": "it cannot be reached"}  # nobody was asked; of one that is away notes take no turn
    assert [p.asi.extra for p in made] == [unused, unused, unused, {}]
    assert len(told) == 1 and "the search goes on" in told[0] and MODEL in told[0]
    with pytest.raises(PolicyError, match="not repaired: it cannot be reached"):
        policy.propose(replace(state, repair=Repair(1, {"train.py": "x"}, "error", "NameError")), NEVER)
    for error in (SpendCapReached("all is spent", whole_session=True), ModelsRefused("the key is wrong")):
        server.error = error
        with pytest.raises(type(error)):
            policy.propose(replace(state, seed=MODELS), NEVER)
    server.error = Passed("it passed", label=Label.NO_OP)
    assert policy.propose(replace(state, seed=MODELS), NEVER).asi.extra == {"passed_by": MODEL}
    assert told[1:] == [f"{MODEL} answers again"]


def test_what_an_answer_cost_is_not_lost_where_the_search_has_nothing_either() -> None:
    class Exhausted(SearchPolicy):
        def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
            raise PolicyError("nothing is left")

    with pytest.raises(PolicyError) as caught:
        HybridPolicy(Bench("?", settings=BRIEF).policy, Exhausted(MemoryHistory())).propose(
            make_state(TOY, parent=BASE, seed=MODELS), NEVER
        )
    assert caught.value.cost == COST and "no line of the answer" in caught.value.what


def test_a_tool_passes_by_changing_nothing() -> None:
    def copy(state: ResearchState, target: Path) -> None:
        (target / "train.py").write_text(state.code["train.py"])

    state = make_state(TOY, parent=BASE, seed=MODELS)
    tool = CommandPolicy("tee told | grep 'change nothing[.]' && ! grep PASS told", copy)
    policy = HybridPolicy(tool, SearchPolicy(MemoryHistory()))
    assert policy.propose(state, NEVER).asi.extra == {"passed_by": policy.name}
    with pytest.raises(PolicyError, match="changed nothing"):
        CommandPolicy("true", copy).propose(state, NEVER)


def test_a_service_that_is_down_is_no_pass() -> None:
    broken = ScriptedPolicy([PolicyError("the command ended with exit code 1")], name=MODEL)
    with pytest.raises(PolicyError, match="exit code 1"):
        HybridPolicy(broken, SearchPolicy(MemoryHistory())).propose(make_state(TOY, seed=MODELS), NEVER)


# ---------------------------------------------------------------------- what is offered
def outlook_of(code: str, *trials: Trial, parent: str = BASE, codes: Mapping[str, str] = {}, **fields: Any) -> Any:
    texts = {commit: {"train.py": text} for commit, text in {BASE: TOY, parent: code, **codes}.items()}
    search = SearchPolicy(MemoryHistory(trials), texts.__getitem__)
    state: ResearchState = make_state(code, parent=parent, sigma=0.01, **fields)
    return replace(state, outlook=search.outlook(state))


def test_what_is_offered_is_in_range_and_gives_no_program_that_was_run() -> None:
    kept = Trial(1, BASE, "c" * 40, {"train.py:DEPTH": 5}, Status.KEEP, Label.NONE, 0.9)
    after = Trial(2, "c" * 40, "d" * 40, {"train.py:DEPTH": 6}, Status.DISCARD, Label.NO_GAIN, 0.95)
    trials = (Trial(0, BASE, BASE, {}, Status.KEEP, Label.NONE, 1.0), kept, after)
    state = outlook_of(TOY.replace("DEPTH = 4", "DEPTH = 5"), *trials, parent="c" * 40)
    by_name = {p.name: p for p in state.outlook.constants}
    depth = by_name["train.py:DEPTH"]
    assert set(depth.tried) == {4, 6} and not set(depth.values) & {4, 5, 6}
    for p in by_name.values():
        assert 0 < len(p.values) <= 6 and p.value not in p.values and p.best in p.values
        assert p.low is None or all(p.low <= float(v) <= p.high for v in p.values)
    told = brief.menu(state).schema["anyOf"]
    offered = {form["properties"]["constant"]["const"]: form["properties"]["value"]["enum"] for form in told[:-1]}
    assert told[-1]["properties"] == {"pass": {"const": True}}
    agrees = state.outlook.proposal.items()
    for name, values in offered.items():  # who agrees with the search passes
        prospect = by_name[f"train.py:{name}"]
        assert values == [v for v in prospect.values if (prospect.name, v) not in agrees or len(agrees) > 1]


def test_after_another_structure_is_kept_all_may_be_tried_again_and_what_is_new_is_offered() -> None:
    trials = (
        Trial(0, BASE, BASE, {}, Status.KEEP, Label.NONE, 1.0),
        Trial(1, BASE, "c" * 40, {"train.py:DEPTH": 5}, Status.DISCARD, Label.NO_GAIN, 1.1),
        Trial(2, BASE, "d" * 40, {}, Status.KEEP, Label.NONE, 0.8),
    )
    code = GATED.replace("DROPOUT = 0.0\n", "")
    by_name = {p.name: p for p in outlook_of(code, *trials, parent="d" * 40).outlook.constants}
    assert "train.py:GATE_LR" in by_name and "train.py:DROPOUT" not in by_name
    assert by_name["train.py:DEPTH"].tried == ()


@pytest.mark.parametrize("constants", [1, 100])
def test_few_and_many_constants_fit_into_a_short_prompt(constants: int) -> None:
    code = "".join(f"A_RATHER_LONG_RATE_{i} = {i + 1}.5  # {'why ' * 40}\n" for i in range(constants))
    recent = tuple(
        experiment(n, "x", delta=-0.1, value=2.0, changes={"train.py:A_RATHER_LONG_RATE_0": n / 7})
        for n in range(1, 33)
    )
    state = outlook_of(code, codes={BASE: code}, recent=recent, notes=("leave it",))
    asked = brief.messages(state, budget=64_000, count=estimate_tokens, structured=True)
    assert estimate_tokens(asked) <= brief.MOST_TOKENS and brief.is_brief(asked)
    assert len(brief.menu(state).offers) == min(constants, brief.MOST_SHOWN)
    orders = {tuple(brief.menu(replace(state, seed=seed)).offers) for seed in range(5)}
    assert len(orders) == 1 if constants == 1 else len(orders) == 5


def test_the_order_of_the_menu_tells_nothing_of_whose_turn_it_is() -> None:
    code = "".join(f"RATE_{i} = {i + 1}.5\n" for i in range(6))
    state = outlook_of(code, codes={BASE: code})
    orders = [list(brief.menu(replace(state, seed=seed)).offers) for seed in SEEDS]
    assert len({order[0] for order in orders}) == len({order[-1] for order in orders}) == 6


@pytest.mark.parametrize("note", ["wider " * 2_000, "w" * 10_000, "宽" * 10_000, "wider\n" * 2_000])
def test_a_long_note_is_cut_and_the_constants_stay(note: str) -> None:
    state = outlook_of(TOY, notes=("leave LR", note), recent=tuple(turns(MODEL, Status.DISCARD, 9)))
    for budget in (64_000, 700):
        asked = brief.messages(state, budget=budget, count=estimate_tokens)
        assert estimate_tokens(asked) <= min(budget, brief.MOST_TOKENS)
        told = asked[-1]["content"]
        assert "Follow this:\n- leave LR\n" in told and "Tried:" not in told
        assert all(f"\n{name} = " in told for name in brief.menu(state).offers)
    assert hybrid(Bench("DEPTH = 3", settings=BRIEF)).propose(state, NEVER).policy == "litellm:m/one"


def test_messages_that_others_made_are_not_brief() -> None:
    for content in (None, [{"type": "text", "text": "improve"}]):
        assert not brief.is_brief([{"role": "user", "content": content}])  # type: ignore[dict-item]


def test_without_a_name_nothing_of_the_program_is_told() -> None:
    settings = ModelSettings(prompt="brief", reasks=0, structured=True, anonymous=True)
    bench = Bench('{"constant": "C5", "value": 3}', settings=settings)
    made = hybrid(bench).propose(make_state(TOY, parent=BASE, seed=MODELS), NEVER)
    assert made.changes == {"train.py:DEPTH": 3}
    assert not {"LR", "DEPTH", "Muon"} & set(bench.told(0).replace("_", " ").split())


def test_a_policy_is_named_with_search_around_it() -> None:
    spec = parse_spec("hybrid:litellm:anthropic/claude-sonnet-4-5")
    assert (spec.kind, spec.argument, spec.tuned) == ("litellm", "anthropic/claude-sonnet-4-5", True)
    assert parse_spec(str(spec)) == spec
    for nothing in ("hybrid", "hybrid:", "hybrid:search", "hybrid:hybrid:litellm:m"):
        with pytest.raises(UsageError, match="cannot be tuned by search"):
            parse_spec(nothing)
