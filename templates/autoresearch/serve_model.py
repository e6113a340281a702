"""The model process of the evaluation: answers token windows with raw logits. Protected.

It runs in the experiment's workspace, beside the edited `train.py`, in a sandbox of its own that holds no validation
data. It loads `$AUTORESEARCHD_OUTPUT_DIR/checkpoint.pt` through `train.load_model` and then serves the scorer
(`evaluate.py`), which never runs a line of the edited code. Nothing that the edited code patches here can touch the
score: all that leaves this process are logits.

Protocol, in the folder `$AUTORESEARCHD_EXCHANGE_DIR` (on /dev/shm, bound into both sandboxes). The scorer makes:

* `inputs.bin`, `outputs.bin`: `slots` equal parts each; tokens int32 (B, T), logits float32 (B, T, V), C order.
  They lie in shared memory but are read and written by `pread`/`pwrite`, so that a file cut short by the other side
  is a short read and not a fatal signal.
* `requests`, `replies`: named pipes. A request is `<6i`: number, slot, B, T, V, slots; the reply repeats number and
  slot and adds B, T, V as the model gave them, and 0.

Either side may start first, and each ends when the other does. On a GPU the intended transport is CUDA IPC (the logits
then stay on the device, and only a handle crosses); until then the files above are used there as well.
"""

from __future__ import annotations

import os
import select
import struct
import sys
import time
from pathlib import Path
from typing import Any

RECORD = struct.Struct("<6i")
PEER_TIMEOUT = 600.0  # seconds without a word from the scorer


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


def next_request(pipe: int, poller: select.poll) -> tuple[int, ...] | None:
    """The next request; None when the scorer has closed its end."""
    if not poller.poll(PEER_TIMEOUT * 1000):
        raise TimeoutError(f"no request for {PEER_TIMEOUT:.0f} s")
    record = os.read(pipe, RECORD.size)  # records are shorter than PIPE_BUF: they arrive whole
    return RECORD.unpack(record) if len(record) == RECORD.size else None


def unsafe(torch: Any, checkpoint: Path) -> str:
    """Why nobody should load a checkpoint; empty for tensors and plain values.

    A pickle can run code in whoever loads it. It could do no harm in here, but a kept checkpoint outlives the run.
    """
    with checkpoint.open("rb") as file:
        pickled = file.read(2)[:1] in (b"P", b"\x80")  # a zip as torch.save writes it, or a bare pickle
    if pickled:
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
    inputs = os.open(folder / "inputs.bin", os.O_RDONLY)
    outputs = os.open(folder / "outputs.bin", os.O_WRONLY)

    os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # threads that wait on a shared machine must not burn its cores
    import torch

    sys.path.insert(0, str(Path(__file__).resolve().parent))  # also under `python -P`
    problem = unsafe(torch, checkpoint)
    if problem:
        return fail(problem)
    import train  # type: ignore[import-not-found, unused-ignore]

    cuda = os.environ.get("AUTORESEARCHD_PROFILE", "cuda" if torch.cuda.is_available() else "cpu") == "cuda"
    device = torch.device("cuda" if cuda else "cpu")
    model = train.load_model(checkpoint, device)
    poller = select.poll()
    poller.register(requests, select.POLLIN)
    with torch.inference_mode(), torch.autocast(device.type, dtype=torch.bfloat16, enabled=cuda):
        while True:
            request = next_request(requests, poller)
            if request is None:
                return 0
            number, slot, rows, length, vocab, _ = request
            raw = os.pread(inputs, rows * length * 4, slot * rows * length * 4)
            idx = torch.frombuffer(bytearray(raw), dtype=torch.int32).view(rows, length).long().to(device)
            logits = model(idx)
            shape = tuple(logits.shape) if logits.dim() == 3 else (0, 0, 0)
            if shape == (rows, length, vocab):
                data = memoryview(logits.detach().float().cpu().contiguous().view(-1).numpy()).cast("B")
                at = slot * rows * length * vocab * 4
                while data:
                    written = os.pwrite(outputs, data, at)
                    data, at = data[written:], at + written
            os.write(replies, RECORD.pack(number, slot, *shape, 0))


if __name__ == "__main__":
    try:
        status = main()
    except BrokenPipeError:  # the scorer has ended: so do we
        status = 0
    except TimeoutError as problem:
        status = fail(str(problem))
    sys.exit(status)
