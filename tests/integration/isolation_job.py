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
from pathlib import Path
from typing import Any

Facts = dict[str, Any]
SECRET = "the secret"
libc = ctypes.CDLL(None, use_errno=True)


def reads(path: str) -> bool:
    return SECRET in Path(path).read_text("utf-8", "replace")


# -- reading ---------------------------------------------------------------------------------------------------------


def read_home(facts: Facts) -> bool:
    return reads(facts["home"] + "/.netrc")


def read_elsewhere(facts: Facts) -> bool:
    return reads(facts["elsewhere"] + "/secret")


def read_the_daemons_folder(facts: Facts) -> bool:
    return reads(facts["git"] + "/state.db")


def read_another_runs_log(facts: Facts) -> bool:
    return reads(facts["other_run"] + "/evaluation.log")


def read_private_data(facts: Facts) -> bool:
    return reads(facts["private"])


def read_private_data_beside_its_own(facts: Facts) -> bool:
    return reads("data/val.txt")


def read_through_a_symbolic_link(facts: Facts) -> bool:
    link = Path(os.environ["AUTORESEARCHD_OUTPUT_DIR"]) / "symbolic"
    link.symlink_to(facts["elsewhere"] + "/secret")
    return reads(str(link))


def read_through_a_hard_link(facts: Facts) -> bool:
    link = Path(os.environ["AUTORESEARCHD_OUTPUT_DIR"]) / "hard"
    link.hardlink_to(facts["elsewhere"] + "/secret")
    return reads(str(link))


def read_after_moving_it_here(facts: Facts) -> bool:
    link = Path(os.environ["AUTORESEARCHD_OUTPUT_DIR"]) / "moved"
    Path(facts["elsewhere"] + "/movable").rename(link)
    return reads(str(link))


def read_by_way_of_proc_root(facts: Facts) -> bool:
    return reads(f"/proc/{facts['victim']}/root{facts['elsewhere']}/secret")


def list_home(facts: Facts) -> bool:
    return ".netrc" in os.listdir(facts["home"])


def read_the_environment_of_another_process(facts: Facts) -> bool:
    return SECRET.encode() in Path(f"/proc/{facts['victim']}/environ").read_bytes()


def read_the_command_line_of_another_process(facts: Facts) -> bool:
    return b"600" in Path(f"/proc/{facts['victim']}/cmdline").read_bytes()


def read_shared_memory(facts: Facts) -> bool:
    return reads(facts["shared_memory"])


# -- writing ---------------------------------------------------------------------------------------------------------


def write_the_workspace(facts: Facts) -> bool:
    Path("planted.py").write_text("x")
    return True


def write_elsewhere(facts: Facts) -> bool:
    Path(facts["elsewhere"] + "/planted").write_text("x")
    return True


def overwrite_what_it_reads(facts: Facts) -> bool:
    with Path("data/train.txt").open("r+b") as stream:
        stream.write(b"x")
    return True


def truncate_by_path(facts: Facts) -> bool:
    os.truncate("data/short.txt", 1)
    return True


def truncate_by_opening_to_read(facts: Facts) -> bool:
    os.close(os.open("data/emptied.txt", os.O_RDONLY | os.O_TRUNC))
    return os.stat("data/emptied.txt").st_size == 0


def change_a_mode(facts: Facts) -> bool:
    os.chmod("data/train.txt", 0o777)
    return os.stat("data/train.txt").st_mode & 0o777 == 0o777


def change_a_mode_by_descriptor(facts: Facts) -> bool:
    descriptor = os.open("data/mode.txt", os.O_RDONLY)
    os.fchmod(descriptor, 0o707)
    return os.fstat(descriptor).st_mode & 0o777 == 0o707


def change_a_time(facts: Facts) -> bool:
    os.utime("data/train.txt", (1, 1))
    return os.stat("data/train.txt").st_mtime == 1


def delete(facts: Facts) -> bool:
    Path(facts["elsewhere"] + "/deletable").unlink()
    return True


def make_a_folder(facts: Facts) -> bool:
    Path(facts["elsewhere"] + "/made").mkdir()
    return True


def write_the_system(facts: Facts) -> bool:
    place = Path("/usr/autoresearchd-planted")
    place.write_text("x")
    place.unlink()
    return True


def write_the_kernels_settings(facts: Facts) -> bool:
    os.close(os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY))
    return True


# -- sockets ---------------------------------------------------------------------------------------------------------


def connect_by_tcp(facts: Facts) -> bool:
    socket.create_connection(("127.0.0.1", facts["tcp"]), 5).close()
    return True


def send_by_udp(facts: Facts) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.connect(("127.0.0.1", facts["udp"]))
        one.send(b"ping")
        one.settimeout(1)
        return one.recv(10) == b"pong"


def connect_to_a_socket_by_its_path(facts: Facts) -> bool:
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(facts["socket"])
    return True


def send_to_a_socket_by_its_path(facts: Facts) -> bool:
    one, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    return one.sendto(b"x", facts["datagrams"]) == 1


def connect_to_an_abstract_socket(facts: Facts) -> bool:
    with socket.socket(socket.AF_UNIX) as one:
        one.connect("\0" + facts["abstract"])
    return True


# -- other processes -------------------------------------------------------------------------------------------------


def signal_another_process(facts: Facts) -> bool:
    os.kill(facts["victim"], 0)
    return True


def signal_by_descriptor(facts: Facts) -> bool:
    import signal

    signal.pidfd_send_signal(os.pidfd_open(facts["victim"]), 0)
    return True


def trace_another_process(facts: Facts) -> bool:
    seize = 0x4206
    return libc.ptrace(seize, facts["victim"], None, None) == 0


def read_the_memory_of_another_process(facts: Facts) -> bool:
    with open(f"/proc/{facts['victim']}/maps") as stream:
        start = int(stream.read().split("-")[0], 16)
    buffer = ctypes.create_string_buffer(16)
    local = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 16)
    remote = (ctypes.c_void_p * 2)(start, 16)
    return libc.process_vm_readv(facts["victim"], local, 1, remote, 1, 0) == 16


def slow_another_process_down(facts: Facts) -> bool:
    os.setpriority(os.PRIO_PROCESS, facts["victim"], 19)
    return True


def limit_another_process(facts: Facts) -> bool:
    resource.prlimit(facts["victim"], resource.RLIMIT_CORE, (0, 0))
    return True


def find_a_message_queue(facts: Facts) -> bool:
    return libc.msgget(facts["queue"], 0) >= 0


ATTACKS: list[Callable[[Facts], bool]] = [
    read_home, read_elsewhere, read_the_daemons_folder, read_another_runs_log, read_private_data,
    read_private_data_beside_its_own, read_through_a_symbolic_link, read_through_a_hard_link, read_after_moving_it_here,
    read_by_way_of_proc_root, list_home, read_the_environment_of_another_process,
    read_the_command_line_of_another_process, read_shared_memory,
    write_the_workspace, write_elsewhere, overwrite_what_it_reads, truncate_by_path, truncate_by_opening_to_read,
    change_a_mode, change_a_mode_by_descriptor, change_a_time, delete, make_a_folder, write_the_system,
    write_the_kernels_settings,
    connect_by_tcp, send_by_udp, connect_to_a_socket_by_its_path, send_to_a_socket_by_its_path,
    connect_to_an_abstract_socket,
    signal_another_process, signal_by_descriptor, trace_another_process, read_the_memory_of_another_process,
    slow_another_process_down, limit_another_process, find_a_message_queue,
]  # fmt: skip


def attempt(attack: Callable[[Facts], bool], facts: Facts) -> str:
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
    print(json.dumps({attack.__name__: attempt(attack, given) for attack in ATTACKS}))
    sys.stdout.flush()
