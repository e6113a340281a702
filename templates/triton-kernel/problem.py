"""What the kernel computes, on which shapes, and how close it has to come. Protected: no experiment may edit it.

    h = residual + gelu(x + bias)          gelu(z) = z / 2 · (1 + tanh(√(2/π) · (z + 0.044715 z³)))
    y = h / √(mean(h², over a row) + 1e-6) · weight

x, residual and y are (rows, columns), bias and weight (columns,).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

EPSILON = 1e-6
SLOPE, CUBE = float(np.sqrt(2 / np.pi)), 0.044715
SCALES = np.array([0.0, 1e-3, 0.3, 1.0, 1.0, 1.0, 3.0, 30.0, 300.0])  # of rows: a short cut that holds near 1 is none
SHAPES = ((256, 768), (48, 4096), (1024, 160), (167, 1000))
TOLERANCE = 2e-5  # absolute, and relative to y; float32 in a sensible order stays below a tenth of it
HALF_TOLERANCE = 2e-3  # the same for results in float16, which alone are 5e-4 off

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Inputs:
    """Arguments of one call, float32 as they lie in memory one after another."""

    x: Array
    residual: Array
    bias: Array
    weight: Array

    def parts(self) -> tuple[Array, Array, Array, Array]:
        return self.x, self.residual, self.bias, self.weight

    def bytes(self) -> bytes:
        return b"".join(part.tobytes() for part in self.parts())

    def rounded(self) -> Inputs:
        return Inputs(*(part.astype(np.float16).astype(np.float32) for part in self.parts()))


def views(memory: npt.NDArray[np.float32], rows: int, columns: int) -> tuple[Array, Array, Array, Array]:
    """The four arguments in a piece of memory."""
    size = rows * columns
    x, residual, bias, weight = np.split(memory[: 2 * size + 2 * columns], [size, 2 * size, 2 * size + columns])
    return x.reshape(rows, columns), residual.reshape(rows, columns), bias, weight


def draw(rng: np.random.Generator, rows: int, columns: int) -> Inputs:
    """Fresh inputs; rows are of very different size."""
    scale = rng.choice(SCALES, (rows, 1)).astype(np.float32)
    x = rng.standard_normal((rows, columns), np.float32) * scale
    residual = rng.standard_normal((rows, columns), np.float32) * rng.choice(SCALES, (rows, 1)).astype(np.float32)
    bias = rng.standard_normal(columns, np.float32)
    return Inputs(x, residual, bias, 1 + rng.standard_normal(columns, np.float32) / 4)


def truth(inputs: Inputs) -> npt.NDArray[np.float64]:
    """The result in float64."""
    z = inputs.x.astype(np.float64) + inputs.bias
    h = inputs.residual + z / 2 * (1 + np.tanh(SLOPE * (z + CUBE * z**3)))
    return h / np.sqrt(np.mean(h**2, axis=1, keepdims=True) + EPSILON) * inputs.weight


def yardstick(inputs: Inputs, out: Array, z: Array, u: Array) -> None:
    """The same in float32, one step after another over the whole array: what times are compared with.

    `z` and `u` are of the shape of `out` and are written over. It makes no large array of its own: what those cost
    depends on how the memory of the process lies (1.1 to 2.4 ms for the same work), and would be in every score.
    """
    np.add(inputs.x, inputs.bias, out=z)
    np.multiply(z, z, out=u)
    np.multiply(u, z, out=u)
    np.multiply(u, CUBE, out=u)
    np.add(u, z, out=u)
    np.multiply(u, SLOPE, out=u)
    np.tanh(u, out=u)
    np.add(u, 1, out=u)
    np.multiply(u, z, out=u)
    np.multiply(u, 0.5, out=u)
    np.add(inputs.residual, u, out=z)
    np.multiply(z, z, out=u)
    np.divide(z, np.sqrt(np.mean(u, axis=1, keepdims=True) + EPSILON), out=z)
    np.multiply(z, inputs.weight, out=out)


def error(said: Array, true: npt.NDArray[np.float64], tolerance: float = TOLERANCE) -> float:
    """How far a result is off, as a multiple of what is allowed; infinite where it is no number."""
    off = np.abs(said - true) / (tolerance * (1 + np.abs(true)))
    return float(off.max()) if np.isfinite(off).all() else float("inf")
