"""Learn to tell newsgroups apart: embeddings of words and word pairs, summed, and a linear layer on top of them."""

import math
import os
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

NGRAMS = 2  # the longest run of words that is a feature of its own
MAX_WORDS = 300  # of a post, from its beginning
BUCKETS = 2**20  # of the hash that n-grams share
MIN_COUNT = 3  # so often a bucket has to be met in the training posts
TERM_POWER = 1.0  # of a feature's count in a post, in its weight
IDF_POWER = 0.0  # of the logarithm of its rarity (Spärck Jones 1972), in its weight
WIDTH = 64
BATCH_SIZE = 64
LEARNING_RATE = 0.05  # of the table
HEAD_LEARNING_RATE = 0.003
WEIGHT_DECAY = 0.0  # of the head
DROPOUT = 0.0  # of the pooled embedding
FEATURE_DROPOUT = 0.0  # of whole features of a post
LABEL_SMOOTHING = 0.0
WARMUP = 0.0  # share of the time in which the rates rise
COOLDOWN = 0.2  # share of the time in which they fall to nothing
INIT_SCALE = 0.1
EPSILON = 1e-8
HASH_STEP, HASH_SPREAD = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)


def grams(tokens, starts):
    """Post and bucket of each n-gram, at each place of each post: two int64 arrays."""
    lengths = np.minimum(np.diff(starts), MAX_WORDS)
    post = np.repeat(np.arange(len(lengths)), lengths)
    place = np.arange(len(post)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    words = tokens[np.repeat(starts[:-1], lengths) + place].astype(np.uint64) + np.uint64(1)
    left = lengths[post] - place
    posts, buckets, code = [], [], np.zeros_like(words)
    for n in range(1, NGRAMS + 1):
        fits = left >= n
        code = (code * HASH_STEP) ^ np.roll(words, 1 - n)
        posts.append(post[fits])
        buckets.append(((code[fits] * HASH_SPREAD) >> np.uint64(30)).astype(np.int64) % BUCKETS)
    return np.concatenate(posts), np.concatenate(buckets)


def bags(posts, places, count, idf):
    """Per post its features and their weights, of unit length: starts (N + 1), features, weights."""
    keys, times = np.unique(posts * len(idf) + places, return_counts=True)
    post, feature = np.divmod(keys, len(idf))
    weight = times.astype(np.float64) ** TERM_POWER * idf[feature] ** IDF_POWER
    length = np.sqrt(np.bincount(post, weight**2, minlength=count))
    starts = np.searchsorted(post, np.arange(count + 1))
    return starts, feature, (weight / length[post]).astype(np.float32)


def features():
    """Bags of the training and the test posts, the training labels, and how many features there are."""
    with np.load("data/train.npz") as stored:
        labels, parts = stored["labels"], [grams(stored["tokens"], stored["starts"])]
    with np.load("data/test.npz") as stored:
        parts.append(grams(stored["tokens"], stored["starts"]))
        count = len(stored["starts"]) - 1
    times = np.bincount(parts[0][1], minlength=BUCKETS)
    good = times >= MIN_COUNT
    idf = 1 + np.log(len(labels) / np.clip(times[good], 1, len(labels)))
    number = np.cumsum(good) - 1
    train, test = (
        bags(post[good[bucket]], number[bucket[good[bucket]]], size, idf)
        for (post, bucket), size in zip(parts, (len(labels), count), strict=True)
    )
    return train, test, torch.from_numpy(labels), len(idf)


class Classifier(nn.Module):
    """A table of embeddings and a linear layer."""

    def __init__(self, rows, classes):
        super().__init__()
        self.table = nn.EmbeddingBag(rows, WIDTH, mode="sum", sparse=True)
        self.head = nn.Linear(WIDTH, classes)
        nn.init.normal_(self.table.weight, std=INIT_SCALE)

    def forward(self, chosen, offsets, weights):
        """Logits (B, classes)."""
        pooled = F.relu(self.table(chosen, offsets, per_sample_weights=weights))
        return self.head(F.dropout(pooled, DROPOUT, self.training))


class RowAdagrad:
    """Adagrad (Duchi et al. 2011) with one sum of squares for each row of a table, of which a step touches few."""

    def __init__(self, weight):
        self.weight, self.sums = weight, torch.zeros(len(weight))

    @torch.no_grad()
    def step(self, lr):
        """Move the rows that the last batch had; those that it had twice are moved twice."""
        index, values = self.weight.grad._indices()[0], self.weight.grad._values()
        self.sums.index_add_(0, index, values.square().mean(1))
        self.weight.index_add_(0, index, values * (-lr / (self.sums[index].sqrt() + EPSILON))[:, None])
        self.weight.grad = None


def batch(bag, posts):
    """The model's inputs for some posts."""
    starts, feature, weight = bag
    rows = [np.arange(starts[p], starts[p + 1]) for p in posts]
    at = np.concatenate(rows)
    offsets = np.cumsum([0, *(len(row) for row in rows[:-1])])
    return torch.from_numpy(feature[at]), torch.from_numpy(offsets), torch.from_numpy(weight[at])


def rate(progress):
    """The share of the learning rates at a share of the time."""
    up = progress / WARMUP if WARMUP > 0 else 1.0
    down = (1 - progress) / COOLDOWN if COOLDOWN > 0 else 1.0
    return max(0.0, min(1.0, up, down))


def main():
    """Train until the budget ends, predict, write."""
    budget = float(os.environ.get("AUTORESEARCHD_TIME_BUDGET", "6"))
    seed = int(os.environ.get("AUTORESEARCHD_SEED", "0"))
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    train, test, labels, rows = features()
    model = Classifier(rows, int(labels.max()) + 1)
    table = RowAdagrad(model.table.weight)
    head = torch.optim.AdamW(model.head.parameters(), lr=HEAD_LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    steps, progress, smooth = 0, 0.0, 0.0
    order = iter(())
    began = time.monotonic()
    while progress < 1:
        posts = next(order, None)
        if posts is None:  # a new epoch
            order = iter(np.array_split(rng.permutation(len(labels)), math.ceil(len(labels) / BATCH_SIZE)))
            continue
        chosen, offsets, weights = batch(train, posts)
        if FEATURE_DROPOUT > 0:
            weights = F.dropout(weights, FEATURE_DROPOUT)
        logits = model(chosen, offsets, weights)
        loss = F.cross_entropy(logits, labels[posts], label_smoothing=LABEL_SMOOTHING)
        head.zero_grad()
        loss.backward()
        head.param_groups[0]["lr"] = HEAD_LEARNING_RATE * rate(progress)
        head.step()
        table.step(LEARNING_RATE * rate(progress))
        smooth = 0.95 * smooth + 0.05 * loss.item()
        steps += 1
        if not math.isfinite(smooth):
            raise SystemExit("FAIL: the loss is not finite")
        if steps % 50 == 0:
            print(f"step {steps} | loss: {smooth / (1 - 0.95**steps):.6f}", flush=True)
        progress = (time.monotonic() - began) / budget
    model.eval()
    count = len(test[0]) - 1
    with torch.no_grad():
        said = [model(*batch(test, part)).argmax(1) for part in np.array_split(np.arange(count), 32)]
    np.save(Path(os.environ.get("AUTORESEARCHD_OUTPUT_DIR", ".")) / "predictions.npy", torch.cat(said).numpy())
    print(f"steps: {steps}")
    print(f"epochs: {steps * BATCH_SIZE / len(labels):.2f}")
    print(f"features: {rows}")


if __name__ == "__main__":
    main()
