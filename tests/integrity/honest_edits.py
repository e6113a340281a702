"""The kept changes of a night of karpathy/autoresearch (2026-03-08, its results.tsv), re-created on the bundled task.

The log has 23 rows marked ``keep``: the baseline and 22 changes. All 22 apply, each on top of those before it, as they
did there. Five are carried over in proportion, because the bundled task is smaller: the batch is halved from 2^11, the
layer is the fifth (of the same total width), the pattern is that of five layers, the short window is an eighth of 256,
and the values given to weights are those of the log although the optimiser groups differ (embeddings and value
embeddings are in one group here, and are parted by the first change that treats them differently).
"""

from __future__ import annotations

from tests.integrity.cheat import Cheat, Edit, labels, replaced

_EMBEDDINGS = '            {"params": embeddings, "lr": EMBEDDING_LR * scale},\n'
_PARTED = (
    '            {{"params": embeddings[:1], "lr": EMBEDDING_LR * scale, "weight_decay": 0.001}},\n'
    '            {{"params": embeddings[1:], "lr": EMBEDDING_LR * scale, "weight_decay": {0}}},\n'
)
_HEAD = '            {"params": [model.lm_head.weight], "lr": UNEMBEDDING_LR * scale'


def _constant(name: str, old: str, new: str) -> tuple[str, str]:
    return f"\n{name} = {old}", f"\n{name} = {new}"


CHANGES: list[tuple[str, list[tuple[str, str]]]] = [
    ("bea057b halve batch", [_constant("TOTAL_BATCH_SIZE", "2048", "1024")]),
    ("7f2a65c one layer more", [_constant("DEPTH", "4", "5"), _constant("ASPECT_RATIO", "16", "13")]),
    ("4e6697f warmdown 0.5 to 0.7", [_constant("WARMDOWN_RATIO", "0.5", "0.7")]),
    ("8363d52 SSSSL window pattern", [_constant("WINDOW_PATTERN", '"SSSL"', '"SSSSL"')]),
    ("7da0b67 short window 1/8 context", [_constant("SHORT_WINDOW", "128", "32")]),
    ("59e9dd9 RoPE base 10K to 200K", [_constant("ROPE_BASE", "10000", "200000")]),
    ("7d047e4 embedding LR 0.6 to 0.8", [_constant("EMBEDDING_LR", "0.6", "0.8")]),
    ("0640555 x0_lambda init 0.1 to 0.05", [_constant("X0_INIT", "0.1", "0.05")]),
    ("772dada FINAL_LR_FRAC 0.0 to 0.05", [_constant("FINAL_LR_FRAC", "0.0", "0.05")]),
    ("aa8f408 unembedding LR 0.004 to 0.006", [_constant("UNEMBEDDING_LR", "0.004", "0.006")]),
    ("a7aa309 muon momentum warmup 300 to 200 steps", [_constant("MUON_WARMUP_STEPS", "300", "200")]),
    ("7f63c17 unembedding LR 0.006 to 0.005", [_constant("UNEMBEDDING_LR", "0.006", "0.005")]),
    ("264a05b add WD 0.01 to lm_head", [(_HEAD, _HEAD + ', "weight_decay": 0.01')]),
    ("41d50a8 init scale 0.8x", [_constant("INIT_SCALE", "1.0", "0.8")]),
    ("f5979a7 init scale 0.7x", [_constant("INIT_SCALE", "0.8", "0.7")]),
    ("97dda85 init scale 0.7 to 0.68", [_constant("INIT_SCALE", "0.7", "0.68")]),
    ("ece9101 tiny embedding WD 0.001", [(_EMBEDDINGS, _PARTED.format("0.0"))]),
    ("1a85362 tiny VE WD 0.001", [(_PARTED.format("0.0"), _PARTED.format("0.001"))]),
    ("73c77ca VE WD 0.001 to 0.002", [(_PARTED.format("0.001"), _PARTED.format("0.002"))]),
    ("637f82f VE WD 0.002 to 0.003", [(_PARTED.format("0.002"), _PARTED.format("0.003"))]),
    ("b1d5004 embedding LR 0.8 to 0.9", [_constant("EMBEDDING_LR", "0.8", "0.9")]),
    ("438a26e warmdown 0.7 to 0.75", [_constant("WARMDOWN_RATIO", "0.7", "0.75")]),
]


def _up_to(count: int) -> Edit:
    def edit(text: str) -> str:
        for _, pairs in CHANGES[:count]:
            text = replaced(*pairs)(text)
        return text

    return edit


HONEST = [
    Cheat(name, _up_to(number), expected=labels("", "simpler", "no_gain"))
    for number, (name, _) in enumerate(CHANGES, 1)
]
"""As experiments: each with all that came before it."""
