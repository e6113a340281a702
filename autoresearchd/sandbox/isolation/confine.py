"""The launcher of the tiers ``namespaces`` and ``landlock``: it confines itself and becomes the job.

It stays outside as a guard: it hands on how the job ended, and ends what the job left when it, or the supervisor, is
gone. Any restriction that cannot be put up ends it with a message and exit code 125, before the job has run.

It runs as ``python -I -S``, once for each program of a run. C modules only, see `supervise`.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # the C half of `signal`, without its enums
import marshal
import os
import select

from autoresearchd.sandbox.isolation import kernel, seccomp
from autoresearchd.sandbox.process_tree import descendants, send

EXIT_NOT_CONFINED = 125
_NULL_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_FACTS = (
    "cpuinfo", "meminfo", "stat", "version", "loadavg", "uptime", "filesystems", "self/",
    "sys/kernel/osrelease", "sys/kernel/pid_max", "sys/vm/overcommit_memory", "sys/vm/max_map_count",
)  # fmt: skip
_GPU_FACTS = ("driver/nvidia", "devices", "modules")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Request = dict[str, Any]


def main(words: list[str]) -> int:
    """Run a command confined as `view.confined` says; its exit code, or 128 + the signal that ended it."""
    supervisor = os.getppid()
    request: Request = marshal.loads(bytes.fromhex(words[0]))  # noqa: S302  # the daemon's own
    request["command"] = words[1:]
    try:
        if not kernel.landlock_version():
            raise OSError("this kernel has no Landlock, or it is switched off")
        if os.uname().machine not in seccomp.MACHINES:
            raise OSError(f"there is no table of system calls for {os.uname().machine}")
        if request["private"]:
            kernel.enter_namespaces(network=request["network"])
        else:
            kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        return _guard(request, supervisor)
    except OSError as error:
        return _refuse(request, error)


def _refuse(request: Request, error: BaseException) -> int:
    tier = "namespaces" if request["private"] else "landlock"
    os.write(2, f"{tier}: {error}\n".encode("utf-8", "replace"))
    return EXIT_NOT_CONFINED


# -- outside ---------------------------------------------------------------------------------------------------------


def _guard(request: Request, supervisor: int) -> int:
    """Start the job's first process, and wait for its end or the supervisor's."""
    end, wake = os.pipe()
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGTERM)
    me = os.getpid()
    first = os.fork()
    if first == 0:
        os.close(wake)
        _become_first(request, end)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    while os.getppid() == supervisor:
        pid, status = os.waitpid(first, os.WNOHANG)
        if pid:
            return _code(status)
        os.read(end, 64)
    _end_all(me, first)
    return 128 + int(signal.SIGKILL)


def _end_all(me: int, first: int) -> None:
    """Kill all that is below this process, again until nothing is left.

    With the first process of a namespace all others in it end; and this one sees them no more, for /proc is the job's.
    """
    send(first, signal.SIGKILL)
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in descendants(me):
                send(pid, number)
        os.sched_yield()


def _code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


# -- inside ----------------------------------------------------------------------------------------------------------


def _become_first(request: Request, guard: int) -> None:
    """In the forked child: with namespaces, their first process, which reaps orphans; else the job itself.

    guard: a pipe whose other end the guard holds.
    """
    try:
        signal.set_wakeup_fd(-1)
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        poll = select.poll()
        poll.register(guard, 0)
        if poll.poll(0):  # the guard died before this process asked to die with it
            os._exit(EXIT_NOT_CONFINED)
        mounts = kernel.Mounts()
        if not request["private"]:
            _become_job(request, mounts)
        mounts.make(request["write"], request["size"])
        if not request["network"]:
            kernel.raise_loopback()
        job = os.fork()
        if job == 0:
            _become_job(request, mounts)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        kernel.drop_privileges()
        while True:
            pid, status = os.wait()
            if pid == job:
                os._exit(_code(status))
    except (OSError, KeyError, ValueError) as error:
        os._exit(_refuse(request, error))
    finally:
        os._exit(EXIT_NOT_CONFINED)


def _become_job(request: Request, mounts: kernel.Mounts) -> None:
    """Put up all restrictions and turn into the command. Raises OSError when any of them fails."""
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    abi = kernel.landlock_version()
    rules = kernel.Ruleset(abi, tcp=request["private"] or request["network"])
    _allow(rules, request, mounts)
    os.chdir(request["cwd"])
    kernel.drop_privileges()
    kernel.enforce(rules.fd)
    kernel.filter_calls(
        seccomp.build(
            os.uname().machine, abi=abi, private=request["private"], network=request["network"],
            sealed=mounts.sealed, pid=os.getpid(), gpu=request["gpu"],
        )
    )  # fmt: skip
    os.closerange(3, 1 << 20)
    os.execve(request["command"][0], request["command"], os.environ)  # noqa: S606


def _allow(rules: kernel.Ruleset, request: Request, mounts: kernel.Mounts) -> None:
    for place in (*_NULL_DEVICES, *request["device"]):
        rules.allow(place, kernel.DEVICE)
    for name in [""] if mounts.proc else [*_FACTS, *(_GPU_FACTS if request["gpu"] else ())]:
        rules.allow(f"/proc/{name}", kernel.READ)
    if request["gpu"]:  # CUDA names its threads in there before anything else, and does not start where it may not
        rules.allow("/proc/self/task", kernel.FACTS)
    for place in request["read"]:
        rules.allow(place, kernel.READ, frozenset(request["hide"]))
    for place in (*([kernel.SHARED_MEMORY] if mounts.memory else []), *request["write"]):
        rules.allow(place, kernel.WRITE)
