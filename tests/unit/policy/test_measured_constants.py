"""Which constants of usual programs are left alone, because they reach what is measured, and which stay tunable.

A user would lose the meaning of the number: `search` once took N from 400 to 730 and called it 66% better.
"""

from __future__ import annotations

import re
from dataclasses import replace
from textwrap import dedent

import pytest

from autoresearchd.domain.errors import PolicyError
from autoresearchd.domain.task import MetricSource, Task
from autoresearchd.policy.prompt.sections import messages, render
from autoresearchd.policy.search.find_constants import changed, constants, left_alone, movable
from tests.fakes.policies import make_state, make_task

PROGRAMS = {
    "scikit-learn with a data folder": """
        DATA_DIR = "data"  # alone
        ROWS = 5000  # alone
        SHARE = 0.25  # alone
        STATE = 42  # alone
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
        loss = 1 - accuracy_score(y_test, model.predict(words.transform(X_test)))
        print(f"METRIC val_loss={loss}")
        """,
    "a small GPT that estimates its loss": """
        batch_size = 64
        block_size = 256  # alone
        max_iters = 5000
        learning_rate = 3e-4
        eval_iters = 200  # alone
        n_embd = 384
        n_layer = 6
        dropout = 0.2
        share = 0.9  # alone
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
            return out

        class GPT(nn.Module):
            def __init__(self):
                self.wte = nn.Embedding(len(chars), n_embd)
                self.wpe = nn.Embedding(block_size, n_embd)
                self.blocks = nn.Sequential(*[Block(n_embd, dropout) for _ in range(n_layer)])

            def forward(self, idx, targets=None):
                logits = self.blocks(self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))) @ self.wte.weight.T
                return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())

        model = GPT()
        optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
        for it in range(max_iters):
            losses = estimate_loss()
            print(f"step {it}: train loss {losses['train']:.4f}, val_loss: {losses['val']:.4f}")
            logits, loss = model(*get_batch("train"))
            loss.backward()
            optimizer.step()
        """,
    "settings and the sizes of the data in one dictionary": """
        CFG = {
            "n_samples": 512,  # alone
            "lr": 0.1,
            "steps": 100,
        }
        X = np.random.rand(CFG["n_samples"], 4)
        y = X.sum(1)
        w = np.zeros(4)
        for step in range(CFG["steps"]):
            w -= CFG["lr"] * X.T @ (X @ w - y) / len(X)
        print("val_loss:", float(((X @ w - y) ** 2).mean()))
        """,
    "settings in a dictionary, the data in another file": """
        DEPTH = 8
        TOTAL_BATCH_SIZE = 2 ** 19
        DEVICE_BATCH_SIZE = 128
        MATRIX_LR = 0.04
        CFG = {"softcap": 15.0, "rotary_base": 10000, "resid": 0.1}
        tokenizer = Tokenizer.from_directory()
        model = build(DEPTH, CFG["softcap"], CFG["rotary_base"], CFG["resid"])
        loader = make_dataloader(tokenizer, DEVICE_BATCH_SIZE, MAX_SEQ_LEN, "train")
        optimizer = torch.optim.AdamW(model.parameters(), lr=MATRIX_LR)
        for step in range(TOTAL_BATCH_SIZE // DEVICE_BATCH_SIZE):
            model(*next(loader)).backward()
            optimizer.step()
        print(f"val_loss:         {evaluate_bpb(model, tokenizer, DEVICE_BATCH_SIZE):.6f}")
        print(f"depth:            {DEPTH}")
        """,
}


def measured(text: str, metric: str = "val_loss") -> set[str]:
    """What is left alone in a program that prints its own metric."""
    task = make_task()
    scoring = replace(task.scoring, metric=replace(task.metric, name=metric))
    return {c.name for c, _ in left_alone(replace(task, scoring=scoring), text)}


@pytest.mark.parametrize("shape", PROGRAMS)
def test_what_makes_the_data_is_left_alone_and_what_makes_the_model_is_not(shape: str) -> None:
    alone = re.findall(r"^\W*(\w+).*# alone$", PROGRAMS[shape], re.MULTILINE)
    assert {name.rpartition(".")[2] for name in measured(dedent(PROGRAMS[shape]))} == set(alone)


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


def tuned(text: str, task: Task | None = None) -> set[str]:
    state = make_state(text, task=task)
    return {name for name, found in constants(state.task, state.code).items() if movable(found)}


def test_search_and_random_take_no_constant_of_the_data_nor_one_by_another_name() -> None:
    assert tuned(BOTH) == {"train.py:LR", "train.py:STEPS"}
    again = BOTH.replace("N", "AMOUNT").replace("AMOUNTOISE", "JITTER")
    assert tuned(again) == {"train.py:LR", "train.py:STEPS"}


def test_where_only_the_data_is_left_to_tune_the_message_names_it_and_the_way_out() -> None:
    program = BOTH.replace("LR = 0.1\nSTEPS = 50\n", "").replace("LR", "0.1").replace("STEPS", "50")
    with pytest.raises(PolicyError, match=r"every constant is left alone \(N, NOISE\)") as caught:
        tuned(program)
    assert "evaluation.command" in caught.value.hint


def test_where_the_evaluator_measures_more_rows_to_train_on_are_an_honest_edit() -> None:
    task = make_task()
    owned = replace(task, scoring=replace(task.scoring, source=MetricSource.EVALUATOR))
    assert {c.name for c, _ in left_alone(task, BOTH)} == {"N", "NOISE"}
    assert left_alone(owned, BOTH) == ()
    assert changed(owned, {"train.py": BOTH}, {"train.py": BOTH.replace("400", "800")}) == ()
    assert tuned(BOTH, owned) >= {"train.py:N", "train.py:LR"}


def test_a_formula_without_a_model_stays_tunable() -> None:
    """Its constants are the program itself: to leave them alone would leave nothing to do."""
    program = "SCALE = 1.0\nRATE = 1e-3\nprint(f'val_loss: {(SCALE - 2.0) ** 2 + RATE}')\n"
    assert measured(program) == set()


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
    assert measured(program, metric) == {"N", "NOISE", "TRIM"}


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
    "text",
    [
        *("", "def (:\n", "N = 400 \x00", "(" * 5000, "x = " + "-" * 3000 + "1\n", "N = 1\r\n\ufeff"),
        # Looked at twice at each depth, these would take days.
        *("print('val_loss', " * 60 + "x" + ")" * 60, "x = " + "{'val_loss': " * 60 + "1" + "}" * 60),
    ],
)
def test_no_text_stops_the_look(text: str) -> None:
    measured(text)
    changed(make_task(), {"train.py": BOTH}, {"train.py": text})


def test_a_policy_with_a_model_is_told_what_it_must_not_change() -> None:
    state = make_state(BOTH)
    system = messages(state, forms="", budget=100_000, count=lambda _: 0)[0]["content"]
    for text in (render(state), system):
        assert "how it is made, read, split and seeded" in text and "N, NOISE, are not to be changed" in text
    owned = replace(state, task=replace(state.task, scoring=replace(state.task.scoring, source=MetricSource.EVALUATOR)))
    assert "are not to be changed" not in render(owned)
