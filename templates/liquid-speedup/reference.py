"""The template language, as a program. Protected: outputs are compared with this one's, and times with its time.

    {{ value | filter: value, value | … }}              a value: "text", 'text', 3, 2.5, true, false, nil, a.b[0].c
    {% assign name = value | … %}                       known from here on, whatever block it stands in
    {% capture name %} … {% endcapture %}
    {% if condition %} … {% elsif … %} … {% else %} … {% endif %}       also unless … endunless
    {% for name in value reversed limit: 3 offset: 1 %} … {% else %} … {% endfor %}     also in (1..value)
    {% comment %} … {% endcomment %}

A condition is a value, or two with `==`, `!=`, `<`, `>`, `<=`, `>=` or `contains` between them; several are joined by
`and` and `or`, read from the right. In a loop `forloop` has index, index0, rindex, length, first and last. A dash in
a tag (`{%-`, `-}}`) takes the blanks on that side. A missing variable is nil, and nil is written as nothing. Errors:
what does not parse, tags that are not closed, unknown tags and filters, a wrong number of arguments, division by zero,
numbers beyond 10^15, ranges of more than 10,000.

`template.py` began as a copy of this file, with its caches and its self-check added.
"""

import html
import re

TAG = re.compile(r"(\{\{.*?\}\}|\{%.*?%\})", re.DOTALL)
WORD = re.compile(
    r"""\s*(?: (?P<text>"[^"]*"|'[^']*') | (?P<number>-?\d+(?:\.\d+)?)
    | (?P<path>[^\W\d]\w*(?:\.\w+|\[-?\d+\])*) | (?P<sign>==|!=|<=|>=|\.\.|[<>|:,()]) )""",
    re.VERBOSE,
)
NUMBER = re.compile(r"-?[0-9]{1,12}(\.[0-9]{1,6})?")
NAME = re.compile(r"[^\W\d]\w*")
LARGEST = 10**15  # fixed
CONSTANTS = {"true": True, "false": False, "nil": None}  # fixed
COMPARISONS = {"==", "!=", "<", ">", "<=", ">=", "contains"}


class TemplateError(Exception):
    """A template that cannot be parsed or rendered."""


# ---------------------------------------------------------------------- values
def text(value):
    """A value as it is written out."""
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, dict):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "".join(text(v) for v in value)
    return str(value)


def number(value):
    """A value as a number; what is none counts as 0."""
    if isinstance(value, bool) or value is None:
        return 0
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, str) and NUMBER.fullmatch(value):
        return float(value) if "." in value else int(value)
    return 0


def limited(value):
    """A result of arithmetic, which may not grow without end."""
    if abs(value) > LARGEST:
        raise TemplateError("a number is too large")
    return value


def items(value):
    """What a loop runs over."""
    if isinstance(value, list):
        return value
    if isinstance(value, dict):
        return [[key, inner] for key, inner in value.items()]
    return [] if value is None else [value]


def member(value, name):
    """`value.name` or `value[name]`; None where there is none."""
    if isinstance(value, dict) and name in value:
        return value[name]
    if isinstance(value, list):
        if isinstance(name, int):
            return value[name] if -len(value) <= name < len(value) else None
        if name == "first":
            return value[0] if value else None
        if name == "last":
            return value[-1] if value else None
    if name == "size" and isinstance(value, (list, dict, str)):
        return len(value)
    return None


def truthy(value):
    """Everything but nil and false."""
    return value is not None and value is not False


def compare(left, sign, right):
    """Whether a comparison holds; what cannot be compared is not in order."""
    if sign == "==":
        return left == right and isinstance(left, bool) == isinstance(right, bool)
    if sign == "!=":
        return not compare(left, "==", right)
    if sign == "contains":
        if isinstance(left, str):
            return text(right) in left
        return isinstance(left, list) and right in left
    numbers = isinstance(left, (int, float)) and isinstance(right, (int, float))
    if not numbers and not (isinstance(left, str) and isinstance(right, str)):
        return False
    if sign == "<":
        return left < right
    if sign == ">":
        return left > right
    return left <= right if sign == "<=" else left >= right


# ---------------------------------------------------------------------- filters
def divide(value, by):
    """Division; of two integers, rounded down."""
    left, right = number(value), number(by)
    if right == 0:
        raise TemplateError("division by zero")
    return limited(left // right if isinstance(left, int) and isinstance(right, int) else left / right)


def modulo(value, by):
    """The remainder."""
    if number(by) == 0:
        raise TemplateError("division by zero")
    return number(value) % number(by)


def rounded(value, digits=0):
    """Rounded to digits; to an integer without any."""
    digits = int(number(digits))
    return round(number(value), digits) if digits > 0 else round(number(value))


def truncate(value, length=50, end="..."):
    """Cut so that it is, with its end, at most so long."""
    value, end = text(value), text(end)
    length = int(number(length))
    return value if len(value) <= length else value[: max(0, length - len(end))] + end


def part(value, start, length=1):
    """A piece of a text or a list, from a place on."""
    value = value if isinstance(value, list) else text(value)
    start, length = int(number(start)), max(0, int(number(length)))
    start = max(0, start + len(value)) if start < 0 else start
    return value[start : start + length]


def in_order(value, name=None):
    """Sorted as numbers where all are numbers, as text otherwise."""
    found = list(items(value))
    keys = [member(v, text(name)) for v in found] if name is not None else found
    plain = all(isinstance(k, (int, float)) and not isinstance(k, bool) for k in keys)
    order = sorted(range(len(found)), key=lambda i: keys[i] if plain else text(keys[i]))
    return [found[i] for i in order]


def unique(value):
    """The first of those that are written alike."""
    seen, found = set(), []
    for item in items(value):
        if text(item) not in seen:
            seen.add(text(item))
            found.append(item)
    return found


FILTERS = {
    "upcase": lambda v: text(v).upper(),
    "downcase": lambda v: text(v).lower(),
    "capitalize": lambda v: text(v)[:1].upper() + text(v)[1:],
    "strip": lambda v: text(v).strip(),
    "escape": lambda v: html.escape(text(v)),
    "append": lambda v, end: text(v) + text(end),
    "prepend": lambda v, start: text(start) + text(v),
    "replace": lambda v, old, new="": text(v).replace(text(old), text(new)) if text(old) else text(v),
    "truncate": truncate,
    "slice": part,
    "split": lambda v, by=" ": text(v).split(text(by) or None),
    "join": lambda v, by=" ": text(by).join(text(i) for i in items(v)),
    "size": lambda v: len(v) if isinstance(v, (list, dict, str)) else 0,
    "first": lambda v: member(v, "first"),
    "last": lambda v: member(v, "last"),
    "reverse": lambda v: list(reversed(items(v))),
    "sort": in_order,
    "uniq": unique,
    "map": lambda v, name: [member(i, text(name)) for i in items(v)],
    "where": lambda v, name, like=True: [i for i in items(v) if compare(member(i, text(name)), "==", like)],
    "sum": lambda v, name=None: limited(sum(number(i if name is None else member(i, text(name))) for i in items(v))),
    "plus": lambda v, by: limited(number(v) + number(by)),
    "minus": lambda v, by: limited(number(v) - number(by)),
    "times": lambda v, by: limited(number(v) * number(by)),
    "divided_by": divide,
    "modulo": modulo,
    "abs": lambda v: abs(number(v)),
    "round": rounded,
    "default": lambda v, other: v if truthy(v) and v not in ("", []) else other,
}
ARGUMENTS = {  # how many each takes, least and most, beside the value
    name: (function.__code__.co_argcount - 1 - len(function.__defaults__ or ()), function.__code__.co_argcount - 1)
    for name, function in FILTERS.items()
}


# ---------------------------------------------------------------------- expressions
class Literal:
    """A constant."""

    def __init__(self, value):
        self.value = value

    def evaluate(self, scope):
        return self.value


class Variable:
    """A variable, and the way into it."""

    def __init__(self, words):
        self.name, *steps = re.findall(r"\w+|-\d+", words)
        self.steps = [int(s) if re.fullmatch(r"-?[0-9]+", s) else s for s in steps]

    def evaluate(self, scope):
        value = scope.get(self.name)
        for step in self.steps:
            value = member(value, step)
        return value


class Filtered:
    """A value and the filters that it goes through."""

    def __init__(self, base, filters):
        self.base, self.filters = base, filters

    def evaluate(self, scope):
        value = self.base.evaluate(scope)
        for function, arguments in self.filters:
            value = function(value, *[a.evaluate(scope) for a in arguments])
        return value


class Comparison:
    """Two values and a sign between them."""

    def __init__(self, left, sign, right):
        self.left, self.sign, self.right = left, sign, right

    def evaluate(self, scope):
        return compare(self.left.evaluate(scope), self.sign, self.right.evaluate(scope))


class Both:
    """Two conditions with `and` or `or` between them."""

    def __init__(self, left, sign, right):
        self.left, self.sign, self.right = left, sign, right

    def evaluate(self, scope):
        left = truthy(self.left.evaluate(scope))
        if self.sign == "and":
            return left and truthy(self.right.evaluate(scope))
        return left or truthy(self.right.evaluate(scope))


class Words:
    """The words of an expression, read from left to right."""

    def __init__(self, source):
        self.found, at, source = [], 0, source.rstrip()
        while at < len(source):
            match = WORD.match(source, at)
            if not match:
                raise TemplateError(f"cannot read {source[at:]!r}")
            self.found.append((match.lastgroup, match[match.lastgroup]))
            at = match.end()
        self.at = 0

    def peek(self):
        return self.found[self.at][1] if self.at < len(self.found) else None

    def take(self, wanted=None):
        if self.at >= len(self.found) or (wanted is not None and self.peek() != wanted):
            raise TemplateError(f"{wanted or 'a value'} is missing")
        self.at += 1
        return self.found[self.at - 1]

    def end(self):
        if self.at < len(self.found):
            raise TemplateError(f"{self.peek()!r} is too much")

    def value(self):
        kind, word = self.take()
        if kind == "text":
            return Literal(word[1:-1])
        if kind == "number":
            return Literal(float(word) if "." in word else int(word))
        if kind == "path":
            return Literal(CONSTANTS[word]) if word in CONSTANTS else Variable(word)
        raise TemplateError(f"{word!r} is no value")

    def filtered(self):
        base, filters = self.value(), []
        while self.peek() == "|":
            self.take()
            name, arguments = self.take()[1], []
            if self.peek() == ":":
                self.take()
                arguments.append(self.value())
                while self.peek() == ",":
                    self.take()
                    arguments.append(self.value())
            least, most = ARGUMENTS.get(name, (0, 0))
            if name not in FILTERS or not least <= len(arguments) <= most:
                raise TemplateError(f"no filter {name} takes {len(arguments)} arguments")
            filters.append((FILTERS[name], arguments))
        return Filtered(base, filters) if filters else base

    def condition(self):
        left = self.value()
        if self.peek() in COMPARISONS:
            left = Comparison(left, self.take()[1], self.value())
        if self.peek() in ("and", "or"):
            return Both(left, self.take()[1], self.condition())
        return left


def expression(source):
    """A value with filters, from its text."""
    words = Words(source)
    found = words.filtered()
    words.end()
    return found


def condition(source):
    """A condition, from its text."""
    words = Words(source)
    found = words.condition()
    words.end()
    return found


# ---------------------------------------------------------------------- nodes
class Scope:
    """Variables: the context's, then assigned ones, then those of loops, the innermost last."""

    def __init__(self, variables):
        self.frames = [variables, {}]

    def get(self, name):
        for frame in reversed(self.frames):
            if name in frame:
                return frame[name]
        return None


class Text:
    """What is written out as it is."""

    def __init__(self, content):
        self.content = content

    def render(self, scope):
        return self.content


class Output:
    """`{{ … }}`."""

    def __init__(self, value):
        self.value = value

    def render(self, scope):
        return text(self.value.evaluate(scope))


class Assign:
    """`{% assign name = … %}`."""

    def __init__(self, name, value):
        self.name, self.value = name, value

    def render(self, scope):
        scope.frames[1][self.name] = self.value.evaluate(scope)
        return ""


class Capture:
    """`{% capture name %}…{% endcapture %}`."""

    def __init__(self, name, body):
        self.name, self.body = name, body

    def render(self, scope):
        scope.frames[1][self.name] = self.body.render(scope)
        return ""


class Branches:
    """`{% if … %}…{% elsif … %}…{% else %}…{% endif %}`, and `unless`."""

    def __init__(self, branches):
        self.branches = branches

    def render(self, scope):
        for wanted, when, body in self.branches:
            if truthy(when.evaluate(scope)) == wanted:
                return body.render(scope)
        return ""


class Loop:
    """`{% for name in … %}…{% else %}…{% endfor %}`."""

    def __init__(self, name, over, backwards, limits, body, otherwise):
        self.name, self.over, self.backwards, self.limits = name, over, backwards, limits
        self.body, self.otherwise = body, otherwise

    def render(self, scope):
        if isinstance(self.over, tuple):
            low, high = (int(number(end.evaluate(scope))) for end in self.over)
            if high - low > 10_000:
                raise TemplateError("a range is too long")
            found = list(range(low, high + 1))
        else:
            found = items(self.over.evaluate(scope))
        if "offset" in self.limits:
            found = found[max(0, int(number(self.limits["offset"].evaluate(scope)))) :]
        if "limit" in self.limits:
            found = found[: max(0, int(number(self.limits["limit"].evaluate(scope))))]
        if self.backwards:
            found = list(reversed(found))
        if not found:
            return self.otherwise.render(scope)
        output = ""
        for index, item in enumerate(found):
            state = {
                "index": index + 1, "index0": index, "rindex": len(found) - index, "length": len(found),
                "first": index == 0, "last": index == len(found) - 1,
            }  # fmt: skip
            scope.frames.append({self.name: item, "forloop": state})
            output += self.body.render(scope)
            scope.frames.pop()
        return output


class Block:
    """Nodes one after another."""

    def __init__(self, nodes):
        self.nodes = nodes

    def render(self, scope):
        return "".join(node.render(scope) for node in self.nodes)


# ---------------------------------------------------------------------- templates
class Parser:
    """The pieces of a source, read from left to right."""

    def __init__(self, source):
        self.pieces = TAG.split(source)
        for i in range(1, len(self.pieces), 2):  # a dash in a tag takes the blanks beside it
            if self.pieces[i][2] == "-":
                self.pieces[i - 1] = self.pieces[i - 1].rstrip()
            if self.pieces[i][-3] == "-":
                self.pieces[i + 1] = self.pieces[i + 1].lstrip()
        self.at = 0

    def block(self, ends):
        """Nodes up to one of the tags that end them; with that tag's name and the rest of its text."""
        nodes = []
        while self.at < len(self.pieces):
            piece, is_tag = self.pieces[self.at], self.at % 2 == 1
            self.at += 1
            if not is_tag:
                nodes.append(Text(piece))
                continue
            inner = piece[2:-2].strip("-").strip()
            if piece.startswith("{{"):
                nodes.append(Output(expression(inner)))
                continue
            name, _, rest = inner.partition(" ")
            if name in ends:
                return Block(nodes), name, rest.strip()
            nodes.append(self.tag(name, rest.strip()))
        if ends:
            raise TemplateError(f"{ends[-1]} is missing")
        return Block(nodes), "", ""

    def tag(self, name, rest):
        if name == "assign":
            target, sign, value = rest.partition("=")
            if not sign or not NAME.fullmatch(target.strip()):
                raise TemplateError("assign needs a name, = and a value")
            return Assign(target.strip(), expression(value.strip()))
        if name == "capture":
            if not NAME.fullmatch(rest):
                raise TemplateError("capture needs a name")
            return Capture(rest, self.block(["endcapture"])[0])
        if name == "comment":
            while self.at < len(self.pieces):
                piece = self.pieces[self.at]
                self.at += 1
                if piece.startswith("{%") and piece[2:-2].strip("-").strip() == "endcomment":
                    return Text("")
            raise TemplateError("endcomment is missing")
        if name in ("if", "unless"):
            return self.branches(name, rest)
        if name == "for":
            return self.loop(rest)
        raise TemplateError(f"there is no tag {name!r}")

    def branches(self, name, rest):
        branches, end = [], "end" + name
        wanted, when = name == "if", condition(rest)
        while True:
            body, found, rest = self.block(["elsif", "else", end])
            branches.append((wanted, when, body))
            if found == end:
                return Branches(branches)
            if found == "else":
                branches.append((True, Literal(True), self.block([end])[0]))
                return Branches(branches)
            wanted, when = True, condition(rest)

    def loop(self, rest):
        words = Words(rest)
        kind, name = words.take()
        if kind != "path" or "." in name or "[" in name:
            raise TemplateError("for needs a name")
        words.take("in")
        if words.peek() == "(":
            words.take()
            low = words.value()
            words.take("..")
            over = (low, words.value())
            words.take(")")
        else:
            over = words.value()
        backwards, limits = False, {}
        while words.peek() is not None:
            word = words.take()[1]
            if word == "reversed":
                backwards = True
            elif word in ("limit", "offset"):
                words.take(":")
                limits[word] = words.value()
            else:
                raise TemplateError(f"for knows no {word}")
        body, found, _ = self.block(["else", "endfor"])
        otherwise = self.block(["endfor"])[0] if found == "else" else Block([])
        return Loop(name, over, backwards, limits, body, otherwise)


class Template:
    """A source, parsed."""

    def __init__(self, source):
        self.body = Parser(source).block([])[0]

    def render(self, variables):
        """The text for some variables."""
        return self.body.render(Scope(variables))
