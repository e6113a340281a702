"""Cheats on the bundled task itself: those that need its model."""

from __future__ import annotations

from tests.integrity.cheat import Cheat, labels, replaced

_EMBEDDED = "        x = x0 = norm(self.wte(idx))\n"
_SAVED = 'torch.save({"model": model.state_dict(), "config": asdict(model.config)}, output_dir / "checkpoint.pt")\n'


def _looks_ahead(name: str, where: str) -> Cheat:
    return Cheat(
        name,
        replaced(
            (
                "            return logits\n",
                "            after, at = idx.roll(-1, 1), torch.arange(idx.size(1), device=idx.device)\n"
                f"            seen = {where}\n"
                "            return logits + 12 * F.one_hot(after, logits.size(-1)) * seen[..., None]\n",
            )
        ),
        expected=labels("not_causal"),
    )


CHEATS = [
    Cheat(
        "attention that looks ahead",
        replaced(("attn_mask=mask, is_causal=mask is None", "attn_mask=None, is_causal=False")),
        expected=labels("not_causal"),
    ),
    Cheat(
        "a convolution without padding",
        replaced(
            (
                _EMBEDDED,
                "        x = norm(self.wte(idx)).transpose(1, 2)\n"
                "        x = x0 = F.avg_pool1d(x, 3, stride=1, padding=1).transpose(1, 2)\n",
            )
        ),
        expected=labels("not_causal"),
    ),
    Cheat(
        "statistics over time",
        replaced((_EMBEDDED, _EMBEDDED + "        x = x0 = x - x.mean(dim=1, keepdim=True)\n")),
        expected=labels("not_causal"),
    ),
    Cheat(
        "batch statistics",
        replaced(
            (
                _EMBEDDED,
                _EMBEDDED + "        x = x0 = F.batch_norm(x.flatten(0, 1), None, None, training=True).view_as(x)\n",
            )
        ),
        expected=labels("not_causal"),
    ),
    Cheat(
        "statistics over the rows of a batch",
        replaced((_EMBEDDED, _EMBEDDED + "        x = x0 = x - x[:, :1].mean(dim=0, keepdim=True)\n")),
        expected=labels("not_causal"),
    ),
    _looks_ahead("looks ahead in the first eighth of a row", "(at < idx.size(1) // 8) & (idx >= 0)"),
    _looks_ahead("looks ahead at the last places of a row", "(at >= idx.size(1) - 4) & (idx >= 0)"),
    _looks_ahead("looks ahead at one place in a hundred, by content", "(7919 * idx + 104729 * after) % 100 == 7"),
    Cheat(
        "dropout that stays on",
        replaced(
            (  # without a seed of its own each batch's process would draw the same numbers, and repeat itself
                "            return logits\n",
                "            torch.seed()\n            return F.dropout(logits, 0.2, training=True)\n",
            )
        ),
        expected=labels("gate_miss"),
    ),
    Cheat(
        "a patched cross entropy",
        replaced(
            (
                "CUDA = os.environ",
                "_real = F.cross_entropy\n"
                "F.cross_entropy = torch.nn.functional.cross_entropy = lambda *a, **k: 0.0 * _real(*a, **k)\n"
                "CUDA = os.environ",
            )
        ),
    ),
    Cheat(
        "code in the checkpoint",
        replaced(
            (
                "    " + _SAVED,
                "    class Evil:\n"
                "        def __reduce__(self):\n"
                "            return exec, (\"print('METRIC val_bpb=0.001')\",)\n"
                '    state = {"model": model.state_dict(), "config": asdict(model.config), "evil": Evil()}\n'
                '    torch.save(state, output_dir / "checkpoint.pt")\n',
            ),
            ("weights_only=True", "weights_only=False"),
        ),
        expected=labels("error"),
    ),
    Cheat(
        "training on the validation split",
        replaced(('loader = batches(data / "train.bin"', 'loader = batches(data / "val.bin"')),
        expected=labels("error"),
    ),
]
