"""The supervisor: one process for one run, outside the job and outside the daemon, that keeps the deadlines.

It runs the stages of a plan one after another until one fails, writes their output into capped logs, ends the whole
process tree at a deadline, at the memory limit, on SIGTERM, or when the daemon that holds the other end of its
standard input is gone, and leaves ``result.json`` behind.

It runs as ``python -I -S``, once for each run, so it and what it uses import nothing but C modules: ``json``,
``signal`` and ``subprocess`` (through ``enum`` and ``re``) would double its start-up time. The plan, `launch.Plan`, is
read with marshal for that reason. Background: prctl(2), pidfd_open(2), proc_pid_smaps(5).
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # the C half of `signal`, without its enums
import marshal
import os
import select
import time

from autoresearchd.sandbox import process_tree
from autoresearchd.sandbox.isolation import kernel, seccomp
from autoresearchd.sandbox.job_files import FULL, Log, removal, remove_tree, sift, write_json
from autoresearchd.sandbox.process_tree import Ceilings, attempt, descendants, kernel_kills, send, start_time

CONTROL = 0
CHUNK = 1 << 18
LOOK_EVERY = 0.1
LOOK_SHARE = 0.04  # of the supervisor's time, at most, where there is much to look at
LOOK_MOST = 0.5  # between two looks at processor time, however much there is: what ends between them is not counted
MANY_THREADS = 200
LOW_SPACE = 1 << 20
COMPANION_GRACE = 10.0
TERM_GRACE = 1.0
SLEPT_S = 5.0
EXIT_DISK_FULL = 28
_SET_USER_ID = 0o4000

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Plan = dict[str, Any]


# -- one process -----------------------------------------------------------------------------------------------------


class Child:
    """A process under supervision, with the pipe that its output comes through."""

    def __init__(self, spec: Plan, plan: Plan, banner: str = "") -> None:
        self.log = Log(spec["log"], plan["log_limit"])
        self.log.write(banner.encode("utf-8", "replace"))
        self.pipe, writer = os.pipe()
        os.set_blocking(self.pipe, False)
        self.started = time.monotonic()
        me = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            become(spec, plan, writer, me)
        os.close(writer)
        self.pidfd = os.pidfd_open(self.pid)
        self.open = True

    def pump(self) -> bool:
        """Move one chunk of output into the log; whether there may be more."""
        try:
            data = os.read(self.pipe, CHUNK) if self.open else b""
        except BlockingIOError:
            return False
        self.open = bool(data)
        if data:
            self.log.write(data)
        return self.open

    def close(self) -> None:
        for _ in range(64):  # what is left in the pipe after the tree is dead
            if not self.pump():
                break
        os.close(self.pipe)
        os.close(self.pidfd)
        self.log.close()


def become(spec: Plan, plan: Plan, output: int, parent: int) -> None:
    """In the forked child: turn into the program of ``spec``."""
    try:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        process_tree.apply(plan["limits"])
        if plan["cores"]:
            os.sched_setaffinity(0, plan["cores"])
        os.chdir(spec["cwd"])
        if not plan["plain"]:
            guard(spec["argv"][0])
        os.execve(spec["argv"][0], spec["argv"], {**spec["env"], process_tree.TOKEN_VARIABLE: plan["token"]})  # noqa: S606
    except OSError as error:
        os.write(2, f"cannot start {spec['argv'][0]} in {spec['cwd']}: {error}\n".encode("utf-8", "replace"))
    finally:
        os._exit(127)


def guard(program: str) -> None:
    """Refuse what bubblewrap leaves to a job; one that is set-user-id root would lose that: it goes without."""
    if os.stat(program).st_mode & _SET_USER_ID:  # noqa: PTH116
        return
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.leave_abstract_sockets()
    if os.uname().machine in seccomp.MACHINES:
        pinned = len(os.sched_getaffinity(0)) < (os.cpu_count() or 1)
        kernel.filter_calls(seccomp.guard(os.uname().machine, pinned=pinned))


def next_look(began: float, most: float = 1e9) -> float:
    """When to look again, after a look that began then."""
    now = time.monotonic()
    return now + min(max(LOOK_EVERY, (now - began) / LOOK_SHARE), most)


def time_asleep() -> float:
    """How long the machine has been suspended since it was booted, and a constant."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()


def exit_code_of(status: int) -> int:
    """0…255, or −signal; a shell and bubblewrap say 128 + signal when a signal ended what they ran."""
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if 128 < code <= 128 + 64 else code


# -- the run ---------------------------------------------------------------------------------------------------------


class Supervisor:
    """Runs a plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.me, self.started = plan, os.getpid(), time.monotonic()
        self.wall = self.started + plan["wall"] if plan["wall"] else None
        self.peak_kib, self.cpu_s = 0, 0.0
        self.seen: dict[tuple[int, bytes], float] = {}
        self.stop = ""
        self.codes: dict[int, int] = {}
        self.logs: dict[str, int] = {}
        self.wake, self.alarm = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(self.alarm, False)
        signal.set_wakeup_fd(self.alarm)
        signal.signal(signal.SIGTERM, self.on_signal)
        signal.signal(signal.SIGINT, self.on_signal)
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)  # every orphan of the job becomes a child of this process

    def on_signal(self, number: int, frame: object) -> None:
        self.stop = self.stop or "stopped on request"

    def run(self) -> list[Plan]:
        results: list[Plan] = []
        for stage in self.plan["stages"]:
            took = {before["name"]: before["duration_s"] for before in results}
            known = ((name, f"{took[of]:.6f}") for name, of in stage["seconds"].items() if of in took)
            stage["program"]["env"].update(known)
            result = (self.look_through(stage, results) if stage["reads"] else None) or self.run_stage(stage)
            results.append(result)
            if result["outcome"] != "ok":
                break
        return results

    def look_through(self, stage: Plan, before: list[Plan]) -> Plan | None:
        """Look through what edited code has left for a stage, when all of it is dead; a result where that is refused.

        What is found goes into the log of the stage before: that of the stage itself is read for the metric, and names
        of files are the job's own choice.
        """
        began = time.monotonic()
        fault, removed = sift(stage["reads"])
        lines = [f"autoresearchd: {text}\n" for text in (fault, removal(removed)) if text]
        if lines and before:
            log = Log(before[-1]["log_path"], self.plan["log_limit"])
            log.write("".join(["\n", *lines]).encode("utf-8", "replace"))
            log.close()
        self.peak_kib, self.cpu_s, self.seen = 0, 0.0, {}
        return self.result(stage, "tampered", fault, None, time.monotonic() - began) if fault else None

    def result(self, stage: Plan, outcome: str, detail: str, code: int | None, duration: float) -> Plan:
        """The record of a stage that has ended, or was not to begin."""
        return {
            "name": stage["name"],
            "outcome": outcome,
            "exit_code": code,
            "duration_s": round(duration, 6),
            "log_path": stage["program"]["log"],
            "peak_rss_mb": round(self.peak_kib / 1024, 3),
            "detail": detail,
            "cpu_s": round(max(self.cpu_s, sum(self.seen.values())), 6),
        }

    def run_stage(self, stage: Plan) -> Plan:
        began, asleep = time.monotonic(), time_asleep()
        self.peak_kib, self.cpu_s, self.seen = 0, 0.0, {}
        kills = kernel_kills()
        main = Child(stage["program"], self.plan, stage["banner"])
        companion = Child(stage["companion"], self.plan) if stage["companion"] else None
        children = [child for child in (companion, main) if child]
        launchers = () if self.plan["plain"] else tuple(child.pid for child in children)
        ceilings = Ceilings(self.me, self.plan["memory_mb"], self.plan["limits"], launchers)
        outcome, detail = self.watch(stage, main, companion, ceilings)
        duration = time.monotonic() - began
        left = self.end_tree(children)
        code = self.codes.get(main.pid)
        for child in children:
            self.logs[child.log.path] = child.log.size
            child.close()
        if not outcome:
            outcome, detail = self.classify(code, kills, main)
        if outcome == "ok":
            outcome, detail = ceilings.too_large(ended=True) or (outcome, detail)
        # A program that keeps its budget by the clock on the wall trained less; the user's own commands have none.
        if self.plan["deliver"] and not self.stop and (slept := time_asleep() - asleep) > SLEPT_S:
            outcome, detail = "killed", f"the machine slept for {slept:.0f} s meanwhile"
        if outcome == "ok" and left and self.plan["plain"] and not companion:
            some = "1 process behind, which has" if left == 1 else f"{left} processes behind, which have"
            detail = f"it left {some} been ended"
        return self.result(stage, outcome, detail, code, duration)

    def classify(self, code: int | None, kills: int, main: Child) -> tuple[str, str]:
        if main.log.full:
            return "disk_full", f"no space left for {main.log.path}"
        if code == 0:
            return "ok", ""
        if code == -signal.SIGKILL and kernel_kills() > kills:
            return "oom", "the kernel ended a process for want of memory"
        space = os.statvfs(self.plan["output"])
        if space.f_bavail * space.f_frsize < LOW_SPACE:
            return "disk_full", f"no space left under {self.plan['output']}"
        return "failed", f"ended by signal {-code}" if code is not None and code < 0 else f"exit code {code}"

    def watch(self, stage: Plan, main: Child, companion: Child | None, ceilings: Ceilings) -> tuple[str, str]:
        """Wait for the stage's process; an outcome where this had to end it, else nothing."""
        limit = main.started + stage["timeout"] if stage["timeout"] else None
        look = note = time.monotonic() + LOOK_EVERY if ceilings.limits or ceilings.memory_mb else None
        poll = select.poll()
        theirs = (companion.pipe, companion.pidfd) if companion else ()
        for fd in (CONTROL, self.wake, main.pipe, main.pidfd, *theirs):
            poll.register(fd, select.POLLIN)
        orphaned: float | None = None
        while True:
            now = time.monotonic()
            if self.stop:
                return "killed", self.stop
            if self.wall is not None and now >= self.wall:
                self.ask_to_end(main, companion)
                return "timeout", f"the whole run may take {self.plan['wall']:g} s"
            if limit is not None and now >= limit:
                self.ask_to_end(main, companion)
                return stage["late"], f"{stage['name']} may take {stage['timeout']:g} s"
            if companion and orphaned is not None and now >= orphaned:
                return "failed", f"the model process ended with {self.codes[companion.pid]}: see {companion.log.path}"
            if note is not None and now >= note:
                many = process_tree.tasks_of_machine() - ceilings.tasks > MANY_THREADS
                process_tree.note_computed(self.me, self.seen, by_parent=many)
                note, now = next_look(now, LOOK_MOST), time.monotonic()
            if look is not None and now >= look:
                if exceeded := ceilings.exceeded():
                    return exceeded
                look = next_look(now)
            times = [t for t in (self.wall, limit, look, note, orphaned) if t is not None]
            for fd, _ in poll.poll(max(0.0, min(times) - now) * 1000 + 1 if times else None):
                if fd == CONTROL:
                    self.stop = "the daemon is gone"
                elif fd == self.wake:
                    os.read(self.wake, 64)
                elif fd == main.pidfd:
                    self.reap()
                    return "", ""
                elif companion and fd == companion.pidfd:
                    poll.unregister(fd)
                    self.reap()
                    if self.codes.get(companion.pid):
                        orphaned = time.monotonic() + COMPANION_GRACE
                else:
                    child = companion if companion and fd == companion.pipe else main
                    if not child.pump() and not child.open:
                        poll.unregister(fd)
                    if child.log.full:
                        return "disk_full", f"no space left for {child.log.path}"

    def ask_to_end(self, main: Child, companion: Child | None) -> None:
        """Send TERM to the tree and let it end by itself for a moment."""
        for pid in descendants(self.me):
            if self.plan["plain"] or pid not in (main.pid, companion.pid if companion else 0):
                send(pid, signal.SIGTERM)
        poll = select.poll()
        poll.register(main.pidfd, select.POLLIN)
        poll.register(main.pipe, select.POLLIN)
        end = time.monotonic() + TERM_GRACE
        while not self.stop and (rest := end - time.monotonic()) > 0:
            ready = [fd for fd, _ in poll.poll(rest * 1000 + 1)]
            if main.pidfd in ready:
                return
            if main.pipe in ready and not main.pump() and not main.open:
                poll.unregister(main.pipe)

    def end_tree(self, mains: list[Child]) -> int:
        """Kill all that is left of the stage; how many processes were still there beside its own two."""
        own = {child.pid for child in mains}
        seen: set[int] = set()
        if not self.plan["plain"]:  # with the first process of its namespace the kernel ends all others at once
            for pid in own - self.codes.keys():
                send(pid, signal.SIGKILL)
        while True:
            self.reap()
            tree = descendants(self.me)
            if not tree:
                return len(seen - own)
            for pid in tree:  # frozen first: what cannot run cannot fork
                send(pid, signal.SIGSTOP)
            tree = descendants(self.me)
            seen.update(tree)
            for pid in tree:
                send(pid, signal.SIGKILL)
            select.poll().poll(1)

    def reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.codes[pid] = exit_code_of(status)
            self.peak_kib = max(self.peak_kib, usage.ru_maxrss)
            self.cpu_s += usage.ru_utime + usage.ru_stime


def serve() -> int:
    """Wait for the path of a plan on standard input (at its end: none), and run it; the supervisor's exit code."""
    message = b""
    while not message.endswith(b"\0"):
        if not (data := os.read(CONTROL, 4096)):
            return 0
        message += data
    path = os.fsdecode(message[:-1])
    log = os.open(os.path.dirname(path) + "/supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)  # noqa: PTH120
    os.dup2(log, 1)
    os.dup2(log, 2)
    with open(path, "rb") as stream:  # noqa: PTH123
        plan: Plan = marshal.load(stream)  # noqa: S302  # written by the daemon where no job can write
    attempt(os.unlink, path)  # it holds the environment of the jobs, which may hold keys
    os.closerange(3, 1024)
    supervisor = Supervisor(plan)
    folder = plan["run_dir"]
    try:
        identity = {"pid": supervisor.me, "start": start_time(supervisor.me), "token": plan["token"]}
        write_json(folder + "/supervisor.json", {**identity, "remove": plan["remove"]})
        stages = supervisor.run()
        duration = time.monotonic() - supervisor.started
        if plan["deliver"]:
            attempt(os.rename, plan["output"], plan["deliver"])
        report = {"stages": stages, "duration_s": duration, "facts": plan["facts"], "logs": supervisor.logs}
        write_json(folder + "/result.json", report)
    except OSError as error:
        supervisor.end_tree([])
        if error.errno in FULL:
            return EXIT_DISK_FULL
        raise
    finally:
        for leftover in plan["remove"]:
            remove_tree(leftover)
    return 0
