"""Seccomp: a filter of the system calls through which a job could reach what Landlock does not guard.

That is: sockets, other processes, the kernel's own settings, the attributes of files, namespaces of its own, and calls
that are newer than this list. See seccomp(2) and bpf(2); the numbers are those of the kernel's unistd.h for x86-64 and
(as on every newer machine) asm-generic for AArch64. A machine that is not in the table gets no filter, and so no job.

C modules only, see `supervise`.
"""

from __future__ import annotations

_DONE, _EPERM, _EACCES, _ENOSYS, _EOPNOTSUPP = 0, 1, 13, 38, 95
_LOAD, _EQUAL, _GREATER, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x25, 0x35, 0x45, 0x54, 0x06
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_X32 = 0x40000000
_NEWEST = 462  # mseal, Linux 6.10; what came later is refused as unknown

MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""For each machine its AUDIT_ARCH, and which of the two numbers below is its own."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_Table = dict[str, tuple[int | None, int | None]]
_NEVER: _Table = {  # other processes, the kernel's insides, mounts, namespaces, files by handle, the machine's settings
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "process_mrelease": (448, 448),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "bpf": (321, 280), "keyctl": (250, 219),
    "add_key": (248, 217), "request_key": (249, 218), "lookup_dcookie": (212, 18), "mount": (165, 40),
    "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442), "unshare": (272, 97), "setns": (308, 268),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "fanotify_init": (300, 262),
    "quotactl": (179, 60), "quotactl_fd": (443, 443), "swapon": (167, 224), "swapoff": (168, 225),
    "reboot": (169, 142), "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "acct": (163, 89), "settimeofday": (164, 170),
    "clock_settime": (227, 112), "clock_adjtime": (305, 266), "adjtimex": (159, 171), "syslog": (103, 116),
    "sethostname": (170, 161), "setdomainname": (171, 162), "vhangup": (153, 58), "personality": (135, 92),
    "iopl": (172, None), "ioperm": (173, None), "modify_ldt": (154, None),
}  # fmt: skip
_BEFORE_ALL = ("ptrace", "process_vm_readv", "process_vm_writev", "keyctl", "add_key", "request_key")
_ABSENT: _Table = {  # programs know how to do without
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "clone3": (435, 435),
}  # fmt: skip
_ATTRIBUTES: _Table = {  # of files: mode, owner, times
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, None),
    "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54), "utime": (132, None), "utimes": (235, None),
    "futimesat": (261, None), "utimensat": (280, 88),
}  # fmt: skip
_EXTENDED: _Table = {  # attributes of files
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "removexattr": (197, 14),
    "lremovexattr": (198, 15), "fremovexattr": (199, 16),
}  # fmt: skip
_NAMED_MEMORY: _Table = {  # memory, semaphores and queues that all processes of the machine can find
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "semget": (64, 190), "semop": (65, 193),
    "semctl": (66, 191), "semtimedop": (220, 192), "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188),
    "msgctl": (71, 187), "mq_open": (240, 180), "mq_unlink": (241, 181),
}  # fmt: skip
_OF_OTHERS: _Table = {  # priorities and memory of other processes
    "sched_setscheduler": (144, 119), "sched_setparam": (142, 118), "sched_setattr": (314, 274),
    "ioprio_set": (251, 30), "migrate_pages": (256, 238), "move_pages": (279, 239),
}  # fmt: skip
_SOCKETS: _Table = {  # that lead out
    "socket": (41, 198), "connect": (42, 203), "bind": (49, 200),
}  # fmt: skip
_SIGNALS: _Table = {  # by ways on which the receiver cannot be told from the arguments
    "tkill": (200, 130), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
}  # fmt: skip
_BY_ARGUMENT: _Table = {  # refused for some arguments only
    "socketpair": (53, 199), "ioctl": (16, 29), "fcntl": (72, 25), "clone": (56, 220), "kill": (62, 129),
    "tgkill": (234, 131), "prlimit64": (302, 261), "setpriority": (141, 140), "truncate": (76, 45), "open": (2, None),
    "openat": (257, 56), "openat2": (437, 437), "sched_setaffinity": (203, 122),
}  # fmt: skip
_NUMBERS = _NEVER | _ABSENT | _ATTRIBUTES | _EXTENDED | _NAMED_MEMORY | _OF_OTHERS | _SOCKETS | _SIGNALS | _BY_ARGUMENT

_INTERNET = (2, 10, 16)  # AF_INET, AF_INET6, AF_NETLINK
_AF_UNIX, _STREAM, _SEQPACKET, _SOCKET_TYPE = 1, 1, 5, 0xF
_NEW_NAMESPACES = 0x7E020000
_PRIO_PROCESS = 0
_ACCESS_MODE, _TRUNCATES = 0o3, 0o1000
# TIOCSTI, TIOCLINUX (type into a terminal), FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR (attributes), FIOSETOWN, SIOCSPGRP
_IOCTLS = (0x5412, 0x541C, 0x40086602, 0x401C5820, 0x8901, 0x8902)
_SET_OWNER = (8, 15)  # F_SETOWN, F_SETOWN_EX: whom a signal goes to

Instruction = tuple[int, int, int, int]
_ALLOWED: Instruction = (_RETURN, 0, 0, _ALLOW)


def build(machine: str, *, abi: int, private: bool, network: bool, sealed: bool, pid: int, gpu: bool = False) -> bytes:
    """The filter, as the kernel takes it; KeyError where the machine (``os.uname().machine``) is not in the table.

    abi: version of Landlock; private: whether the job has namespaces of its own for processes, IPC and, without
    ``network``, the network; sealed: whether the world is mounted read-only, so that attributes of files are safe; pid:
    the job's first process, which may signal itself where nothing else keeps signals in; gpu: whether it uses one. CUDA
    binds a socket of packets to an abstract name before anything else, and does not work where that is refused.
    """
    program = _begun(machine)
    program.add((_GREATER, 0, 1, _NEWEST), (_RETURN, 0, 0, _ERROR | _ENOSYS))
    program.refuse(_ABSENT, _ENOSYS)
    program.refuse(_NEVER, _EPERM)
    program.add_call("clone", _argument(0), (_ANY_BIT, 1, 0, _NEW_NAMESPACES), _ALLOWED, _refused(_EPERM))
    program.refuse_values("ioctl", 1, _IOCTLS)
    # No sockets of files and none of other kinds; pairs, but not of datagrams, which could be sent elsewhere.
    program.add_call(
        "socketpair",
        _argument(0), (_EQUAL, 0, 5, _AF_UNIX),
        _argument(1), (_AND, 0, 0, _SOCKET_TYPE), (_EQUAL, 1, 0, _STREAM), (_EQUAL, 0, 1, _SEQPACKET),
        _ALLOWED, _refused(_EACCES),
    )  # fmt: skip
    inner = private or network  # internet sockets lead nowhere, or are allowed
    if gpu:
        program.socket(_INTERNET if inner else ())
    elif inner:
        program.only("socket", 0, _INTERNET, _EACCES)
    if not inner:
        program.refuse(("connect",) if gpu else _SOCKETS, _EACCES)
    elif gpu and not network:  # what listens on a file of the machine must not be reached
        program.refuse(("connect",), _EACCES)
    if not sealed:
        program.refuse(_ATTRIBUTES, _DONE)  # answered with success, so that a copy of a file is not an error
        program.refuse(_EXTENDED, _EOPNOTSUPP)
    if not private:
        program.refuse(_NAMED_MEMORY, _EPERM)
        program.refuse(_OF_OTHERS, _EPERM)
        program.only("prlimit64", 0, (0,))
        program.add_call(  # of this process: 0 may mean all of the user, too
            "setpriority",
            _argument(0), (_EQUAL, 0, 2, _PRIO_PROCESS), _argument(1), (_EQUAL, 1, 0, 0), _refused(_EPERM), _ALLOWED,
        )  # fmt: skip
        program.only("sched_setaffinity", 0, (0,), _DONE)  # a thread of its own cannot be told from another process
        if abi < 6:
            program.refuse(_SIGNALS, _EPERM)
            program.only("kill", 0, (pid,))
            program.only("tgkill", 0, (pid,))
            program.refuse_values("fcntl", 1, _SET_OWNER)
    if abi < 3:
        program.add_call("truncate", _refused(_EPERM))
        program.add_call("openat2", _refused(_ENOSYS))
        for name, flags in (("open", 1), ("openat", 2)):  # to read and empty a file in one go is reading to it
            program.add_call(
                name,
                _argument(flags), (_ANY_BIT, 0, 3, _TRUNCATES), (_ANY_BIT, 2, 0, _ACCESS_MODE),
                _refused(_EACCES), _ALLOWED, _ALLOWED,
            )  # fmt: skip
    program.add(_ALLOWED)
    return program.encoded()


def guard(machine: str, *, pinned: bool) -> bytes:
    """A filter for a sandbox and the job in it, as the kernel takes it; KeyError as `build`.

    Refused are the ways into other processes, the sandbox's first one among them, and keyrings: those of the user are
    not the sandbox's, so that keys could be read, and left for the next run (keyctl(2)).

    pinned: whether it is to stay on its cores: to choose others is answered with success and does nothing, for OpenMP
    ends a program where its threads cannot be bound.
    """
    program = _begun(machine)
    program.refuse(_BEFORE_ALL, _EPERM)
    if pinned:
        program.refuse(("sched_setaffinity",), _DONE)
    program.add(_ALLOWED)
    return program.encoded()


def _begun(machine: str) -> _Program:
    """A filter that refuses other architectures and ways to number calls, and has the number of the call at hand."""
    architecture, column = MACHINES[machine]
    program = _Program(column)
    program.add((_LOAD, 0, 0, 4), (_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _KILL))
    program.add((_LOAD, 0, 0, 0))
    if column == 0:
        program.add((_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _ERROR | _ENOSYS))
    return program


def _argument(index: int) -> Instruction:
    """Load the low half of an argument out of struct seccomp_data; both machines are little-endian."""
    return _LOAD, 0, 0, 16 + 8 * index


def _refused(error: int) -> Instruction:
    return _RETURN, 0, 0, _ERROR | error


class _Program:
    """Instructions of classic BPF. The number of the call is in the accumulator between the blocks."""

    def __init__(self, column: int) -> None:
        self.column = column
        self.instructions: list[Instruction] = []

    def add(self, *instructions: Instruction) -> None:
        self.instructions += instructions

    def add_call(self, name: str, *body: Instruction) -> None:
        """A block for one call; it must end in a return on every way."""
        number = _NUMBERS[name][self.column]
        if number is not None:
            self.add((_EQUAL, 0, len(body), number), *body)

    def refuse(self, calls: Iterable[str], error: int) -> None:
        for name in calls:
            self.add_call(name, _refused(error))

    def only(self, name: str, argument: int, values: tuple[int, ...], error: int = _EPERM) -> None:
        """Refuse the call but for some values of an argument."""
        self.add_call(name, _argument(argument), *self.tests(values), _refused(error), _ALLOWED)

    def socket(self, families: tuple[int, ...]) -> None:
        """Refuse sockets but those of some families and those of packets between processes."""
        kind = ((_EQUAL, 0, 3, _AF_UNIX), _argument(1), (_AND, 0, 0, _SOCKET_TYPE), (_EQUAL, 1, 0, _SEQPACKET))
        allowed = [(_EQUAL, len(families) - n + len(kind), 0, value) for n, value in enumerate(families)]
        self.add_call("socket", _argument(0), *allowed, *kind, _refused(_EACCES), _ALLOWED)

    def refuse_values(self, name: str, argument: int, values: tuple[int, ...]) -> None:
        """Refuse the call for some values of an argument."""
        self.add_call(name, _argument(argument), *self.tests(values), _ALLOWED, _refused(_EPERM))

    def tests(self, values: tuple[int, ...]) -> list[Instruction]:
        """Skip the instruction after these for one of the values."""
        return [(_EQUAL, len(values) - n, 0, value) for n, value in enumerate(values)]

    def encoded(self) -> bytes:
        return b"".join(
            code.to_bytes(2, "little") + bytes((when, unless)) + value.to_bytes(4, "little")
            for code, when, unless, value in self.instructions
        )
