"""Gradient boosting on data/train.csv, log loss on data/valid.csv."""

import os
from pathlib import Path

import numpy as np
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.metrics import log_loss

DATA = Path("data")
TRAIN_ROWS = 1200
CLIP = 1e-3

model = GradientBoostingClassifier(
    n_estimators=40,
    learning_rate=0.03,
    max_depth=2,
    subsample=0.8,
    min_samples_leaf=20,
    random_state=int(os.environ.get("AUTORESEARCHD_SEED", "0")),
)


def load(name):
    table = np.loadtxt(DATA / name, delimiter=",", skiprows=1)
    return table[:, :-1], table[:, -1].astype(int)


x, y = load("train.csv")
x_val, y_val = load("valid.csv")
model.fit(x[:TRAIN_ROWS], y[:TRAIN_ROWS])
predicted = np.clip(model.predict_proba(x_val)[:, 1], CLIP, 1 - CLIP)
out = Path(os.environ.get("AUTORESEARCHD_OUTPUT_DIR", "."))
np.savez(out / "validation.npz", y=y_val, predicted=predicted)
print("Validation logloss:", log_loss(y_val, predicted))
