"""Constants that stand as defaults: of functions, dataclass fields, and command-line options."""

from __future__ import annotations

from autoresearchd.policy.search.find_constants import apply, look
from autoresearchd.policy.search.parameter import Kind


def tuned(text: str, given: tuple[str, ...] = ()) -> dict[str, object]:
    return {p.label: p.value for p in look(text, given=given).parameters}


def why(text: str, given: tuple[str, ...] = ()) -> dict[str, str]:
    return {left.label: left.why for left in look(text, given=given).left_out}


def test_defaults_of_constructors_and_functions_are_tuned() -> None:
    """A program of classes has its recipe nowhere else: without this there is `nothing to tune`."""
    text = """
class Net(Module):
    def __init__(self, hidden=64, depth: int = 3, dropout=0.1, dim=128, *, lr=0.001):
        self.lr = lr

    def step(self, x, momentum=0.9):
        return x

def fit(model, batch_size=32, weight_decay=0.01):
    def inner(lr=0.5):
        return lr

Net()
"""
    assert tuned(text) == {
        "Net.hidden": 64,
        "Net.depth": 3,
        "Net.dropout": 0.1,
        "Net.dim": 128,
        "Net.lr": 0.001,
        "Net.step.momentum": 0.9,
        "fit.batch_size": 32,
        "fit.weight_decay": 0.01,
        "fit.inner.lr": 0.5,
    }
    assert "hidden=96, depth" in apply(text, {"train.py:Net.hidden": 96})


def test_numbers_of_a_computation_are_no_recipe() -> None:
    """An axis or an epsilon that the search moves breaks the program, or changes what it computes."""
    text = (
        "def f(x, eps=1e-8, axis=1, dim=-1, keepdim=True, p=2, n=3, start=0, k=5, size=4, scale=1.0, mode='a'): pass\n"
    )
    text += "def softmax(x, dim=1, power=2.0): pass\n"
    text += "def conv(x, kernel=3, stride=1, padding=1, groups=1, rate=2, batch_idx=0, features=10): pass\n"
    assert tuned(text) == {}


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
    assert tuned(text) == {"Net.depth": 2, "fit.weight_decay": 0.0, "build.width": 64, "build.layers": 2}
    left = why(text)
    assert left["Net.hidden"] == left["Net.dropout"] == left["fit.lr"] == left["train.depth"]
    assert left["Net.hidden"] == "a call in the file sets it"


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
    assert {name: p.value for name, p in found.items()} == {
        "args.lr": 1e-3,
        "args.learning_decay": 1.0,
        "args.optimizer": "adam",
        "args.hidden_width": 64,
    }
    assert found["args.hidden_width"].range.choices == (64, 32, 128)
    assert found["args.optimizer"].others() == ("sgd",)
    assert found["args.learning_decay"].kind is Kind.FLOAT
    assert "default=2.5)  # range" in apply(text, {"train.py:args.learning_decay": 2.5})
    assert "default=128, choices" in apply(text, {"train.py:args.hidden_width": 128})
    left = why(text, given)
    assert left["args.batch_size"] == "execution.run_command gives --batch"
    assert left["args.seed"] == "its name is that of a seed"
    assert "path" in left["args.data_dir"]
    assert "args.batch_size" in tuned(text)


def test_options_of_click_and_typer_are_tuned() -> None:
    text = """
@click.option("--lr", default=0.1)
@click.option("--norm", default="rms", type=click.Choice(["rms", "layer"]))
def main(lr, norm): ...

def train(depth: int = typer.Option(4, "--depth"), lr: float = typer.Option(default=0.3)): ...
"""
    assert tuned(text) == {"args.lr": 0.1, "args.norm": "rms", "train.depth": 4, "train.lr": 0.3}
    assert why(text, ("--depth",))["train.depth"] == "execution.run_command gives --depth"
