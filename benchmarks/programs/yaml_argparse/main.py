"""python main.py --config config.yaml [--max-epochs N]: fit, validate, print val_mse."""

import argparse
import os
from pathlib import Path

import numpy as np
import torch
import yaml
from net.data import WaveData
from net.module import WaveModule


def fit(module, data, epochs):
    optimizer = module.configure_optimizers()
    for epoch in range(epochs):
        for batch in data.train_loader():
            loss = module.training_step(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} train_loss {loss.item():.4f}", flush=True)


def validate(module, data):
    module.eval()
    with torch.no_grad():
        pairs = [(y, module(x)) for x, y in data.val_loader()]
    return torch.cat([y for y, _ in pairs]).numpy(), torch.cat([p for _, p in pairs]).numpy()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, default=Path("config.yaml"))
    parser.add_argument("--max-epochs", type=int, default=None)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(int(os.environ.get("AUTORESEARCHD_SEED", "0")))
    config = yaml.safe_load(arguments.config.read_text())
    data = WaveData(config["data"], config["trainer"]["batch_size"])
    module = WaveModule(config["model"], config["optimizer"])
    fit(module, data, arguments.max_epochs or config["trainer"]["max_epochs"])
    y, predicted = validate(module, data)
    np.savez(Path(os.environ.get("AUTORESEARCHD_OUTPUT_DIR", ".")) / "validation.npz", y=y, predicted=predicted)
    print(f"METRIC val_mse={float(np.mean((y - predicted) ** 2)):.6f}")


if __name__ == "__main__":
    main()
