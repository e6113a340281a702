"""Specialists over one shared lineage: the roles that come with the daemon, and which definitions belong to whom.

The partition follows *Auto Research with Specialist Agents Develops Effective and Non-Trivial Training Recipes*. There
it is a matter of prompts alone; here a surface can be checked as well: it is a list of terms, and what an edit touches
outside of them is flagged, never refused.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from autoresearchd.domain.task import Role, Task
from autoresearchd.policy.search.find_constants import UNPARSABLE
from autoresearchd.policy.search.parameter import bag, number_of, range_of, words_of
from autoresearchd.policy.search.program_parts import assignments, blocks, entries

SMALL_ARTEFACT = 100_000_000
"""A limit on the artefact's size below so many bytes makes quantisation a role of its own."""

ARCHITECTURE = Role(
    "architecture",
    "depth, width, aspect ratio, head, layer, block, attention, MLP, norm, residual, resid, rope, rotary, rotate, "
    "window, activation, gate, value embedding, init, softcap, model, config, GPT, net",
    "Shape of the model: what a step computes. A larger model takes fewer steps within the time; say what you expect "
    "of both. One structural change at a time.",
)
OPTIMISER = Role(
    "optimiser",
    "optimiser, learning rate, average, epsilon, momentum, beta, muon, adam, sgd, newton schulz, orthogonalise, "
    "gradient, grad, clip, weight decay",
    "The update rule and its constants: rates by group of parameters, momentum, preconditioning, clipping. Rates and "
    "batch size go together.",
)
SCHEDULE = Role(
    "schedule",
    "schedule, warmup, warmdown, cooldown, anneal, multiplier, final lr, lr decay, progress",
    "How rates and momentum change over the time budget: warm-up, plateau, warm-down, final value. Write schedules "
    "over progress, not over steps: the number of steps is not fixed.",
)
DATA = Role(
    "data",
    "batch size, context, batch, sequence, seq, loader, dataset, token, sampling, packing, shuffle, curriculum, "
    "augment",
    "What the model is fed, and in which order: batch size, length of a row, sampling, packing, curriculum. Only the "
    "training data is yours.",
)
LOSS = Role(
    "loss",
    "loss, cross entropy, objective, criterion, logit, softcap, target, smoothing, auxiliary, distill",
    "What is minimised in training: the loss, auxiliary terms, the treatment of logits. The metric is measured "
    "elsewhere and stays as it is.",
)
REGULARISATION = Role(
    "regularisation",
    "weight decay, dropout, regularise, noise, penalty, smoothing, stochastic depth, ema",
    "What keeps the model from fitting too closely: decay and on which parameters, dropout, noise, averaging. In a "
    "short run less of it is often better.",
)
SYSTEMS = Role(
    "systems",
    "device batch, compile, precision, dtype, autocast, kernel, flash, fused, cuda, thread, worker, accumulate, "
    "memory, prefetch, untimed",
    "Speed without another result: precision, fused kernels, compilation, memory, the data pipeline. More steps within "
    "the time are worth more than most ideas.",
)
EVALUATION_TIME = Role(
    "evaluation-time",
    "load model, inference, predict, generate, checkpoint, average weight, ema, swa, cache",
    "How the trained model is handed over and run: averages of weights, what is stored, how logits are computed. The "
    "scorer and its data are not yours.",
)
QUANTISATION = Role(
    "quantisation",
    "quant, bit, calibrate, round, codebook, pack, compress, prune, checkpoint",
    "How many bytes the model takes, and what is lost by it: bits by tensor, calibration, training that expects it.",
)
META = Role(
    "meta",
    "",
    "The whole recipe is yours. Look for what nobody has tried, combine near misses of different roles, take small "
    "steps on constants that were never moved, and undo kept changes that may have become useless.",
)

_ALWAYS = (ARCHITECTURE, OPTIMISER, SCHEDULE, DATA, LOSS, REGULARISATION, SYSTEMS, EVALUATION_TIME)
_SIZE_WORDS = bag("byte bytes artifact artefact")
_SPLIT = re.compile(r"[,;:.()/\n]|\band\b|\bor\b")
_SHARED = frozenset({"main", "train", "run"})
"""Where everything is put together: touched by all, and flagged for nobody."""
_FILLERS = bag("the a an of its their all in for on with every each other what how")
_BRITISH = re.compile(r"is(e|er|ed|ing|ation)$")
_CONFIG = re.compile(r"^\w*(?:config|args|arguments|params|settings)$", re.IGNORECASE)
_MOST_CHARACTERS = 400_000
_STEM = 4
"""A word of a term stands for all words that begin with it, from so many letters on."""


def preset(task: Task) -> tuple[Role, ...]:
    """The roles of a task: its own where it names any, else those that come with the daemon."""
    sizes = [c.max for c in task.scoring.constraints if c.max is not None and set(words_of(c.metric)) & _SIZE_WORDS]
    small = min(sizes, default=SMALL_ARTEFACT) < SMALL_ARTEFACT
    return task.roles or ((*_ALWAYS, QUANTISATION, META) if small else (*_ALWAYS, META))


def owns(role: Role, name: str, value: int | float | None = None) -> bool:
    """Whether a definition belongs to a role's surface.

    It does where all words of one term are words of its name (``final lr``: ``FINAL_LR_FRAC``), or where a term names
    the family of the constant (``learning rate``: ``MATRIX_LR``). An empty surface is the whole program. name: of a
    function, a class or a constant, with or without its file; value: of the constant, where it is a number.
    """
    terms = _terms(role.surface)
    words = frozenset(_spelled(word) for word in words_of(name))
    if not terms or any(all(_stands_for(word, words) for word in term) for term in terms):
        return True
    found = range_of(name, 8 if value is None else value)
    return found is not None and frozenset(map(_spelled, found.family.split())) in terms


def off_surface(role: Role, before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    """Definitions that an edit changed or removed and that are none of the role's, such as ``train.py:MATRIX_LR``.

    New definitions are whose they are made by, and ``main`` is everybody's. A file that is not Python, or cannot be
    parsed, is not looked at. before, after: the editable files by path, ``after`` only those that were touched.
    """
    return tuple(
        f"{path}:{name}"
        for path in sorted(after)
        if path.endswith(".py") and path in before and before[path] != after[path]
        for name, value in touched(before[path], after[path]).items()
        if name not in _SHARED and not owns(role, name, value)
    )


def _stands_for(term: str, words: frozenset[str]) -> bool:
    return term in words or (len(term) >= _STEM and any(word.startswith(term) for word in words))


@lru_cache(maxsize=64)
def _terms(surface: str) -> frozenset[frozenset[str]]:
    terms = [{_spelled(word) for word in words_of(part) if word not in _FILLERS} for part in _SPLIT.split(surface)]
    return frozenset(frozenset(term) for term in terms if term)


def _spelled(word: str) -> str:
    return _BRITISH.sub(r"iz\1", word)


# ---------------------------------------------------------------------- what an edit touches
def touched(before: str, after: str) -> dict[str, int | float | None]:
    """Top-level names that an edit changed or removed, with the numbers that they stood for, None where that is none.

    Entries of dictionaries and fields of classes of settings have names of their own: ``CONFIG.lr``. New names are not
    among them. Nothing where a file cannot be parsed or is larger than any program.
    """
    if max(len(before), len(after)) > _MOST_CHARACTERS:
        return {}
    try:
        was, became = _definitions(before), _definitions(after)
    except UNPARSABLE:
        return {}
    changed = sorted(name for name in was if [c for c, _ in was[name]] != [c for c, _ in became.get(name, ())])
    return {name: next((n for _, n in reversed(was[name]) if n is not None), None) for name in changed}


def _definitions(text: str) -> dict[str, list[tuple[str, int | float | None]]]:
    """What stands under each name, without comments, and the number where that is one."""
    found: dict[str, list[tuple[str, int | float | None]]] = defaultdict(list)
    with warnings.catch_warnings(action="ignore"):  # a doubtful escape is the model's affair
        tree = ast.parse(text.removeprefix("\ufeff"))
    for name, context, node in _read_block(tree.body, "", ""):
        number = number_of(node) if isinstance(node, ast.expr) and context.endswith("=") else None
        found[name].append((context + ast.unparse(node), number))
    return found


def _read_block(body: Iterable[ast.stmt], owner: str, context: str) -> Iterator[tuple[str, str, ast.AST]]:
    """The definitions of a block. owner: the class of settings that it is of; context: the conditions it is under."""
    for node in body:
        if isinstance(node, ast.ClassDef) and _CONFIG.search(node.name):
            yield from _read_block(node.body, f"{node.name}.", "")
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield owner + node.name, context, node
        elif isinstance(node, (ast.If, ast.For, ast.While, ast.With, ast.Try)):
            test = ast.unparse(node.test) if isinstance(node, (ast.If, ast.While)) else ""
            for i, block in enumerate(blocks(node)):
                yield from _read_block(block, owner, f"{context}{test}/{i}:")
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            pairs = [*assignments([node])]
            for name, value in pairs:
                for label, entry in _entries(owner + name, value):
                    yield label, f"{context}=", entry
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if not pairs:  # added to, unpacked, or a part of something
                inner = (n for target in targets for n in ast.walk(target))
                yield from ((owner + n.id, context, node) for n in inner if isinstance(n, ast.Name))


def _entries(name: str, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """What a name holds: each entry of a dictionary by itself, where all keys can stand in a name."""
    known = dict(entries(value)) if isinstance(value, ast.Dict) else {}
    if isinstance(value, ast.Dict) and 0 < len(known) == len(value.keys):
        for key, entry in known.items():
            yield from _entries(f"{name}.{key}", entry)
    else:
        yield name, value
