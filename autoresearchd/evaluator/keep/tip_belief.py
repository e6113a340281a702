"""What is believed of the tip and of the next edit: a Bayes filter over the readings of a session, in order.

Unknown are the tip's level, the noise σ of one run, and how edits of this session turn out. Each reading of a
candidate, y = level + effect + noise, tells of all three: with many edits that change little, every discarded one is a
reading of the tip, too. So no run is spent on repeats before a confirmation, and no lucky value is believed: the level
of a kept program is the *shrunken* one.

Effects, in σ, have a prior on a grid that the session's own history moves (empirical Bayes: Efron, *Large-Scale
Inference*, 2010, ch. 1 and 5; here by on-line expectation-maximisation, Cappé & Moulines, *JRSS B* 71, 2009). σ is a
grid of hypotheses that may drift and jump (a hidden Markov model; forward algorithm). Given σ, the level is normal; its
mixture over effects is matched by mean and variance (assumed-density filtering, Minka, *UAI* 2001). A reading may come
from a far noisier program, and a program may be anywhere: a metric that changes its unit is no reading of the tip.
What later readings tell of the tip they tell of the last keep, too, which is taken back once it seems a loss.

Pure: a restart replays the readings since the belief was stored. Values are *goodness*: larger is better, whatever the
metric's direction.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

_SIDE: Array = np.exp(np.linspace(math.log(0.15), math.log(300.0), 36))
EFFECTS: Array = np.concatenate([-_SIDE[::-1], [0.0], _SIDE])
"""Effects of edits, in σ: the centres of cells."""
_CELLS: Array = np.concatenate([_SIDE[::-1], [0.0], _SIDE]) * (_SIDE[1] / _SIDE[0] - 1.0) / math.sqrt(12.0)
"""Deviation of the effects in a cell: those of tens of σ are wider than the noise."""
NULL, HARM, GAIN = 0.5, 0.39, 0.11
"""Shares of edits before anything is measured: half change nothing, harms are 3 to 4 times as frequent as gains."""
HARM_LOG, GAIN_LOG = (0.4, 1.5), (0.0, 1.8)
"""Mean and deviation of the logarithm of their sizes in σ."""
PSEUDO = 20.0
"""How many measured edits this prior is worth."""
SIGMAS: Array = np.exp(np.linspace(math.log(1 / 60), math.log(6.0), 34))
"""Hypotheses of σ, as multiples of the deviation of the baseline's runs."""
WALK, JUMP = 0.03, 0.01
"""Probabilities that σ goes to a neighbour, either way, and anywhere, from one reading to the next."""
DRIFT = 0.03
"""Variance that the level gains from one reading to the next, in σ²."""
ODD, ODD_VARIANCE = 0.01, 64.0
"""Probability of a far noisier program, and how much larger the variance of its runs is."""
ANYWHERE, FAR_VARIANCE = 1e-4, 1e6
"""Probability of a program that is anywhere, and the least variance of where it is, in σ²: its tail is heavy."""
FALLEN_VARIANCE = 1.0
"""Variance that the confirmed program's level has gained since it was the tip, when a chain falls, in σ²."""
ELSEWHERE = 4.0
"""From so many standard errors off, its runs in the confirmation tell more than what was believed of it then."""
REGRET = 0.2
"""The last keep is taken back once it is expected to have lost so many σ: at 0 it would come and go."""
TIE = 0.5
"""A simpler program may be worse by so many σ and still be a tie."""
_HUGE = 1e150
"""No value counts as larger, nor as smaller than minus this: squares stay finite."""
_FAR_OFF = 1e50
"""Distances are cut at so many σ."""
_LEAST_NOISE, _ROUNDING = 1e-100, 1e-14
"""A deviation of less than this, or than this share of the values, is none."""
_OF_BELIEF, _OF_BEFORE = (
    ("sigmas", "weights", "levels", "variances", "counts"),
    ("levels", "variances", "slopes", "at", "spread"),
)
_AT_LEAST_TIE: Array = np.where(-TIE <= EFFECTS, 1.0, 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class TipBelief:
    """sigmas, weights: hypotheses of σ; levels, variances: of the tip, under each; counts: of effects (``EFFECTS``).

    Shapes: (S,) each, but counts (E,). Where no noise was seen there is one hypothesis, σ = 0. readings: of the tip's
    own program, on the seed of experiments. before: the program before the last keep (None: the tip is the confirmed
    program).
    """

    sigmas: Array
    weights: Array
    levels: Array
    variances: Array
    counts: Array
    readings: tuple[float, ...] = ()
    before: Before | None = None

    @property
    def exact(self) -> bool:
        """Whether the metric has no noise, as far as is known."""
        return len(self.sigmas) == 1

    @property
    def sigma(self) -> float:
        """σ of one run: the geometric mean of its posterior; 0 without noise. In units of the metric."""
        return 0.0 if self.exact else math.exp(float(self.weights @ np.log(self.sigmas)))

    @property
    def level(self) -> float:
        """The tip's goodness."""
        return float(self.weights @ self.levels)

    @property
    def prior(self) -> float:
        """P(effect > 0) of an edit that has not run, by all that have."""
        return float(self.counts[EFFECTS > 0].sum() / self.counts.sum())

    @property
    def hope(self) -> float:
        """What an edit that has not run is expected to bring if it is kept where it is a gain, in the metric."""
        return self.sigma * float(self.counts @ np.maximum(EFFECTS, 0.0) / self.counts.sum())

    @property
    def error(self) -> float:
        """Standard error of the level."""
        return math.sqrt(float(self.weights @ (self.variances + (self.levels - self.level) ** 2)))


@dataclass(frozen=True, slots=True, eq=False)
class Before:
    """The program before a keep. was: what was believed of it until then; levels, variances: with the keep's reading.

    slopes: by how much its level moves with that of the program that was kept, whose levels and variances are at and
    spread. Shapes (S,).
    """

    was: TipBelief
    levels: Array
    variances: Array
    slopes: Array
    at: Array
    spread: Array


@dataclass(frozen=True, slots=True, eq=False)
class Posterior:
    """Of a candidate after its reading.

    gain, error: expected effect and its standard error in units of the metric; in_sigma: the effect in σ; better:
    P(effect > 0); bearable: P(effect ≥ −``TIE`` σ). kept, discarded: what is believed of the tip if it is now this
    candidate, and if it is not.
    """

    gain: float
    error: float
    in_sigma: float
    better: float
    bearable: float
    kept: TipBelief
    discarded: TipBelief


class Step(NamedTuple):
    """A decided experiment: its goodness, and whether it was kept; or a verdict: see ``measured`` and ``fell``.

    runs: of a confirmation, whose mean the value is; fell: the chain did; back: the last keep was taken back.
    """

    value: float
    kept: bool = False
    fell: bool = False
    runs: int = 0
    back: bool = False


def begin(values: Sequence[float]) -> TipBelief:
    """From the runs of a baseline, at least two, the first on the seed of experiments. ValueError: fewer."""
    if len(values) < 2:
        raise ValueError("noise is known from two runs on")
    values, counts = [held(x) for x in values], PSEUDO * _prior()
    n, mean = len(values), math.fsum(values) / len(values)
    squares = math.fsum((x - mean) ** 2 for x in values)
    deviation = math.sqrt(squares / (n - 1))
    if deviation <= max(_LEAST_NOISE, _ROUNDING * abs(mean)):
        return TipBelief(np.zeros(1), np.ones(1), np.array([values[0]]), np.zeros(1), counts, (values[0],))
    sigmas = SIGMAS * deviation
    log = -(n - 1) * np.log(sigmas) - 0.5 * squares / sigmas**2
    weights, levels = _normal(np.exp(log - log.max())), np.full(len(sigmas), mean)
    return TipBelief(sigmas, weights, levels, sigmas**2 / n, counts, (values[0],))


def look(belief: TipBelief, value: float) -> Posterior:
    """What one reading of a candidate says of it, and of the tip."""
    value = held(value)
    if belief.exact:
        return _compare(belief, value)
    if value in belief.readings:
        return _unchanged(belief)
    sigmas, weights, shares = belief.sigmas, _moved(belief.weights), _normal(belief.counts)
    noise = sigmas**2
    before = belief.variances + DRIFT * noise
    # Kinds of readings: of a usual program, of a noisy one, and of one that is anywhere. Shapes (S, E), (S, E), (S, 1).
    whole = (value - belief.levels)[:, None]
    off = np.clip(whole, -_FAR_OFF * sigmas[:, None], _FAR_OFF * sigmas[:, None])
    rest = off - sigmas[:, None] * EFFECTS
    cells = noise[:, None] * _CELLS**2
    usual, odd = ((before + x * noise)[:, None] + cells for x in (1.0, ODD_VARIANCE))
    far = (before + (1.0 + FAR_VARIANCE) * noise)[:, None]
    far = np.maximum(far, off**2)
    with np.errstate(under="ignore"):
        log_usual = math.log1p(-ODD - ANYWHERE) - 0.5 * (rest**2 / usual + np.log(usual))
        log_odd = math.log(ODD) - 0.5 * (rest**2 / odd + np.log(odd))
        log_far = math.log(ANYWHERE) - 0.5 * (off**2 / far + np.log(far))
        top = np.maximum(np.maximum(log_usual, log_odd).max(axis=1, keepdims=True), log_far)
        p_usual, p_odd, p_far = shares * np.exp(log_usual - top), shares * np.exp(log_odd - top), np.exp(log_far - top)
        total = (p_usual + p_odd).sum(axis=1, keepdims=True) + p_far
        logs = (top + np.log(total))[:, 0]
        weights = _normal(weights * np.exp(logs - logs.max()))
        p_usual, p_odd, p_far = p_usual / total, p_odd / total, p_far / total
    pull_usual, pull_odd = before[:, None] / usual, before[:, None] / odd
    # The tip, where it stays the tip: a program that is anywhere says nothing of it.
    moves_usual, moves_odd = pull_usual * rest, pull_odd * rest
    move = (p_usual * moves_usual + p_odd * moves_odd).sum(axis=1)
    left = 1.0 - (p_usual * pull_usual + p_odd * pull_odd).sum(axis=1)
    stays = before * left + (p_usual * moves_usual**2 + p_odd * moves_odd**2).sum(axis=1) - move**2
    # The candidate, where it is the tip from now on; measured from the level before.
    goes_usual, goes_odd = (before[:, None] + cells) / usual, (before[:, None] + cells) / odd
    at_usual, at_odd = (sigmas[:, None] * EFFECTS + share * rest for share in (goes_usual, goes_odd))
    at_far = off * (1.0 - noise[:, None] / far)
    there = (p_usual * at_usual + p_odd * at_odd).sum(axis=1, keepdims=True) + p_far * at_far
    wide_usual, wide_odd = ((before[:, None] + cells) * (1.0 - share) for share in (goes_usual, goes_odd))
    goes = (p_usual * (wide_usual + (at_usual - there) ** 2) + p_odd * (wide_odd + (at_odd - there) ** 2)).sum(axis=1)
    goes += (p_far * (noise[:, None] + (at_far - there) ** 2))[:, 0]
    # How the two go together: an error in the level before is one in both.
    joint = (p_usual * (moves_usual - move[:, None]) * (at_usual - there)).sum(axis=1)
    joint += (p_odd * (moves_odd - move[:, None]) * (at_odd - there)).sum(axis=1)
    joint += before * (p_usual * (1.0 - goes_usual) + p_odd * (1.0 - goes_odd)).sum(axis=1)
    joint -= (p_far * move[:, None] * (at_far - there))[:, 0]
    there += p_far * (whole - off)
    # Its effect.
    p = p_usual + p_odd
    gone = (at_far / sigmas[:, None])[:, 0]
    effect_usual, effect_odd = (sigmas[:, None] * EFFECTS + rest * (cells / kind) for kind in (usual, odd))
    effects = (p_usual * effect_usual + p_odd * effect_odd).sum(axis=1) / sigmas + p_far[:, 0] * gone
    gain = float(weights @ (sigmas * effects))
    squares = (p_usual * ((effect_usual - gain) ** 2 + cells * (1.0 - cells / usual))).sum(axis=1)
    squares += (p_odd * ((effect_odd - gain) ** 2 + cells * (1.0 - cells / odd))).sum(axis=1)
    squares += p_far[:, 0] * (noise + (sigmas * gone - gain) ** 2)
    error = math.sqrt(float(weights @ squares))
    up = p_far[:, 0] * (gone > 0)
    seen = replace(belief, weights=weights, counts=belief.counts + weights @ p)
    least = 1e-12 * noise
    to, spread = belief.levels + there[:, 0], np.maximum(goes, least)
    stayed = replace(seen, levels=belief.levels + move, variances=np.maximum(stays, least))
    then = Before(belief, stayed.levels, stayed.variances, joint / spread, to, spread)
    return Posterior(
        gain,
        error,
        float(weights @ effects),
        float(weights @ (p @ np.where(EFFECTS > 0, 1.0, 0.0) + up)),
        float(weights @ (p @ _AT_LEAST_TIE + up)),
        kept=replace(seen, levels=to, variances=spread, readings=(value,), before=then),
        discarded=stayed,
    )


def _compare(belief: TipBelief, value: float) -> Posterior:
    """A reading of a metric without noise: what it shows is true."""
    gain = value - belief.level
    in_sigma = math.copysign(math.inf, gain) if gain else 0.0
    kept = replace(belief, levels=np.array([value]), readings=(value,))
    return Posterior(gain, 0.0, in_sigma, float(gain > 0), float(gain >= 0), kept, belief)


def _unchanged(belief: TipBelief) -> Posterior:
    """A reading that the tip gave, too, to the last digit: on the same seed, of a program that computes the same.

    It says that the edit changes nothing; it says nothing of noise, which would soon be believed to be 0.
    """
    seen = replace(belief, counts=belief.counts + np.where(EFFECTS == 0.0, 1.0, 0.0))
    levels, variances = belief.levels, belief.variances
    then = Before(belief, levels, variances, np.ones_like(levels), levels, variances)
    return Posterior(0.0, 0.0, 0.0, 0.0, 1.0, replace(seen, before=then), seen)


def fell(belief: TipBelief, value: float) -> TipBelief:
    """After a chain fell: the tip is the confirmed program again. value: its mean in the confirmation.

    Without noise it is its level. With noise the seeds were others, and what was believed of it when it was the tip
    tells more; were it measured by the level of what fell, no true gain would be kept any more. But where it is far
    from that, the metric has changed, or it was confirmed by an older rule, whose belief went on from the baseline.
    """
    if belief.exact:
        return replace(belief, levels=np.array([held(value)]), readings=(value,))
    home = belief
    while home.before is not None:
        home = home.before.was
    variances = home.variances + FALLEN_VARIANCE * belief.sigmas**2
    error = math.hypot(home.error, belief.sigma * math.sqrt(FALLEN_VARIANCE + 1.0))
    if abs(held(value) - home.level) > ELSEWHERE * error:
        return beside(belief, value)
    return replace(belief, levels=home.levels, variances=variances, readings=home.readings)


def taken_back(belief: TipBelief) -> TipBelief:
    """After the last keep was taken back: the tip is the program before it, of which later readings told, too."""
    then = belief.before
    if then is None:
        return belief
    levels = then.levels + then.slopes * (belief.levels - then.at)
    variances = then.variances - then.slopes**2 * (then.spread - belief.variances)
    variances = np.maximum(variances, 1e-3 * belief.sigmas**2)
    return replace(belief, levels=levels, variances=variances, readings=then.was.readings, before=then.was.before)


def kept_on(belief: TipBelief, keeps: int) -> TipBelief:
    """After a keep of the chain was confirmed: so many are left above it."""
    links, then = list[Before](), belief.before
    while then is not None and len(links) < keeps:
        links.append(then)
        then = then.was.before
    below: Before | None = None
    for link in reversed(links):
        below = replace(link, was=replace(link.was, before=below))
    return replace(belief, before=below)


def regret(belief: TipBelief, least: float = REGRET) -> tuple[float, float] | None:
    """What the last keep is expected to have lost, with its standard error; None: not more than so many σ."""
    then = belief.before
    if then is None or belief.exact:
        return None
    losses = taken_back(belief).levels - belief.levels
    if float(belief.weights @ (losses / belief.sigmas)) <= least:
        return None
    loss = float(belief.weights @ losses)
    own = then.variances - then.slopes**2 * then.spread + (1.0 - then.slopes) ** 2 * belief.variances
    return loss, math.sqrt(max(0.0, float(belief.weights @ (own + (losses - loss) ** 2))))


def measured(belief: TipBelief, value: float, runs: int) -> TipBelief:
    """After a confirmation: the mean of so many runs of the tip, on other seeds than the session's.

    A gain of tens of σ is believed only in part at first; without this the next edit would be praised for the rest.
    """
    if belief.exact:
        return replace(belief, levels=np.array([held(value)]))
    whole = belief.variances + belief.sigmas**2 * (1.0 + 1.0 / runs)
    off, pull = held(value) - belief.levels, belief.variances / whole
    logs = np.log(belief.weights + 1e-300) - 0.5 * (np.minimum(off**2 / whole, _FAR_OFF) + np.log(whole))
    return replace(
        belief,
        weights=_normal(np.exp(logs - logs.max())),
        levels=belief.levels + pull * off,
        variances=belief.variances * (1.0 - pull),
    )


def beside(belief: TipBelief, value: float) -> TipBelief:
    """The same belief of noise and of edits, with a tip of which one run is known, made just now."""
    levels = np.full(len(belief.sigmas), held(value))
    return replace(belief, levels=levels, variances=belief.sigmas**2, readings=(value,))


def dump(belief: TipBelief) -> dict[str, Any]:
    """The belief as JSON, from which ``load`` makes the same one, to the last digit."""
    found, links, then = _dumped(belief), list[dict[str, Any]](), belief.before
    while then is not None:  # a list: hundreds of keeps are too deep for JSON
        links.append({"was": _dumped(then.was), **{name: getattr(then, name).tolist() for name in _OF_BEFORE}})
        then = then.was.before
    return {**found, "links": links}


def _dumped(belief: TipBelief) -> dict[str, Any]:
    return {**{name: getattr(belief, name).tolist() for name in _OF_BELIEF}, "readings": list(belief.readings)}


def load(state: Mapping[str, Any]) -> TipBelief:
    """The belief that was dumped. KeyError, TypeError, ValueError: it was not, or by a version with another grid."""
    before: Before | None = None
    for link in reversed(state["links"]):
        parts = {name: np.array(link[name], dtype=np.float64) for name in _OF_BEFORE}
        before = Before(_loaded(link["was"], before), **parts)
    return _loaded(state, before)


def _loaded(state: Mapping[str, Any], before: Before | None) -> TipBelief:
    arrays = {name: np.array(state[name], dtype=np.float64) for name in _OF_BELIEF}
    shapes = [array.shape for array in arrays.values()]
    if shapes[0] not in ((1,), SIGMAS.shape) or shapes != [shapes[0]] * 4 + [EFFECTS.shape]:
        raise ValueError(f"no belief has arrays of the shapes {shapes}")
    return TipBelief(**arrays, readings=tuple(state["readings"]), before=before)


def replay(values: Sequence[float], steps: Iterable[Step]) -> TipBelief | None:
    """The belief after a baseline's runs and all that followed, oldest first; None: σ is not known from one run."""
    if len(values) < 2:
        return None
    belief = begin(values)
    for step in steps:
        belief = follow(belief, step)
    return belief


def follow(belief: TipBelief, step: Step) -> TipBelief:
    """The belief after one more step."""
    if step.back:
        return taken_back(belief)
    if step.fell:
        belief = fell(belief, step.value)
    if step.runs:
        belief = measured(belief, step.value, step.runs)
    if step.fell or step.runs:  # the tip is the confirmed program
        return replace(belief, before=None)
    posterior = look(belief, step.value)
    return posterior.kept if step.kept else posterior.discarded


@cache
def _prior() -> Array:
    """Shares of effects before anything is measured, shape (E,)."""

    def spread(mean: float, deviation: float) -> Array:
        density: Array = np.exp(-0.5 * ((np.log(_SIDE) - mean) / deviation) ** 2)
        return _normal(density)

    return np.concatenate([HARM * spread(*HARM_LOG)[::-1], [NULL], GAIN * spread(*GAIN_LOG)])


def held(value: float) -> float:
    """A value that can be squared."""
    return max(-_HUGE, min(_HUGE, value))


def _moved(weights: Array) -> Array:
    """Weights of σ one reading later."""
    out = (1.0 - 2.0 * WALK) * weights
    out[1:] += WALK * weights[:-1]
    out[:-1] += WALK * weights[1:]
    out[0] += WALK * weights[0]
    out[-1] += WALK * weights[-1]
    moved: Array = (1.0 - JUMP) * out + JUMP / len(weights)
    return moved


def _normal(weights: Array) -> Array:
    normal: Array = weights / weights.sum()
    return normal
