"""What well-known calls and names mean: which arguments are tuned, what makes or reads data, what is trained."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from autoresearchd.policy.search.parameter import bag, range_of, words_of

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
_OTHERS = {
    "CosineAnnealingLR": bag("T_max eta_min"),
    "CosineAnnealingWarmRestarts": bag("T_0 T_mult eta_min"),
    "OneCycleLR": bag("max_lr pct_start div_factor final_div_factor base_momentum max_momentum"),
    "CyclicLR": bag("base_lr max_lr step_size_up step_size_down gamma"),
    "StepLR": bag("step_size gamma"),
    "MultiStepLR": bag("gamma"),
    "ExponentialLR": bag("gamma"),
    "LinearLR": bag("start_factor end_factor total_iters"),
    "PolynomialLR": bag("power total_iters"),
    "ReduceLROnPlateau": bag("factor patience cooldown min_lr"),
    "clip_grad_norm_": bag("max_norm"),
    "clip_grad_value_": bag("clip_value"),
    "CrossEntropyLoss": bag("label_smoothing"),
    "cross_entropy": bag("label_smoothing"),
    **dict.fromkeys(("Dropout", "Dropout1d", "Dropout2d", "AlphaDropout", "dropout"), bag("p")),
}
POSITIONAL = {
    **dict.fromkeys(("Dropout", "Dropout1d", "Dropout2d", "AlphaDropout"), 0),
    **dict.fromkeys(("dropout", "clip_grad_norm_", "clip_grad_value_", "ExponentialLR"), 1),
}
"""Where the only argument to tune of a call is usually given by position."""

GROUP_ARGUMENTS = bag("lr betas weight_decay eps momentum initial_lr")
"""What is tuned in an optimiser's parameter group, a dictionary that has ``params``."""
_RECIPE = (_OPTIMISER | _ESTIMATOR | frozenset().union(*_OTHERS.values())) - bag("""
    eps p C alpha gamma power factor rho T_max T_0 T_mult total_iters max_iter step_size dampening""")
_FAMILIES = frozenset({"learning rate", "weight decay", "dropout", "average", "width", "depth", "batch size"})
_DETAILS = bag("group idx index feature")
_LEAST_WIDTH = 8
"""Of ``dim``: less than that is an axis."""


def arguments_of(callee: str, given: frozenset[str]) -> frozenset[str]:
    """Names of the arguments to tune in a call of ``callee`` that gives these keywords; empty for calls not known."""
    if callee == "dict":
        return GROUP_ARGUMENTS if "params" in given else frozenset()
    if _OPTIMISERS.fullmatch(callee):
        return _OPTIMISER
    return _OTHERS.get(callee) or (_ESTIMATOR if _ESTIMATORS.fullmatch(callee) else frozenset())


def is_recipe(name: str, value: int | float) -> bool:
    """Whether the default of a function's argument is a part of a training recipe, and no detail of a computation."""
    found, words = range_of(name, value), set(words_of(name))
    if found is None or words & _DETAILS or (name in ("dim", "n", "size") and value < _LEAST_WIDTH):
        return False
    return name in _RECIPE or found.family in _FAMILIES or "epoch" in words


# ---------------------------------------------------------------------- data
READS = re.compile(
    r"(?:load|fetch|read)(?:_(?!state|model|weights|checkpoint|ckpt|from_checkpoint|config|yaml|json$|dotenv)\w+|csv|txt)"
    r"|loadtxt|genfromtxt|fromfile|memmap|load_dataset|ImageFolder|DatasetFolder|(?:Fashion|K|E|Q)?MNIST|CIFAR100?|SVHN|STL10"
    r"|image_dataset_from_directory|text_dataset_from_directory"
)
"""Calls that read data by a name."""
MAKES = re.compile(
    r"make_(?:classification|regression|blobs|moons|circles|friedman[123]|s_curve|swiss_roll|gaussian_quantiles"
    r"|hastie_10_2|low_rank_matrix|sparse_uncorrelated|multilabel_classification|biclusters|checkerboard)"
)
"""Calls that make a data set."""
SPLITS = re.compile(
    r"(?:train_test|random|train_val|temporal_train_test)_split|(?:Stratified|Group|Repeated|RepeatedStratified|StratifiedGroup)?KFold"
    r"|(?:Stratified|Group)?ShuffleSplit|TimeSeriesSplit|Leave\w*Out|Subset|PredefinedSplit|cross_val\w*|cross_validate"
)
"""Calls that choose what is trained on and what is measured."""
SEEDS = bag("seed manual_seed manual_seed_all default_rng RandomState Generator PRNGKey PCG64 seed_everything set_seed")
RANDOM = bag("""
    normal randn rand random uniform standard_normal random_sample gauss multivariate_normal poisson exponential
    binomial lognormal laplace gumbel beta gamma rand_like randn_like truncated_normal normalvariate""")
"""Calls that draw numbers."""
ARRAYS = bag("linspace arange logspace geomspace zeros ones full empty eye meshgrid tile mgrid indices")
"""Calls that make arrays of a shape."""
SAMPLES = bag("randint integers choice choices permutation randperm sample shuffle randrange categorical bernoulli")
"""Calls that draw whole numbers, mostly rows of something."""
DRAWS = RANDOM | ARRAYS | SAMPLES


def makes_data(callee: str) -> bool:
    """Whether a call makes, reads, splits or seeds data."""
    return callee in DRAWS | SEEDS or any(p.fullmatch(callee) for p in (READS, MAKES, SPLITS))


_USUAL = bag("""
    lr rate eta batch bs bsz minibatch epoch step iter iteration hidden width depth layer head dropout drop decay wd
    l1 l2 momentum beta eps epsilon warmup warmdown cooldown clip embd embed channel ffn lambda lam reg alpha
    estimator leaf patience rank accum accumulation expert optimizer optimiser activation act init degree tree
    round boost neighbor learning weight penalty regularization regularisation ridge temperature nesterov kernel""")
_MEASURED = bag("eval evaluation val valid validation test holdout heldout fold data dataset row point")


def usual(name: str) -> bool:
    """Whether a name is that of a hyper-parameter: it may meet the data, as a batch size does, and not make it."""
    words = set(words_of(name))
    return bool(words & _USUAL) and not words & _MEASURED


# ---------------------------------------------------------------------- what is trained
_LOOPS = (ast.For, ast.AsyncFor, ast.While)

FITS = bag("""
    solve lstsq polyfit pinv inv ridge_regression train fit minimize curve_fit least_squares fmin fmin_l_bfgs_b
    fmin_bfgs minimize_scalar differential_evolution from_pretrained grad value_and_grad fit_predict""")
"""Calls whose result is what was learned."""
_TRAINS = bag(
    "backward zero_grad step fit partial_fit train_on_batch train_step apply_gradients value_and_grad grad train"
)
"""Methods that only a loop that trains calls."""
_UPDATES = re.compile(r"(?:^|_)(?:train|update|grads?|backprop|backward)(?:$|_)")
"""Functions that only a loop that trains calls."""
MODELS = re.compile(
    r"\w*(?:Regressor|Classifier|Regression|Ridge|RidgeCV|Lasso|LassoCV|ElasticNet|SVC|SVR|NB|Sequential|Linear|Conv[123]d"
    r"|Embedding|LSTM|GRU|RNN|Transformer\w*|Dropout\w*|LayerNorm|BatchNorm\w*|Parameter|Optimizer|Trainer|Estimator|Booster|LR"
    r"|Scheduler|Scaler)|Adam\w*|SGD|RMSprop|Adagrad|Muon\w*|LBFGS|Lion"
)
"""Constructors of what is trained, and of what trains it."""
MODEL_NAMES = bag("model net network clf regressor classifier booster estimator")
OF_MODELS = bag("parameters named_parameters state_dict eval train zero_grad step")
"""What is asked of models alone."""
_MODEL_BASES = re.compile(r"(?<!Data)Module$|(?:Model|Estimator|Layer|Block|(?:Regressor|Classifier)(?:Mixin)?)$")
_MODEL_METHODS = bag("forward predict parameters predict_proba backward")
DATA_METHODS = bag("__getitem__ __iter__ __len__ setup train_dataloader")
EVALUATES = re.compile(
    r"(?:^|_)(?:eval|evaluate|valid|validate|validation|val|test|score|measure|metric|accuracy|bpb)(?:$|_)|estimate_"
)
MEASURES = re.compile(r"\w*(?:Loss|Accuracy|Precision|Recall|F1\w*|AUROC|Metric|Error)")
"""Constructors of what measures a model."""


def last_name(func: ast.expr) -> str:
    """The last part of what is called: ``normal`` of ``rng.normal``."""
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""


def methods(node: ast.ClassDef) -> set[str]:
    """Names of the methods of a class."""
    return {n.name for n in node.body if isinstance(n, ast.FunctionDef)}


def is_model_class(node: ast.ClassDef) -> bool:
    """Whether a class is a model: what stands in it is not looked at."""
    return any(_MODEL_BASES.search(ast.unparse(b)) for b in node.bases) or bool(methods(node) & _MODEL_METHODS)


def base_name(node: ast.expr) -> str:
    """The variable that an expression is a part of; empty where it is none."""
    while isinstance(node, (ast.Subscript, ast.Attribute, ast.Starred)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def trains(node: ast.stmt) -> bool:
    """Whether a loop trains something, so that how often it goes round is the training's."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Call):
            callee = last_name(inner.func)
            if _UPDATES.search(callee) or (isinstance(inner.func, ast.Attribute) and callee in _TRAINS):
                return True
        elif isinstance(inner, ast.Name) and _is_rate(inner.id):
            return True
        if isinstance(inner, ast.AugAssign) and _goes_down(inner):
            return True
    return False


def _goes_down(node: ast.AugAssign) -> bool:
    """``w -= rate * step``."""
    operators = (n.op for n in ast.walk(node.value) if isinstance(n, ast.BinOp))
    return isinstance(node.op, ast.Sub) and any(isinstance(o, (ast.Mult, ast.Div, ast.MatMult)) for o in operators)


def _names_in(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def trained_names(body: Sequence[ast.stmt]) -> frozenset[str]:
    """Variables that a loop which trains updates, and models that are fitted."""
    nodes = [node for statement in body for node in _own_nodes(statement)]
    loops = [node for node in nodes if isinstance(node, _LOOPS) and trains(node)]
    found = {name for loop in loops for name in _updated(loop)}
    for node in nodes:
        if isinstance(node, ast.Call) and last_name(node.func) in ("fit", "partial_fit"):
            found |= {n.id for n in ast.iter_child_nodes(node.func) if isinstance(n, ast.Name)}
    for loop in loops:  # what is updated by way of the loop that runs over it
        if isinstance(loop, ast.For) and _names_in(loop.target) & found:
            found |= _names_in(loop.iter) - {"zip", "enumerate", "range", "list", "reversed", "len"}
    return frozenset(found)


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
        yield node
        for child in ast.iter_child_nodes(node):
            yield from _own_nodes(child)


def _updated(loop: ast.AST) -> Iterator[str]:
    """Variables that a loop changes step by step, but for counts: ``best = min(best, loss)``, ``n = n + 1``."""
    for node in ast.walk(loop):
        if isinstance(node, ast.AugAssign):
            base = base_name(node.target)
            if base and (_goes_down(node) or any(map(_is_rate, _names_in(node.value)))):
                yield base
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            value = node.value
            if isinstance(value, ast.Call) and last_name(value.func) in ("min", "max", "append", "sum"):
                continue
            if isinstance(value, ast.BinOp) and isinstance(value.right, ast.Constant):
                continue
            targets = node.targets[0].elts if isinstance(node.targets[0], ast.Tuple) else node.targets
            yield from {base for t in targets if (base := base_name(t))} & _names_in(value)


def _is_rate(name: str) -> bool:
    words = set(words_of(name))
    return bool({"lr", "eta", "grad", "gradient"} & words) or {"learning", "rate"} <= words
