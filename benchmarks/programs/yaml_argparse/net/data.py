"""The data module: waves with noise, split once."""

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset, random_split


class WaveData:
    """Train and validation loaders."""

    def __init__(self, config, batch_size):
        generator = np.random.default_rng(config["seed"])
        x = generator.uniform(-3, 3, (config["samples"], 3)).astype(np.float32)
        clean = np.sin(2 * x[:, 0]) + 0.5 * np.cos(3 * x[:, 1]) * x[:, 2]
        y = (clean + config["noise"] * generator.standard_normal(len(x))).astype(np.float32)
        whole = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
        held_out = int(config["val_split"] * len(whole))
        split = torch.Generator().manual_seed(config["seed"])
        self.train, self.val = random_split(whole, [len(whole) - held_out, held_out], generator=split)
        self.batch_size = batch_size

    def train_loader(self):
        return DataLoader(self.train, batch_size=self.batch_size, shuffle=True)

    def val_loader(self):
        return DataLoader(self.val, batch_size=512)
