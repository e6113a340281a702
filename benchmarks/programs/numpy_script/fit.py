"""Regression with random Fourier features by stochastic gradient descent: one file, constants at the top, no budget."""

import os

import numpy as np

N = 600
N_VAL = 200
NOISE = 0.1
DATA_SEED = 7
FEATURES = 60  # range: 20..400
LENGTH_SCALE = 1.5  # range: 0.2..5
LR = 0.02
MOMENTUM = 0.5
RIDGE = 1e-2
BATCH = 32
EPOCHS = 1200

data = np.random.default_rng(DATA_SEED)


def target(x):
    return np.sin(3 * x[:, 0]) * np.cos(2 * x[:, 1]) + 0.5 * x[:, 0]


x = data.uniform(-2, 2, size=(N + N_VAL, 2))
y = target(x) + NOISE * data.standard_normal(N + N_VAL)
x_train, y_train = x[:N], y[:N]
x_val, y_val = x[N:], y[N:]

rng = np.random.default_rng(int(os.environ.get("AUTORESEARCHD_SEED", "0")))
w = rng.standard_normal((2, FEATURES)) / LENGTH_SCALE
b = rng.uniform(0, 2 * np.pi, FEATURES)


def features(x):
    return np.sqrt(2 / FEATURES) * np.cos(x @ w + b)


theta, velocity = np.zeros(FEATURES), np.zeros(FEATURES)
for _epoch in range(EPOCHS):
    order = rng.permutation(N)
    for start in range(0, N, BATCH):
        rows = order[start : start + BATCH]
        phi = features(x_train[rows])
        gradient = phi.T @ (phi @ theta - y_train[rows]) / len(rows) + RIDGE * theta
        velocity = MOMENTUM * velocity - LR * gradient
        theta = theta + velocity

predicted = features(x_val) @ theta
rmse = float(np.sqrt(np.mean((predicted - y_val) ** 2)))
np.savez(os.path.join(os.environ.get("AUTORESEARCHD_OUTPUT_DIR", "."), "validation.npz"), y=y_val, predicted=predicted)
print(f"rmse={rmse:.5f}")
