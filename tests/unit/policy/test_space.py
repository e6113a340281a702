"""What the search finds in a program, and that a change touches the literal and nothing else."""

from __future__ import annotations

import ast
import difflib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoresearchd.domain.errors import PolicyError
from autoresearchd.policy.search.find_constants import apply, find, look
from autoresearchd.policy.search.parameter import Kind, Parameter, Value

from .synthetic import TOY

TEMPLATE = Path(__file__).parents[3] / "templates" / "autoresearch" / "train.py"


def values(text: str, profile: str = "cpu") -> dict[str, Value]:
    return {p.label: p.value for p in find(text, profile=profile)}


def test_top_level_constants_are_found_in_all_their_spellings() -> None:
    text = "A_LR = 5e-4\nBATCH = 2**14\nWINDOW = 10 * 1024\nSHIFT_SCALE = -0.5\nWIDTH: int = 1_024\nlr = 1/8\n"
    text += "GAMMA = (0.9)\n"
    assert values(text) == {
        "A_LR": 5e-4,
        "BATCH": 16384,
        "WINDOW": 10240,
        "SHIFT_SCALE": -0.5,
        "WIDTH": 1024,
        "lr": 0.125,
        "GAMMA": 0.9,
    }


def test_tuples_dictionaries_and_configuration_classes_are_searched_one_by_one() -> None:
    text = """
from dataclasses import dataclass
ADAM_BETAS = (0.8, 0.95)
CONFIG = {"lr": 3e-4, "model": {"depth": 6}, "seed": 1, 3: 4}
OTHER = dict(dropout=0.1, name="x")

@dataclass(frozen=True)
class GPTConfig:
    n_layer: int = 12
    n_head: int = 6
    vocab_size: int = 50304

class Plain:
    n_layer = 3

config = GPTConfig(n_head=8)
"""
    assert values(text) == {
        "ADAM_BETAS[0]": 0.8,
        "ADAM_BETAS[1]": 0.95,
        "CONFIG.lr": 3e-4,
        "CONFIG.model.depth": 6,
        "OTHER.dropout": 0.1,
        "GPTConfig.n_layer": 12,
    }


def test_literals_in_known_constructor_calls_are_found_by_name_and_position() -> None:
    text = """
def build(model, groups):
    a = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    b = AdamW([{"params": groups, "lr": 0.02}], lr=LR, eps=1e-10)
    drop = nn.Dropout(0.2)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    other = Unknown(lr=3.0, p=0.5)
    return dict(params=groups, lr=0.3), dict(lr=0.4)
"""
    assert values(text) == {
        "AdamW.lr#1": 3e-4,
        "AdamW.betas[0]#1": 0.9,
        "AdamW.betas[1]#1": 0.95,
        "AdamW.weight_decay#1": 0.1,
        "group.lr#1": 0.02,
        "AdamW.eps#2": 1e-10,
        "Dropout.p#1": 0.2,
        "clip_grad_norm_.max_norm#1": 1.0,
        "dict.lr#1": 0.3,
    }


def test_choices_are_booleans_listed_alternatives_and_window_patterns() -> None:
    text = """
USE_BIAS = True
SCHEDULE = "cosine"  # one of: "cosine", "linear", "constant"
NORM = 'rms'  # choices: rms, layer. Others are too slow
WINDOW_PATTERN = "SSSL"
ACTIVATION = "relu"
ALT = "gelu"
TITLE = "a run"
"""
    found = {p.label: p for p in find(text)}
    assert found["USE_BIAS"].others() == (False,)
    assert set(found["SCHEDULE"].others()) == {"linear", "constant"}
    assert found["NORM"].others() == ("layer",)
    assert set(found["WINDOW_PATTERN"].others()) == {"L", "SL", "SSL", "SSSSL"}
    assert found["ACTIVATION"].others() == ("gelu",)
    assert "TITLE" not in found
    assert "ALT" not in found
    assert apply(text, {"train.py:NORM": "layer"}) == text.replace("'rms'", "'layer'")


def test_what_is_measured_where_and_for_how_long_is_never_tuned() -> None:
    text = """
import os
SEED = 1337
TIME_BUDGET = 300
MAX_SECONDS = 3
VOCAB_SIZE = 8192
EVAL_INTERVAL = 100
LOG_EVERY = 10
DATA_SHARDS = 3
LR = float(os.environ.get("LR", "0.01"))
FROM_ENV = int(os.getenv("N", 4))
IGNORE = -1
HEAD_DIM = 64  # fixed: the kernel needs it
DEPTH = 4  # layers
__version__ = 3
DEVICE = "cuda"
H100_BF16_PEAK_FLOPS = 989.5e12
UNTIMED_STEPS = 10
"""
    assert values(text) == {"DEPTH": 4}


def test_a_comment_keeps_a_value_of_several_lines_as_it_is() -> None:
    text = """
CONFIG = {
    "lr": 3e-4,  # fixed
    "depth": 4,
    "scales": (
        0.5,
        2.0,
    ),  # fixed: measured
    "model": {  # do not change
        "heads": 4,
    },
    "batch": 32, "rows": 16}  # fixed
LAST = {
    "x": 3,
}  # fixed

def build(p):
    return AdamW(p, lr=3e-4,  # fixed
                 weight_decay=0.1)
"""
    assert values(text) == {"CONFIG.depth": 4, "AdamW.weight_decay#1": 0.1}


def test_a_comment_on_the_line_above_keeps_what_follows_as_it_is() -> None:
    text = """\
# fixed
DEPTH = 4
WIDTH = 256
# The number of heads is fixed by the kernel, their size is not.
HEAD_SIZE = 64

# never change: measured
HEADS = 4
# fixed

LAYERS = 12
CONFIG = {
    # Fixed: the referee's
    "lr": 3e-4,
    "dropout": 0.1,
}
# do not edit
OTHER = {"x": 3}
"""
    assert values(text) == {"WIDTH": 256, "HEAD_SIZE": 64, "LAYERS": 12, "CONFIG.dropout": 0.1}


def test_the_branch_of_the_profile_is_the_one_that_is_tuned() -> None:
    text = """
CUDA = torch.cuda.is_available()
DEPTH = 8 if CUDA else 4
WIDTH = 128 if not CUDA else 512
BATCH = {"cpu": 16, "cuda": 64}["cuda" if CUDA else "cpu"]
CONFIG = {"cpu": {"lr": 1e-3}, "cuda": {"lr": 3e-3}}
HEADS = 3 if os.name == "nt" else 4
if CUDA:
    CLIP = 2.0
else:
    CLIP = 1.0
"""
    cpu = {"DEPTH": 4, "WIDTH": 128, "BATCH": 16, "CONFIG.lr": 1e-3, "CLIP": 1.0}
    cuda = {"DEPTH": 8, "WIDTH": 512, "BATCH": 64, "CONFIG.lr": 3e-3, "CLIP": 2.0}
    assert values(text) == cpu
    assert values(text, "cuda") == cuda
    assert "DEPTH = 10 if CUDA else 4" in apply(text, {"train.py:DEPTH": 10}, profile="cuda")
    assert "DEPTH = 8 if CUDA else 5" in apply(text, {"train.py:DEPTH": 5})


@pytest.mark.parametrize(
    ("before", "change", "after"),
    [
        ("BATCH = 2**14  # tokens\n", 2**15, "BATCH = 2**15  # tokens\n"),
        ("BATCH = 2 ** 14\n", 3000, "BATCH = 3000\n"),
        ("LR = 5e-4\n", 7.5e-4, "LR = 7.5e-4\n"),
        ("LR = 0.04\n", 0.056, "LR = 0.056\n"),
        ("LR = 0.04\n", 2e-5, "LR = 2e-5\n"),
        ("WINDOW = 10 * 1024\n", 20480, "WINDOW = 20 * 1024\n"),
        ("WINDOW = 10 * 1024\n", 1000, "WINDOW = 1000\n"),
        ("WIDTH = 1_024\n", 2048, "WIDTH = 2_048\n"),
        ("SHIFT_SCALE = -0.5\r\nX = f( 1 )\r\n", -0.25, "SHIFT_SCALE = -0.25\r\nX = f( 1 )\r\n"),
        ("LR = (  # why\n    0.5\n)\n", 0.25, "LR = (  # why\n    0.25\n)\n"),
        ("DROPOUT = 0\n", 0.05, "DROPOUT = 0.05\n"),
    ],
)
def test_a_change_keeps_the_style_of_the_literal_and_all_around_it(before: str, change: Value, after: str) -> None:
    name = find(before)[0].name
    assert apply(before, {name: change}) == after


def test_a_change_that_does_not_fit_is_refused() -> None:
    text = 'DEPTH = 4\nMODE = "a"  # one of: "a", "b"\n'
    for changes in (
        {"train.py:NOPE": 1},
        {"train.py:DEPTH": 4.5},
        {"train.py:MODE": 'c"; import os'},
        {"train.py:DEPTH": True},
    ):
        with pytest.raises(PolicyError):
            apply(text, changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["def f(:\n", "x = 1\n  y = 2\n", "\ud800 = 1", "LR = '\x00'\n"])
def test_a_file_that_is_not_python_is_a_clear_error(text: str) -> None:
    with pytest.raises(PolicyError, match=r"train\.py"):
        find(text)


def anywhere(parameter: Parameter, share: float) -> Value:
    if parameter.kind is Kind.CHOICE:
        return parameter.range.choices[int(share * (len(parameter.range.choices) - 1))]
    low, high = parameter.bounds()
    return parameter.at(low + share * (high - low))


@settings(max_examples=12, deadline=None)
@given(st.dictionaries(st.integers(0, 60), st.floats(0, 1), max_size=12), st.sampled_from(["toy", "template"]))
def test_a_changed_program_holds_exactly_the_new_values(picks: dict[int, float], which: str) -> None:
    text = TOY if which == "toy" else TEMPLATE.read_text(encoding="utf-8")
    parameters = find(text)
    changes = {
        parameters[i % len(parameters)].name: anywhere(parameters[i % len(parameters)], s) for i, s in picks.items()
    }
    new = apply(text, changes)
    before, after = {p.name: p.value for p in parameters}, {p.name: p.value for p in find(new)}
    assert after == {**before, **changes}
    ast.parse(new)
    altered = {n for n, v in changes.items() if v != before[n]}
    lines = [d for d in difflib.ndiff(text.splitlines(), new.splitlines()) if d.startswith("+ ")]
    assert len(lines) <= len(altered)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(["LR", "DEPTH", "DROPOUT", "BETA2", "WARMUP_RATIO", "FOO"]),
    st.one_of(
        st.integers(-10, 10**7), st.floats(-1e6, 1e6, allow_nan=False), st.sampled_from([0, 0.0, 1, 1.0, 0.999, 2**20])
    ),
)
def test_every_value_in_range_can_be_written_and_read_back(name: str, value: float) -> None:
    text = f"{name} = {value!r}\n"
    for parameter in find(text):
        low, high = parameter.bounds()
        assert low <= parameter.place(parameter.value) + 1e-6
        assert parameter.place(parameter.value) <= high + 1e-6
        for share in (0.0, 0.2, 0.5, 0.9, 1.0):
            new = parameter.at(low + share * (high - low))
            assert parameter.legal(new)
            assert values(apply(text, {parameter.name: new}))[parameter.label] == new
            if 0 < value < 1 and name in {"DROPOUT", "BETA2", "WARMUP_RATIO"}:
                assert 0 <= float(new) <= 1


# ---------------------------------------------------------------------- what is left alone is listed


def test_everything_that_is_left_alone_is_listed_with_its_reason() -> None:
    """A user who misses a constant sees why, and can fix it."""
    text = """
SEED = 1
DATA_DIR = "x"
EVAL_STEPS = 5
HEADS = 4  # fixed
WIDTH = HEADS * 16
LR = float(os.environ.get("LR", "0.1"))
MODE = "fast"
IGNORE = -1
BETAS = (  # fixed
    0.9, 0.99)
model = build()
loss = a + b
DEPTH = 4
"""
    space = look(text)
    assert [p.label for p in space.parameters] == ["DEPTH"]
    assert {left.label: left.why for left in space.left_out} == {
        "SEED": "its name is that of a seed",
        "DATA_DIR": "its name: path, address or name",
        "EVAL_STEPS": "its name: what is measured",
        "HEADS": "fixed by a comment",
        "WIDTH": "derived: computed from other values",
        "LR": "read from the environment",
        "MODE": "no other value is known: a comment can list them (# one of: a, b)",
        "IGNORE": "below zero: it may stand for all or none",
        "BETAS[0]": "fixed by a comment",
        "BETAS[1]": "fixed by a comment",
    }


def test_a_range_that_a_person_has_written_is_stronger_than_the_look_at_the_data() -> None:
    """The look may be wrong, and its author knows the program."""
    text = "N = 400  # range: 100..800\nFEATURES = 60\n"
    space = look(text, reasons={"N": "makes the data", "FEATURES": "makes the data"})
    assert [p.label for p in space.parameters] == ["N"]
    assert [left.label for left in space.left_out] == ["FEATURES"]
