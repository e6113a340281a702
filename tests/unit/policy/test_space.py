"""What the search finds in a program and in its configuration; a change touches the literal and nothing else."""

from __future__ import annotations

import difflib
import json
import tomllib

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from autoresearchd.domain.errors import PolicyError
from autoresearchd.domain.task import Search
from autoresearchd.policy.search.find_constants import find, look
from autoresearchd.policy.search.parameter import Kind, Parameter, Scale, Value
from autoresearchd.policy.search.search_policies import draw
from autoresearchd.resources import bundled

from .synthetic import TOY, apply


def values(text: str, profile: str = "cpu", path: str = "train.py", **options: object) -> dict[str, Value]:
    return {p.label: p.value for p in look(text, path=path, profile=profile, **options).parameters}


def why(text: str, given: tuple[str, ...] = ()) -> dict[str, str]:
    return {left.label: left.why for left in look(text, given=given).left_out}


def one(text: str) -> Parameter:
    [found] = find(text)
    return found


def test_top_level_constants_are_found_in_all_their_spellings() -> None:
    text = "A_LR = 5e-4\nBATCH = 2**14\nWINDOW = 10 * 1024\nSHIFT_SCALE = -0.5\nWIDTH: int = 1_024\nGAMMA = (0.9)\n"
    assert list(values(text).values()) == [5e-4, 16384, 10240, -0.5, 1024, 0.9]


def test_wherever_a_recipe_stands_its_constants_are_found() -> None:
    """In tuples, dictionaries, settings, known calls and defaults: a program of classes has them nowhere else."""
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

class Net(Module):
    def __init__(self, hidden=64, depth: int = 3, *, lr=0.001):
        self.lr = lr

    def step(self, x, momentum=0.9):
        return x

def fit(model, batch_size=32, weight_decay=0.01):
    def inner(lr=0.5):
        return lr

def build(model, groups):
    a = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), fused=True)
    b = AdamW([{"params": groups, "lr": 0.02}], lr=LR, eps=1e-10)
    drop = nn.Dropout(0.2)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    other = Unknown(lr=3.0, p=0.5)
    return dict(params=groups, lr=0.3), dict(lr=0.4)
"""
    assert " ".join(values(text)) == (
        "ADAM_BETAS[0] ADAM_BETAS[1] CONFIG.lr CONFIG.model.depth OTHER.dropout GPTConfig.n_layer Net.hidden Net.depth "
        "Net.lr Net.step.momentum fit.batch_size fit.weight_decay fit.inner.lr AdamW.lr#1 AdamW.betas[0]#1 "
        "AdamW.betas[1]#1 group.lr#1 AdamW.eps#2 Dropout.p#1 clip_grad_norm_.max_norm#1 dict.lr#1"
    )
    assert "hidden=96, depth" in apply(text, {"train.py:Net.hidden": 96})


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
    assert {p.label: p.others() for p in find(text)} == {
        "USE_BIAS": (False,),
        "SCHEDULE": ("constant", "linear"),
        "NORM": ("layer",),
        "WINDOW_PATTERN": ("L", "SL", "SSL", "SSSSL"),
        "ACTIVATION": ("gelu",),
    }
    assert apply(text, {"train.py:NORM": "layer"}) == text.replace("'rms'", "'layer'")


def test_a_comment_above_or_behind_a_bracket_keeps_what_it_belongs_to_as_it_is() -> None:
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
    "momentum": 0.9,  # fixed
    "dropout": 0.1,
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
# do not edit
OTHER = {"x": 3}

def build(p):
    return AdamW(p, lr=3e-4,  # fixed
                 weight_decay=0.1)
"""
    kept = {"WIDTH": 256, "HEAD_SIZE": 64, "LAYERS": 12, "CONFIG.dropout": 0.1, "AdamW.weight_decay#1": 0.1}
    assert values(text) == kept


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
    assert apply(before, {find(before)[0].name: change}) == after


@pytest.mark.parametrize(("name", "value"), [("NOPE", 1), ("DEPTH", 4.5), ("MODE", 'c"; import os'), ("DEPTH", True)])
def test_a_change_that_does_not_fit_is_refused(name: str, value: Value) -> None:
    with pytest.raises(PolicyError):
        apply('DEPTH = 4\nMODE = "a"  # one of: "a", "b"\n', {f"train.py:{name}": value})


@pytest.mark.parametrize("text", ["def f(:\n", "x = 1\n  y = 2\n", "\ud800 = 1", "LR = '\x00'\n"])
def test_a_file_that_is_not_python_is_a_clear_error(text: str) -> None:
    with pytest.raises(PolicyError, match=r"train\.py"):
        find(text)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(["LR", "DEPTH", "DROPOUT", "BETA2", "WARMUP_RATIO", "FOO"]),
    st.integers(-10, 10**7) | st.floats(-1e6, 1e6) | st.sampled_from([0, 0.0, 1, 1.0, 0.999, 2**20]),
)
def test_every_value_in_range_can_be_written_and_read_back(name: str, value: float) -> None:
    text = f"{name} = {value!r}\n"
    for parameter in find(text):
        low, high = parameter.bounds
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
TIME_BUDGET = 300
VOCAB_SIZE = 8192
DEVICE = "cuda"
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
    assert values(text) == {"DEPTH": 4}
    left = why(text)
    assert left == {
        **left,
        "SEED": "its name is that of a seed",
        "DATA_DIR": "its name: path, address or name",
        "EVAL_STEPS": "its name: what is measured",
        "HEADS": "fixed by a comment",
        "WIDTH": "derived: computed from other values",
        "LR": "read from the environment",
        "MODE": "no other value is known: a comment can list them (# one of: a, b)",
        "IGNORE": "below zero: it may stand for all or none",
        "BETAS[1]": "fixed by a comment",
    }


# ---------------------------------------------------------------------- comments
@pytest.mark.parametrize(
    ("text", "kind", "scale"),
    [
        ("LR = 0.01  # range: 1e-5..1e-1\n", Kind.FLOAT, Scale.LOG),
        ("# range: 1e-5 .. 1e-1 (more diverges)\nLR = 0.01\n", Kind.FLOAT, Scale.LOG),
        ("DEPTH = 4  # range: 2..8\n", Kind.INT, Scale.LINEAR),
        ("WIDTH = 64  # Range: 15..260\n", Kind.INT, Scale.OCTAVE),
        ("WIDTH = 64  # range: 20..100\n", Kind.INT, Scale.LOG),
        ("WIDTH = 60  # range: 7..130\n", Kind.INT, Scale.LOG),
        ("DROPOUT = 0  # range: 0..0.3\n", Kind.FLOAT, Scale.LOG1P),
        ("BETA2 = 0.95  # range: 0.855..0.9991\n", Kind.FLOAT, Scale.COMPLEMENT),
        ("SHIFT = -0.5  # range: -1..1\n", Kind.FLOAT, Scale.LINEAR),
        ("MIX_RATIO = 0.003  # range: 0.001..0.005\n", Kind.FLOAT, Scale.LOG1P),
        ("EVAL_SCALE = 3.0  # range: 2.5..3.5\n", Kind.FLOAT, Scale.LOG),
    ],
)
def test_a_range_bounds_every_value_that_is_tried_or_allowed(text: str, kind: Kind, scale: Scale) -> None:
    """A user who bounds a constant must never see a value outside."""
    found = one(text)
    assert (found.kind, found.range.scale) == (kind, scale)
    low, high = found.range.low, found.range.high
    random = np.random.default_rng(0)
    drawn = {draw({found.name: found}, random).get(found.name, found.value) for _ in range(200)}
    stepped = [found.at(found.home + d * found.range.step) for d in (-9, -1, -0.5, 0.5, 1, 9)]
    for value in (*drawn, *stepped, *map(found.at, found.bounds)):
        assert isinstance(value, (int, float))
        assert low <= value <= high
        assert found.legal(value)
        assert look(apply(text, {found.name: value})).doubts == ()
    assert len(drawn) > 2
    for outside in (low - 1, high + 1):
        assert not found.legal(int(outside) if kind is Kind.INT else outside)


@pytest.mark.parametrize(
    ("text", "value"),
    [("GAMMA = 0.99  # range: 0.95..0.999\n", 0.995), ("STEPS = 1050  # range: 1000..1100\n", 1020)],
)
def test_in_a_narrow_range_values_between_two_digits_are_in_reach(text: str, value: float) -> None:
    found = one(text)
    assert found.at(found.place(value)) == pytest.approx(value)


def test_choices_of_numbers_are_read_and_written() -> None:
    found = one("BATCH = 32  # one of: 16, 32, 64 (more does not fit)\n")
    assert found.range.choices == (16, 32, 64)
    assert apply("BATCH = 32  # one of: 16, 32, 64\n", {"train.py:BATCH": 64}).startswith("BATCH = 64  #")
    assert not found.legal(48)
    text = "# one of: 1, 0.1\nSCALE = 0.1\n"
    assert one(text).range.choices == (1.0, 0.1)
    assert apply(text, {"train.py:SCALE": 1.0}) == "# one of: 1, 0.1\nSCALE = 1.0\n"


@pytest.mark.parametrize(
    ("comment", "words"),
    [
        ("# range: 1..0.1", "lower end, 1, is not below the upper, 0.1"),
        ("# range: 5..5", "not below"),
        ("# range: low..high", "not a range"),
        ("# range: 1e-3", "not a range"),
        ("# range: 1..1e999", "finite"),
        ("# range: 0.6..0.9", "its value 0.5 is outside of the range 0.6..0.9"),
        ("# one of: small, large", "not one of the choices (small, large)"),
        ("# one of: 1, 2", "its value 0.5 is not one of the choices (1, 2)"),
        ("# one of: 0.5", "too few"),
    ],
)
def test_a_comment_that_cannot_be_followed_is_told_with_its_line(comment: str, words: str) -> None:
    """Ignored, the search would leave the bounds that the user believes to have set."""
    for text, line in ((f"X = 1\nLR = 0.5  {comment}\n", 2), (f"X = 1\n{comment}\nLR = 0.5\n", 3)):
        (doubt,) = look(text).doubts
        assert words in doubt.what and doubt.what.startswith("LR: ")
        assert doubt.line == line and doubt.hint


def test_a_range_makes_a_constant_tunable_that_its_name_hides_but_never_a_seed() -> None:
    text = "EVAL_DEPTH = 4  # range: 1..8\nSEED = 3  # range: 0..9\nN = 5  # range: 3..9\nFEATURES = 60\n"
    space = look(text, reasons={text.index("5 "): "data", text.index("60"): "data"})
    assert [p.label for p in space.parameters] == ["EVAL_DEPTH", "N"], "a person knows the program"
    assert [left.why for left in space.left_out] == ["its name is that of a seed", "data"]


# ---------------------------------------------------------------------- defaults
def test_numbers_of_a_computation_are_no_recipe() -> None:
    """An axis or an epsilon that the search moves breaks the program, or changes what it computes."""
    text = "def f(x, eps=1e-8, axis=1, dim=-1, keepdim=True, p=2, n=3, start=0, k=5, size=4, scale=1.0): pass\n"
    text += "def softmax(x, dim=1, power=2.0, mode='a'): pass\n"
    text += "def conv(x, kernel=3, stride=1, padding=1, groups=1, rate=2, batch_idx=0, features=10): pass\n"
    assert values(text) == {}


def test_a_default_that_a_call_overrides_is_left_alone_with_the_reason() -> None:
    """The search would spend its runs on a number that nothing reads."""
    text = """
class Net:
    def __init__(self, hidden=64, depth=2, dropout=0.1):
        pass

def fit(lr=0.1, momentum=0.9, weight_decay=0.0): ...
def train(lr=0.1, depth=4): ...
def build(width=64, layers=2): ...

net = Net(32, dropout=0.2)
partial(fit, 0.5, momentum=0.8)
train(**options)
isinstance(net, build)
"""
    assert values(text) == {"Net.depth": 2, "fit.weight_decay": 0.0, "build.width": 64, "build.layers": 2}
    assert set(why(text).values()) == {"a call in the file sets it"}


def test_options_of_argparse_are_tuned_unless_the_command_gives_them() -> None:
    """A script with argparse gave `nothing to tune`; what run_command passes has a default of no effect."""
    text = """
parser.add_argument("--lr", "-l", type=float, default=1e-3, help="x")
parser.add_argument("--learning-decay", type=float, default=1)  # range: 0.1..10
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--optimizer", default="adam", choices=["adam", "sgd"])
parser.add_argument("--width", type=int, default=64, choices=[32, 64, 128], dest="hidden_width")
parser.add_argument("--amp", action="store_true", default=False)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--data-dir", default="data")
parser.add_argument("--depth", type=int)
parser.add_argument("steps", default=3)
"""
    given = ("--batch", "python")
    found = {p.label: p for p in look(text, given=given).parameters}
    assert " ".join(found) == "args.lr args.learning_decay args.optimizer args.hidden_width"
    assert found["args.hidden_width"].range.choices == (64, 32, 128)
    assert found["args.optimizer"].others() == ("sgd",)
    assert found["args.learning_decay"].kind is Kind.FLOAT
    assert "default=2.5)  # range" in apply(text, {"train.py:args.learning_decay": 2.5})
    assert "default=128, choices" in apply(text, {"train.py:args.hidden_width": 128})
    assert why(text, given)["args.batch_size"] == "execution.run_command gives --batch"
    assert "args.batch_size" in values(text)


# ---------------------------------------------------------------------- ranges
ESTIMATORS = """
a = RandomForestClassifier(n_estimators=4, max_depth=2, min_samples_split=2, min_samples_leaf=1, max_features=1.0)
b = RandomForestRegressor(n_estimators=4, min_samples_split=0.4, min_samples_leaf=0.3, max_leaf_nodes=2, max_features=1)
c = GradientBoostingClassifier(n_estimators=4, learning_rate=0.1, subsample=1.0, max_features=0.5)
d = GradientBoostingRegressor(n_estimators=4, loss="quantile", alpha=0.9, subsample=0.05)
e = HistGradientBoostingClassifier(max_iter=4, max_bins=255, max_leaf_nodes=3, l2_regularization=0.0)
f = HistGradientBoostingRegressor(max_iter=4, max_bins=64, max_leaf_nodes=31, learning_rate=1.0)
g = ElasticNet(alpha=1.0, l1_ratio=0.5)
h = SGDClassifier(alpha=0.0001, l1_ratio=0.15, learning_rate="optimal", max_iter=1000)
i = Ridge(alpha=1)
j = LogisticRegression(C=1.0, max_iter=1000)
k = SVC(C=1.0, gamma=0.1)
l = KNeighborsClassifier(n_neighbors=1)
"""


@pytest.mark.filterwarnings("ignore")
def test_scikit_learn_takes_every_value_that_is_proposed_for_its_estimators() -> None:
    modules = [pytest.importorskip(f"sklearn.{name}") for name in ("ensemble", "linear_model", "neighbors", "svm")]
    names = {name: each for module in modules for name, each in vars(module).items()}
    rows = [[float(n % 3), float(n % 5)] for n in range(20)]
    tried = 0
    for line in ESTIMATORS.strip().split("\n"):
        for parameter in find(line):
            for value in (parameter.value, *map(parameter.at, parameter.bounds)):
                made: dict[str, object] = {}
                exec(f"{line[: parameter.start]}{value!r}{line[parameter.end :]}", dict(names), made)
                [estimator] = made.values()
                estimator.fit(rows, [n % 2 for n in range(20)])  # type: ignore[attr-defined]
                tried += 1
    assert tried > 60


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("SUBSAMPLE = 1.0", 0.05, 1.0),
        ("MAX_BINS = 128", 32, 128),
        ("GAMMA = 0.9", 0.11, 0.99),
        ("ALPHA = 1.0", 0.125, 8.0),
        ("LABEL_SMOOTHING = 0.05", 0.0, 0.99),
        ("WARMUP_RATIO = 0.1", 0.0, 1.0),
        ("WARMUP_STEPS = 0", 0, 100),
        ("N_LAYERS = 1", 1, 5),
        ("CLIP_PCT = 95", 24, 100),
        ("PCT_START = 0.3", 0.0, 1.0),
    ],
)
def test_a_constant_moves_as_far_as_its_name_allows_and_no_further(text: str, low: float, high: float) -> None:
    found = one(text)
    assert list(map(found.at, found.bounds)) == [pytest.approx(low, rel=0.05), pytest.approx(high, rel=0.05)]


# ---------------------------------------------------------------------- files of settings
TEMPLATE = bundled("templates") / "autoresearch" / "train.py"

YAML = """\
# Experiment Größe 7
seed: 42
data: {path: data/train.csv, batch_size: 8}
optimizer:            # the recipe
    lr: 1e-3          # range: 1e-5..1e-1
    name: adam        # one of: adam, sgd, lion
    betas: [0.9, 0.999]
model:
    width: 64
    # fixed
    depth: 4
    bias: true
    dropout: 0
schedule:  # fixed
    warmup: 10
eval: {batch_size: 64}
"""
TOML = """\
seed = 1
[optimizer]
lr = 0.001   # range: 1e-5..1e-1
nesterov = true
[model]  # do not change
width = 64
"""
JSON = '{\n\t"lr": 1e-3, "model": {"width": 64, "bias": false},\n\t"note": "# fixed", "momentum": 0.9}\n'


def test_the_recipe_in_a_yaml_file_is_tuned_and_the_rest_listed_with_reasons() -> None:
    """Such a file gave `nothing to tune`."""
    space = look(YAML, path="conf/a.yaml", given=("optimizer.betas[1]",))
    assert {p.label: p.value for p in space.parameters} == {
        "optimizer.lr": 1e-3,
        "optimizer.name": "adam",
        "optimizer.betas[0]": 0.9,
        "model.width": 64,
        "model.bias": True,
        "model.dropout": 0,
    }
    why = {left.label: left.why for left in space.left_out}
    assert why["seed"] == "its name is that of a seed"
    assert "data" in why["data.batch_size"] and "eval" in why["eval.batch_size"]
    assert why["model.depth"] == why["schedule.warmup"] == "fixed by a comment"
    assert why["optimizer.betas[1]"].startswith("execution.run_command gives")
    search = Search(ranges={"data.batch_size": (4, 16)}, fixed=("conf/a.yaml:model",))
    names = values(YAML, path="conf/a.yaml", search=search)
    assert "data.batch_size" in names and "model.width" not in names


def test_toml_and_json_files_follow_the_same_rules() -> None:
    assert values(TOML, path="a.toml") == {"optimizer.lr": 0.001, "optimizer.nesterov": True}
    assert values(JSON, path="a.json") == {"lr": 1e-3, "model.width": 64, "model.bias": False, "momentum": 0.9}


@pytest.mark.parametrize(
    ("path", "text", "change", "line"),
    [
        ("a.yaml", YAML, {"optimizer.lr": 2e-5}, "    lr: 2.0e-5          # range: 1e-5..1e-1"),
        ("a.yaml", YAML, {"optimizer.name": "lion"}, "    name: lion        # one of: adam, sgd, lion"),
        ("a.yaml", YAML, {"model.bias": False}, "    bias: false"),
        ("a.yaml", YAML, {"model.dropout": 5e-5}, "    dropout: 5.0e-5"),
        ("a.toml", TOML, {"optimizer.lr": 0.0005}, "lr = 0.0005   # range: 1e-5..1e-1"),
        ("a.toml", TOML, {"optimizer.nesterov": False}, "nesterov = false"),
        ("a.json", JSON, {"lr": 3e-5}, '\t"lr": 3.0e-5, "model": {"width": 64, "bias": false},'),
        ("a.json", JSON, {"model.bias": True}, '\t"lr": 1e-3, "model": {"width": 64, "bias": true},'),
        ("a.yaml", "mode: a  # one of: a, yes-no, 1.5x\n", {"mode": "1.5x"}, 'mode: "1.5x"  # one of: a, yes-no, 1.5x'),
    ],
)
def test_a_change_replaces_the_value_and_nothing_else(
    path: str, text: str, change: dict[str, Value], line: str
) -> None:
    """Comments and layout stay; and what is written is a number to PyYAML, to which 2e-5 is text."""
    new = apply(text, {f"{path}:{name}": value for name, value in change.items()}, path=path)
    assert [d[2:] for d in difflib.ndiff(text.splitlines(), new.splitlines()) if d.startswith("+ ")] == [line]
    (name, value), *_ = change.items()
    data = {"yaml": yaml.safe_load, "toml": tomllib.loads, "json": json.loads}[path[2:]](new)
    for key in name.split("."):
        data = data[key]
    assert data == value and isinstance(data, type(value))


@pytest.mark.parametrize(
    ("path", "text"),
    [("a.yaml", YAML), ("a.toml", TOML), ("a.json", JSON), ("train.py", TOY), ("train.py", TEMPLATE.read_text())],
)
def test_a_changed_file_holds_exactly_the_values_that_were_drawn(path: str, text: str) -> None:
    parameters = {p.name: p for p in find(text, path=path)}
    random = np.random.default_rng(1)
    for _ in range(20):
        changes = draw(parameters, random)
        new = apply(text, changes, path=path)
        after = {p.name: p.value for p in find(new, path=path)}
        assert after == {**{n: p.value for n, p in parameters.items()}, **changes}
        assert sum(line.startswith("+ ") for line in difflib.ndiff(text.split("\n"), new.split("\n"))) <= len(changes)


@pytest.mark.parametrize(("path", "text"), [("a.yaml", "a: [1\n"), ("a.json", "{"), ("a.toml", "a =\n")])
def test_a_file_that_cannot_be_read_is_a_clear_error(path: str, text: str) -> None:
    with pytest.raises(PolicyError, match=rf"{path}.*cannot be searched for constants: not (YAML|JSON|TOML)"):
        find(text, path=path)


def test_a_byte_order_mark_stays_where_it_is_and_the_constants_behind_it_are_found() -> None:
    """Editors on Windows write one; a night was spent on proposals that could not be made."""
    text = "\ufeffLR = 0.1; WD = 0.2\nBETA = 0.9\n"
    parameters = {p.name.partition(":")[2]: p for p in find(text)}
    assert {name: p.source for name, p in parameters.items()} == {"LR": "0.1", "WD": "0.2", "BETA": "0.9"}
    after = apply(text, {"train.py:LR": 0.3, "train.py:BETA": 0.8})
    assert after == text.replace("0.1", "0.3").replace("0.9", "0.8")
    [fixed] = look("\ufeff# fixed\nLR = 0.1\n").left_out
    assert fixed.label == "LR"
