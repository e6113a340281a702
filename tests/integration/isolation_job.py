"""A hostile job: tries one attack after another, each in a process of its own, and says which of them worked.

It is run by `isolation_scenario`, without and with each sandbox. It is given facts (paths, ports and pids of victims
outside); an attack is an expression in which they have names, and works when it gives something true.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource  # noqa: F401  # used by attacks, as is the next
import signal  # noqa: F401
import socket
import sys
from pathlib import Path
from typing import Any

SECRET = "the secret"
OUTPUT = os.environ.get("AUTORESEARCHD_OUTPUT_DIR", "")
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
OTHERS = {
    "read_through_a_symbolic_link": "secret_after(os.symlink, elsewhere + '/secret')",
    "read_through_a_hard_link": "secret_after(os.link, elsewhere + '/secret')",
    "read_after_moving_it_here": "secret_after(os.rename, elsewhere + '/movable')",
    "list_home": "'.netrc' in os.listdir(home)",
    "read_the_command_line_of_another_process": "b'600' in Path(f'/proc/{victim}/cmdline').read_bytes()",
    "write_the_workspace": "Path('planted.py').write_text('x')",
    "write_elsewhere": "Path(elsewhere + '/planted').write_text('x')",
    "overwrite_what_it_reads": "os.write(os.open('data/train.txt', os.O_WRONLY), b'x') == 1",
    "truncate_by_path": "os.truncate('data/short.txt', 1) is None",
    "truncate_by_opening_to_read": "os.fstat(os.open('data/emptied.txt', os.O_RDONLY | os.O_TRUNC)).st_size == 0",
    "change_a_mode": "os.chmod('data/train.txt', 0o777) or os.stat('data/train.txt').st_mode & 0o777 == 0o777",
    "change_a_mode_by_descriptor": "mode_after_fchmod('data/mode.txt', 0o707) == 0o707",
    "change_a_time": "os.utime('data/train.txt', (1, 1)) or os.stat('data/train.txt').st_mtime == 1",
    "delete": "Path(elsewhere + '/deletable').unlink() is None",
    "make_a_folder": "Path(elsewhere + '/made').mkdir() is None",
    "write_the_system": "Path('/usr/planted').write_text('x') and Path('/usr/planted').unlink() is None",
    "write_the_kernels_settings": "os.open('/proc/sys/kernel/core_pattern', os.O_WRONLY)",
    "connect_by_tcp": "socket.create_connection(('127.0.0.1', tcp), 5)",
    "send_by_udp": "pong_of(udp)",
    "connect_to_a_socket_by_its_path": "socket.socket(socket.AF_UNIX).connect(stream) is None",
    "send_to_a_socket_by_its_path": "socket.socketpair(type=socket.SOCK_DGRAM)[0].sendto(b'x', datagrams) == 1",
    "connect_to_an_abstract_socket": "socket.socket(socket.AF_UNIX).connect('\\0' + abstract) is None",
    "signal_another_process": "os.kill(victim, 0) is None",
    "signal_by_descriptor": "signal.pidfd_send_signal(os.pidfd_open(victim), 0) is None",
    "trace_another_process": "libc.ptrace(0x4206, victim, None, None) == 0",  # PTRACE_SEIZE
    "read_the_memory_of_another_process": "memory_of(victim)",
    "slow_another_process_down": "os.setpriority(os.PRIO_PROCESS, victim, 19) is None",
    "choose_the_cores_of_another_process": "cores_after(victim)",
    "limit_another_process": "resource.prlimit(victim, resource.RLIMIT_CORE, (0, 0))",
    "find_a_message_queue": "libc.msgget(queue, 0) >= 0",
}
ATTACKS = [*READ, *OTHERS]


def secret_after(move: Any, source: str) -> bool:
    """Whether the secret is read in the output folder, after it was brought there."""
    target = Path(OUTPUT) / move.__name__
    move(source, target)
    return SECRET in target.read_text()


def mode_after_fchmod(path: str, mode: int) -> int:
    descriptor = os.open(path, os.O_RDONLY)
    os.fchmod(descriptor, mode)
    return os.fstat(descriptor).st_mode & 0o777


def pong_of(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.connect(("127.0.0.1", port))
        one.send(b"ping")
        one.settimeout(1)
        return one.recv(10) == b"pong"


def memory_of(pid: int) -> bool:
    start = int(Path(f"/proc/{pid}/maps").read_text().split("-")[0], 16)
    buffer = ctypes.create_string_buffer(16)
    local = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 16)
    remote = (ctypes.c_void_p * 2)(start, 16)
    return libc.process_vm_readv(pid, local, 1, remote, 1, 0) == 16


def cores_after(pid: int) -> bool:
    before = os.sched_getaffinity(pid)
    os.sched_setaffinity(pid, {min(before)} if len(before) > 1 else set(range(os.cpu_count() or 1)))
    return os.sched_getaffinity(pid) != before


def attempt(name: str, facts: dict[str, Any]) -> str:
    """What came of an attack that ran in a process of its own: ``worked``, or what kept it from that."""
    answer, write = os.pipe()
    if os.fork() == 0:
        os.close(answer)
        try:
            if name in READ:
                worked = SECRET in Path(READ[name].format(**facts)).read_text("utf-8", "replace")
            else:
                worked = eval(OTHERS[name], {**globals(), **facts})
            word = "worked" if worked else "nothing came of it"
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
    print(json.dumps({name: attempt(name, given) for name in ATTACKS}))
    sys.stdout.flush()
