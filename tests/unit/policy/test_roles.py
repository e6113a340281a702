"""Each role has a part of the program to itself; what an edit touches beyond it is named, and nothing else is."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoresearchd.domain.errors import UsageError
from autoresearchd.domain.experiment import Node
from autoresearchd.domain.labels import Status
from autoresearchd.domain.task import Constraint, Role
from autoresearchd.policy import roles
from autoresearchd.policy.policy_names import PolicySpec, parse_spec
from autoresearchd.policy.roles import off_surface, owns, preset, touched
from autoresearchd.policy.turn_rules import INCUMBENT, PUCT, Tree, choose, next_turn
from autoresearchd.resources import bundled
from tests.fakes.policies import make_task

TRAIN = (bundled("templates") / "autoresearch" / "train.py").read_text()


def flagged(role: Role, before: str, after: str) -> tuple[str, ...]:
    return off_surface(role, {"train.py": before}, {"train.py": after})


# ---------------------------------------------------------------------- presets
def test_quantisation_is_a_role_where_the_size_is_limited() -> None:
    task = make_task()
    for most, wanted in ((16_000_000, True), (1_000_000_000, False)):
        scoring = dataclasses.replace(task.scoring, constraints=(Constraint("artifact_bytes", max=most),))
        found = preset(dataclasses.replace(task, scoring=scoring))
        assert ("quantisation" in [role.name for role in found]) is wanted


def test_the_documentation_names_every_role_that_comes_with_the_daemon() -> None:
    text = (Path(__file__).parents[3] / "docs" / "policies.md").read_text(encoding="utf-8")
    every = {role.name for role in vars(roles).values() if isinstance(role, Role)}
    assert len(every) == 10
    assert [name for name in sorted(every) if f"| `{name}` |" not in text] == []


# ---------------------------------------------------------------------- surfaces
PARTS = """\
architecture    DEPTH HEAD_DIM MLP_RATIO WINDOW_PATTERN ROPE_BASE Attention MLP GPT norm rotate | ADAM_BETA1
optimiser       MATRIX_LR EMBEDDING_LR ADAM_BETA1 MUON_MOMENTUM Muon orthogonalise build_optimizers | DEPTH
schedule        WARMUP_RATIO WARMDOWN_RATIO FINAL_LR_FRAC MUON_WARMUP_STEPS lr_multiplier | WEIGHT_DECAY
data            TOTAL_BATCH_SIZE SEQ_LEN batches | MATRIX_LR
loss            SOFTCAP cross_entropy_loss | SEQ_LEN
regularisation  WEIGHT_DECAY DROPOUT | MATRIX_LR
systems         DEVICE_BATCH_SIZE CUDA UNTIMED_STEPS | MATRIX_LR
evaluation-time load_model | Muon
meta            DEPTH Muon main anything |"""


@pytest.mark.parametrize("part", PARTS.splitlines())
def test_each_role_has_its_part_of_the_bundled_task(part: str) -> None:
    name, *its = part.partition("|")[0].split()
    (role,) = (role for role in preset(make_task()) if role.name == name)
    assert [each for each in its if not owns(role, f"train.py:{each}", 0.5)] == []
    assert [each for each in part.partition("|")[2].split() if owns(role, f"train.py:{each}", 0.5)] == []


def test_a_surface_in_the_users_own_words_is_checked_too() -> None:
    role = Role("mine", "The learning rates, Muon and its momentum; normalisation")
    assert owns(role, "train.py:MATRIX_LR", 0.02)
    assert owns(role, "train.py:MUON_MOMENTUM", 0.95)
    assert owns(role, "normalization")
    assert not owns(role, "train.py:DEPTH", 8)


# ---------------------------------------------------------------------- edits
def test_what_lies_beyond_the_surface_is_named() -> None:
    after = TRAIN.replace("MATRIX_LR = 0.04", "MATRIX_LR = 0.02").replace("F.relu(self.fc(x))", "F.gelu(self.fc(x))")
    after = after.replace("    DEPTH *= 2", "    DEPTH *= 3")
    assert flagged(roles.OPTIMISER, TRAIN, after) == ("train.py:DEPTH", "train.py:MLP")
    assert flagged(roles.ARCHITECTURE, TRAIN, after) == ("train.py:MATRIX_LR",)
    assert flagged(roles.META, TRAIN, after) == ()


def test_comments_the_training_loop_and_new_definitions_are_nobodys() -> None:
    commented = TRAIN.replace("MATRIX_LR = 0.04  # Muon", "MATRIX_LR = 0.04  # of the matrices")
    assert commented != TRAIN
    assert flagged(roles.DATA, TRAIN, commented) == ()
    assert flagged(roles.DATA, TRAIN, TRAIN.replace("dt = time.perf_counter() - began", "dt = 1.0")) == ()
    assert flagged(roles.DATA, TRAIN, TRAIN + "\n\nclass SwiGLU(nn.Module):\n    pass\n") == ()


def test_entries_of_dictionaries_and_fields_of_settings_count_by_themselves() -> None:
    before = (
        'CONFIG = {"lr": 0.1, "depth": 4, "nested": {"warmup": 10}}\n'
        "@dataclass\nclass TrainArgs:\n    batch_size: int = 8\n    dropout: float = 0.1\n"
    )
    after = before.replace("0.1, ", "0.2, ").replace('"depth": 4', '"depth": 5').replace("int = 8", "int = 16")
    assert flagged(roles.OPTIMISER, before, after) == ("train.py:CONFIG.depth", "train.py:TrainArgs.batch_size")


@given(st.text(alphabet="ab=1 \n\t()[]{}:'\"#@\\.,", max_size=200), st.text(alphabet="ab=1 \n():'\"#@", max_size=200))
def test_no_text_makes_it_raise(before: str, after: str) -> None:
    flagged(roles.DATA, before, after)
    assert touched(before, before) == {}


# ---------------------------------------------------------------------- turn rules
ROLES = ["architecture", "optimiser", "data"]


def failed(*roles: str) -> list[tuple[str, float]]:
    return [(role, 0.0) for role in roles]


def test_roles_take_turns_and_go_on_after_the_last_one() -> None:
    history = failed("architecture", "optimiser")
    assert next_turn(2, ROLES, INCUMBENT, [], 0).role == "architecture"
    assert next_turn(2, ROLES, INCUMBENT, history, 0).role == "data"
    assert next_turn(3, ROLES, INCUMBENT, [*history, ("data", 0.0)], 0).role == "architecture"
    assert next_turn(3, ROLES, INCUMBENT, [*history, ("gone", 0.0), ("", 0.0)], 0).role == "data"


def test_after_ten_failures_a_role_that_had_no_turn_in_that_time_gets_one() -> None:
    turn = next_turn(10, ROLES, INCUMBENT, [("data", 1.0), *failed(*["architecture", "optimiser"] * 5)], 0)
    assert (turn.role, turn.parent) == ("data", INCUMBENT)
    assert "the turn goes to data, which has had none in that time" in turn.reason


def test_where_all_roles_had_their_turn_the_parent_changes_for_once() -> None:
    history = failed(*ROLES * 4)
    turn = next_turn(10, ROLES, INCUMBENT, history, 0)
    assert turn.parent == PUCT and "chosen from the whole tree" in turn.reason
    assert next_turn(11, ROLES, INCUMBENT, history, 0).parent == INCUMBENT
    assert next_turn(20, [], INCUMBENT, [], 0).parent == PUCT
    assert next_turn(10, [], PUCT, [], 0).parent == INCUMBENT


@given(
    st.integers(-1, 100),
    st.lists(st.sampled_from(ROLES), unique=True),
    st.sampled_from([INCUMBENT, PUCT]),
    st.lists(st.tuples(st.sampled_from([*ROLES, "", "gone"]), st.floats(0, 1)), max_size=40),
    st.integers(0, 2**31),
    st.booleans(),
)
def test_a_turn_is_always_one_that_can_be_taken(
    streak: int, roles: list[str], parents: str, history: list[tuple[str, float]], seed: int, bandit: bool
) -> None:
    turn = next_turn(streak, roles, parents, history, seed, bandit=bandit)
    assert turn.role in roles or (turn.role == "" and not roles)
    assert turn.parent in (INCUMBENT, PUCT)
    assert bool(turn.reason) == (streak > 0 and streak % 10 == 0)
    assert turn == next_turn(streak, roles, parents, history, seed, bandit=bandit)


# ---------------------------------------------------------------------- turns by what they pay
ARMS = ("architecture", "optimiser", "schedule", "data", "loss")


def play(rates: dict[str, float], turns: int, history: list[tuple[str, float]], seed: int) -> Counter[str]:
    """Add so many turns to the history, with keeps at the given rates; how often each arm had one."""
    luck = random.Random(seed)
    for turn in range(turns):
        arm = choose(ARMS, history, seed * 10_000 + len(history) + turn)
        history.append((arm, float(luck.random() < rates.get(arm, 0.05))))
    return Counter(arm for arm, _ in history[-turns:])


def test_most_turns_go_to_the_arm_that_pays_and_follow_it_when_that_changes() -> None:
    first, second = [], []
    for seed in range(20):
        history: list[tuple[str, float]] = []
        play({"data": 0.5}, 60, history, seed)
        first.append(play({"data": 0.5}, 60, history, seed)["data"])
        play({"loss": 0.5}, 60, history, seed)
        second.append(play({"loss": 0.5}, 60, history, seed)["loss"])
    assert sum(first) / len(first) > 30
    assert sum(second) / len(second) > 25


# ---------------------------------------------------------------------- the parent, by PUCT
def select(nodes: list[Node], visits: dict[int, int], *, maximize: bool) -> int:
    tree = Tree(maximize=maximize)
    tree.visited(visits)
    tree.add(nodes)
    return tree.select()


def node(number: int, parent: int | None, value: float, status: Status = Status.DISCARD) -> Node:
    return Node(number, parent, f"{number:040x}", value, status)


@st.composite
def trees(draw: st.DrawFn) -> list[Node]:
    """A baseline and experiments on experiments; whole numbers, so that scaling them is exact."""
    nodes = [node(0, None, draw(st.integers(-50, 50)), Status.KEEP)]
    for number in range(1, draw(st.integers(1, 14))):
        usable = [n.number for n in nodes if n.status in (Status.KEEP, Status.DISCARD)]
        nodes.append(
            node(number, draw(st.sampled_from(usable)), draw(st.integers(-50, 50)), draw(st.sampled_from(list(Status))))
        )
    return nodes


@given(
    trees(),
    st.dictionaries(st.integers(0, 13), st.integers(0, 5), max_size=14),
    st.sampled_from([2.0**-20, 0.5, 3.0, 2.0**20]),
    st.integers(-1000, 1000),
)
def test_neither_unit_nor_origin_of_the_metric_matters_and_what_crashed_is_never_built_on(
    nodes: list[Node], visits: dict[int, int], factor: float, shift: int
) -> None:
    chosen = select(nodes, visits, maximize=False)
    assert nodes[chosen].status in (Status.KEEP, Status.DISCARD)
    for times, more in ((factor, 0), (1.0, shift)):
        scaled = [dataclasses.replace(n, value=times * n.value + more) for n in nodes]
        assert select(scaled, visits, maximize=False) == chosen


def test_visits_of_descendants_count_for_their_ancestors() -> None:
    """A line of research that was followed ten times gives way to another one of the same promise."""
    nodes = [node(0, None, 3.0, Status.KEEP), node(1, 0, 2.0), node(2, 0, 2.1), node(3, 1, 2.9), node(4, 2, 2.9)]
    assert select(nodes, {}, maximize=False) == 1
    assert select(nodes, {3: 10}, maximize=False) == 2


# ---------------------------------------------------------------------- registry
@pytest.mark.parametrize(
    ("text", "spec"),
    [
        (" Random ", PolicySpec("random")),
        ("command:./x.sh --a b:c", PolicySpec("command", "./x.sh --a b:c")),
        ("litellm:openai/gpt-5:free", PolicySpec("litellm", "openai/gpt-5:free")),
        ("local:./smollm", PolicySpec("local", "./smollm")),
        *((kind, PolicySpec(kind)) for kind in ("search", "auto", "local")),
    ],
)
def test_known_policies_are_parsed(text: str, spec: PolicySpec) -> None:
    assert parse_spec(text) == spec
    assert parse_spec(str(spec)) == spec


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["", "command", "command:", "search:x", "nonsense", "command: \0"], "."),
        (["serach"], "did you mean search"),
        (["litellm", "litellm:", "agent", "litellm:-x", "local:a\nb", "agent:" + "x" * 300], "model"),
    ],
)
def test_wrong_policies_are_usage_errors_with_a_way_out(texts: list[str], words: str) -> None:
    for text in texts:
        with pytest.raises(UsageError, match=words) as caught:
            parse_spec(text)
        assert caught.value.hint
