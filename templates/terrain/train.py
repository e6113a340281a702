"""Fit a small network with Fourier features to scattered heights, then predict the wanted ones. Needs numpy only."""

import os
import time
from pathlib import Path

import numpy as np

FEATURES = 32  # random frequencies; each gives a sine and a cosine (Tancik et al. 2020, arXiv:2006.10739)
FEATURE_SCALE = 1.0  # standard deviation of the frequencies, in cycles per unit of length
HIDDEN = 32
BATCH_SIZE = 512
LEARNING_RATE = 0.001
BETA1 = 0.9
BETA2 = 0.999
WARMUP = 0.0  # share of the time in which the rate rises
COOLDOWN = 0.0  # share of the time in which it falls to nothing
WEIGHT_DECAY = 0.0
INIT_SCALE = 1.0


def features(at, frequencies):
    """Sines and cosines of the coordinates: (N, 2 · FEATURES)."""
    angles = 2 * np.pi * at @ frequencies
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


def forward(weights, x):
    """The predicted heights (N,), and what the backward pass needs."""
    first = np.maximum(x @ weights[0] + weights[1], 0)
    second = np.maximum(first @ weights[2] + weights[3], 0)
    return (second @ weights[4] + weights[5])[:, 0], (x, first, second)


def backward(weights, kept, error):
    """Gradients of half the mean squared error."""
    x, first, second = kept
    top = error[:, None] / len(error)
    middle = (top @ weights[4].T) * (second > 0)
    bottom = (middle @ weights[2].T) * (first > 0)
    return [x.T @ bottom, bottom.sum(0), first.T @ middle, middle.sum(0), second.T @ top, top.sum(0)]


def layer(rng, fan_in, fan_out):
    """Weights and biases of a layer (He et al. 2015, arXiv:1502.01852)."""
    weight = rng.normal(0, INIT_SCALE * np.sqrt(2 / fan_in), (fan_in, fan_out))
    return [weight.astype(np.float32), np.zeros(fan_out, np.float32)]


def rate(progress):
    """The share of LEARNING_RATE at a share of the time."""
    up = progress / WARMUP if WARMUP > 0 else 1.0
    down = (1 - progress) / COOLDOWN if COOLDOWN > 0 else 1.0
    return max(0.0, min(1.0, up, down))


def main():
    """Train until the budget ends, predict, write."""
    began = time.monotonic()
    budget = float(os.environ.get("AUTORESEARCHD_TIME_BUDGET", "1.5"))
    rng = np.random.default_rng(int(os.environ.get("AUTORESEARCHD_SEED", "0")))
    with np.load("data/known.npz") as known:
        at, height = known["at"], known["height"]
    mean, spread = height.mean(), height.std()
    frequencies = rng.normal(0, FEATURE_SCALE, (2, FEATURES)).astype(np.float32)
    x, y = features(at, frequencies), (height - mean) / spread
    weights = layer(rng, 2 * FEATURES, HIDDEN) + layer(rng, HIDDEN, HIDDEN) + layer(rng, HIDDEN, 1)
    means, squares = [np.zeros_like(w) for w in weights], [np.zeros_like(w) for w in weights]
    steps, progress, smooth = 0, 0.0, 0.0
    while progress < 1:
        batch = rng.integers(0, len(x), BATCH_SIZE)
        said, kept = forward(weights, x[batch])
        error = said - y[batch]
        smooth = 0.98 * smooth + 0.02 * float(np.mean(error**2))
        steps += 1
        step = LEARNING_RATE * rate(progress) * np.sqrt(1 - BETA2**steps) / (1 - BETA1**steps)
        for w, g, m, s in zip(weights, backward(weights, kept, error), means, squares, strict=True):
            m += (1 - BETA1) * (g - m)
            s += (1 - BETA2) * (g * g - s)
            w -= step * m / (np.sqrt(s) + 1e-8) + LEARNING_RATE * rate(progress) * WEIGHT_DECAY * w
        if not np.isfinite(smooth):
            raise SystemExit("FAIL: the loss is not finite")
        if steps % 100 == 0:
            print(f"step {steps} | loss: {smooth / (1 - 0.98**steps):.6f}", flush=True)
        progress = (time.monotonic() - began) / budget
    said, _ = forward(weights, features(np.load("data/wanted.npy"), frequencies))
    np.save(Path(os.environ.get("AUTORESEARCHD_OUTPUT_DIR", ".")) / "heights.npy", said * spread + mean)
    print(f"steps: {steps}")


if __name__ == "__main__":
    main()
