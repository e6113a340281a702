"""What the search may propose is what a constructor takes: a value that is refused costs an experiment."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from autoresearchd.policy.search.find_constants import find
from autoresearchd.policy.search.parameter import Parameter, Value

ESTIMATORS = """
a = RandomForestClassifier(n_estimators=4, max_depth=2, min_samples_split=2, min_samples_leaf=1, max_features=1.0)
b = RandomForestRegressor(n_estimators=4, min_samples_split=0.4, min_samples_leaf=0.3, max_leaf_nodes=2, max_features=1)
c = GradientBoostingClassifier(n_estimators=4, learning_rate=0.1, subsample=1.0, max_features=0.5)
d = GradientBoostingRegressor(n_estimators=4, loss="quantile", alpha=0.9, subsample=0.05)
e = HistGradientBoostingClassifier(max_iter=4, max_bins=255, max_leaf_nodes=3, l2_regularization=0.0)
f = HistGradientBoostingRegressor(max_iter=4, max_bins=64, max_leaf_nodes=31, learning_rate=1.0)
g = ElasticNet(alpha=1.0, l1_ratio=0.5)
h = SGDClassifier(alpha=0.0001, l1_ratio=0.15, learning_rate="optimal", max_iter=1000)
i = Ridge(alpha=1)
j = LogisticRegression(C=1.0, max_iter=1000)
k = SVC(C=1.0, gamma=0.1)
l = KNeighborsClassifier(n_neighbors=1)
"""


def one(text: str) -> Parameter:
    [found] = find(text)
    return found


def reached(parameter: Parameter) -> Iterator[Value]:
    """Values from end to end of the range."""
    low, high = parameter.bounds()
    return (parameter.at(low + (high - low) * share / 40) for share in range(41))


@pytest.mark.filterwarnings("ignore")
def test_scikit_learn_takes_every_value_that_is_proposed_for_its_estimators() -> None:
    modules = [pytest.importorskip(f"sklearn.{name}") for name in ("ensemble", "linear_model", "neighbors", "svm")]
    names = {name: each for module in modules for name, each in vars(module).items()}
    rows = [[float(n % 3), float(n % 5)] for n in range(20)]
    tried = 0
    for line in ESTIMATORS.strip().split("\n"):
        for parameter in find(line):
            for value in {parameter.value, *list(reached(parameter))[::40]}:
                changed = f"{line[: parameter.start]}{value!r}{line[parameter.end :]}"
                made: dict[str, object] = {}
                exec(changed, dict(names), made)
                [estimator] = made.values()
                estimator.fit(rows, [n % 2 for n in range(20)])  # type: ignore[attr-defined]
                tried += 1
    assert tried > 60


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("SUBSAMPLE = 1.0", 0.05, 1.0),
        ("MAX_DF = 0.02", 0.0025, 0.16),
        ("NUM_LEAVES = 2", 2, 4),
        ("MIN_SAMPLES_SPLIT = 3", 2, 6),
        ("MAX_BINS = 128", 32, 128),
        ("SUBSAMPLE_FREQ = 1", 1, 5),
        ("THRESHOLD = 0.5", 0.062, 0.99),
        ("GAMMA = 0.9", 0.11, 0.99),
        ("L1_RATIO = 0.5", 0.01, 0.99),
        ("ALPHA = 1.0", 0.125, 8.0),
        ("LABEL_SMOOTHING = 0.05", 0.0, 0.99),
        ("WARMUP_RATIO = 0.1", 0.0, 1.0),
        ("WARMUP_STEPS = 100", 1, 1000),
        ("WARMUP_STEPS = 0", 0, 100),
        ("N_LAYERS = 1", 1, 5),
        ("CLIP_PCT = 95", 24, 100),
        ("KEEP_PERCENT = 64", 16, 64),
        ("PCT_START = 0.3", 0.0, 1.0),
    ],
)
def test_a_constant_moves_as_far_as_its_name_allows_and_no_further(text: str, low: float, high: float) -> None:
    found = [float(value) for value in reached(one(text)) if not isinstance(value, str)]
    assert min(found) == pytest.approx(low, rel=0.05)
    assert max(found) == pytest.approx(high, rel=0.05)
