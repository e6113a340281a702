"""The power law a·t^−b + c of a learning curve, fitted robustly (arXiv:2603.07300, self-evaluation module).

Separable least squares (Golub & Pereyra 1973): for each of a grid of exponents b, a ≥ 0 and c have a closed form; the
best b wins. Two rounds of Huber weights keep spikes of the training loss from bending it. All exponents are fitted at
once, so a fit takes a fraction of a millisecond, which ``scipy.optimize`` does not.

By itself the law misses what a schedule does: while the learning rate is still high it is far too pessimistic. Its bias
at the same progress, learned from finished runs, is added by ``forecast``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoresearchd.evaluator.forecast_curve import Array

_EXPONENTS = np.exp(np.linspace(np.log(0.05), np.log(3.0), 24))
_WARM_UP = 0.02
_POINTS = 50
_ROUNDS = 2
_HUBER = 1.345


@dataclass(frozen=True, slots=True)
class PowerLaw:
    """The law and the root mean square of what it leaves unexplained."""

    a: float
    b: float
    c: float
    residual: float

    def at(self, progress: float) -> float:
        """Its loss at a share of the budget."""
        return float(self.a * max(progress, 1e-9) ** -self.b + self.c)


def fit_power_law(progress: Array, losses: Array) -> PowerLaw | None:
    """Fit the law to the points behind the warm-up; None with fewer than three."""
    x, y = _behind_warm_up(progress, losses)
    if len(x) < 3:
        return None
    x, y = _means(x, y)
    powers = x[None, :] ** -_EXPONENTS[:, None]
    weights = np.ones_like(y)
    a = b = c = residual = 0.0
    for _ in range(_ROUNDS + 1):
        a, b, c, errors = _best(powers, y, weights)
        residual = float(np.sqrt(np.mean(errors**2)))
        scale = 1.4826 * float(np.median(np.abs(errors)))
        if scale <= 0:
            break
        weights = np.minimum(1.0, _HUBER * scale / np.maximum(np.abs(errors), 1e-300))
    return PowerLaw(a, b, c, residual)


def _behind_warm_up(x: Array, y: Array) -> tuple[Array, Array]:
    """Drop the start of the budget, and what lies before the highest loss of the first fifth (a rise at warm-up)."""
    keep = x > min(_WARM_UP, float(x[-1]) * 0.3)
    x, y = x[keep], y[keep]
    head = len(x) // 5
    if head >= 2:
        top = int(np.argmax(y[:head]))
        x, y = x[top:], y[top:]
    return x, y


def _means(x: Array, y: Array) -> tuple[Array, Array]:
    if len(x) <= _POINTS:
        return x, y
    edges = np.linspace(0, len(x), _POINTS + 1).astype(np.intp)[:-1]
    counts = np.diff(np.append(edges, len(x)))
    return np.add.reduceat(x, edges) / counts, np.add.reduceat(y, edges) / counts


def _best(powers: Array, y: Array, weights: Array) -> tuple[float, float, float, Array]:
    """Weighted least squares of a and c for every exponent; a, b, c and errors of the best."""
    total = weights.sum()
    mean_p = (powers @ weights) / total
    mean_y = float(weights @ y) / total
    centred = powers - mean_p[:, None]
    a = ((centred * weights) @ (y - mean_y)) / np.maximum(((centred**2) @ weights), 1e-300)
    a = np.maximum(a, 0.0)
    c = mean_y - a * mean_p
    errors = y[None, :] - a[:, None] * powers - c[:, None]
    best = int(np.argmin((errors**2) @ weights))
    return float(a[best]), float(_EXPONENTS[best]), float(c[best]), errors[best]
