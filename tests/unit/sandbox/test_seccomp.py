"""The filter of system calls, run by an interpreter of its instructions: as if on other machines and kernels."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoresearchd.sandbox.isolation import seccomp

ALLOW, KILL, ERROR = 0x7FFF0000, 0x80000000, 0x00050000
DONE, EPERM, EACCES, ENOSYS = 0, 1, 13, 38
PID = 4321
X86, ARM = 0xC000003E, 0xC00000B7


def verdict(program: bytes, number: int, *arguments: int, architecture: int = X86) -> int:
    """What the kernel would answer: ALLOW, KILL, or an error number."""
    padded = [*arguments, *([0] * (6 - len(arguments)))]
    data = struct.pack("<IIQ6Q", number, architecture, 0, *padded)
    instructions = [struct.unpack("<HBBI", program[i : i + 8]) for i in range(0, len(program), 8)]
    accumulator, place = 0, 0
    while True:
        code, when, unless, value = instructions[place]
        place += 1
        if code == 0x20:
            accumulator = struct.unpack_from("<I", data, value)[0]
        elif code == 0x54:
            accumulator &= value
        elif code == 0x06:
            return value & 0xFFFF if value & 0xFFFF0000 == ERROR else value
        else:
            true = {
                0x15: accumulator == value,
                0x25: accumulator > value,
                0x35: accumulator >= value,
                0x45: bool(accumulator & value),
            }[code]
            place += when if true else unless


def build(machine: str = "x86_64", **changes: int) -> bytes:
    options = {"abi": 7, "private": False, "network": False, "sealed": False, "pid": PID, **changes}
    return seccomp.build(machine, **options)  # type: ignore[arg-type]


ARGUMENTS = st.lists(st.integers(0, 2**64 - 1), min_size=6, max_size=6)


@given(st.integers(0, 2**32 - 1), ARGUMENTS, st.booleans(), st.integers(1, 7))
def test_every_call_gets_an_answer(number: int, arguments: list[int], private: bool, abi: int) -> None:
    for machine, architecture in (("x86_64", X86), ("aarch64", ARM)):
        answer = verdict(build(machine, private=private, abi=abi), number, *arguments, architecture=architecture)
        assert answer in (ALLOW, KILL) or answer < 4096


def test_a_program_of_another_architecture_cannot_slip_through_by_its_own_numbers() -> None:
    assert verdict(build(), 1, architecture=0x40000003) == KILL
    assert verdict(build(), 0x40000000 | 41) == ENOSYS
    assert verdict(build("aarch64"), 198, 1, 1, architecture=ARM) == EACCES


def test_a_machine_that_is_not_in_the_table_gets_no_filter() -> None:
    with pytest.raises(KeyError):
        build("riscv64")


@pytest.mark.parametrize("number", [463, 471, 600])
def test_calls_that_are_newer_than_the_list_do_not_exist(number: int) -> None:
    assert verdict(build(), number) == ENOSYS


def test_pairs_of_sockets_are_for_the_job_itself_and_no_others_are_to_be_had() -> None:
    pair, sock, unix, inet, stream, datagram, cloexec = 53, 41, 1, 2, 1, 2, 0o2000000
    assert verdict(build(), pair, unix, stream | cloexec) == ALLOW
    assert verdict(build(), pair, unix, datagram) == EACCES
    assert verdict(build(), pair, inet, stream) == EACCES
    assert {verdict(build(), sock, family, stream) for family in range(50)} == {EACCES}
    for options in ({"private": 1}, {"network": 1}):
        assert verdict(build(**options), sock, inet, stream) == ALLOW
        assert verdict(build(**options), sock, unix, stream) == EACCES


def test_a_job_on_a_gpu_may_bind_the_socket_that_cuda_wants_and_reach_nobody_by_it() -> None:
    """Without it CUDA does not start; what listens on a file of the machine is out of reach all the same."""
    sock, connect, bind, unix, inet, stream, packets, cloexec = 41, 42, 49, 1, 2, 1, 5, 0o2000000
    for private in (False, True):
        filter_ = build(gpu=True, private=private)
        assert verdict(filter_, sock, unix, packets | cloexec) == verdict(filter_, bind, 3) == ALLOW
        assert verdict(filter_, sock, unix, stream) == verdict(filter_, connect, 3) == EACCES
        assert verdict(filter_, sock, inet, stream) == (ALLOW if private else EACCES)
        assert {verdict(filter_, sock, family, packets) for family in range(3, 10)} == {EACCES}
        assert verdict(build(private=private), sock, unix, packets) == EACCES
    assert verdict(build(gpu=True, network=True), connect, 3) == ALLOW


def test_new_threads_are_allowed_and_new_namespaces_are_not() -> None:
    thread, new_user = 0x3D0F00, 0x10000000
    assert verdict(build(), 56, thread) == ALLOW
    assert verdict(build(), 56, new_user | 17) == EPERM
    assert verdict(build(), 435) == ENOSYS


def test_an_old_landlock_is_made_up_for() -> None:
    """Else a job could empty what it may only read, or kill the daemon, on kernels before 6.2 and 6.12."""
    open_, openat, truncate, kill, tgkill = 2, 257, 76, 62, 234
    old, new = build(abi=2), build(abi=7)
    assert verdict(old, openat, 0, 0, 0o1000) == EACCES
    assert verdict(old, open_, 0, 0o1000) == EACCES
    assert verdict(old, openat, 0, 0, 0o1001) == ALLOW
    assert verdict(old, openat, 0, 0, 0) == ALLOW
    assert verdict(old, truncate) == EPERM
    signals = verdict(old, kill, PID, 15), verdict(old, kill, 1, 15), verdict(old, tgkill, PID, PID, 6)
    assert signals == (ALLOW, EPERM, ALLOW)
    assert verdict(new, openat, 0, 0, 0o1000) == ALLOW
    assert verdict(new, kill, 1, 15) == ALLOW


def test_attributes_stay_as_they_are_unless_the_world_is_sealed() -> None:
    chmod = 90
    assert verdict(build(), chmod) == 0
    assert verdict(build(sealed=1), chmod) == ALLOW


def test_priorities_and_cores_are_those_of_the_process_itself() -> None:
    """Who and 0 mean all processes of the user, the daemon too; that threads cannot be bound must end no program."""
    setpriority, sched_setaffinity, process, group, user = 141, 203, 0, 1, 2
    assert verdict(build(), setpriority, process, 0, 19) == ALLOW
    answers = [verdict(build(), setpriority, which, who, 19) for which, who in ((process, PID), (group, 0), (user, 0))]
    assert answers == [EPERM] * 3
    assert (verdict(build(), sched_setaffinity, 0), verdict(build(), sched_setaffinity, PID)) == (ALLOW, DONE)
    for pinned, answer in ((True, DONE), (False, ALLOW)):
        assert verdict(seccomp.guard("x86_64", pinned=pinned), sched_setaffinity, 0) == answer
