"""The environments that processes are started with: made from nothing for jobs, from a list for setup commands."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

STANDARD_PATH = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin")

_SETUP_NAMES = frozenset(
    {"HOME", "USER", "LOGNAME", "LANG", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"}
    | {"CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH"}
    | {"HF_HOME", "HF_ENDPOINT", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_DATASETS_CACHE", "TORCH_HOME"}
    | {"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "FTP_PROXY"}
)
_SETUP_PREFIXES = ("LC_", "PIP_", "UV_", "CONDA_", "XDG_")
_SECRET_PARTS = (
    "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "API_KEY", "APIKEY", "ACCESS_KEY", "PRIVATE_KEY",
)  # fmt: skip


def search_path(*first: Path) -> str:
    """A PATH: the given folders, then the standard ones."""
    return os.pathsep.join(dict.fromkeys([*map(str, first), *STANDARD_PATH]))


def job_environment(
    *, path: str, home: Path, scratch: Path, output: Path, budget: float, seed: int, profile: str,
    devices: str | None, extra: Mapping[str, str],
) -> dict[str, str]:  # fmt: skip
    """The whole environment of a job: nothing in it comes from the daemon's own.

    Compiled kernels are cached in the run's own ``scratch`` folder: a cache shared between runs would be a way for one
    experiment to leave code for the next. budget: seconds of training that it is told it has; devices:
    CUDA_VISIBLE_DEVICES; extra: ``execution.env`` of the task, which may override all but AUTORESEARCHD_*.
    """
    return {
        **base_environment(path, home, scratch),
        "TORCHINDUCTOR_CACHE_DIR": str(scratch / "torchinductor"),
        "TRITON_CACHE_DIR": str(scratch / "triton"),
        **({} if devices is None else {"CUDA_VISIBLE_DEVICES": devices}),
        **extra,
        "AUTORESEARCHD_TIME_BUDGET": f"{budget:g}",
        "AUTORESEARCHD_SEED": str(seed),
        "AUTORESEARCHD_OUTPUT_DIR": str(output),
        "AUTORESEARCHD_PROFILE": profile,
    }


def base_environment(path: str, home: Path, scratch: Path) -> dict[str, str]:
    """What every process has in its environment that runs edited code or a model's commands."""
    python = {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return {"PATH": path, "HOME": str(home), "LANG": "C.UTF-8", "TMPDIR": str(scratch), **python}


def setup_environment(
    source: Mapping[str, str], *, first: Sequence[Path], profile: str, extra: Mapping[str, str]
) -> dict[str, str]:
    """The environment of setup commands: what installing and downloading needs of the user's, and no keys.

    ``first`` leads PATH. Kept of ``source`` are PATH, HOME, locale, proxies, certificates, caches, and what pip, uv
    and conda are told (which may name an index with a password: the user's own, for the user's own code). A name that
    looks like a secret is left out; a task that needs one names it in ``execution.env``.
    """
    env = {
        name: value
        for name, value in source.items()
        if not any(part in name.upper() for part in _SECRET_PARTS)
        and (name.upper() in _SETUP_NAMES or name.upper().startswith(_SETUP_PREFIXES))
    }
    env["PATH"] = os.pathsep.join([*map(str, first), source.get("PATH", search_path())])
    env.setdefault("LANG", "C.UTF-8")
    return {**env, "PYTHONUNBUFFERED": "1", **extra, "AUTORESEARCHD_PROFILE": profile}
