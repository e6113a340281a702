"""The tiers ``namespaces`` and ``landlock``: the command line of the launcher, ``confine``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

from autoresearchd.sandbox.isolation.bubblewrap import gpu_nodes, system_places
from autoresearchd.sandbox.view import View, way_to

_BOOT = """
import os, sys
sys.path.append(sys.argv[1])
from autoresearchd.sandbox.isolation.confine import main
os._exit(main(sys.argv[2:]))
"""


def wrap(view: View, command: Sequence[str], *, namespaces: bool) -> tuple[str, ...]:
    """The command line that runs ``command`` so that it can use what is in ``view`` and nothing else.

    Args:
        view: what the command may use.
        command: the command; its first word is an absolute path.
        namespaces: whether it gets namespaces of its own, else Landlock and the filter of system calls alone.
    """
    readable = dict.fromkeys(way_to(path).real for path in (view.cwd, *view.readable))
    return (
        sys.executable, "-I", "-S", "-c", _BOOT, str(Path(__file__).parents[3]),
        "--namespaces" if namespaces else "--landlock",
        *(("--network",) if view.network else ()),
        *(("--gpu", *_words("--device", gpu_nodes())) if view.gpu else ()),
        "--size", str(view.scratch_bytes),
        *_system(view.gpu, view.network),
        *_words("--read", readable),
        *_words("--write", (way_to(path).real for path in view.writable)),
        *_words("--hide", dict.fromkeys(way_to(path).real for path in view.hidden)),
        "--chdir", str(view.cwd), "--", *command,
    )  # fmt: skip


@lru_cache(maxsize=4)
def _system(gpu: bool, network: bool) -> tuple[str, ...]:
    places = dict.fromkeys(place.resolve() for place in system_places(gpu, network) if place.exists())
    return _words("--read", places)


def _words(name: str, places: Iterable[Path]) -> tuple[str, ...]:
    return tuple(word for place in places for word in (name, str(place)))
