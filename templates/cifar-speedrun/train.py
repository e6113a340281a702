"""Train a small convolutional network to an accuracy, as fast as it goes: the time of this program is the score."""

import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

CUDA = os.environ.get("AUTORESEARCHD_PROFILE") == "cuda"

EPOCHS = 6
BATCH_SIZE = 64
LEARNING_RATE = 0.05
MOMENTUM = 0.9
WEIGHT_DECAY = 0.0005
LABEL_SMOOTHING = 0.1
WARMUP = 0.2  # share of the steps in which the rate rises
FINAL_LR = 0.0  # share of the rate that is left at the end
WIDTHS = (16, 32, 64)  # of the blocks
DEPTH = 1  # convolutions in a block
SHIFT = 2  # pixels that training images are moved by, at most, each way
FLIP = False  # whether images are mirrored at random: not digits
TEST_SHIFTS = 0  # whether images to tell are also seen shifted by this much, in four directions
NORM_MOMENTUM = 0.4  # of the running statistics of batch normalisation

if CUDA:  # CIFAR-10, after airbench96 (Jordan 2024, arXiv:2404.00498)
    EPOCHS, BATCH_SIZE, LEARNING_RATE, FLIP, TEST_SHIFTS = 40, 1024, 0.5, True, 1
    WIDTHS, DEPTH, LABEL_SMOOTHING = (128, 384, 512), 3, 0.2


class Block(nn.Module):
    """Convolutions with batch normalisation; the first one halves the image."""

    def __init__(self, wide_in, wide):
        super().__init__()
        pairs = list(pairwise([wide_in] + [wide] * DEPTH))
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1, bias=False) for a, b in pairs)
        self.norms = nn.ModuleList(nn.BatchNorm2d(wide, momentum=NORM_MOMENTUM) for _ in pairs)

    def forward(self, x):
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            y = conv(x)
            y = F.gelu(norm(F.max_pool2d(y, 2) if i == 0 else y))
            x = y if i < 2 else x + y
        return x


class Net(nn.Module):
    """Blocks, the maximum over what is left of the image, a linear layer."""

    def __init__(self, colours, classes):
        super().__init__()
        self.blocks = nn.Sequential(*(Block(a, b) for a, b in pairwise([colours, *WIDTHS])))
        self.head = nn.Linear(WIDTHS[-1], classes)

    def forward(self, x):
        """Logits (N, classes)."""
        return self.head(self.blocks(x).amax((2, 3)))


def moved(images, generator):
    """Images (N, C, H, W) at random places of a frame that is SHIFT wider on each side; mirrored at random if FLIP."""
    count, _, height, width = images.shape
    device = images.device
    if FLIP:
        mirrored = torch.rand(count, 1, 1, 1, generator=generator).to(device) < 0.5
        images = torch.where(mirrored, images.flip(3), images)
    if SHIFT == 0:
        return images
    framed = F.pad(images, (SHIFT,) * 4)
    place = torch.randint(0, 2 * SHIFT + 1, (2, count), generator=generator).to(device)
    rows = place[0][:, None] + torch.arange(height, device=device)
    columns = place[1][:, None] + torch.arange(width, device=device)
    image = torch.arange(count, device=device)[:, None, None]
    return framed.permute(0, 2, 3, 1)[image, rows[:, :, None], columns[:, None]].permute(0, 3, 1, 2)


def rate(progress):
    """The share of LEARNING_RATE at a share of the steps."""
    if progress < WARMUP:
        return progress / WARMUP
    left = (1 - progress) / (1 - WARMUP) if WARMUP < 1 else 1.0
    return left + (1 - left) * FINAL_LR


def tell(net, images):
    """Classes of images."""
    shifts = [(0, 0)]
    if TEST_SHIFTS:
        shifts += [(TEST_SHIFTS, 0), (-TEST_SHIFTS, 0), (0, TEST_SHIFTS), (0, -TEST_SHIFTS)]
    net.eval()
    with torch.no_grad():
        parts = [sum(net(part.roll(s, (2, 3))) for s in shifts) for part in images.split(500)]
    return torch.cat(parts).argmax(1)


def main():
    """Train for so many epochs, predict, write."""
    seed = int(os.environ.get("AUTORESEARCHD_SEED", "0"))
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    device = torch.device("cuda" if CUDA and torch.cuda.is_available() else "cpu")
    with np.load("data/train.npz") as stored:
        images, labels = torch.from_numpy(stored["images"]), torch.from_numpy(stored["labels"]).to(device)
    wanted = torch.from_numpy(np.load("data/wanted.npy"))
    images, wanted = (x.to(device).permute(0, 3, 1, 2).float() / 255 for x in (images, wanted))
    mean, spread = images.mean((0, 2, 3), keepdim=True), images.std((0, 2, 3), keepdim=True)
    images, wanted = (images - mean) / spread, (wanted - mean) / spread
    net = Net(images.shape[1], int(labels.max()) + 1).to(device)
    optimizer = torch.optim.SGD(
        net.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY, nesterov=True
    )
    half = torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda")
    per_epoch = max(1, len(images) // BATCH_SIZE)
    steps = EPOCHS * per_epoch
    for step in range(steps):
        if step % per_epoch == 0:
            order = torch.randperm(len(images), generator=generator).to(device)
        chosen = order[step % per_epoch * BATCH_SIZE :][:BATCH_SIZE]
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * rate(step / steps)
        with half:
            logits = net(moved(images[chosen], generator))
        loss = F.cross_entropy(logits.float(), labels[chosen], label_smoothing=LABEL_SMOOTHING)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 49:
            print(f"step {step + 1} | loss: {loss.item():.6f}", flush=True)
    said = tell(net, wanted)
    np.save(Path(os.environ.get("AUTORESEARCHD_OUTPUT_DIR", ".")) / "predictions.npy", said.cpu().numpy())
    print(f"steps: {steps}")


if __name__ == "__main__":
    main()
