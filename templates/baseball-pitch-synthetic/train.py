"""Predict the speed of pitches from ten figures, by boosted trees or a ridge regression."""

import os
from pathlib import Path

import numpy as np
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.linear_model import Ridge

LINEAR = False  # whether the model is a ridge regression, and no trees
LEARNING_RATE = 0.1
N_ESTIMATORS = 100  # trees
MAX_DEPTH = 3
SUBSAMPLE = 0.9  # share of the pitches that a tree learns from
MIN_SAMPLES_LEAF = 1
MAX_FEATURES = 1.0  # share of the columns that a split may choose from
RIDGE = 1.0  # weight of its penalty
PRODUCTS = True  # whether the products of all pairs of columns are columns, too


def extract_features(rows):
    """Columns to learn from."""
    if not PRODUCTS:
        return rows
    first, second = np.triu_indices(rows.shape[1])
    return np.concatenate([rows, rows[:, first] * rows[:, second]], axis=1)


def build_model(seed):
    """The model."""
    if LINEAR:
        return Ridge(alpha=RIDGE)
    return GradientBoostingRegressor(
        learning_rate=LEARNING_RATE,
        n_estimators=N_ESTIMATORS,
        max_depth=MAX_DEPTH,
        subsample=SUBSAMPLE,
        min_samples_leaf=MIN_SAMPLES_LEAF,
        max_features=MAX_FEATURES,
        random_state=seed,
    )


def main():
    """Fit, predict, write."""
    seed = int(os.environ.get("AUTORESEARCHD_SEED", "0"))
    with np.load("data/known.npz") as known:
        x, y = extract_features(known["rows"]), known["mph"]
    said = build_model(seed % 2**32).fit(x, y).predict(extract_features(np.load("data/wanted.npy")))
    np.save(Path(os.environ.get("AUTORESEARCHD_OUTPUT_DIR", ".")) / "predictions.npy", said)
    print(f"columns: {x.shape[1]}")


if __name__ == "__main__":
    main()
