"""One constant of a program that may be tuned: its value, its range, how it is written, and what its name tells.

It is moved on an axis on which equal steps matter about equally: the logarithm for rates and widths, that of 1 − β for
averages, octaves for powers of two, the value itself for counts and fractions. Its name says whether it may be tuned,
on which axis, how far, and how much it usually matters; nothing outside of what a person gives is legal.
"""

from __future__ import annotations

import ast
import contextlib
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

Value = int | float | str | bool
"""What a parameter may hold."""

_PLAIN = re.compile(r"(?!(?:true|false|null|yes|no|on|off|y|n)$)[A-Za-z][\w+-]*", re.IGNORECASE)
"""Text that YAML takes for text without quotes."""
_POWER = re.compile(r"2(\s*)\*\*(\s*)\d+")
_PRODUCT = re.compile(r"(\d[\d_]*)(\s*\*\s*)([^*].*)", re.DOTALL)
_SAFE_FACTOR = re.compile(r"[\d_\s*()]{1,40}")


def _power(base: int | float, exponent: int | float) -> object:
    """Bounded before it is computed: 9**9**9 would not end."""
    return base**exponent if abs(base) <= 1e6 and abs(exponent) <= 60 else None


_OPERATORS: Mapping[type[ast.operator], Callable[[int | float, int | float], object]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: _power,
}


def number_of(node: ast.expr | None) -> int | float | None:
    """The value of a number, or of simple arithmetic on numbers; None for all else."""
    value: object = None
    match node:
        case ast.Constant():
            value = node.value
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
            inner = number_of(operand)
            value = -inner if inner is not None and isinstance(sign, ast.USub) else inner
        case ast.BinOp():
            left, right = number_of(node.left), number_of(node.right)
            if left is not None and right is not None:
                with contextlib.suppress(ArithmeticError, KeyError):
                    value = _OPERATORS[type(node.op)](left, right)
    return value if isinstance(value, (int, float)) and abs(value) < 1e18 and not isinstance(value, bool) else None


class Kind(StrEnum):
    """What sort of value a parameter holds."""

    INT = "int"
    FLOAT = "float"
    CHOICE = "choice"


class Scale(StrEnum):
    """The axis on which a parameter moves."""

    LINEAR = "linear"
    LOG = "log"
    LOG1P = "log1p"
    """log(1 + v / pivot): for what may be zero, like weight decay."""
    COMPLEMENT = "complement"
    """−log(1 − v): for averages near one, like Adam's betas."""
    OCTAVE = "octave"
    """log2(v), whole numbers only: powers of two stay powers of two."""
    NONE = "none"
    """No axis: a choice."""


@dataclass(frozen=True, slots=True)
class Range:
    """Where a parameter may move.

    step: a moderate one, in units of the axis; priority: how much it usually matters (1: as most); quantum: whole
    numbers stay multiples of it; hard: a person gave the ends, and no value lies beyond.
    """

    kind: Kind
    scale: Scale
    low: float = 0.0
    high: float = 0.0
    step: float = 1.0
    priority: float = 0.7
    quantum: int = 1
    pivot: float = 0.01
    family: str = "value"
    choices: tuple[Value, ...] = ()
    hard: bool = False


@dataclass(frozen=True)
class Parameter:
    """A literal in a file that may be changed.

    name: stable over edits, e.g. ``train.py:ADAM_BETAS[1]``; start, end: its place in the UTF-8 bytes of the file.
    """

    name: str
    path: str
    value: Value
    range: Range
    start: int
    end: int
    source: str = field(repr=False)

    @cached_property
    def home(self) -> float:
        """Where its value lies on the axis."""
        return self.place(self.value)

    @cached_property
    def bounds(self) -> tuple[float, float]:
        """The ends of the range, on the axis."""
        ends = self.place(self.range.low), self.place(self.range.high)
        return min(ends), max(ends)

    @property
    def kind(self) -> Kind:
        """What sort of value it holds."""
        return self.range.kind

    @property
    def label(self) -> str:
        """The name without the file, for people."""
        return self.name.partition(":")[2]

    @property
    def numeric(self) -> bool:
        """Whether it has an axis."""
        return self.range.kind is not Kind.CHOICE

    def place(self, value: Value) -> float:
        """Where a value lies on the axis; NaN for what has no place there."""
        if isinstance(value, str) or not self.numeric:
            return math.nan
        number, scale = float(value), self.range.scale
        if not math.isfinite(number):
            return math.nan
        if scale is Scale.LINEAR:
            return number
        if scale is Scale.LOG1P:
            return math.log1p(max(number, 0.0) / self.range.pivot)
        if scale is Scale.COMPLEMENT:
            return -math.log(max(1.0 - number, 1e-9))
        floor = min(abs(self.range.low), abs(self.range.high)) / 2 or 1e-300
        size = max(abs(number), floor)
        return math.log2(size) if scale is Scale.OCTAVE else math.log(size)

    def at(self, place: float) -> Value:
        """The legal value nearest to a place on the axis, rounded as a person would write it."""
        low, high = self.bounds
        place = min(max(place, low), high)
        scale = self.range.scale
        if scale is Scale.OCTAVE:
            power = round(place)
            return int(2 ** (min(max(power, math.ceil(low)), math.floor(high)) if self.range.hard else power))
        if scale is Scale.COMPLEMENT:
            number = round(1.0 - float(f"{math.exp(-place):.1e}"), 12)
            return min(max(number, self.range.low), self.range.high) if self.range.hard else number
        if scale is Scale.LINEAR:
            number = place
        elif scale is Scale.LOG1P:
            number = self.range.pivot * math.expm1(place)
        else:
            number = math.copysign(math.exp(place), self.range.high)
        return self._whole(number) if self.kind is Kind.INT else self._fraction(number)

    def moves(self) -> tuple[Value, ...]:
        """The values a moderate step away, down and up."""
        found: list[Value] = []
        for way in (-1, 1):
            near = (self.at(self.home + way * far * self.range.step) for far in (1, 2))
            found += [value for value in near if value != self.value][:1]
        return tuple(found)

    def _whole(self, number: float) -> int:
        quantum = self.range.quantum
        if quantum == 1 and self.range.scale is not Scale.LINEAR:
            number = self._significant(number)
        rounded = round(number / quantum) * quantum
        return int(min(max(rounded, math.ceil(self.range.low)), math.floor(self.range.high)))

    def _fraction(self, number: float) -> float:
        if self.range.scale is Scale.LOG1P and number < self.range.pivot / 100:
            number = 0.0  # too little to matter
        low, high = self.range.low, self.range.high
        decimals = max(2, 1 - math.floor(math.log10(max(high - low, 1e-12))))  # more where the whole range is narrow
        rounded = round(number, decimals) if self.range.scale is Scale.LINEAR else self._significant(number)
        return min(max(rounded, low), high)

    def _significant(self, number: float) -> float:
        """To two digits, and to more where the whole range is narrow."""
        low, high = self.range.low, self.range.high
        share = (high - low) / max(abs(low), abs(high), 1e-300)
        digits = max(1, -math.floor(math.log10(max(share, 1e-12)))) if math.isfinite(share) else 1
        return float(f"{number:.{digits}e}")

    def others(self) -> tuple[Value, ...]:
        """The alternatives of a choice."""
        return tuple(c for c in self.range.choices if c != self.value)

    def legal(self, value: object) -> bool:
        """Whether the value is of the right kind. The range is only advice, but for one that a person gave."""
        if self.kind is Kind.CHOICE:
            return any(type(c) is type(value) and c == value for c in self.range.choices)
        # NaN is below nothing; a whole number too large for a float raises in anything but a comparison.
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e18:
            return False
        if self.range.hard and not self.range.low <= value <= self.range.high:
            return False
        return self.kind is Kind.FLOAT or float(value).is_integer()


def write(parameter: Parameter, value: Value) -> str:
    """The literal for ``value``, in the style of the one it replaces (``2**15``, ``5e-4``, ``20 * 1024``)."""
    python = parameter.path.endswith(".py")
    if isinstance(value, bool):
        style = str.lower if parameter.source.islower() else str.upper if parameter.source.isupper() else str.title
        return str(value) if python else style(str(value))
    if isinstance(value, str):
        quote = parameter.source[0] if parameter.source[0] in "\"'" else "" if _PLAIN.fullmatch(value) else '"'
        return f"{quote}{value}{quote}"
    if parameter.kind is Kind.INT or (parameter.kind is Kind.CHOICE and isinstance(value, int)):
        return _write_int(parameter.source, int(value))
    text = _write_float(parameter.source, float(value))
    # PyYAML, which follows YAML 1.1, takes 2e-5 for text: a number has a point there, and its exponent a sign.
    return text if python else re.sub(r"(?<![.\d])(\d+)(?=e)", r"\1.0", text).replace("e", "e+").replace("e+-", "e-")


def _write_int(source: str, value: int) -> str:
    power = _POWER.fullmatch(source)
    if power and value > 0 and value & (value - 1) == 0:
        return f"2{power[1]}**{power[2]}{value.bit_length() - 1}"
    product = _PRODUCT.fullmatch(source)
    if product and _SAFE_FACTOR.fullmatch(product[3]):
        old = number_of(ast.parse(product[3].strip(), mode="eval").body)
        if isinstance(old, int) and old and int(product[1]) and value % old == 0:
            return f"{value // old}{product[2]}{product[3]}"
    return f"{value:_}" if "_" in source and not product else str(value)


def _write_float(source: str, number: float) -> str:
    if number and (re.search(r"\d[eE]", source) or not 1e-4 <= abs(number) < 1e15):
        for digits in range(12):
            text = f"{number:.{digits}e}"
            if float(text) == number:
                mantissa, _, power = text.partition("e")
                return f"{mantissa}e{int(power)}"
    return repr(number or 0.0)


# ---------------------------------------------------------------------- what a name tells
def bag(text: str) -> frozenset[str]:
    """The set of the words of a text."""
    return frozenset(text.split())


BATCH, CONTEXT = "batch size", "context"
PRICES = frozenset({BATCH, CONTEXT, "window", "width", "depth"})
"""Families that set the price of a step."""
PER_PASS = bag("device micro mini")
"""Words of a batch size that is one pass's, not one step's."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SMALLEST, _LARGEST = 1e-15, 1e15
_OCTAVE_STEP = 0.5
"""Twice as much is no moderate step: a learning rate doubles in log 2 / log 1.5 = 1.7 of its own."""
_SINGULAR = frozenset({"bias", "axis", "basis", "radius", "class"})

# Constants that say what is measured, where things are and how much is printed: tuning them is useless or cheating.
_NEVER = {
    "seed": bag("seed"),
    "time that a run has": bag("budget time timed untimed timeout minute second hour deadline limit retry"),
    "path, address or name": bag("""
        path dir directory file folder url port host checkpoint ckpt project version author license id name"""),
    "what the data is": bag("""
        vocab vocabulary data dataset encoding byte shard format index class magic pad eos bos unk"""),
    "what is measured": bag("eval evaluate evaluation val valid validation test metric benchmark"),
    "what is printed or stored": bag("""
        log logger logging print printing report reporting disp display progress save saving snapshot summary
        tensorboard debug verbose verbosity wandb interval"""),
    "machine": bag("""
        world worker job dtype compile resume flop peak profile gpu cuda mps thread process deterministic
        determinism"""),
}
_NOT_OWN = ("what the data is", "what is measured", "what is printed or stored")
"""What a function is for, if its defaults are not the program's own recipe."""
_ASIDE = bag("validate plot draw show report predict generate export")
"""Functions that do something beside the training."""
_LEARNING_RATE_NOT = bag("frac fraction ratio pct decay mult scale factor step iter warmup warmdown schedule")
_SCHEDULE = bag("warmup warmdown cooldown decay anneal lr final pct start")
_FRACTION = bag("ratio frac fraction pct percent prob probability p smoothing warmup warmdown cooldown alpha")
_WIDTH = bag("dim width embd embed hidden channel ffn model rank features feature units unit")
_MINOR_WIDTH = bag("head gate short kv rank")
_COUNT = bag("depth layer head block expert group stage nlayer nhead")
_LENGTH = bag("seq sequence context block")
_STEPS = bag("step iter iteration epoch")
_SIZES = bag("clip norm softcap cap scale init std gain temperature mult multiplier factor base theta gamma")
_BELOW_ONE = bag("factor gamma")
"""Sizes that shrink something each time where they are below one: of schedules, of returns."""
_PART = bag("frac fraction subsample colsample")
_PARTS = (bag("max feature"), bag("max sample"), bag("max df"))
_AT_LEAST_TWO = (bag("split"), bag("leaf node"), bag("num leave"), bag("max bin"))
_MOST_BINS = 255
_PERCENT = bag("pct percent percentage percentile")
_LEAST_PART, _LEAST_SHARE, _MOST_SHARE = 0.05, 0.01, 0.99
_PENALTY = re.compile(
    r":(?:Lasso|ElasticNet|KernelRidge|(?:Ridge|SGD|MLP|PassiveAggressive|GaussianProcess)\w*)\.alpha\b"
)


def words_of(name: str) -> tuple[str, ...]:
    """Lower-case singular words of the last part of a name: ``train.py:ADAM_BETAS[1]`` → adam, beta."""
    leaf = re.split(r"[.:]", re.sub(r"[\[#].*$", "", name.rpartition(":")[2]))[-1]
    return tuple(_singular(word.lower()) for word in _WORD.findall(leaf) if not word.isdigit())


def _singular(word: str) -> str:
    plural = len(word) > 3 and word.endswith("s") and not word.endswith("ss") and word not in _SINGULAR
    return word[:-1] if plural else word


def why_not(name: str) -> str:
    """Why a constant of that name is not for tuning, empty where it is."""
    words = words_of(name)
    if not words or "__" in name:
        return "its name is no word"
    for what, never in _NEVER.items():
        if set(words) & never or (what == "seed" and is_seed(name)):
            return f"its name is that of a {what}" if what in ("seed", "machine") else f"its name: {what}"
    if words in {("device",), ("backend",), ("rank",), ("local", "rank")}:
        return "its name is that of a machine"
    outside = {"input", "output", "in", "out"} & set(words) and {"dim", "channel", "size", "feature"} & set(words)
    return "its name: a size that the data gives" if outside else ""


def is_seed(name: str) -> bool:
    """Whether a constant sets the random numbers: luck is no improvement, whoever gives it a range."""
    words = set(words_of(name))
    return bool(words & _NEVER["seed"]) or {"random", "state"} <= words


def is_not_own(function: str) -> bool:
    """Whether a function of that name loads data, measures, prints: what it is given by default is no recipe."""
    words = {word for part in function.split(".") for word in words_of(part)}
    return bool(words & _ASIDE) or any(words & _NEVER[what] for what in _NOT_OWN)


def range_of(name: str, value: int | float) -> Range | None:
    """The range of a numeric constant, None where it is not for tuning."""
    words = frozenset(words_of(name))
    if not math.isfinite(value) or abs(value) > _LARGEST or 0 < abs(value) < _SMALLEST:
        return None
    found = _part(words, value) or _known_float(words, value)
    if value > 0 and _PENALTY.search(name):  # the alpha of a linear model or a network: no share of anything there
        found = _log(value, 10.0, 2.0, 0.8, "weight decay")
    if found is None:
        found = _whole(words, value) if isinstance(value, int) else _other_float(words, value)
    if found is None:
        return None
    low, high, octaves = found.low, found.high, found.scale is Scale.OCTAVE
    # Without the whole numbers that constructors of estimators refuse, and percentages that there are none of.
    if found.kind is Kind.INT and value >= 2 and any(words >= each for each in _AT_LEAST_TWO):
        low = max(low, 2)
    if words >= bag("max bin") and value <= _MOST_BINS:
        high = min(high, (_MOST_BINS + 1) // 2 if octaves else _MOST_BINS)
    if words & _PERCENT and 0 <= value <= 100:
        low, high = max(low, 0), min(high, 64 if octaves else 100)
    # With the present value, and no further than numbers are taken for constants.
    low, high = max(min(low, value), -_LARGEST), min(max(high, value), _LARGEST)
    if found.scale is Scale.LOG and found.kind is Kind.FLOAT:
        low, high = (max(low, _SMALLEST), high) if value > 0 else (low, min(high, -_SMALLEST))
    return replace(found, low=low, high=high)


def choice(choices: tuple[Value, ...], *, family: str = "choice", priority: float = 0.8) -> Range:
    """The range of an enumerated choice."""
    return Range(Kind.CHOICE, Scale.NONE, priority=priority, family=family, choices=choices)


def _log(value: float, factor: float, step: float, priority: float, family: str, high: float = math.inf) -> Range:
    """A float on the log scale, ``factor`` to both sides; a negative value stays negative."""
    size = abs(value)
    # Without the noise of binary fractions: an end may be proposed, and be read.
    low, top = float(f"{size / factor:.6g}"), max(size, min(float(f"{size * factor:.6g}"), high))
    if value < 0:
        low, top = -top, -low
    return Range(Kind.FLOAT, Scale.LOG, low, top, math.log(step), priority, family=family)


def _from_zero(high: float, pivot: float, step: float, priority: float, family: str) -> Range:
    return Range(Kind.FLOAT, Scale.LOG1P, 0.0, high, step, priority, pivot=pivot, family=family)


def _part(words: frozenset[str], value: int | float) -> Range | None:
    """Shares of the samples or columns: more than none, and all at most; a whole number of those is a count."""
    part = words & _PART or (isinstance(value, float) and any(words >= each for each in _PARTS))
    if not part or words & _SCHEDULE or "freq" in words or not 0 < value <= 1:
        return None
    if value < 0.1:
        return _log(value, 8.0, 1.5, 0.6, "fraction", 1.0)
    return Range(Kind.FLOAT, Scale.LINEAR, _LEAST_PART, 1.0, 0.15, 0.6, family="fraction")


def _known_float(words: frozenset[str], value: int | float) -> Range | None:
    """Families whose constants are fractional numbers even where the literal is ``0`` or ``1``."""
    if words & {"eps", "epsilon"}:
        return _log(value, 1e3, 10.0, 0.2, "epsilon") if value > 0 else None
    if "wd" in words or {"weight", "decay"} <= words or "l2" in words:
        return _from_zero(max(10 * value, 1.0), 0.01, 0.6, 1.0, "weight decay") if value >= 0 else None
    if words & {"dropout", "drop", "droppath"}:
        return _from_zero(0.6, 0.05, 0.6, 0.8, "dropout") if 0 <= value < 1 else None
    if words & {"beta", "momentum", "ema"} and 0 <= value < 1:
        low, high = max(1.0 - (1.0 - value) * 8, 0.5), min(1.0 - (1.0 - value) / 10, 0.99999)
        if value < 0.5:
            return Range(Kind.FLOAT, Scale.LINEAR, 0.0, 0.98, 0.15, 0.7, family="average")
        return Range(Kind.FLOAT, Scale.COMPLEMENT, low, max(high, value), math.log(1.6), 0.8, family="average")
    rate = "lr" in words or {"learning", "rate"} <= words
    if rate and value > 0 and not words & _LEARNING_RATE_NOT:
        return _log(value, 10.0, 1.5, 0.6 if words & {"min", "eta"} else 1.4, "learning rate")
    fractional = isinstance(value, float) or value == 0 or "lr" in words
    penalty = "alpha" in words and value == 1  # the usual one of linear models, and of no use as a share
    if fractional and words & _FRACTION and 0 <= value <= 1 and not words & _STEPS and not penalty:
        return _share(words, float(value))
    return None


def _share(words: frozenset[str], value: float) -> Range:
    schedule = bool(words & _SCHEDULE)
    priority, family = (1.0, "schedule") if schedule else (0.6, "fraction")
    # A schedule may well be all warm-up or have none; what else lies between nothing and all stays there.
    low, high = (0.0, 1.0) if schedule or value in (0, 1) else (_LEAST_SHARE, _MOST_SHARE)
    if value < 0.1:
        return _from_zero(high, 0.02, 1.0, priority, family)
    return Range(Kind.FLOAT, Scale.LINEAR, low, high, 0.15, priority, family=family)


def _other_float(words: frozenset[str], value: float) -> Range:
    priority = 0.7 if words & _SIZES else 0.5
    if value == 0:
        return _from_zero(1.0, 0.02, 1.0, priority / 2, "value")
    below_one = 0 < value < 1 and (not words & _SIZES or words & _BELOW_ONE)
    return _log(value, 8.0, 1.5, priority, "value", _MOST_SHARE if below_one else math.inf)


def _whole(words: frozenset[str], value: int) -> Range | None:
    if value < 0:  # −1 and its like mean "none", "all", "ignore": not numbers to tune
        return None
    if words & _STEPS or "warmup" in words:
        return _steps(words, value)
    if words & {"batch", "bs", "bsz"}:
        return _size(value, 4.0, 0.5 if words & PER_PASS else 1.3, BATCH)
    # Within a fixed time, what sets the price of a step matters as much as the learning rates do.
    if words & {"length", "len"} or (words & _LENGTH and words & {"size"}):
        return _size(value, 2.0, 1.1, CONTEXT)
    if "window" in words:
        return _size(value, 4.0, 1.1, "window")
    if words & _WIDTH or {"aspect", "ratio"} <= words:
        return _size(value, 2.0, 0.5 if words & _MINOR_WIDTH else 1.2, "width")
    if words & _COUNT:
        return _small(value, 1.4, "depth") if value <= 64 else _size(value, 2.0, 0.8, "depth")
    if value <= 16:
        return _small(value, 0.5 if value else 0.3, "count")
    return _size(value, 4.0, 0.5, "size", coarse=False)


def _small(value: int, priority: float, family: str) -> Range:
    """Counts that move by ones, or by about a quarter where they are larger."""
    if value <= 1:
        return Range(Kind.INT, Scale.LINEAR, value, value + 4, 1.0, priority, family=family)
    step = float(max(1, round(value / 4)))
    return Range(Kind.INT, Scale.LINEAR, max(1, value // 2), 2 * value, step, priority, family=family)


def _size(value: int, factor: float, priority: float, family: str, *, coarse: bool = True) -> Range:
    """Sizes: powers of two stay powers of two; where ``coarse``, multiples of a power of two stay multiples of it."""
    if value < 8:
        return _small(value, priority, family)
    low, high = max(1, math.ceil(value / factor)), int(value * factor)
    if value & (value - 1) == 0:
        return Range(Kind.INT, Scale.OCTAVE, low, high, _OCTAVE_STEP, priority, family=family)
    quantum = min(value & -value, 64) if coarse else 1
    step = max(math.log(1.35), math.log((value + quantum) / value))
    low = max(quantum, low // quantum * quantum)
    return Range(Kind.INT, Scale.LOG, low, high, step, priority, quantum=quantum, family=family)


def _steps(words: frozenset[str], value: int) -> Range:
    if "warmup" in words or value == 0:
        most = max(10 * value, 100)
        return Range(Kind.INT, Scale.LOG1P, min(value, 1), most, 0.8, 0.7, pivot=10.0, family="schedule")
    if value <= 16:
        return _small(value, 0.6, "steps")
    return Range(Kind.INT, Scale.LOG, max(1, value // 4), value * 4, math.log(1.5), 0.6, family="steps")


_LISTED = re.compile(r"(?:one of|choices|choose from|options|alternatives)\s*:?\s*(.+)", re.IGNORECASE)
_QUOTED = re.compile(r"""["']([^"']+)["']""")
_SAFE = re.compile(r"[A-Za-z0-9_+-][A-Za-z0-9_.+-]{0,39}")
_ACTIVATIONS = bag("relu gelu silu swish relu2 relu_squared squared_relu tanh swiglu geglu mish")
_MOST = 12


def alternatives(name: str, value: str, comment: str, text: str) -> tuple[str, ...]:
    """All values that a string constant may take, its own among them; empty where no other is known."""
    if not _SAFE.fullmatch(value):
        return ()
    words = set(words_of(name))
    found = _listed(comment)
    if not found and words & {"pattern", "window"}:
        found = _patterns(value)
    if not found and words & {"activation", "act", "nonlinearity", "mlp"} and value in _ACTIVATIONS:
        found = tuple(a for a in sorted(_ACTIVATIONS) if re.search(rf"""["']{a}["']""", text))
    options = tuple(dict.fromkeys((value, *found)))[:_MOST]
    return tuple(sorted(options)) if len(options) > 1 else ()


def writable(text: str) -> bool:
    """Whether a string can stand between the quotes of the literal that it replaces."""
    return text.isprintable() and not set(text) & set("\"'\\")


def _listed(comment: str) -> tuple[str, ...]:
    """What ``one of: "a", "b"`` or ``choices: a, b, c.`` lists."""
    match = _LISTED.search(comment)
    if match is None:
        return ()
    plain = re.split(r"[.;)](?:\s|$)", match[1])[0]
    parts = _QUOTED.findall(match[1]) or [p.strip() for p in re.split(r"[,|/]|\bor\b", plain)]
    return tuple(p for p in parts if _SAFE.fullmatch(p))


def _patterns(value: str) -> tuple[str, ...]:
    """Periodic patterns over the two letters of a window pattern such as ``SSSL``."""
    letters = "SL" if set(value) <= {"S", "L"} else "".join(dict.fromkeys(value))
    if len(letters) != 2 or not (letters == "SL" or (value.isupper() and len(value) <= 8)):
        return ()
    return tuple(letters[0] * n + letters[1] for n in range(5))


def bounded(usual: Range | None, value: int | float, low: float, high: float) -> Range:
    """The range from ``low`` to ``high``, where that can be on the axis that its name and value give (``usual``).

    Over a decade or more the axis is logarithmic. At least five moderate steps lie between the ends.
    """
    low, high = float(low), float(high)
    share = usual is not None and usual.kind is Kind.FLOAT and high <= 1  # DROPOUT = 0  # range: 0..1
    whole = isinstance(value, int) and low.is_integer() and high.is_integer() and not share
    kind = Kind.INT if whole else Kind.FLOAT
    usual = usual or Range(kind, Scale.LINEAR)
    scale = _scale(usual.scale, whole=whole, low=low, high=high)
    quantum = usual.quantum if whole and usual.quantum < high - low else 1
    found = replace(usual, kind=kind, scale=scale, low=low, high=high, hard=True, quantum=quantum)
    if scale is Scale.LOG1P:
        found = replace(found, pivot=min(usual.pivot, high / 10))
    ends = Parameter("", "", value, found, 0, 0, "").bounds
    across = (ends[1] - ends[0]) / 5
    step = usual.step if scale is usual.scale else math.log(1.5) if scale is Scale.LOG else across
    step = min(step, across)
    if whole and scale is Scale.LINEAR:
        step = float(max(1, round(step)))
    elif whole and scale is Scale.LOG:
        step = max(step, math.log1p(1 / low))
    return replace(found, step=step)


def _scale(usual: Scale, *, whole: bool, low: float, high: float) -> Scale:
    if usual is Scale.OCTAVE and whole and low >= 1 and math.floor(math.log2(high)) - math.ceil(math.log2(low)) >= 2:
        return Scale.OCTAVE
    if usual is Scale.COMPLEMENT and not whole and low >= 0 and high < 1:
        return Scale.COMPLEMENT
    if low > 0 and (high / low >= 10 or usual in (Scale.LOG, Scale.OCTAVE)):
        return Scale.LOG
    return Scale.LOG1P if usual is Scale.LOG1P and low >= 0 else Scale.LINEAR


def listed(value: Value, options: tuple[Value, ...]) -> Range | None:
    """The choice among ``options``, in the kind that ``value`` has; None where they are of another kind, or too few."""
    if isinstance(value, float):
        options = tuple(float(o) if isinstance(o, int) and not isinstance(o, bool) else o for o in options)
    options = tuple(dict.fromkeys(options))
    return choice(options) if len(options) > 1 and all(type(o) is type(value) for o in options) else None
