"""Two spirals by a small MLP: a class, an optimiser, a loop that ends by the clock."""

import math
import os
import time

import numpy as np
import torch
from torch import nn

torch.set_num_threads(1)
N_TRAIN = 800
VAL_FRACTION = 0.25
TURNS = 1.75
JITTER = 0.05

LEARNING_RATE = 3e-3
WEIGHT_DECAY = 1e-3
BATCH_SIZE = 64
BUDGET = float(os.environ.get("AUTORESEARCHD_TIME_BUDGET", "3"))


class SpiralNet(nn.Module):
    """A stack of linear layers."""

    def __init__(self, hidden=12, depth=2, dropout=0.1):
        super().__init__()
        layers, width = [], 2
        for _ in range(depth):
            layers += [nn.Linear(width, hidden), nn.Tanh(), nn.Dropout(dropout)]
            width = hidden
        self.layers = nn.Sequential(*layers, nn.Linear(width, 1))

    def forward(self, x):
        return self.layers(x).squeeze(-1)


def spirals():
    generator = np.random.default_rng(11)
    total = int(N_TRAIN / (1 - VAL_FRACTION))
    label = np.arange(total) % 2
    t = np.sqrt(generator.uniform(0.02, 1, total))
    angle = 2 * math.pi * TURNS * t + math.pi * label
    x = np.stack([t * np.cos(angle), t * np.sin(angle)], 1) + JITTER * generator.standard_normal((total, 2))
    x, label = torch.tensor(x, dtype=torch.float32), torch.tensor(label, dtype=torch.float32)
    return x[:N_TRAIN], label[:N_TRAIN], x[N_TRAIN:], label[N_TRAIN:]


def main():
    began = time.monotonic()
    torch.manual_seed(int(os.environ.get("AUTORESEARCHD_SEED", "0")))
    x, y, x_val, y_val = spirals()
    net = SpiralNet()
    optimizer = torch.optim.AdamW(net.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    loss_of = nn.BCEWithLogitsLoss()
    step = 0
    while time.monotonic() - began < BUDGET:
        rows = torch.randint(0, len(x), (BATCH_SIZE,))
        loss = loss_of(net(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 200 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    net.eval()
    with torch.no_grad():
        logits = net(x_val)
    out = os.environ.get("AUTORESEARCHD_OUTPUT_DIR", ".")
    np.savez(os.path.join(out, "validation.npz"), y=y_val.numpy(), predicted=logits.numpy())
    print(f"val_loss: {loss_of(logits, y_val).item():.5f}")


if __name__ == "__main__":
    main()
