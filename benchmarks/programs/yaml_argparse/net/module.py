"""The module: a regression network, its loss and its optimiser, in the manner of Lightning."""

import torch
from torch import nn

ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "gelu": nn.GELU}
OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


class WaveModule(nn.Module):
    """Predicts the wave."""

    def __init__(self, model, optimizer):
        super().__init__()
        self.optimizer = optimizer
        layers, size = [], 3
        for _ in range(model["layers"]):
            layers += [nn.Linear(size, model["width"]), ACTIVATIONS[model["activation"]]()]
            size = model["width"]
        self.net = nn.Sequential(*layers, nn.Linear(size, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)

    def training_step(self, batch):
        x, y = batch
        return nn.functional.mse_loss(self(x), y)

    def configure_optimizers(self):
        kind = OPTIMIZERS[self.optimizer["name"]]
        return kind(self.parameters(), lr=self.optimizer["lr"], weight_decay=self.optimizer["weight_decay"])
