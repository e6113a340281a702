"""The model process of the evaluation: answers rows of bytes with logits. Protected.

It runs in the experiment's workspace, beside the edited `train.py`, in a sandbox of its own that holds no questions. It
loads `$AUTORESEARCHD_OUTPUT_DIR/checkpoint.pt` through `train.load_model` and then serves the scorer (`evaluate.py`),
which never runs a line of the edited code: all that leaves this process are logits.

Protocol, in the folder `$AUTORESEARCHD_EXCHANGE_DIR`. The scorer makes:

* `inputs.bin`, `outputs.bin`: bytes uint8 (B, T), logits float32 (B, T, 256), C order; read and written by `pread` and
  `pwrite`, so that a file cut short by the other side is a short read and not a fatal signal.
* `requests`, `replies`: named pipes. A request is `<3i`: number, B, T; the reply repeats the number and gives B, T as
  the model did.
"""

from __future__ import annotations

import os
import select
import struct
import sys
import time
from pathlib import Path
from typing import Any

RECORD = struct.Struct("<3i")
PEER_TIMEOUT = 600.0  # seconds without a word from the scorer
SYMBOLS = 256


def fail(message: str) -> int:
    """Say what is wrong, in one line."""
    print(f"serve_model.py: {message}", file=sys.stderr, flush=True)
    return 1


def open_pipes(folder: Path) -> tuple[int, int]:
    """Wait for the scorer's pipes and open them: requests to read, replies to write."""
    deadline = time.monotonic() + PEER_TIMEOUT
    while True:
        try:
            requests = os.open(folder / "requests", os.O_RDONLY | os.O_NONBLOCK)
            break
        except FileNotFoundError:
            if time.monotonic() > deadline:
                raise TimeoutError("the scorer did not start") from None
            time.sleep(0.01)
    # The scorer holds the reading end before it publishes the pipes, so this does not wait.
    return requests, os.open(folder / "replies", os.O_WRONLY | os.O_NONBLOCK)


def unsafe(torch: Any, checkpoint: Path) -> str:
    """Why nobody should load a checkpoint; empty for tensors and plain values.

    A pickle can run code in whoever loads it. It could do no harm in here, but a kept checkpoint outlives the run.
    """
    try:
        torch.load(checkpoint, map_location="cpu", weights_only=True)
    except Exception as error:  # noqa: BLE001  # whatever a broken or hostile file does to the loader
        return f"checkpoint.pt holds more than tensors and plain values: {str(error).splitlines()[0][:200]}"
    return ""


def main() -> int:
    """Serve until the scorer closes its end."""
    folder = Path(os.environ["AUTORESEARCHD_EXCHANGE_DIR"])
    checkpoint = Path(os.environ["AUTORESEARCHD_OUTPUT_DIR"]) / "checkpoint.pt"
    try:
        requests, replies = open_pipes(folder)  # first of all: if this process dies from here on, the scorer sees it
    except (OSError, TimeoutError) as error:
        return fail(str(error))
    inputs, outputs = os.open(folder / "inputs.bin", os.O_RDONLY), os.open(folder / "outputs.bin", os.O_WRONLY)
    import torch

    problem = unsafe(torch, checkpoint)
    if problem:
        return fail(problem)
    sys.path.insert(0, str(Path(__file__).resolve().parent))  # also under `python -P`
    import train  # type: ignore[import-not-found, unused-ignore]

    cuda = os.environ.get("AUTORESEARCHD_PROFILE", "cuda" if torch.cuda.is_available() else "cpu") == "cuda"
    device = torch.device("cuda" if cuda else "cpu")
    model = train.load_model(checkpoint, device)
    poller = select.poll()
    poller.register(requests, select.POLLIN)
    with torch.inference_mode(), torch.autocast(device.type, dtype=torch.bfloat16, enabled=cuda):
        while True:
            if not poller.poll(PEER_TIMEOUT * 1000):
                return fail(f"no request for {PEER_TIMEOUT:.0f} s")
            record = os.read(requests, RECORD.size)  # records are shorter than PIPE_BUF: they arrive whole
            if len(record) != RECORD.size:
                return 0
            number, rows, length = RECORD.unpack(record)
            raw = os.pread(inputs, rows * length, 0)
            logits = model(torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(rows, length).long().to(device))
            shape = tuple(logits.shape)
            if shape == (rows, length, SYMBOLS):
                data, at = memoryview(logits.detach().float().cpu().contiguous().view(-1).numpy()).cast("B"), 0
                while at < len(data):
                    at += os.pwrite(outputs, data[at:], at)
            os.write(replies, RECORD.pack(number, *(shape[:2] if shape[2:] == (SYMBOLS,) else (0, 0))))


if __name__ == "__main__":
    try:
        status = main()
    except BrokenPipeError:  # the scorer has ended: so do we
        status = 0
    sys.exit(status)
