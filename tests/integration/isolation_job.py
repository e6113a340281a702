"""A hostile job: tries one attack after another, each in a process of its own, and says which of them worked.

It is run by `isolation_scenario`, without and with each sandbox. It is given facts (paths, ports and
pids of victims outside); an attack works when it returns something true.
"""

# paths are those of system calls that are attacked:
# ruff: noqa: PTH101, PTH116, PTH123, PTH208

from __future__ import annotations

import ctypes
import json
import os
import resource
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

SECRET = "the secret"
libc = ctypes.CDLL(None, use_errno=True)


READ = {
    "read_home": "{home}/.netrc",
    "read_elsewhere": "{elsewhere}/secret",
    "read_the_daemons_folder": "{git}/state.db",
    "read_another_runs_log": "{other_run}/evaluation.log",
    "read_private_data": "{private}",
    "read_private_data_beside_its_own": "data/val.txt",
    "read_by_way_of_proc_root": "/proc/{victim}/root{elsewhere}/secret",
    "read_the_environment_of_another_process": "/proc/{victim}/environ",
    "read_shared_memory": "{shared_memory}",
}
"""Files that hold the secret, by what it takes to read them."""


class Attacks:
    """Those that take more than reading a file by its path."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self.facts = facts

    def __getattr__(self, name: str) -> Callable[[], bool]:
        return partial(self.reads_file, READ[name].format(**self.facts))

    @staticmethod
    def reads_file(path: str) -> bool:
        return SECRET in Path(path).read_text("utf-8", "replace")

    def read_through_a_symbolic_link(self) -> bool:
        link = Path(os.environ["AUTORESEARCHD_OUTPUT_DIR"]) / "symbolic"
        link.symlink_to(self.facts["elsewhere"] + "/secret")
        return self.reads_file(str(link))

    def read_through_a_hard_link(self) -> bool:
        link = Path(os.environ["AUTORESEARCHD_OUTPUT_DIR"]) / "hard"
        link.hardlink_to(self.facts["elsewhere"] + "/secret")
        return self.reads_file(str(link))

    def read_after_moving_it_here(self) -> bool:
        link = Path(os.environ["AUTORESEARCHD_OUTPUT_DIR"]) / "moved"
        Path(self.facts["elsewhere"] + "/movable").rename(link)
        return self.reads_file(str(link))

    def list_home(self) -> bool:
        return ".netrc" in os.listdir(self.facts["home"])

    def read_the_command_line_of_another_process(self) -> bool:
        return b"600" in Path(f"/proc/{self.facts['victim']}/cmdline").read_bytes()

    def write_the_workspace(self) -> bool:
        Path("planted.py").write_text("x")
        return True

    def write_elsewhere(self) -> bool:
        Path(self.facts["elsewhere"] + "/planted").write_text("x")
        return True

    def overwrite_what_it_reads(self) -> bool:
        with Path("data/train.txt").open("r+b") as stream:
            stream.write(b"x")
        return True

    def truncate_by_path(self) -> bool:
        os.truncate("data/short.txt", 1)
        return True

    def truncate_by_opening_to_read(self) -> bool:
        os.close(os.open("data/emptied.txt", os.O_RDONLY | os.O_TRUNC))
        return os.stat("data/emptied.txt").st_size == 0

    def change_a_mode(self) -> bool:
        os.chmod("data/train.txt", 0o777)
        return os.stat("data/train.txt").st_mode & 0o777 == 0o777

    def change_a_mode_by_descriptor(self) -> bool:
        descriptor = os.open("data/mode.txt", os.O_RDONLY)
        os.fchmod(descriptor, 0o707)
        return os.fstat(descriptor).st_mode & 0o777 == 0o707

    def change_a_time(self) -> bool:
        os.utime("data/train.txt", (1, 1))
        return os.stat("data/train.txt").st_mtime == 1

    def delete(self) -> bool:
        Path(self.facts["elsewhere"] + "/deletable").unlink()
        return True

    def make_a_folder(self) -> bool:
        Path(self.facts["elsewhere"] + "/made").mkdir()
        return True

    def write_the_system(self) -> bool:
        place = Path("/usr/autoresearchd-planted")
        place.write_text("x")
        place.unlink()
        return True

    def write_the_kernels_settings(self) -> bool:
        os.close(os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY))
        return True

    def connect_by_tcp(self) -> bool:
        socket.create_connection(("127.0.0.1", self.facts["tcp"]), 5).close()
        return True

    def send_by_udp(self) -> bool:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            one.connect(("127.0.0.1", self.facts["udp"]))
            one.send(b"ping")
            one.settimeout(1)
            return one.recv(10) == b"pong"

    def connect_to_a_socket_by_its_path(self) -> bool:
        with socket.socket(socket.AF_UNIX) as one:
            one.connect(self.facts["socket"])
        return True

    def send_to_a_socket_by_its_path(self) -> bool:
        one, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        return one.sendto(b"x", self.facts["datagrams"]) == 1

    def connect_to_an_abstract_socket(self) -> bool:
        with socket.socket(socket.AF_UNIX) as one:
            one.connect("\0" + self.facts["abstract"])
        return True

    def signal_another_process(self) -> bool:
        os.kill(self.facts["victim"], 0)
        return True

    def signal_by_descriptor(self) -> bool:
        import signal

        signal.pidfd_send_signal(os.pidfd_open(self.facts["victim"]), 0)
        return True

    def trace_another_process(self) -> bool:
        seize = 0x4206
        return libc.ptrace(seize, self.facts["victim"], None, None) == 0

    def read_the_memory_of_another_process(self) -> bool:
        with open(f"/proc/{self.facts['victim']}/maps") as stream:
            start = int(stream.read().split("-")[0], 16)
        buffer = ctypes.create_string_buffer(16)
        local = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 16)
        remote = (ctypes.c_void_p * 2)(start, 16)
        return libc.process_vm_readv(self.facts["victim"], local, 1, remote, 1, 0) == 16

    def slow_another_process_down(self) -> bool:
        os.setpriority(os.PRIO_PROCESS, self.facts["victim"], 19)
        return True

    def limit_another_process(self) -> bool:
        resource.prlimit(self.facts["victim"], resource.RLIMIT_CORE, (0, 0))
        return True

    def find_a_message_queue(self) -> bool:
        return libc.msgget(self.facts["queue"], 0) >= 0


ATTACKS = [*READ, *(name for name in vars(Attacks) if not name.startswith("_") and name != "reads_file")]


def attempt(attack: Callable[[], bool]) -> str:
    """What came of an attack that ran in a process of its own: ``worked``, or what kept it from that."""
    answer, write = os.pipe()
    if os.fork() == 0:
        os.close(answer)
        try:
            word = "worked" if attack() else "nothing came of it"
        except BaseException as error:
            word = f"{type(error).__name__}: {error}"
        os.write(write, word.encode("utf-8", "replace"))
        os._exit(0)
    os.close(write)
    with os.fdopen(answer, "rb") as stream:
        word = stream.read().decode()
    os.wait()
    return word


if __name__ == "__main__":
    attacks = Attacks(json.loads(Path("facts.json").read_text()))
    print(json.dumps({name: attempt(getattr(attacks, name)) for name in ATTACKS}))
    sys.stdout.flush()
