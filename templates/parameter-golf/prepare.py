"""Prepare the data of the `parameter-golf` task. Protected: no experiment may edit it.

Run once in the set-up folder; writes into `data/`:

=============  ======  ===============================================================================
file           who     content
=============  ======  ===============================================================================
`train.bin`    job     training text as it is: documents, each ended by a zero byte
`meta.json`    job     corpus, versions, sizes, sha256 of both files
`val.bin`      scorer  validation text, in the same form
=============  ======  ===============================================================================

* **cpu**: the Python sources of the installed `sympy` and `networkx`. The validation
  text comes from the folders of tests in `HELD_OUT` only, which nothing imports and which the sandbox hides from a job.
  Lines of it that stand in any other source of the two packages as well are dropped, unless they are very short.
* **cuda**: shards of `karpathy/climbmix-400b-shuffle` from the Hugging Face hub; needs pyarrow.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

PACKAGES = ("sympy", "networkx")
HELD_OUT = (
    "sympy/core/tests",
    "sympy/polys/tests",
    "networkx/algorithms/tests",
    "networkx/classes/tests",
)
MAX_FILE_BYTES = 200_000  # larger sources are mostly generated tables
SHORT = 12  # bytes: lines that are no longer are everybody's
TRAIN_BYTES, VAL_BYTES = 16_000_000, 600_000
END = b"\0"

HUB_URL = "https://huggingface.co/datasets/karpathy/climbmix-400b-shuffle/resolve/main/shard_{:05d}.parquet"
TRAIN_SHARDS, VAL_SHARD = range(10), 6542
HUB_VAL_BYTES = 8_000_000


class PrepareError(Exception):
    """Something that the user has to fix; its text is one line."""


def sources(package: str) -> dict[str, bytes]:
    """The package's Python files by their path below site-packages; it is not imported."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise PrepareError(f"package {package!r} is not installed: pip install sympy networkx (torch brings both)")
    root = Path(spec.submodule_search_locations[0])
    paths = {f"{package}/{path.relative_to(root).as_posix()}": path for path in root.rglob("*.py")}
    return {name: paths[name].read_bytes().replace(b"\r\n", b"\n").replace(END, b"") for name in sorted(paths)}


def chosen(texts: dict[str, bytes], most: int) -> list[bytes]:
    """Texts in a fixed order that does not follow the alphabet, until there are enough."""
    taken, size = [], 0
    for name in sorted(texts, key=lambda name: hashlib.sha256(name.encode()).digest()):
        if 200 <= len(texts[name]) <= MAX_FILE_BYTES and size < most:
            taken.append(texts[name][: most - size])
            size += len(taken[-1])
    return taken


def held_out(name: str) -> bool:
    """Whether a file belongs to the validation text."""
    return any(name.startswith(f"{folder}/") for folder in HELD_OUT)


def offline() -> tuple[list[bytes], list[bytes], dict[str, Any]]:
    """Training and validation documents from the installed sources, and what meta.json says of them."""
    every = {name: text for package in PACKAGES for name, text in sources(package).items()}
    for folder in HELD_OUT:
        if not any(name.startswith(f"{folder}/") for name in every):
            raise PrepareError(f"{folder} is missing: reinstall {folder.split('/', 1)[0]} with its tests")
    seen = {line.strip() for name, text in every.items() if not held_out(name) for line in text.split(b"\n")}
    own = {
        name: b"".join(
            line for line in text.splitlines(keepends=True) if len(line.strip()) <= SHORT or line.strip() not in seen
        )
        for name, text in every.items()
        if held_out(name)
    }
    train = chosen({name: text for name, text in every.items() if not held_out(name)}, TRAIN_BYTES)
    versions = {package: importlib.metadata.version(package) for package in PACKAGES}
    return train, chosen(own, VAL_BYTES), {"corpus": "python-sources", "versions": versions}


def documents(shards: Iterable[int], folder: Path) -> Iterator[bytes]:
    """The texts of some of the hub's shards, each fetched when it is needed and removed afterwards."""
    import pyarrow.parquet as pq  # type: ignore[import-not-found, import-untyped, unused-ignore]

    for shard in shards:
        path = folder / "shard.parquet"
        urllib.request.urlretrieve(HUB_URL.format(shard), path)
        file = pq.ParquetFile(path)
        for group in range(file.num_row_groups):
            for text in file.read_row_group(group, columns=["text"]).column("text").to_pylist():
                yield text.encode("utf-8", "replace").replace(END, b"")
        path.unlink()


def write(documents: Iterable[bytes], path: Path, most: int | None = None) -> int:
    """Write documents, each with its end, into a file; gives its size."""
    size = 0
    with path.open("wb") as file:
        for text in documents:
            size += file.write(text + END)
            if most is not None and size >= most:
                break
    return size


def main() -> int:
    """Prepare `data/` in the current directory."""
    out = Path("data")
    out.mkdir(exist_ok=True)
    try:
        if os.environ.get("AUTORESEARCHD_PROFILE") == "cuda":
            try:
                write(documents(TRAIN_SHARDS, out), out / "train.bin")
                write(documents([VAL_SHARD], out), out / "val.bin", HUB_VAL_BYTES)
                meta: dict[str, Any] = {"corpus": "climbmix-400b-shuffle"}
            except (ImportError, urllib.error.URLError) as error:
                raise PrepareError(f"the climbmix shards need a network and pyarrow ({error})") from None
        else:
            train, val, meta = offline()
            write(train, out / "train.bin")
            write(val, out / "val.bin")
    except (PrepareError, OSError) as error:
        print(f"prepare.py: {error}", file=sys.stderr)
        return 1
    for name in ("train.bin", "val.bin"):
        with (out / name).open("rb") as file:
            digest, size = hashlib.file_digest(file, "sha256").hexdigest(), file.tell()
        meta[name] = {"sha256": digest, "bytes": size}
        print(f"{digest}  data/{name}  {size:,} bytes")
    (out / "meta.json").write_text(json.dumps(meta, indent=1, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
