"""Prepare the data of the `autoresearch` task. Protected: no experiment may edit it.

Run once, in the set-up folder (the current directory), with network access where there is one::

    python prepare.py

It writes into `data/`:

=================  =======  ==========================================================================
file               who      content
=================  =======  ==========================================================================
`train.bin`        job      training tokens, little-endian uint16, documents joined, each led by BOS
`tokenizer.json`   job      how text became tokens: a byte-level BPE, as the `tokenizers` library stores it
`meta.json`        job      profile, vocabulary size, versions, token counts, sha256 of every file
`val.bin`          scorer   validation tokens, in the same form
`val_meta.json`    scorer   vocabulary size and the number of UTF-8 bytes of every token id
=================  =======  ==========================================================================

Two corpora, chosen by the profile (`AUTORESEARCHD_PROFILE`, else by whether CUDA is present):

* **cpu** (and **cuda** without a network): the Python sources that come with the installed `torch`, `sympy` and
  `networkx`, and a BPE of 1024 tokens. With pinned versions the corpus is the same on every machine.
  The validation text comes from the places in `HELD_OUT` only, which nothing imports at run time and which the
  sandbox hides from a job (`evaluation.hide` in `task.yaml`). The whole of `torch/testing/_internal` cannot be
  hidden: `import torch` itself needs two of its files, and `torch.compile` a third. Training text takes nothing from it
  all the same.
* **cuda** with a network: shards of `karpathy/climbmix-400b-shuffle` and a BPE of 8192 tokens.

De-duplication: every visible `.py` file of the three packages is scanned, whether it was chosen for training or not.
A validation line that shares any 64 consecutive bytes with one of them is dropped, and the scan is repeated on what
is left until nothing is shared, so that no 64-byte passage of the validation text can be read anywhere in them.

A second run does nothing when `meta.json` matches the files. Sources of the facts: karpathy/autoresearch.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

FORMAT = 2  # raised when the meaning of the files changes: older data are then rebuilt
SHINGLE = 64  # bytes; a passage this long that training text shares with validation text is removed from the latter

PACKAGES = {"torch": 0.5, "sympy": 0.3, "networkx": 0.2}  # package -> share of the training text
_DISTRIBUTED = (  # all but fake_pg.py, which torch.compile imports
    "__pycache__", "_shard", "_tensor", "nn", "rpc", "checkpoint_utils.py", "common_state_dict.py",
    "ddp_under_dist_autograd_test.py", "distributed_test.py", "distributed_utils.py", "multi_threaded_pg.py",
    "rpc_utils.py",
)  # fmt: skip
HELD_OUT = (  # validation text, an equal part from each line: only this; it is never imported and is hidden from jobs
    tuple(f"torch/testing/_internal/distributed/{name}" for name in _DISTRIBUTED),
    ("torch/testing/_internal/opinfo",),
    ("networkx/algorithms/tests",),
    ("sympy/core/tests",),
)
HIDDEN = tuple(place for places in HELD_OUT for place in places)
NEVER_TRAINED = ("torch/testing/_internal", *HIDDEN)  # near relatives of the validation text
TRAIN_BYTES = 12_000_000
VAL_BYTES = 600_000
MAX_FILE_BYTES = 200_000  # larger sources are mostly generated tables
OFFLINE_VOCAB_SIZE = 1024

HUB_URL = "https://huggingface.co/datasets/karpathy/climbmix-400b-shuffle/resolve/main"
TRAIN_SHARDS = 10
VAL_SHARD = 6542  # the last shard, pinned
VOCAB_SIZE = 8192
SPECIAL_TOKENS = [f"<|reserved_{i}|>" for i in range(4)]  # the first one is BOS
BPE_TRAIN_CHARS = 1_000_000_000
BPE_DOC_CHARS = 10_000
VAL_TOKENS = 4_000_000
ATTEMPTS = 5  # downloads; the n-th failure waits 2**n seconds
SPLIT_PATTERN = (  # GPT-4 style, numbers in groups of at most two digits
    r"(?i:'(?:[sdmt]|ll|ve|re))|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)

Hashes = npt.NDArray[np.uint64]


class PrepareError(Exception):
    """Something that the user has to fix; its text is one line."""


class Unavailable(Exception):
    """The hub corpus cannot be had here: no network, or a library is missing."""


# ---------------------------------------------------------------- the offline corpus


def package_root(package: str) -> Path:
    """Folder of an installed package, found without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise PrepareError(f"package {package!r} is not installed: pip install torch (it brings sympy and networkx)")
    return Path(spec.submodule_search_locations[0])


def sources(package: str) -> dict[str, Path]:
    """All `.py` files of a package: path relative to site-packages, with forward slashes -> file; sorted."""
    root = package_root(package)
    found = {f"{package}/{p.relative_to(root).as_posix()}": p for p in root.rglob("*.py")}
    return dict(sorted(found.items()))


def within(name: str, places: Iterable[str]) -> bool:
    """Whether a file is one of the places, or lies in one of them."""
    return any(name == place or name.startswith(place + "/") for place in places)


def shuffled(names: Iterable[str]) -> list[str]:
    """A fixed order that does not follow the alphabet: by the sha256 of the name."""
    return sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())


def read_text(path: Path) -> bytes:
    """A source file with Unix line ends."""
    return path.read_bytes().replace(b"\r\n", b"\n")


def take(files: dict[str, Path], cap: int) -> dict[str, bytes]:
    """Files in `shuffled` order until `cap` bytes are full; the last one is cut at a line's end."""
    chosen: dict[str, bytes] = {}
    left = cap
    for name in shuffled(files):
        text = read_text(files[name])
        if not 200 <= len(text) <= MAX_FILE_BYTES:
            continue
        if len(text) > left:
            text = text[: text.rfind(b"\n", 0, left) + 1]
        if text:
            chosen[name] = text
            left -= len(text)
        if left < 200:
            break
    return chosen


def shingle_hashes(text: bytes) -> Hashes:
    """64-bit hash of every 64-byte passage: (len(text) - 63,) uint64. Built by doubling the passage six times."""
    if len(text) < SHINGLE:
        return np.empty(0, dtype=np.uint64)
    hashes: Hashes = np.frombuffer(text, dtype=np.uint8).astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    width = 1
    while width < SHINGLE:
        hashes = hashes[:-width] * np.uint64(0xD6E8FEB86659FD93) ^ (hashes[width:] + (hashes[width:] >> np.uint64(29)))
        width *= 2
    return hashes


def shared_hashes(val: Iterable[bytes], visible: Iterable[bytes]) -> Hashes:
    """Sorted hashes of the 64-byte passages of `val` that occur in `visible`."""
    wanted = np.unique(np.concatenate([shingle_hashes(text) for text in val]))
    top = np.uint64(40)
    seen_top_bits = np.zeros(1 << 24, dtype=np.bool_)  # most foreign passages fall through this filter
    seen_top_bits[wanted >> top] = True
    hits: list[Hashes] = [np.empty(0, dtype=np.uint64)]
    for text in visible:
        hashes = shingle_hashes(text)
        hashes = hashes[seen_top_bits[hashes >> top]]
        places = np.minimum(np.searchsorted(wanted, hashes), len(wanted) - 1)
        hits.append(np.unique(hashes[wanted[places] == hashes]))
    return np.unique(np.concatenate(hits))


def drop_lines(text: bytes, shared: Hashes) -> tuple[bytes, int]:
    """`text` without the lines that a shared 64-byte passage touches, and the number of lines dropped."""
    found = np.flatnonzero(np.isin(shingle_hashes(text), shared))
    if not found.size:
        return text, 0
    edges = np.zeros(len(text) + 1, dtype=np.int64)
    np.add.at(edges, found, 1)
    np.add.at(edges, found + SHINGLE, -1)
    covered = np.cumsum(edges[:-1]) > 0
    kept: list[bytes] = []
    dropped = at = 0
    for line in text.splitlines(keepends=True):
        if covered[at : at + len(line)].any():
            dropped += 1
        else:
            kept.append(line)
        at += len(line)
    return b"".join(kept), dropped


def without_shared(val: dict[str, bytes], visible: Iterable[bytes]) -> tuple[dict[str, bytes], int]:
    """Validation documents of which no 64-byte passage occurs in `visible`, and the number of lines dropped."""
    shared = shared_hashes(val.values(), visible)
    total = 0
    while True:  # joining what is left makes new passages, which a second look may find in `shared`
        cleaned: dict[str, bytes] = {}
        dropped = 0
        for name, text in val.items():
            cleaned[name], lines = drop_lines(text, shared)
            dropped += lines
        total += dropped
        val = {name: text for name, text in cleaned.items() if len(text) >= 200}
        if not dropped:
            return val, total


def build_offline(
    out: Path, profile: str = "cpu", train_bytes: int = TRAIN_BYTES, val_bytes: int = VAL_BYTES
) -> dict[str, Any]:
    """Write the corpus of installed sources into `out` and return what `meta.json` says of it."""
    every = {package: sources(package) for package in PACKAGES}
    train: dict[str, bytes] = {}
    for package, share in PACKAGES.items():
        allowed = {name: path for name, path in every[package].items() if not within(name, NEVER_TRAINED)}
        train |= take(allowed, int(train_bytes * share))

    held: dict[str, bytes] = {}
    for places in HELD_OUT:
        package = places[0].split("/", 1)[0]
        inside = {name: path for name, path in every[package].items() if within(name, places)}
        if not inside:
            raise PrepareError(f"{places[0]} is missing from the installed {package}: reinstall that package")
        held |= take(inside, val_bytes // len(HELD_OUT))
    everything = {name: path for files in every.values() for name, path in files.items()}
    if len(set(everything) - set(held)) < 100:
        raise PrepareError("the installed torch, sympy and networkx carry no Python sources to train on")
    visible = (read_text(path) for name, path in everything.items() if not within(name, HIDDEN))
    val, dropped = without_shared(held, visible)
    if not train or not val:
        raise PrepareError("the corpus is empty: reinstall torch, sympy and networkx with their sources")

    train_texts = [train[name].decode("utf-8", "replace") for name in shuffled(train)]
    val_texts = [val[name].decode("utf-8", "replace") for name in shuffled(val)]
    tokenizer = train_bpe(train_texts, OFFLINE_VOCAB_SIZE)
    encode([train_texts], tokenizer, out / "train.bin")
    encode([val_texts], tokenizer, out / "val.bin")
    return {
        "corpus": "python-sources",
        "profile": profile,
        **write_vocabulary(out, tokenizer, profile),
        "versions": {package: importlib.metadata.version(package) for package in (*PACKAGES, "tokenizers")},
        "train_files": len(train),
        "val_files": len(val),
        "val_lines_dropped": dropped,
    }


# ---------------------------------------------------------------- tokens


def train_bpe(texts: Iterable[str], vocab_size: int) -> Any:
    """A byte-level BPE (`tokenizers.Tokenizer`) learnt from training text only."""
    try:
        import tokenizers  # type: ignore[import-not-found, unused-ignore]
        from tokenizers import decoders, models, pre_tokenizers, trainers
    except ImportError as error:
        raise PrepareError("package 'tokenizers' is not installed: pip install tokenizers") from error

    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(SPLIT_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    probe = "def f(x):  # naïve ☃ 12345\n\treturn x"
    if tokenizer.decode(tokenizer.encode(probe).ids) != probe:
        raise PrepareError("the trained tokenizer does not give back the text that it was given")
    return tokenizer


def encode(groups: Iterable[list[str]], tokenizer: Any, target: Path, limit: int | None = None) -> int:
    """Write all documents, each led by BOS, into `target`; returns the number of tokens written."""
    bos = tokenizer.token_to_id(SPECIAL_TOKENS[0])
    part = target.with_name(target.name + ".tmp")
    written = 0
    with part.open("wb") as file:
        for group in groups:
            ids = [i for e in tokenizer.encode_batch(group, add_special_tokens=False) for i in (bos, *e.ids)]
            if limit is not None:
                ids = ids[: limit - written]
            file.write(np.array(ids, dtype="<u2").tobytes())
            written += len(ids)
            if limit is not None and written >= limit:
                break
    part.replace(target)
    return written


def write_vocabulary(out: Path, tokenizer: Any, profile: str) -> dict[str, Any]:
    """Write the tokenizer, and what the scorer must know of it; returns what `meta.json` says of it."""
    tokenizer.save(str(out / "tokenizer.json"))
    vocab = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    # A byte-level BPE writes every byte as one character, so a token's length in characters is its length in bytes.
    token_bytes = [0 if token in SPECIAL_TOKENS else len(token) for token, _ in vocab]
    write_json(out / "val_meta.json", {"profile": profile, "vocab_size": len(token_bytes), "token_bytes": token_bytes})
    return {"vocab_size": len(token_bytes), "bos": tokenizer.token_to_id(SPECIAL_TOKENS[0])}


# ---------------------------------------------------------------- the hub corpus (cuda profile)


def download(url: str, target: Path) -> None:
    """Fetch a file under a temporary name, then rename it; retried with a growing wait."""
    if target.exists():
        return
    part = target.with_name(target.name + ".tmp")
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with urllib.request.urlopen(url, timeout=30) as answer, part.open("wb") as file:
                shutil.copyfileobj(answer, file, 1 << 20)
            part.replace(target)
            return
        except (urllib.error.URLError, OSError) as error:
            part.unlink(missing_ok=True)
            if attempt == ATTEMPTS:
                raise Unavailable(f"{url}: {error}") from error
            print(f"download failed ({error}); attempt {attempt + 1} of {ATTEMPTS} in {2**attempt} s", flush=True)
            time.sleep(2**attempt)


def online() -> bool:
    """One quick look, so that a machine without a network does not wait for the retries."""
    try:
        with urllib.request.urlopen("https://huggingface.co", timeout=10):
            return True
    except urllib.error.HTTPError:
        return True
    except (urllib.error.URLError, OSError):
        return False


def documents(shard: Path) -> Iterator[list[str]]:
    """The texts of a parquet shard, one row group at a time."""
    import pyarrow.parquet as pq  # type: ignore[import-not-found, import-untyped, unused-ignore]

    file = pq.ParquetFile(shard)
    for group in range(file.num_row_groups):
        yield file.read_row_group(group, columns=["text"]).column("text").to_pylist()


def beginnings(shards: Iterable[Path]) -> Iterator[str]:
    """What the hub's BPE is learnt from: the beginnings of the training documents."""
    left = BPE_TRAIN_CHARS
    for shard in shards:
        for group in documents(shard):
            for text in group:
                yield text[:BPE_DOC_CHARS]
                left -= min(len(text), BPE_DOC_CHARS)
                if left <= 0:
                    return


def build_hub(out: Path, profile: str) -> dict[str, Any]:
    """Download, learn the BPE, tokenise. Raises `Unavailable` where that cannot be done."""
    if importlib.util.find_spec("pyarrow") is None:
        raise Unavailable("missing: pip install pyarrow")
    if not online():
        raise Unavailable("no network")
    shard_dir = out / "shards"
    shard_dir.mkdir(exist_ok=True)
    shards: list[Path] = []
    for index in [*range(TRAIN_SHARDS), VAL_SHARD]:
        shards.append(shard_dir / f"shard_{index:05d}.parquet")
        download(f"{HUB_URL}/{shards[-1].name}", shards[-1])
        print(f"have {shards[-1].name}", flush=True)
    *train_shards, val_shard = shards
    tokenizer = train_bpe(beginnings(train_shards), VOCAB_SIZE)
    print("trained the tokenizer", flush=True)
    encode((group for shard in train_shards for group in documents(shard)), tokenizer, out / "train.bin")
    encode(documents(val_shard), tokenizer, out / "val.bin", limit=VAL_TOKENS)
    vocabulary = write_vocabulary(out, tokenizer, profile)
    shutil.rmtree(shard_dir)  # the validation shard must not lie about
    return {
        "corpus": "climbmix-400b-shuffle",
        "profile": profile,
        **vocabulary,
        "shards": TRAIN_SHARDS,
    }


# ---------------------------------------------------------------- files


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write JSON under a temporary name, then rename."""
    part = path.with_name(path.name + ".tmp")
    part.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")
    part.replace(path)


def sha256(path: Path) -> str:
    """Hexadecimal sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


DATA_FILES = ("train.bin", "val.bin", "tokenizer.json", "val_meta.json")


def up_to_date(out: Path, profile: str) -> dict[str, Any] | None:
    """What `meta.json` says, if it describes this profile, these versions and exactly the files that are there."""
    try:
        meta: dict[str, Any] = json.loads((out / "meta.json").read_text())
        same = meta["format"] == FORMAT and meta["profile"] == profile
        same = same and all(sha256(out / name) == meta["sha256"][name] for name in DATA_FILES)
        installed = {package: importlib.metadata.version(package) for package in meta.get("versions", {})}
        return meta if same and installed == meta.get("versions", {}) else None
    except (OSError, ValueError, KeyError, TypeError, importlib.metadata.PackageNotFoundError):
        return None


def find_profile() -> str:
    """`cpu` or `cuda`: what the daemon says, else what the machine has."""
    profile = os.environ.get("AUTORESEARCHD_PROFILE")
    if profile is None:
        import torch

        profile = "cuda" if torch.cuda.is_available() else "cpu"
    if profile not in ("cpu", "cuda"):
        raise PrepareError(f"AUTORESEARCHD_PROFILE is {profile!r}: it must be cpu or cuda")
    return profile


def prepare(
    out: Path, profile: str, train_bytes: int = TRAIN_BYTES, val_bytes: int = VAL_BYTES
) -> tuple[dict[str, Any], bool]:
    """Make `out` complete. Returns its meta data and whether anything had to be done."""
    done = up_to_date(out, profile)
    if done is not None:
        return done, False
    out.mkdir(parents=True, exist_ok=True)
    (out / "meta.json").unlink(missing_ok=True)  # it is written last, so its presence means that the rest is whole
    meta: dict[str, Any] | None = None
    if profile == "cuda":
        try:
            meta = build_hub(out, profile)
        except Unavailable as reason:
            print(f"the climbmix corpus cannot be had ({reason}); using installed Python sources instead", flush=True)
    if meta is None:
        meta = build_offline(out, profile, train_bytes, val_bytes)
    meta["format"] = FORMAT
    meta["tokens"] = {name: (out / name).stat().st_size // 2 for name in ("train.bin", "val.bin")}
    meta["sha256"] = {name: sha256(out / name) for name in DATA_FILES}
    write_json(out / "meta.json", meta)
    return meta, True


def main() -> int:
    """Prepare `data/` in the current directory."""
    started = time.monotonic()
    try:
        meta, built = prepare(Path("data"), find_profile())
    except PrepareError as error:
        print(f"prepare.py: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"prepare.py: cannot write the data: {error}", file=sys.stderr)
        return 1
    counts = meta["tokens"]
    print(f"{meta['corpus']}: {counts['train.bin']:,} training and {counts['val.bin']:,} validation tokens")
    for name in DATA_FILES:
        print(f"sha256 {meta['sha256'][name]}  data/{name}")
    print(f"prepared in {time.monotonic() - started:.1f} s" if built else "data are up to date: nothing to do")
    return 0


if __name__ == "__main__":
    sys.exit(main())
