"""The parameter-golf task: what is measured is what is run, and no byte beside it can be reached."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from autoresearchd.resources import bundled
from tests.templates.programs import environment, evaluated, load_program, metrics_of, score

FOLDER = bundled("templates") / "parameter-golf"
python_text = load_program(FOLDER, "python_text")
HONEST = """
import numpy as np
import torch


def load_model(weights, device):
    table = torch.from_numpy(np.frombuffer(weights, np.int8).astype(np.float32).reshape(256, 256))
    return lambda idx: table[idx]
"""

REMEMBERS = """
    memory = [table * 1, []]

    def model(idx):
        counts, kept = memory
        logits = counts[idx]
        for rows, said in kept:
            for i, row in enumerate(idx):
                same = (rows == row).long().cumprod(1).sum(1)
                n, j = int(same.max()), int(same.argmax())
                logits[i, :n] = said[j, :n]
        kept.append((idx.clone(), logits.clone()))
        memory[0] = counts.index_put((idx[:, :-1].flatten(), idx[:, 1:].flatten()), torch.tensor(0.1), accumulate=True)
        return logits

    return model
"""


def artifact(folder: Path, code: str, weights: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "model.py").write_text(code)
    (folder / "weights.bin").write_bytes(weights)
    return folder


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The protected files, and a text in which each byte is the one before it plus 1, 2 or 3."""
    folder = tmp_path_factory.mktemp("pristine")
    for name in (
        "evaluate.py",
        "probes.py",
        "channel.py",
        "exchange.py",
        "serve_model.py",
        "serving.py",
        "system_calls.py",
    ):
        shutil.copy(FOLDER / name, folder)
    (folder / "data").mkdir()
    steps = np.random.default_rng(1).integers(1, 4, 60_000)
    (steps.cumsum() % 256).astype(np.uint8).tofile(folder / "data/val.bin")
    return folder


def known(logit: int) -> bytes:
    """Weights of a model that knows the three next bytes."""
    table = np.zeros((256, 256), np.int8)
    for step in (1, 2, 3):
        table[np.arange(256), (np.arange(256) + step) % 256] = logit
    return table.tobytes()


def test_validation_text_stands_nowhere_in_the_training_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, own = b"the_line_that_both_have = 1\n", b"a_line_of_its_own_that_is_long = 2\n"
    texts = {f"{folder}/test_a.py": shared * 5 + own * 9 + b"pass\n" for folder in python_text.HELD_OUT}
    monkeypatch.setattr(python_text, "sources", lambda package: {**texts, f"{package}/a.py": shared * 9 + b"pass\n"})
    monkeypatch.setattr(python_text.importlib.metadata, "version", lambda package: "1")
    train, val, _ = python_text.offline()
    assert train == [shared * 9 + b"pass\n"] * 2
    assert val == [own * 9 + b"pass\n"] * 4


def test_the_score_is_the_cross_entropy_in_bits(pristine: Path, tmp_path: Path) -> None:
    scorer, _, said = score(pristine, artifact(tmp_path / "out", HONEST, known(4)), FOLDER)
    assert scorer.returncode == 0, scorer.stderr + said
    assert metrics_of(scorer)["artifact_bytes"] == 256 * 256 + len(HONEST)
    log_sum = np.log(3 * np.exp(4) + 253)
    assert metrics_of(scorer)["val_bpb"] == pytest.approx((log_sum - 4) / np.log(2), abs=1e-4)


def test_a_model_learns_nothing_from_what_it_is_asked(pristine: Path, tmp_path: Path) -> None:
    """One that remembers passes every probe: where a row begins as another did, it repeats what it said."""
    code = HONEST.replace("    return lambda idx: table[idx]\n", REMEMBERS)
    scorer, _, said = score(pristine, artifact(tmp_path / "out", code, known(1)), FOLDER)
    assert scorer.returncode == 0, scorer.stderr + said
    log_sum = np.log(3 * np.exp(1) + 253)
    assert metrics_of(scorer)["val_bpb"] == pytest.approx((log_sum - 1) / np.log(2), abs=1e-4)


def test_the_program_counts_as_much_as_the_weights(pristine: Path, tmp_path: Path) -> None:
    output = artifact(tmp_path / "out", HONEST + "#" * 63_000, known(4))
    scorer = evaluated(pristine, output, tmp_path)
    assert scorer.returncode == 3 and "LABEL size_blocked" in scorer.stdout
    assert metrics_of(scorer) == {"artifact_bytes": 256 * 256 + len(HONEST) + 63_000, "artifact_fits": 0}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("open('{beside}', 'rb').read()", "Operation not permitted"),
        ("__import__('os').readlink('{link}')", "Operation not permitted"),
        ("__import__('os').stat('{beside}').st_size", "Operation not permitted"),
        ("__import__('os').listdir('{folder}')", "Operation not permitted"),
        ("__import__('subprocess').run(['cat', '{beside}'])", "Operation not permitted"),
        ("__import__('ctypes').CDLL(None).fopen(b'{beside}', b'r') or 1 / 0", "ZeroDivisionError"),
        ("__import__('sympy')", "Operation not permitted"),
    ],
)  # fmt: skip
def test_nothing_but_the_artifact_can_be_reached(tmp_path: Path, line: str, says: str) -> None:
    """In one process that goes as far as serve_model.py before it runs an artifact."""
    (tmp_path / "beside").write_bytes(b"weights")
    (tmp_path / "link").symlink_to("weights")
    line = line.format(beside=tmp_path / "beside", link=tmp_path / "link", folder=tmp_path)
    program = f"""
import ctypes, os, subprocess, sys
sys.path.insert(0, {str(FOLDER)!r})
import serving
serving.confine(files=False)
print("confined", flush=True)
{line}
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "confined\n" and done.returncode == 1
    assert says in done.stderr


def test_what_an_artifact_imports_is_there_and_the_training_text_is_not() -> None:
    code = (
        "import sys, serve_model\n"
        "code = b'import colorsys\\nfrom json import tool\\nimport no_such_module\\nfrom numpy import fft'\n"
        "serve_model.import_for(code)\n"
        "assert {'colorsys', 'json.tool', 'numpy.fft'} <= set(sys.modules)\n"
        "assert 'sympy' not in sys.modules\n"
    )
    # A process of its own: other tests import what counts as training text here.
    done = subprocess.run([sys.executable, "-c", code], cwd=FOLDER, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", ["link", "missing", "folder"])
def test_what_is_no_plain_file_is_no_artifact(pristine: Path, tmp_path: Path, kind: str) -> None:
    output = artifact(tmp_path / "out", HONEST, b"")
    (output / "weights.bin").unlink()
    if kind == "link":
        (output / "large.bin").write_bytes(known(1))
        (output / "weights.bin").symlink_to("large.bin")
    elif kind == "folder":
        (output / "weights.bin").mkdir()
    scorer = evaluated(pristine, output, tmp_path)
    assert scorer.returncode == 1 and "weights.bin" in scorer.stderr and "METRIC" not in scorer.stdout
