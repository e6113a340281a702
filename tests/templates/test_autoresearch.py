"""The bundled `autoresearch` task: data, training, and a score that the edited code cannot touch."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.templates.programs import environment, evaluated, load_program, load_programs, metrics_of, run_program, score

pytest.importorskip("torch")
np = pytest.importorskip("numpy")
tokenizers = pytest.importorskip("tokenizers")

TEMPLATE = Path(__file__).resolve().parents[2] / "templates" / "autoresearch"
FILES = (
    "train.py",
    "prepare.py",
    "evaluate.py",
    "exchange.py",
    "probes.py",
    "serve_model.py",
    "serving.py",
    "system_calls.py",
)
SCORED = 60_000
"""Bytes of validation text, before those go that training text shares."""


prepare, evaluate = load_programs(TEMPLATE, "prepare", "evaluate")


def train(folder: Path, budget: float, output: Path) -> tuple[int, str, str]:
    """Exit code, log and stderr of a training; the log keeps its carriage returns."""
    env = environment(TIME_BUDGET=budget, SEED=1, OUTPUT_DIR=output)
    done = subprocess.run([sys.executable, "train.py"], cwd=folder, env=env, capture_output=True, timeout=120)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def workspace_with(base: Path, target: Path, edit: tuple[str, str] | None = None) -> Path:
    """A workspace as a job sees it, without validation data; `edit` replaces one text in train.py."""
    (target / "data").mkdir(parents=True)
    for name in ("train.bin", "meta.json"):
        shutil.copy(base / "data" / name, target / "data" / name)
    for name in ("serve_model.py", "serving.py", "system_calls.py"):
        shutil.copy(TEMPLATE / name, target)
    text = (TEMPLATE / "train.py").read_text()
    if edit is not None:
        assert text.count(edit[0]) == 1, edit[0]
        text = text.replace(*edit)
    (target / "train.py").write_text(text)
    return target


def stored_text(data: Path, name: str) -> list[bytes]:
    """The documents that a file of tokens holds."""
    tokenizer = tokenizers.Tokenizer.from_file(str(data / "tokenizer.json"))
    tokens = np.fromfile(data / name, dtype="<u2")
    starts = np.flatnonzero(tokens == tokenizer.token_to_id(prepare.SPECIAL_TOKENS[0]))
    return [tokenizer.decode(document.tolist()).encode() for document in np.split(tokens, starts) if document.size]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The protected files and their data, made from a small corpus."""
    folder = tmp_path_factory.mktemp("pristine")
    for name in FILES:
        shutil.copy(TEMPLATE / name, folder)
    prepare.prepare(folder / "data", "cpu", train_bytes=400_000, val_bytes=SCORED)
    return folder


@pytest.fixture(scope="module")
def trained(pristine: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """A workspace, the output folder of a short training in it, and the training log."""
    workspace = workspace_with(pristine, tmp_path_factory.mktemp("job") / "workspace")
    output = workspace.parent / "output"
    code, log, stderr = train(workspace, 3, output)
    assert code == 0, stderr
    return workspace, output, log


def test_task_yaml_names_what_is_there() -> None:
    task: dict[str, Any] = yaml.safe_load((TEMPLATE / "task.yaml").read_text())
    assert task["scoring"]["metric"] in task["scoring"]["metrics"]
    assert {task["workspace"]["target_file"], *task["workspace"]["protected"]} == set(FILES)
    assert {path.removeprefix("{purelib}/") for path in task["evaluation"]["hide"]} == set(prepare.HIDDEN)
    assert set(task["profiles"]) == {"cpu", "cuda"} == set(evaluate.PLANS)
    private, data = set(task["evaluation"]["private"]), set(task["workspace"]["data"])
    assert private | data == {f"data/{name}" for name in (*prepare.DATA_FILES, "meta.json")}
    assert not private & data


@pytest.mark.nightly
def test_what_is_hidden_is_not_needed_to_import_torch_and_its_compiler() -> None:
    """Else nothing can be compiled, as in the cuda profile: Dynamo imports fake_pg, from torch 2.6 to 2.12."""
    hidden = tuple(place.removesuffix(".py").replace("/", ".") for place in prepare.HIDDEN)
    imports = "sys, torch, torch._dynamo, torch._inductor.compile_fx, torch.testing._internal.distributed.fake_pg"
    code = f"import {imports}; print([m for m in sys.modules if m.startswith({hidden!r})])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_prepare_is_deterministic_and_idempotent(pristine: Path, tmp_path: Path) -> None:
    first = json.loads((pristine / "data" / "meta.json").read_text())
    again, built = prepare.prepare(pristine / "data", "cpu")
    assert again == first and not built
    other, built = prepare.prepare(tmp_path / "data", "cpu", train_bytes=400_000, val_bytes=SCORED)
    assert other == first and built
    with (tmp_path / "data" / "val.bin").open("ab") as file:
        file.write(b"xx")
    assert prepare.up_to_date(tmp_path / "data", "cpu") is None


def test_prepare_says_in_one_line_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file where the folder should be")
    done = run_program(TEMPLATE, "prepare.py", tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("prepare.py: ") and done.stderr.count("\n") == 1


def test_validation_text_is_nowhere_in_the_training_text(pristine: Path) -> None:
    train, val = (stored_text(pristine / "data", name) for name in ("train.bin", "val.bin"))
    seen = {document[i : i + 64] for document in train for i in range(len(document) - 63)}
    assert sum(map(len, val)) > SCORED / 3
    for document in val:
        assert not any(document[i : i + 64] in seen for i in range(len(document) - 63))


def test_the_tokens_stand_for_as_many_bytes_as_the_scorer_counts(pristine: Path) -> None:
    lengths = json.loads((pristine / "data" / "val_meta.json").read_text())["token_bytes"]
    tokens = np.fromfile(pristine / "data" / "val.bin", dtype="<u2")
    assert sum(lengths[t] for t in tokens) == sum(map(len, stored_text(pristine / "data", "val.bin")))


def test_deduplication_drops_the_lines_that_are_shared() -> None:
    copied = b"    this line is long enough to hold a passage of sixty-four bytes and was copied\n"
    own = b"".join(b"own line number %d of this document\n" % i for i in range(20))
    cleaned, dropped = prepare.without_shared({"a.py": own[:300] + copied + own[300:]}, [b"# elsewhere\n" + copied])
    assert dropped >= 1 and copied not in cleaned["a.py"]
    assert prepare.shared_hashes(cleaned.values(), [copied]).size == 0


def test_training_prints_what_the_daemon_reads(trained: tuple[Path, Path, str]) -> None:
    _, output, log = trained
    steps = [part for part in log.split("\r") if part.startswith("step ")]
    assert "| loss: " in steps[0] and "| remaining: " in steps[0] and "val_bpb" not in log
    summary = dict(line.split(":", 1) for line in log.split("---\n", 1)[1].splitlines())
    assert list(summary) == [
        "training_seconds", "total_seconds", "peak_vram_mb", "mfu_percent",
        "total_tokens_M", "num_steps", "num_params_M", "depth",
    ]  # fmt: skip
    assert int(summary["num_steps"]) == len(steps)
    last = float(steps[-1].partition("| dt: ")[2].partition("ms")[0]) / 1000
    assert float(summary["training_seconds"]) - last < 3.1, "it went on after its budget"
    assert (output / "checkpoint.pt").is_file()


def test_score_equals_a_direct_computation(pristine: Path, trained: tuple[Path, Path, str]) -> None:
    import torch

    workspace, output, _ = trained
    scorer, model_code, model_stderr = score(pristine, output, workspace)
    assert scorer.returncode == model_code == 0, scorer.stderr + model_stderr
    found = metrics_of(scorer)
    assert found["causal"] == 1
    assert found["checkpoint_bytes"] == (output / "checkpoint.pt").stat().st_size

    plan = evaluate.PLANS["cpu"]
    tokens = np.fromfile(pristine / "data" / "val.bin", dtype="<u2").astype(np.int64)
    available = (len(tokens) - 1) // plan.window
    count = min(plan.batches, available // plan.rows) * plan.rows
    model = load_program(workspace, "train").load_model(output / "checkpoint.pt", "cpu")
    lengths = json.loads((pristine / "data" / "val_meta.json").read_text())["token_bytes"]
    nats, stood_for = 0.0, 0
    with torch.inference_mode():
        for i in range(count):
            start = i * available // count * plan.window
            window = torch.from_numpy(tokens[start : start + plan.window + 1])
            probabilities = model(window[None, :-1])[0].double().softmax(-1)
            for target, probability in zip(
                window[1:].tolist(), probabilities.gather(1, window[1:, None])[:, 0].tolist(), strict=True
            ):
                if lengths[target]:
                    nats -= math.log(probability)
                    stood_for += lengths[target]
    assert found["val_bpb"] == pytest.approx(nats / math.log(2) / stood_for, abs=1e-4)


def test_a_model_that_looks_ahead_is_caught(pristine: Path, trained: tuple[Path, Path, str], tmp_path: Path) -> None:
    _, output, _ = trained
    ahead = ("attn_mask=mask, is_causal=mask is None", "attn_mask=None, is_causal=False")
    workspace = workspace_with(pristine, tmp_path / "workspace", ahead)
    scorer, _, _ = score(pristine, output, workspace)
    assert scorer.returncode == 3
    assert "METRIC causal=0" in scorer.stdout and "LABEL not_causal" in scorer.stdout
    assert "val_bpb" not in scorer.stdout


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        pytest.param(
            "    return model.to(device).eval()",
            "    os._exit(7)",
            "the model process ended",
            marks=pytest.mark.nightly,
        ),
        ("        if targets is None:", "        os._exit(7)\n        if targets is None:", "the model process ended"),
        pytest.param(
            "            return logits\n", "            return logits[:, 1:]\n", "shape", marks=pytest.mark.nightly
        ),
        ("            return logits\n", "            return logits * float('nan')\n", "NaN"),
    ],
    ids=["dies while loading", "dies in the first batch", "wrong shape", "not finite"],
)
def test_the_scorer_survives_a_bad_model(
    pristine: Path, trained: tuple[Path, Path, str], tmp_path: Path, old: str, new: str, says: str
) -> None:
    _, output, _ = trained
    scorer, _, _ = score(pristine, output, workspace_with(pristine, tmp_path / "workspace", (old, new)))
    assert scorer.returncode == 1 and "val_bpb" not in scorer.stdout
    assert says in scorer.stderr and scorer.stderr.count("\n") == 1


@pytest.mark.parametrize("task", ["autoresearch", "nanochat-core"])
def test_a_process_that_answers_leaves_nothing_to_the_next(tmp_path: Path, task: str) -> None:
    (tmp_path / "known").write_text("text")
    (tmp_path / "folder").mkdir()
    denied = [
        "open('known', 'w')", "open('known', 'r+')", "open('new', 'x')", "os.open('known', os.O_RDONLY | os.O_TRUNC)",
        "os.mkdir('new')", "os.rename('known', 'new')", "os.unlink('known')", "os.rmdir('folder')", "os.utime('known')",
        "os.symlink('a', 'new')", "os.link('known', 'new')", "os.mkfifo('new')", "os.truncate('known', 0)",
        "os.chmod('known', 0o600)", "os.setxattr('known', 'user.a', b'1')", "os.fork()", "os.memfd_create('a')",
        "os.kill(os.getppid(), 0)", "socket.socketpair()", "fcntl.flock(known, fcntl.LOCK_SH)",
        "resource.prlimit(os.getppid(), resource.RLIMIT_CORE)", "os.sched_setaffinity(0, {0})", "os.nice(1)",
        "os.execv('/bin/true', ['true'])", "subprocess.run(['true'])",
    ]  # fmt: skip
    program = f"""
import fcntl, os, resource, socket, subprocess, sys, threading
sys.path.insert(0, {str(TEMPLATE.parent / task)!r})
import serving
known = os.open("known", os.O_RDONLY)
serving.confine()
for line in {denied!r}:
    try:
        eval(line)
        print("allowed:", line)
    except PermissionError:
        pass
print(open("known").read(), os.listdir("folder"))
thread = threading.Thread(target=print, args=("thread",))
thread.start()
thread.join()
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout == "text []\nthread\n", done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "known"]


def test_without_a_checkpoint_there_is_no_score(pristine: Path, tmp_path: Path) -> None:
    done = evaluated(pristine, tmp_path, tmp_path)
    assert done.returncode == 1 and "checkpoint.pt" in done.stderr


def test_training_fails_fast_when_the_loss_explodes(pristine: Path, tmp_path: Path) -> None:
    nan = ("(loss / passes).backward()", "loss = loss * math.nan")
    code, log, _ = train(workspace_with(pristine, tmp_path / "workspace", nan), 30, tmp_path / "output")
    assert code == 1 and "FAIL" in log
    assert not (tmp_path / "output" / "checkpoint.pt").exists()
