"""Which arguments of which well-known constructors are tuned: optimisers, schedules, regularisers, estimators."""

from __future__ import annotations

import re

from autoresearchd.policy.search.name_ranges import bag, range_of, words_of
from autoresearchd.policy.search.parameter import Value

_OPTIMISER = bag("lr betas weight_decay eps momentum nesterov alpha dampening ns_steps rho beta1 beta2 initial_lr")
_OPTIMISERS = re.compile(
    r"(?:Dist|Sparse|Distributed)?(?:Adam|AdamW|NAdam|RAdam|Adamax|Adagrad|Adadelta|Adafactor|SGD|RMSprop|Rprop|LBFGS|Lion|Muon"
    r"|MuonAdamW|Shampoo|SOAP|LAMB|LARS|Sophia)"
)
_ESTIMATOR = bag("""
    n_estimators learning_rate max_depth num_leaves max_leaf_nodes subsample colsample_bytree reg_alpha reg_lambda
    min_child_weight min_samples_leaf min_samples_split l2_regularization alpha l1_ratio C gamma max_iter max_bins
    n_neighbors feature_fraction bagging_fraction lambda_l1 lambda_l2 max_features""")
_ESTIMATORS = re.compile(r"\w+(?:Regressor|Classifier)|Ridge|Lasso|ElasticNet|LogisticRegression|SVR|SVC|KernelRidge")
_OTHERS: dict[str, frozenset[str]] = {
    "CosineAnnealingLR": frozenset({"T_max", "eta_min"}),
    "CosineAnnealingWarmRestarts": frozenset({"T_0", "T_mult", "eta_min"}),
    "OneCycleLR": frozenset({"max_lr", "pct_start", "div_factor", "final_div_factor", "base_momentum", "max_momentum"}),
    "CyclicLR": frozenset({"base_lr", "max_lr", "step_size_up", "step_size_down", "gamma"}),
    "StepLR": frozenset({"step_size", "gamma"}),
    "MultiStepLR": frozenset({"gamma"}),
    "ExponentialLR": frozenset({"gamma"}),
    "LinearLR": frozenset({"start_factor", "end_factor", "total_iters"}),
    "PolynomialLR": frozenset({"power", "total_iters"}),
    "ReduceLROnPlateau": frozenset({"factor", "patience", "cooldown", "min_lr"}),
    "clip_grad_norm_": frozenset({"max_norm"}),
    "clip_grad_value_": frozenset({"clip_value"}),
    "CrossEntropyLoss": frozenset({"label_smoothing"}),
    "cross_entropy": frozenset({"label_smoothing"}),
    "Dropout": frozenset({"p"}),
    "Dropout1d": frozenset({"p"}),
    "Dropout2d": frozenset({"p"}),
    "AlphaDropout": frozenset({"p"}),
    "dropout": frozenset({"p"}),
}
POSITIONAL: dict[str, tuple[int, str]] = {
    "Dropout": (0, "p"),
    "Dropout1d": (0, "p"),
    "Dropout2d": (0, "p"),
    "AlphaDropout": (0, "p"),
    "dropout": (1, "p"),
    "clip_grad_norm_": (1, "max_norm"),
    "clip_grad_value_": (1, "clip_value"),
    "ExponentialLR": (1, "gamma"),
}
"""Arguments that are usually given by position: callee → (position, name)."""

GROUP_ARGUMENTS = frozenset({"lr", "betas", "weight_decay", "eps", "momentum", "initial_lr"})
"""What is tuned in an optimiser's parameter group, a dictionary that has ``params``."""


def arguments_of(callee: str, given: frozenset[str]) -> frozenset[str]:
    """Names of the arguments to tune in a call of ``callee`` that gives these keywords; empty for calls not known."""
    if callee == "dict":
        return GROUP_ARGUMENTS if "params" in given else frozenset()
    if callee in _OTHERS:
        return _OTHERS[callee]
    if _OPTIMISERS.fullmatch(callee):
        return _OPTIMISER
    return _ESTIMATOR if _ESTIMATORS.fullmatch(callee) else frozenset()


_RECIPE = (_OPTIMISER | _ESTIMATOR | frozenset().union(*_OTHERS.values())) - bag("""
    eps p C alpha gamma power factor rho T_max T_0 T_mult total_iters max_iter step_size dampening""")
_FAMILIES = frozenset({"learning rate", "weight decay", "dropout", "average", "width", "depth", "batch size"})
_DETAILS = bag("group idx index feature")
_LEAST_WIDTH = 8
"""Of an argument called ``dim``: less than that is an axis."""


def is_recipe(name: str, value: Value) -> bool:
    """Whether the default of a function's argument is a part of a training recipe, and no detail of a computation."""
    if isinstance(value, (bool, str)):
        return False
    found, words = range_of(name, value), set(words_of(name))
    if found is None or words & _DETAILS or (name in ("dim", "n", "size") and value < _LEAST_WIDTH):
        return False
    return name in _RECIPE or found.family in _FAMILIES or "epoch" in words
