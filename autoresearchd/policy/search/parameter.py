"""One constant of a program that may be tuned: its value, its range, its scale, and how it is written.

It is moved on an axis on which equal steps matter about equally: the logarithm for rates and widths, that of 1 − β for
averages, octaves for powers of two, the value itself for counts and fractions.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

Value = int | float | str | bool
"""What a parameter may hold."""

_PLAIN = re.compile(r"(?!(?:true|false|null|yes|no|on|off|y|n)$)[A-Za-z][\w+-]*", re.IGNORECASE)
"""Text that YAML takes for text without quotes."""
_POWER = re.compile(r"2(\s*)\*\*(\s*)\d+")
_PRODUCT = re.compile(r"(\d[\d_]*)(\s*\*\s*)([^*].*)", re.DOTALL)
_SAFE_FACTOR = re.compile(r"[\d_\s*()]{1,40}")


_OPERATORS: Mapping[type[ast.operator], Callable[[int | float, int | float], int | float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
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
        case ast.BinOp(left=left, op=op, right=right):
            value = _calculated(number_of(left), op, number_of(right))
    return value if isinstance(value, (int, float)) and abs(value) < 1e18 and not isinstance(value, bool) else None


def _calculated(left: int | float | None, op: ast.operator, right: int | float | None) -> int | float | None:
    if left is None or right is None:
        return None
    try:
        if isinstance(op, ast.Pow):  # bounded before it is computed: 9**9**9 would not end
            power = left**right if abs(left) <= 1e6 and abs(right) <= 60 else None
            return power if isinstance(power, (int, float)) else None
        return _OPERATORS[type(op)](left, right)
    except (ArithmeticError, KeyError):
        return None


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


@dataclass(frozen=True, slots=True)
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

    @property
    def home(self) -> float:
        """Where its value lies on the axis."""
        return self.place(self.value)

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

    def bounds(self) -> tuple[float, float]:
        """The ends of the range, on the axis."""
        ends = self.place(self.range.low), self.place(self.range.high)
        return min(ends), max(ends)

    def at(self, place: float) -> Value:
        """The legal value nearest to a place on the axis, rounded as a person would write it."""
        low, high = self.bounds()
        place = min(max(place, low), high)
        scale = self.range.scale
        if scale is Scale.OCTAVE:
            power = round(place)
            return int(2 ** (min(max(power, math.ceil(low)), math.floor(high)) if self.range.hard else power))
        if scale is Scale.COMPLEMENT:
            number = round(1.0 - _significant(math.exp(-place)), 12)
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
            number = _significant(number)
        rounded = round(number / quantum) * quantum
        return int(min(max(rounded, math.ceil(self.range.low)), math.floor(self.range.high)))

    def _fraction(self, number: float) -> float:
        if self.range.scale is Scale.LOG1P and number < self.range.pivot / 100:
            number = 0.0  # too little to matter
        low, high = self.range.low, self.range.high
        decimals = max(2, 1 - math.floor(math.log10(max(high - low, 1e-12))))  # more where the whole range is narrow
        rounded = round(number, decimals) if self.range.scale is Scale.LINEAR else _significant(number)
        return min(max(rounded, low), high)

    def others(self) -> tuple[Value, ...]:
        """The alternatives of a choice."""
        return tuple(c for c in self.range.choices if c != self.value)

    def legal(self, value: object) -> bool:
        """Whether the value is of the right kind. The range is only advice, but for one that a person gave."""
        if self.kind is Kind.CHOICE:
            return any(type(c) is type(value) and c == value for c in self.range.choices)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            return False
        if self.range.hard and not self.range.low <= value <= self.range.high:
            return False
        return abs(value) < 1e18 and (self.kind is Kind.FLOAT or float(value).is_integer())


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


def _significant(number: float) -> float:
    """Rounded to two significant digits."""
    return float(f"{number:.1e}")
