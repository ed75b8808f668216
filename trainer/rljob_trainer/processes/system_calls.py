"""A filter of system calls for code that may be hostile: no network, no reach to processes that are not its own.

It needs no privileges, and holds for the process that asks for it and for all that it starts, until they end. It is
meant for a process whose user also runs the program that watches it. Each call of a tool in a pod imports this anew: so
only what the standard library loads fast is imported.

| refused | why |
|---|---|
| sockets other than unix ones | the network, localhost included |
| io_uring, new namespaces, tracing | ways around the filter, and into other processes |
| limits, priorities and CPUs of other processes | the watching program could be starved |
| System V and POSIX IPC | it outlasts the processes |
| memory files | no limit of a process counts them |
"""

import ctypes
import errno
import os
import signal
import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple

PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 4, 38, 22, 2
LOAD, EQUAL, ANY_BIT, AT_LEAST, RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
"""instructions: load a word of the call's data, compare it, return a verdict"""
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16
"""where a call's data has these [bytes]"""
ALLOW, KILL = 0x7FFF0000, 0x80000000
X32 = 0x40000000
"""numbers from here on are the same calls by other names, on x86-64"""
NEW_NAMESPACES = 0x7E020000
"""of clone: all CLONE_NEW* flags"""
AF_UNIX = 1
"""family of sockets"""


class Machine(NamedTuple):
    """An architecture: its number for the kernel, and those of its system calls."""

    audit: int
    forbidden: Mapping[str, int]
    """calls that are refused"""
    only_own: Mapping[str, int]
    """calls whose first argument is a process: only 0, the caller, is allowed"""
    sockets: Mapping[str, int]
    clone: int
    clone3: int


MACHINES: Mapping[str, Machine] = {
    "x86_64": Machine(
        audit=0xC000003E,
        forbidden={
            "shmget": 29,
            "semget": 64,
            "msgget": 68,
            "ptrace": 101,
            "setpriority": 141,
            "mq_open": 240,
            "add_key": 248,
            "request_key": 249,
            "keyctl": 250,
            "ioprio_set": 251,
            "unshare": 272,
            "perf_event_open": 298,
            "setns": 308,
            "process_vm_readv": 310,
            "process_vm_writev": 311,
            "memfd_create": 319,
            "bpf": 321,
            "userfaultfd": 323,
            "io_uring_setup": 425,
            "pidfd_getfd": 438,
        },
        only_own={
            "sched_setparam": 142,
            "sched_setscheduler": 144,
            "sched_setaffinity": 203,
            "prlimit64": 302,
            "sched_setattr": 314,
        },
        sockets={"socket": 41, "socketpair": 53},
        clone=56,
        clone3=435,
    ),
    "aarch64": Machine(
        audit=0xC00000B7,
        forbidden={
            "ioprio_set": 30,
            "unshare": 97,
            "ptrace": 117,
            "setpriority": 140,
            "mq_open": 180,
            "msgget": 186,
            "semget": 190,
            "shmget": 194,
            "add_key": 217,
            "request_key": 218,
            "keyctl": 219,
            "perf_event_open": 241,
            "setns": 268,
            "process_vm_readv": 270,
            "process_vm_writev": 271,
            "memfd_create": 279,
            "bpf": 280,
            "userfaultfd": 282,
            "io_uring_setup": 425,
            "pidfd_getfd": 438,
        },
        only_own={
            "sched_setparam": 118,
            "sched_setscheduler": 119,
            "sched_setaffinity": 122,
            "prlimit64": 261,
            "sched_setattr": 274,
        },
        sockets={"socket": 198, "socketpair": 199},
        clone=220,
        clone3=435,
    ),
}

Instruction = tuple[int, int, int, int]
"""code, jump if true, jump if false, operand"""


class FilterError(OSError):
    """The kernel does not take the filter, or the machine's architecture is not known."""


def restrict() -> None:
    """Refuse these calls to this process and all that it starts, from now on. Raises FilterError."""
    machine = MACHINES.get(os.uname().machine)
    if machine is None:
        raise FilterError(errno.ENOSYS, f"no filter of system calls for {os.uname().machine}")
    program = b"".join(struct.pack("HBBI", *each) for each in instructions(machine))
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HP", len(program) // 8, ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 or libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, header) != 0:
        raise FilterError(ctypes.get_errno(), f"filter of system calls: {os.strerror(ctypes.get_errno())}")


def close_memory() -> None:
    """Keep other processes of this user from our memory, environment and descriptors, and from interrupting us."""
    if ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise OSError("prctl(PR_SET_DUMPABLE)")
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def instructions(machine: Machine) -> tuple[Instruction, ...]:
    """Return the filter for the kernel."""
    return tuple(_instructions(machine))


def _instructions(machine: Machine) -> Iterator[Instruction]:
    refuse, absent = _error(errno.EPERM), _error(errno.ENOSYS)
    yield LOAD, 0, 0, ARCHITECTURE
    yield EQUAL, 1, 0, machine.audit
    yield RETURN, 0, 0, KILL  # calls of 32 bit programs have other numbers
    yield LOAD, 0, 0, NUMBER
    yield AT_LEAST, 0, 1, X32
    yield refuse
    for number in machine.forbidden.values():
        yield EQUAL, 0, 1, number
        yield refuse
    yield EQUAL, 0, 1, machine.clone3
    yield absent  # its flags are in memory, which no filter reads; C libraries then take clone
    yield from _first_argument(machine.clone, (ANY_BIT, 1, 0, NEW_NAMESPACES), refuse)
    for number in machine.only_own.values():
        yield from _first_argument(number, (EQUAL, 0, 1, 0), refuse)
    for number in machine.sockets.values():
        yield from _first_argument(number, (EQUAL, 0, 1, AF_UNIX), refuse)
    yield RETURN, 0, 0, ALLOW


def _first_argument(number: int, check: Instruction, refuse: Instruction) -> Iterator[Instruction]:
    """Judge a call by its first argument: the check goes on to the next instruction if it is allowed."""
    yield EQUAL, 0, 4, number
    yield LOAD, 0, 0, FIRST_ARGUMENT
    yield check
    yield RETURN, 0, 0, ALLOW
    yield refuse


def _error(number: int) -> Instruction:
    return RETURN, 0, 0, 0x00050000 | number
