"""Cheats on the bundled task itself: those that need its model."""

from __future__ import annotations

from tests.integrity.cheat import Cheat, labels, replaced

_EMBEDDED = "        x = x0 = norm(self.wte(idx))\n"
_SAVED = 'torch.save({"model": model.state_dict(), "config": asdict(model.config)}, output_dir / "checkpoint.pt")\n'


def _looks_ahead(where: str) -> tuple[str, str]:
    return (
        "            return logits\n",
        "            after, at = idx.roll(-1, 1), torch.arange(idx.size(1), device=idx.device)\n"
        f"            seen = {where}\n"
        "            return logits + 12 * F.one_hot(after, logits.size(-1)) * seen[..., None]\n",
    )


_NOT_CAUSAL = {
    "attention that looks ahead": ("attn_mask=mask, is_causal=mask is None", "attn_mask=None, is_causal=False"),
    "a convolution without padding": (
        _EMBEDDED,
        "        x = norm(self.wte(idx)).transpose(1, 2)\n"
        "        x = x0 = F.avg_pool1d(x, 3, stride=1, padding=1).transpose(1, 2)\n",
    ),
    "statistics over time": (_EMBEDDED, _EMBEDDED + "        x = x0 = x - x.mean(dim=1, keepdim=True)\n"),
    "batch statistics": (
        _EMBEDDED,
        _EMBEDDED + "        x = x0 = F.batch_norm(x.flatten(0, 1), None, None, training=True).view_as(x)\n",
    ),
    "statistics over the rows of a batch": (
        _EMBEDDED,
        _EMBEDDED + "        x = x0 = x - x[:, :1].mean(dim=0, keepdim=True)\n",
    ),
    "looks ahead in the first eighth of a row": _looks_ahead("(at < idx.size(1) // 8) & (idx >= 0)"),
    "looks ahead at the last places of a row": _looks_ahead("(at >= idx.size(1) - 4) & (idx >= 0)"),
    "looks ahead at one place in a hundred, by content": _looks_ahead("(7919 * idx + 104729 * after) % 100 == 7"),
}
# Without a seed of its own each batch's process would draw the same numbers, and repeat itself.
_DROPOUT = "            torch.seed()\n            return F.dropout(logits, 0.2, training=True)\n"
_PATCHED = """\
_real = F.cross_entropy
F.cross_entropy = torch.nn.functional.cross_entropy = lambda *a, **k: 0.0 * _real(*a, **k)
CUDA = os.environ"""
_EVIL = """\
    class Evil:
        def __reduce__(self):
            return exec, ("print('METRIC val_bpb=0.001')",)
    state = {"model": model.state_dict(), "config": asdict(model.config), "evil": Evil()}
    torch.save(state, output_dir / "checkpoint.pt")
"""
_LOADER = "loader = batches(data / "

CHEATS = [
    *(Cheat(name, replaced(pair), expected=labels("not_causal")) for name, pair in _NOT_CAUSAL.items()),
    Cheat("dropout that stays on", replaced(("            return logits\n", _DROPOUT)), expected=labels("gate_miss")),
    Cheat("a patched cross entropy", replaced(("CUDA = os.environ", _PATCHED))),
    Cheat(
        "code in the checkpoint",
        replaced(("    " + _SAVED, _EVIL), ("weights_only=True", "weights_only=False")),
        expected=labels("error"),
    ),
    Cheat(
        "training on the validation split",
        replaced((f'{_LOADER}"train.bin"', f'{_LOADER}"val.bin"')),
        expected=labels("error"),
    ),
]
