"""What well-known calls do with the data of a program: make, read, split or sample it, fit a model, or measure one."""

from __future__ import annotations

import re

from autoresearchd.policy.ranges import bag, words_of

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
FITS = bag("""
    solve lstsq polyfit pinv inv ridge_regression train fit minimize curve_fit least_squares fmin fmin_l_bfgs_b
    fmin_bfgs minimize_scalar differential_evolution from_pretrained grad value_and_grad fit_predict""")
"""Calls whose result is what was learned."""
TRAINS = bag(
    "backward zero_grad step fit partial_fit train_on_batch train_step apply_gradients value_and_grad grad train"
)
"""Methods that only a loop that trains calls."""

MODELS = re.compile(
    r"\w*(?:Regressor|Classifier|Regression|Ridge|RidgeCV|Lasso|LassoCV|ElasticNet|SVC|SVR|NB|Sequential|Linear|Conv[123]d"
    r"|Embedding|LSTM|GRU|RNN|Transformer\w*|Dropout\w*|LayerNorm|BatchNorm\w*|Parameter|Optimizer|Trainer|Estimator|Booster|LR"
    r"|Scheduler|Scaler)|Adam\w*|SGD|RMSprop|Adagrad|Muon\w*|LBFGS|Lion"
)
"""Constructors of what is trained, and of what trains it."""
EVALUATES = re.compile(
    r"(?:^|_)(?:eval|evaluate|valid|validate|validation|val|test|score|measure|metric|accuracy|bpb)(?:$|_)|estimate_"
)
MEASURES = re.compile(r"\w*(?:Loss|Accuracy|Precision|Recall|F1\w*|AUROC|Metric|Error)")
"""Constructors of what measures a model."""

MODEL_BASES = re.compile(r"(?<!Data)Module$|Model$|Estimator$|Layer$|Regressor(?:Mixin)?$|Classifier(?:Mixin)?$|Block$")
MODEL_METHODS = frozenset({"forward", "predict", "parameters", "predict_proba", "backward"})

_USUAL = bag("""
    lr rate eta batch bs bsz minibatch epoch step iter iteration hidden width depth layer head dropout drop decay wd
    l1 l2 momentum beta eps epsilon warmup warmdown cooldown clip embd embed channel ffn lambda lam reg alpha
    estimator leaf patience rank accum accumulation expert optimizer optimiser activation act init degree tree
    round boost neighbor learning weight penalty regularization regularisation ridge temperature nesterov kernel""")
_MEASURED_WORDS = bag(
    "eval evaluation val valid validation test holdout heldout fold split data dataset sample row point"
)


def usual(name: str) -> bool:
    """Whether a name is that of a hyper-parameter: it may meet the data, as a batch size does, and not make it."""
    words = set(words_of(name))
    return bool(words & _USUAL) and not words & (_MEASURED_WORDS - {"sample", "split"})
