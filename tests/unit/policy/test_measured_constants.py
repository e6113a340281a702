"""Which constants of usual programs are left alone, because they reach what is measured, and which stay tunable.

A user would lose the meaning of the number: `search` once took N from 400 to 730 and called it 66% better.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

import pytest

from autoresearchd.domain.errors import PolicyError
from autoresearchd.domain.task import MetricSource
from autoresearchd.policy.prompt.sections import messages, render
from autoresearchd.policy.search.measured_constants import changed, left_alone
from autoresearchd.policy.search.program_constants import Program
from tests.fakes.policies import make_state, make_task


class Usual(NamedTuple):
    """A program in a usual shape. alone: constants to leave out; tuned: constants that stay."""

    metric: str
    text: str
    alone: str
    tuned: str


TEMPLATES = Path(__file__).parents[3] / "templates"

PROGRAMS = {
    "numpy MLP with functions": Usual(
        "val_loss",
        """
        import numpy as np
        N_TRAIN = 1300
        N_VAL = 400
        IN = 8
        FREQ = 3.0
        HIDDEN = 32
        DEPTH = 2
        GAIN = 1.5
        LR = 1e-2
        MOMENTUM = 0.9
        DROPOUT = 0.1
        EPOCHS = 20
        BATCH_SIZE = 64

        def make(n, seed):
            r = np.random.default_rng(seed)
            x = r.uniform(-1, 1, (n, IN))
            y = np.sin(FREQ * x).sum(1, keepdims=True)
            return x, y

        def init(rng):
            sizes = [IN] + [HIDDEN] * DEPTH + [1]
            return [GAIN * rng.normal(size=(a, b)) / np.sqrt(a) for a, b in zip(sizes, sizes[1:])]

        def forward(params, x, train=False):
            acts = [x]
            for w in params[:-1]:
                x = np.maximum(0, x @ w)
                if train:
                    x = x * (np.random.rand(*x.shape) > DROPOUT)
                acts.append(x)
            return acts, x @ params[-1]

        def mse(params, x, y):
            return float(np.mean((forward(params, x)[1] - y) ** 2))

        x_train, y_train = make(N_TRAIN, 0)
        x_val, y_val = make(N_VAL, 1)
        params = init(np.random.default_rng(2))
        speed = [np.zeros_like(p) for p in params]
        for epoch in range(EPOCHS):
            order = np.random.permutation(len(x_train))
            for i in range(0, len(order), BATCH_SIZE):
                xb, yb = x_train[order[i:i + BATCH_SIZE]], y_train[order[i:i + BATCH_SIZE]]
                grads = backprop(params, xb, yb)
                for k in range(len(params)):
                    speed[k] = MOMENTUM * speed[k] - LR * grads[k]
                    params[k] += speed[k]
        print("val_loss:", mse(params, x_val, y_val))
        """,
        "N_TRAIN N_VAL IN FREQ",
        "HIDDEN DEPTH GAIN LR MOMENTUM DROPOUT EPOCHS BATCH_SIZE",
    ),
    "scikit-learn with a data folder": Usual(
        "accuracy",
        """
        from pathlib import Path
        import pandas as pd
        from sklearn.ensemble import RandomForestClassifier
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.metrics import accuracy_score
        from sklearn.model_selection import train_test_split
        DATA_DIR = "data"
        ROWS = 5000
        SHARE = 0.25
        STATE = 42
        TREES = 200
        MAX_DEPTH = 12
        GRAMS = 2
        MIN_SAMPLES_LEAF = 2
        table = pd.read_csv(Path(DATA_DIR) / "table.csv", nrows=ROWS)
        X, y = table.drop(columns="label"), table["label"]
        X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=SHARE, random_state=STATE)
        model = RandomForestClassifier(n_estimators=TREES, max_depth=MAX_DEPTH, min_samples_leaf=MIN_SAMPLES_LEAF)
        words = TfidfVectorizer(ngram_range=(1, GRAMS))
        model.fit(words.fit_transform(X_train), y_train)
        accuracy = accuracy_score(y_test, model.predict(words.transform(X_test)))
        print(f"METRIC accuracy={accuracy}")
        """,
        "DATA_DIR ROWS SHARE STATE",
        "TREES MAX_DEPTH GRAMS MIN_SAMPLES_LEAF",
    ),
    "torch MLP, DataLoader and random_split": Usual(
        "val_acc",
        """
        import torch
        from torch import nn
        from torch.utils.data import DataLoader, TensorDataset, random_split
        POINTS = 2000
        PART = 0.2
        WIDTH = 64
        LR = 1e-3
        WEIGHT_DECAY = 0.01
        BATCH_SIZE = 128
        EPOCHS = 5
        SPREAD = 0.7
        THRESHOLD = 0.5

        class Net(nn.Module):
            def __init__(self, width=WIDTH, dropout=0.1):
                super().__init__()
                self.layers = nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, 1))

            def forward(self, x):
                return self.layers(x).squeeze(-1)

        x = torch.randn(POINTS, 2) * SPREAD
        y = (x.prod(1) > 0).float()
        data = TensorDataset(x, y)
        n_val = int(len(data) * PART)
        train_set, val_set = random_split(data, [len(data) - n_val, n_val])
        train_loader = DataLoader(train_set, batch_size=BATCH_SIZE, shuffle=True)
        val_loader = DataLoader(val_set, batch_size=BATCH_SIZE)
        model = Net()
        optimiser = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
        loss_fn = nn.BCEWithLogitsLoss()
        for epoch in range(EPOCHS):
            model.train()
            for xb, yb in train_loader:
                optimiser.zero_grad()
                loss_fn(model(xb), yb).backward()
                optimiser.step()
            model.eval()
            right = total = 0
            with torch.no_grad():
                for xb, yb in val_loader:
                    guess = (torch.sigmoid(model(xb)) > THRESHOLD).float()
                    right += (guess == yb).sum().item()
                    total += len(yb)
            val_acc = right / total
        print(f"epochs {EPOCHS} val_acc: {val_acc:.4f} lr {LR}")
        """,
        "POINTS PART SPREAD THRESHOLD",
        "WIDTH LR WEIGHT_DECAY BATCH_SIZE EPOCHS Net.width Net.dropout",
    ),
    "a small GPT that estimates its loss": Usual(
        "val_loss",
        """
        import torch
        import torch.nn as nn
        from torch.nn import functional as F
        batch_size = 64
        block_size = 256
        max_iters = 5000
        eval_interval = 500
        learning_rate = 3e-4
        eval_iters = 200
        n_embd = 384
        n_head = 6
        n_layer = 6
        dropout = 0.2
        share = 0.9
        text = open("input.txt").read()
        chars = sorted(set(text))
        data = torch.tensor([chars.index(c) for c in text])
        n = int(share * len(data))
        train_data, val_data = data[:n], data[n:]

        def get_batch(split):
            data = train_data if split == "train" else val_data
            ix = torch.randint(len(data) - block_size, (batch_size,))
            x = torch.stack([data[i:i + block_size] for i in ix])
            y = torch.stack([data[i + 1:i + block_size + 1] for i in ix])
            return x, y

        @torch.no_grad()
        def estimate_loss():
            out = {}
            model.eval()
            for split in ["train", "val"]:
                losses = torch.zeros(eval_iters)
                for k in range(eval_iters):
                    X, Y = get_batch(split)
                    logits, loss = model(X, Y)
                    losses[k] = loss.item()
                out[split] = losses.mean()
            model.train()
            return out

        class GPT(nn.Module):
            def __init__(self):
                super().__init__()
                self.wte = nn.Embedding(len(chars), n_embd)
                self.wpe = nn.Embedding(block_size, n_embd)
                self.blocks = nn.Sequential(*[Block(n_embd, n_head, dropout) for _ in range(n_layer)])

            def forward(self, idx, targets=None):
                x = self.blocks(self.wte(idx) + self.wpe(torch.arange(idx.shape[1])))
                logits = x @ self.wte.weight.T
                return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())

        model = GPT()
        optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
        for it in range(max_iters):
            if it % eval_interval == 0:
                losses = estimate_loss()
                print(f"step {it}: train loss {losses['train']:.4f}, val_loss: {losses['val']:.4f}")
            xb, yb = get_batch("train")
            logits, loss = model(xb, yb)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
        "block_size eval_iters share",
        "batch_size max_iters learning_rate n_embd n_head n_layer dropout",
    ),
    "rows made in a loop, closed form": Usual(
        "val_rmse",
        """
        import random
        import numpy as np
        HOW_MANY = 300
        JITTER = 0.2
        RIDGE = 1e-2
        BUMPS = 12
        GAMMA = 4.0
        random.seed(3)
        xs, ys = [], []
        for i in range(HOW_MANY):
            x = random.uniform(-1, 1)
            xs.append(x)
            ys.append(x ** 3 + random.gauss(0, JITTER))
        xs, ys = np.array(xs), np.array(ys)
        half = HOW_MANY // 2

        def features(x):
            centres = np.linspace(-1, 1, BUMPS)
            return np.exp(-GAMMA * (x[:, None] - centres) ** 2)

        A = features(xs[:half])
        w = np.linalg.solve(A.T @ A + RIDGE * np.eye(BUMPS), A.T @ ys[:half])
        print("val_rmse:", np.sqrt(np.mean((features(xs[half:]) @ w - ys[half:]) ** 2)))
        """,
        "HOW_MANY JITTER",
        "RIDGE GAMMA",
    ),
    "options of argparse and a main function": Usual(
        "val_loss",
        """
        import argparse
        import numpy as np

        def data(n, noise, seed):
            rng = np.random.default_rng(seed)
            x = rng.normal(size=(n, 4))
            return x, x.sum(1) + noise * rng.normal(size=n)

        def train(x, y, lr, epochs, decay):
            w = np.zeros(x.shape[1])
            for _ in range(epochs):
                w -= lr * (x.T @ (x @ w - y) / len(x) + decay * w)
            return w

        def evaluate(w, x, y, worst):
            errors = np.sort((x @ w - y) ** 2)
            return errors[:worst].mean()

        def main():
            parser = argparse.ArgumentParser()
            parser.add_argument("--count", type=int, default=500)
            parser.add_argument("--sigma", type=float, default=0.1)
            parser.add_argument("--lr", type=float, default=0.01)
            parser.add_argument("--epochs", type=int, default=50)
            parser.add_argument("--decay", type=float, default=0.001)
            parser.add_argument("--worst", type=int, default=90)
            args = parser.parse_args()
            x, y = data(args.count, args.sigma, 0)
            cut = args.count * 4 // 5
            w = train(x[:cut], y[:cut], args.lr, args.epochs, args.decay)
            print("val_loss: {:.5f}".format(evaluate(w, x[cut:], y[cut:], args.worst)))

        main()
        """,
        "args.count args.sigma args.worst",
        "args.lr args.epochs args.decay",
    ),
    "a dataclass of settings": Usual(
        "val_mse",
        """
        import json
        from dataclasses import dataclass
        import torch
        import torch.nn as nn

        @dataclass
        class Config:
            rows: int = 1000
            inputs: int = 6
            jitter: float = 0.05
            hidden: int = 32
            lr: float = 3e-3
            steps: int = 100
            batch: int = 50

        class Rows(torch.utils.data.Dataset):
            def __init__(self, cfg):
                self.x = torch.randn(cfg.rows, cfg.inputs)
                self.y = self.x.sum(1) + cfg.jitter * torch.randn(cfg.rows)

            def __len__(self):
                return len(self.x)

            def __getitem__(self, i):
                return self.x[i], self.y[i]

        def build(cfg):
            return nn.Sequential(nn.Linear(cfg.inputs, cfg.hidden), nn.Tanh(), nn.Linear(cfg.hidden, 1))

        def main():
            cfg = Config()
            rows = Rows(cfg)
            cut = len(rows) // 5
            model = build(cfg)
            optimiser = torch.optim.Adam(model.parameters(), lr=cfg.lr)
            for step in range(cfg.steps):
                i = torch.randint(cut, len(rows), (cfg.batch,))
                loss = ((model(rows.x[i]).squeeze() - rows.y[i]) ** 2).mean()
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
            with torch.no_grad():
                val = ((model(rows.x[:cut]).squeeze() - rows.y[:cut]) ** 2).mean().item()
            print(json.dumps({"val_mse": val, "lr": cfg.lr, "hidden": cfg.hidden}))

        main()
        """,
        "Config.rows Config.inputs Config.jitter",
        "Config.hidden Config.lr Config.steps Config.batch",
    ),
    "digits, top-k accuracy and label smoothing in the loss that is printed": Usual(
        "val_loss",
        """
        import torch.nn as nn
        import torch
        from sklearn.datasets import load_digits
        SMOOTH = 0.1
        USED = 1200
        CLASSES = 10
        WARMUP = 0.1
        LR = 0.01
        digits = load_digits(n_class=CLASSES)
        x, y = torch.tensor(digits.data), torch.tensor(digits.target)
        model = nn.Linear(64, 10)
        loss_fn = nn.CrossEntropyLoss(label_smoothing=SMOOTH)
        opt = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
        for step in range(100):
            rate = LR * min(1.0, step / (WARMUP * 100))
            loss = loss_fn(model(x[:USED]), y[:USED])
            loss.backward()
            opt.step()
        val_loss = loss_fn(model(x[USED:]), y[USED:]).item()
        print("METRIC val_loss=" + str(val_loss))
        """,
        "SMOOTH USED CLASSES",
        "WARMUP LR SGD.momentum#1",
    ),
    "settings in a dictionary, the data in another file": Usual(
        "val_bpb",
        """
        import torch
        from prepare import MAX_SEQ_LEN, evaluate_bpb, make_dataloader, Tokenizer
        ASPECT_RATIO = 64
        DEPTH = 8
        TOTAL_BATCH_SIZE = 2 ** 19
        DEVICE_BATCH_SIZE = 128
        MATRIX_LR = 0.04
        ADAM_BETAS = (0.8, 0.95)
        WARMDOWN_RATIO = 0.5
        WINDOW_PATTERN = "SSSL"
        CFG = {"softcap": 15.0, "rotary_base": 10000, "resid": 0.1}
        tokenizer = Tokenizer.from_directory()
        model = build(DEPTH, ASPECT_RATIO, WINDOW_PATTERN, CFG["softcap"], CFG["rotary_base"], CFG["resid"])
        loader = make_dataloader(tokenizer, DEVICE_BATCH_SIZE, MAX_SEQ_LEN, "train")
        optimizer = torch.optim.AdamW(model.parameters(), lr=MATRIX_LR, betas=ADAM_BETAS)
        for step in range(TOTAL_BATCH_SIZE // DEVICE_BATCH_SIZE):
            loss = model(*next(loader))
            loss.backward()
            optimizer.step()
        val_bpb = evaluate_bpb(model, tokenizer, DEVICE_BATCH_SIZE)
        print(f"val_bpb:          {val_bpb:.6f}")
        print(f"depth:            {DEPTH}")
        """,
        "",
        "ASPECT_RATIO DEPTH TOTAL_BATCH_SIZE DEVICE_BATCH_SIZE MATRIX_LR ADAM_BETAS[0] ADAM_BETAS[1] WARMDOWN_RATIO "
        "WINDOW_PATTERN CFG.softcap CFG.rotary_base CFG.resid",
    ),
    "a data module and a trainer": Usual(
        "val_loss",
        """
        import numpy as np
        class DataModule:
            def __init__(self, n=500, noise=0.2, val_fraction=0.25, batch_size=32):
                self.n, self.noise, self.batch_size = n, noise, batch_size
                self.cut = int(n * val_fraction)
            def setup(self):
                rng = np.random.default_rng(0)
                self.x = rng.normal(size=(self.n, 3))
                self.y = self.x.sum(1) + self.noise * rng.normal(size=self.n)
            def val(self):
                return self.x[:self.cut], self.y[:self.cut]
            def train_batches(self):
                for i in range(self.cut, self.n, self.batch_size):
                    yield self.x[i:i+self.batch_size], self.y[i:i+self.batch_size]
        class Model:
            def __init__(self, width=16, lr=0.01):
                self.lr = lr
                self.w = np.zeros(3)
            def predict(self, x):
                return x @ self.w
            def training_step(self, x, y):
                self.w -= self.lr * x.T @ (self.predict(x) - y) / len(y)
        class Trainer:
            def __init__(self, max_epochs=10, patience=3):
                self.max_epochs = max_epochs
            def fit(self, model, data):
                for epoch in range(self.max_epochs):
                    for x, y in data.train_batches():
                        model.training_step(x, y)
            def validate(self, model, data):
                x, y = data.val()
                return ((model.predict(x) - y) ** 2).mean()
        def main():
            data = DataModule(n=600)
            data.setup()
            model = Model()
            trainer = Trainer()
            trainer.fit(model, data)
            print(f"val_loss: {trainer.validate(model, data):.4f}")
        main()
        """,
        "DataModule.n DataModule.noise DataModule.val_fraction",
        "DataModule.batch_size Trainer.max_epochs Trainer.patience Model.width Model.lr",
    ),
    "functions of jax": Usual(
        "mse",
        """
        import jax, jax.numpy as jnp
        N = 512
        D = 4
        WIDTH = 32
        LR = 1e-2
        STEPS = 100
        SIGMA = 0.1
        key = jax.random.PRNGKey(0)
        X = jax.random.normal(key, (N, D))
        Y = jnp.sin(X.sum(1)) + SIGMA * jax.random.normal(key, (N,))
        def init(key):
            return {"w": jax.random.normal(key, (D, WIDTH)), "v": jnp.zeros((WIDTH,))}
        def forward(params, x):
            return jnp.tanh(x @ params["w"]) @ params["v"]
        def loss(params, x, y):
            return jnp.mean((forward(params, x) - y) ** 2)
        @jax.jit
        def update(params, x, y):
            g = jax.grad(loss)(params, x, y)
            return jax.tree_util.tree_map(lambda p, q: p - LR * q, params, g)
        params = init(key)
        for i in range(STEPS):
            params = update(params, X[:400], Y[:400])
        print("mse: %f" % loss(params, X[400:], Y[400:]))
        """,
        "N D SIGMA",
        "WIDTH LR STEPS",
    ),
}


def measured(text: str, metric: str) -> dict[str, str]:
    """What is left alone in a program that prints its own metric, by name, and why."""
    task = make_task()
    scoring = replace(task.scoring, metric=replace(task.metric, name=metric))
    return {c.name: why for c, why in left_alone(replace(task, scoring=scoring), text)}


@pytest.mark.parametrize("shape", PROGRAMS)
def test_what_makes_the_data_is_left_alone_and_what_makes_the_model_is_not(shape: str) -> None:
    program = PROGRAMS[shape]
    found = measured(dedent(program.text), program.metric)
    assert set(program.alone.split()) - set(found) == set(), "tuned, though it reaches what is measured"
    assert set(program.tuned.split()) & set(found) == set(), found


BOTH = """\
import numpy as np
N = 400
NOISE = 0.5
LR = 0.1
STEPS = 50
rng = np.random.default_rng(0)
X = rng.normal(size=(N, 5))
y = X.sum(axis=1) + NOISE * rng.normal(size=N)
cut = N // 2
w = np.zeros(5)
for _ in range(STEPS):
    w -= LR * X[:cut].T @ (X[:cut] @ w - y[:cut]) / cut
val_loss = np.mean((X[cut:] @ w - y[cut:]) ** 2)
print(f"val_loss: {val_loss:.6f}")
"""


def test_search_and_random_take_no_constant_of_the_data_nor_one_by_another_name() -> None:
    """A user's N made training and validation rows, and 400 → 730 was kept as an improvement of 66%."""
    assert set(Program().parameters(make_state(BOTH))) == {"train.py:LR", "train.py:STEPS"}
    again = BOTH.replace("N", "AMOUNT").replace("AMOUNTOISE", "JITTER")
    assert set(Program().parameters(make_state(again))) == {"train.py:LR", "train.py:STEPS"}


def test_where_only_the_data_is_left_to_tune_the_message_names_it_and_the_way_out() -> None:
    program = BOTH.replace("LR = 0.1\nSTEPS = 50\n", "").replace("LR", "0.1").replace("STEPS", "50")
    with pytest.raises(PolicyError, match=r"every constant is left alone \(N, NOISE\)") as caught:
        Program().parameters(make_state(program))
    assert "evaluation.command" in caught.value.hint


def test_where_the_evaluator_measures_more_rows_to_train_on_are_an_honest_edit() -> None:
    task = make_task()
    owned = replace(task, scoring=replace(task.scoring, source=MetricSource.EVALUATOR))
    assert {c.name for c, _ in left_alone(task, BOTH)} == {"N", "NOISE"}
    assert left_alone(owned, BOTH) == ()
    assert changed(owned, {"train.py": BOTH}, {"train.py": BOTH.replace("400", "800")}) == ()
    assert set(Program().parameters(make_state(BOTH, task=owned))) >= {"train.py:N", "train.py:LR"}


def test_a_formula_without_a_model_stays_tunable() -> None:
    """Its constants are the program itself: to leave them alone would leave nothing to do."""
    program = "SCALE = 1.0\nRATE = 1e-3\nprint(f'val_loss: {(SCALE - 2.0) ** 2 + RATE}')\n"
    assert measured(program, "val_loss") == {}


@pytest.mark.parametrize(
    ("metric", "line"),
    [
        ("val_loss", "print('METRIC val_loss=%f' % error)"),
        ("val_loss", "print('val_loss:', error)"),
        ("val_loss", "print('val_loss: ' + str(error))"),
        ("val_loss", "print('val_loss: {}'.format(error))"),
        ("val_loss", "import json; print(json.dumps({'val_loss': float(error)}))"),
        ("val_loss", "results = {}; results['val_loss'] = float(error); print(results)"),
        ("val_loss", "wandb.log({'val_loss': error})"),
        ("val_loss", "name = 'val_' + 'loss'; print(name, error)"),
        ("", "print(error)"),
    ],
)
def test_the_metric_is_found_however_it_is_printed(metric: str, line: str) -> None:
    program = "\n".join(BOTH.splitlines()[:-2]) + "\nTRIM = 0.9\n"
    program += f"error = np.quantile((X[cut:] @ w - y[cut:]) ** 2, TRIM)\n{line}\n"
    found = measured(program, metric)
    assert {"N", "NOISE", "TRIM"} <= set(found), found
    assert not {"LR", "STEPS"} & set(found)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("N = 400", "N = 800", "N, which makes the data that is measured"),
        ("N = 400", "N = 2 * 200", "N, which"),
        ("NOISE = 0.5", "NOISE = 0.1", "NOISE, which makes the data that is measured"),
        ("N = 400\n", "", "N, which"),
        ("default_rng(0)", "default_rng(7)", "default_rng(0), which seeds the random numbers"),
        ("LR = 0.1", "LR = 0.2", ""),
        ("STEPS = 50", "STEPS = 500  # more", ""),
        ("print(", "MORE = 3\nprint(", ""),
    ],
)
def test_an_edit_of_what_is_measured_is_told_and_no_other(old: str, new: str, told: str) -> None:
    assert old in BOTH
    found = "; ".join(changed(make_task(), {"train.py": BOTH}, {"train.py": BOTH.replace(old, new)}))
    assert told in found and bool(found) == bool(told)


@pytest.mark.parametrize(
    "text", ["", "def (:\n", "N = 400 \x00", "(" * 5000, "x = " + "-" * 3000 + "1\n", "N = 1\r\n\ufeff"]
)
def test_no_text_stops_the_look(text: str) -> None:
    measured(text, "val_loss")
    changed(make_task(), {"train.py": BOTH}, {"train.py": text})


def test_a_policy_with_a_model_is_told_what_it_must_not_change() -> None:
    state = make_state(BOTH)
    system = messages(state, forms="", budget=100_000, count=lambda _: 0)[0]["content"]
    for text in (render(state), system):
        assert "how it is made, read, split and seeded" in text
        assert "N, NOISE, are not to be changed" in text
    owned = replace(state, task=replace(state.task, scoring=replace(state.task.scoring, source=MetricSource.EVALUATOR)))
    assert "are not to be changed" not in render(owned)
