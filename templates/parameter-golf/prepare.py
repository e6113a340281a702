"""Prepare the data of the `parameter-golf` task. Protected: no experiment may edit it.

Run once in the set-up folder; writes into `data/`:

=============  ======  ===============================================================================
file           who     content
=============  ======  ===============================================================================
`train.bin`    job     training text as it is: documents, each ended by a zero byte
`meta.json`    job     corpus, versions, sizes, sha256 of both files
`val.bin`      scorer  validation text, in the same form
=============  ======  ===============================================================================

* **cpu**: the Python sources that `python_text.py` finds.
* **cuda**: shards of `karpathy/climbmix-400b-shuffle` from the Hugging Face hub; needs pyarrow.
"""

from __future__ import annotations

import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from python_text import END, PrepareError, offline, write_facts

HUB_URL = "https://huggingface.co/datasets/karpathy/climbmix-400b-shuffle/resolve/main/shard_{:05d}.parquet"
TRAIN_SHARDS, VAL_SHARD = range(10), 6542
HUB_VAL_BYTES = 8_000_000


def documents(shards: Iterable[int], folder: Path) -> Iterator[bytes]:
    """The texts of some of the hub's shards, each fetched when it is needed and removed afterwards."""
    import pyarrow.parquet as pq  # type: ignore[import-not-found, import-untyped, unused-ignore]

    for shard in shards:
        path = folder / "shard.parquet"
        try:
            urllib.request.urlretrieve(HUB_URL.format(shard), path)
            file = pq.ParquetFile(path)
            for group in range(file.num_row_groups):
                for text in file.read_row_group(group, columns=["text"]).column("text").to_pylist():
                    yield text.encode("utf-8", "replace").replace(END, b"")
        finally:  # also where enough was taken: that of the validation must not lie about
            path.unlink(missing_ok=True)


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
    write_facts(out, ("train.bin", "val.bin"), meta)
    return 0


if __name__ == "__main__":
    sys.exit(main())
