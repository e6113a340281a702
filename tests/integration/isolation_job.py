"""A hostile job: tries one attack after another, each in a process of its own, and says which of them worked.

It is run by `isolation_scenario`, without and with each sandbox. An attack is a function of the facts that it is given
(paths, ports and pids of victims outside); it works when it returns something true.
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

Facts = dict[str, Any]
SECRET = "the secret"
libc = ctypes.CDLL(None, use_errno=True)


Attack = Callable[[Facts], bool]
ATTACKS: dict[str, Attack] = {}


def attack(function: Attack) -> Attack:
    ATTACKS[function.__name__] = function
    return function


def reads(path: str, facts: Facts) -> bool:
    return SECRET in Path(path.format(**facts)).read_text("utf-8", "replace")


# -- reading ---------------------------------------------------------------------------------------------------------


ATTACKS |= {
    name: partial(reads, path)
    for name, path in {
        "read_home": "{home}/.netrc",
        "read_elsewhere": "{elsewhere}/secret",
        "read_the_daemons_folder": "{git}/state.db",
        "read_another_runs_log": "{other_run}/evaluation.log",
        "read_private_data": "{private}",
        "read_private_data_beside_its_own": "data/val.txt",
        "read_by_way_of_proc_root": "/proc/{victim}/root{elsewhere}/secret",
        "read_the_environment_of_another_process": "/proc/{victim}/environ",
        "read_shared_memory": "{shared_memory}",
    }.items()
}


@attack
def read_through_a_symbolic_link(facts: Facts) -> bool:
    link = Path(os.environ["AUTORESEARCHD_OUTPUT_DIR"]) / "symbolic"
    link.symlink_to(facts["elsewhere"] + "/secret")
    return reads(str(link), facts)


@attack
def read_through_a_hard_link(facts: Facts) -> bool:
    link = Path(os.environ["AUTORESEARCHD_OUTPUT_DIR"]) / "hard"
    link.hardlink_to(facts["elsewhere"] + "/secret")
    return reads(str(link), facts)


@attack
def read_after_moving_it_here(facts: Facts) -> bool:
    link = Path(os.environ["AUTORESEARCHD_OUTPUT_DIR"]) / "moved"
    Path(facts["elsewhere"] + "/movable").rename(link)
    return reads(str(link), facts)


@attack
def list_home(facts: Facts) -> bool:
    return ".netrc" in os.listdir(facts["home"])


@attack
def read_the_command_line_of_another_process(facts: Facts) -> bool:
    return b"600" in Path(f"/proc/{facts['victim']}/cmdline").read_bytes()


# -- writing ---------------------------------------------------------------------------------------------------------


@attack
def write_the_workspace(facts: Facts) -> bool:
    Path("planted.py").write_text("x")
    return True


@attack
def write_elsewhere(facts: Facts) -> bool:
    Path(facts["elsewhere"] + "/planted").write_text("x")
    return True


@attack
def overwrite_what_it_reads(facts: Facts) -> bool:
    with Path("data/train.txt").open("r+b") as stream:
        stream.write(b"x")
    return True


@attack
def truncate_by_path(facts: Facts) -> bool:
    os.truncate("data/short.txt", 1)
    return True


@attack
def truncate_by_opening_to_read(facts: Facts) -> bool:
    os.close(os.open("data/emptied.txt", os.O_RDONLY | os.O_TRUNC))
    return os.stat("data/emptied.txt").st_size == 0


@attack
def change_a_mode(facts: Facts) -> bool:
    os.chmod("data/train.txt", 0o777)
    return os.stat("data/train.txt").st_mode & 0o777 == 0o777


@attack
def change_a_mode_by_descriptor(facts: Facts) -> bool:
    descriptor = os.open("data/mode.txt", os.O_RDONLY)
    os.fchmod(descriptor, 0o707)
    return os.fstat(descriptor).st_mode & 0o777 == 0o707


@attack
def change_a_time(facts: Facts) -> bool:
    os.utime("data/train.txt", (1, 1))
    return os.stat("data/train.txt").st_mtime == 1


@attack
def delete(facts: Facts) -> bool:
    Path(facts["elsewhere"] + "/deletable").unlink()
    return True


@attack
def make_a_folder(facts: Facts) -> bool:
    Path(facts["elsewhere"] + "/made").mkdir()
    return True


@attack
def write_the_system(facts: Facts) -> bool:
    place = Path("/usr/autoresearchd-planted")
    place.write_text("x")
    place.unlink()
    return True


@attack
def write_the_kernels_settings(facts: Facts) -> bool:
    os.close(os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY))
    return True


# -- sockets ---------------------------------------------------------------------------------------------------------


@attack
def connect_by_tcp(facts: Facts) -> bool:
    socket.create_connection(("127.0.0.1", facts["tcp"]), 5).close()
    return True


@attack
def send_by_udp(facts: Facts) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.connect(("127.0.0.1", facts["udp"]))
        one.send(b"ping")
        one.settimeout(1)
        return one.recv(10) == b"pong"


@attack
def connect_to_a_socket_by_its_path(facts: Facts) -> bool:
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(facts["socket"])
    return True


@attack
def send_to_a_socket_by_its_path(facts: Facts) -> bool:
    one, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    return one.sendto(b"x", facts["datagrams"]) == 1


@attack
def connect_to_an_abstract_socket(facts: Facts) -> bool:
    with socket.socket(socket.AF_UNIX) as one:
        one.connect("\0" + facts["abstract"])
    return True


# -- other processes -------------------------------------------------------------------------------------------------


@attack
def signal_another_process(facts: Facts) -> bool:
    os.kill(facts["victim"], 0)
    return True


@attack
def signal_by_descriptor(facts: Facts) -> bool:
    import signal

    signal.pidfd_send_signal(os.pidfd_open(facts["victim"]), 0)
    return True


@attack
def trace_another_process(facts: Facts) -> bool:
    seize = 0x4206
    return libc.ptrace(seize, facts["victim"], None, None) == 0


@attack
def read_the_memory_of_another_process(facts: Facts) -> bool:
    with open(f"/proc/{facts['victim']}/maps") as stream:
        start = int(stream.read().split("-")[0], 16)
    buffer = ctypes.create_string_buffer(16)
    local = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 16)
    remote = (ctypes.c_void_p * 2)(start, 16)
    return libc.process_vm_readv(facts["victim"], local, 1, remote, 1, 0) == 16


@attack
def slow_another_process_down(facts: Facts) -> bool:
    os.setpriority(os.PRIO_PROCESS, facts["victim"], 19)
    return True


@attack
def limit_another_process(facts: Facts) -> bool:
    resource.prlimit(facts["victim"], resource.RLIMIT_CORE, (0, 0))
    return True


@attack
def find_a_message_queue(facts: Facts) -> bool:
    return libc.msgget(facts["queue"], 0) >= 0


def attempt(attack: Attack, facts: Facts) -> str:
    """What came of an attack that ran in a process of its own: ``worked``, or what kept it from that."""
    answer, write = os.pipe()
    if os.fork() == 0:
        os.close(answer)
        try:
            word = "worked" if attack(facts) else "nothing came of it"
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
    given = json.loads(Path("facts.json").read_text())
    print(json.dumps({name: attempt(attack, given) for name, attack in ATTACKS.items()}))
    sys.stdout.flush()
