"""Predict pitchers' earned run averages from the rest of their season's line, by boosted trees."""

import json
import os
from pathlib import Path

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor

LEARNING_RATE = 0.1
MAX_ITER = 100  # trees
MAX_LEAF_NODES = 31
MIN_SAMPLES_LEAF = 20
L2_REGULARIZATION = 0.0
MAX_FEATURES = 1.0  # share of the columns that a split may choose from
MAX_BINS = 255
MODELS = 1  # that are averaged, each on another draw of the seasons
BAG_SHARE = 0.9  # of the seasons that each of them learns from
PER_INNING = False  # whether rates per inning are columns, too


def extract_features(rows, columns):
    """Columns to learn from: those of the table, and what is made of them."""
    found = [rows]
    if PER_INNING:
        outs = rows[:, columns.index("IPouts")]
        found += [(27 * rows[:, columns.index(name)] / outs)[:, None] for name in ("H", "HR", "BB", "SO", "HBP", "WP")]
    return np.concatenate(found, axis=1)


def build_model(seed):
    """One model."""
    return HistGradientBoostingRegressor(
        learning_rate=LEARNING_RATE,
        max_iter=MAX_ITER,
        max_leaf_nodes=MAX_LEAF_NODES,
        min_samples_leaf=MIN_SAMPLES_LEAF,
        l2_regularization=L2_REGULARIZATION,
        max_features=MAX_FEATURES,
        max_bins=MAX_BINS,
        early_stopping=False,
        random_state=seed,
    )


def main():
    """Fit, predict, write."""
    rng = np.random.default_rng(int(os.environ.get("AUTORESEARCHD_SEED", "0")))
    columns = json.loads(Path("data/columns.json").read_text())["columns"]
    with np.load("data/known.npz") as known:
        x, y = extract_features(known["rows"], columns), known["era"]
    wanted = extract_features(np.load("data/wanted.npy"), columns)
    said = np.zeros(len(wanted))
    for _ in range(MODELS):
        chosen = rng.permutation(len(x))[: round(BAG_SHARE * len(x))]
        model = build_model(int(rng.integers(2**31))).fit(x[chosen], y[chosen])
        said += model.predict(wanted) / MODELS
    np.save(Path(os.environ.get("AUTORESEARCHD_OUTPUT_DIR", ".")) / "predictions.npy", said)
    print(f"columns: {x.shape[1]}")


if __name__ == "__main__":
    main()
