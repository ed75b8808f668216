"""A filter of system calls for code that may be hostile: no network, no reach to processes that are not its own.

It needs no privileges, and holds for the process that asks for it and for all that it starts, until they end. It is
meant for a process whose user also runs the program that watches it. Each call of a tool imports this anew: so only
what the standard library loads fast is imported.

What is not allowed (`allowed_calls.py`) is refused. Some calls are judged by their arguments:

| refused | why |
|---|---|
| sockets other than unix ones | the network, localhost included; netlink, vsock and all that the kernel will add |
| new namespaces by clone | ways around the filter; flags of clone3 cannot be read: programs then take clone |
| limits and CPUs of other processes | the watching program could be starved |
| shared memory without a file | a process may keep it and not map it, where no limit counts it |
| input for a terminal | the terminal's reader would run it |
| longer queues of sockets | what they hold belongs to no process (`call_process.py` counts the sockets) |
| filters of sockets, messages out of band, pipes for the kernel's notes | seldom used, and kernels had faults in them |
| pages that the kernel merges with equal ones | how long a write takes reveals what others have in memory |
| notes of what happens in a directory | the machine's processes share its programs: it reveals who runs which |
"""

import ctypes
import errno
import os
import signal
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from rljob_trainer.processes.allowed_calls import AARCH64, LAST_KNOWN, X86_64, allowed

PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 4, 38, 22, 2
LOAD, EQUAL, AT_LEAST, AND, RETURN = 0x20, 0x15, 0x35, 0x54, 0x06
"""instructions: load a word of the call's data, compare it, mask it, return a verdict"""
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16
"""where a call's data has these [bytes]"""
ALLOW, KILL = 0x7FFF0000, 0x80000000
X32 = 0x40000000
"""numbers from here on are the same calls by other names, on x86-64"""
NEW_NAMESPACES = 0x7E020000
"""of clone: all CLONE_NEW* flags"""
WORD = 0xFFFFFFFF
"""the half of an argument that the kernel reads, in all calls that are judged by one"""
AF_UNIX = 1
"""family of sockets"""
MAP_SHARED, MAP_ANONYMOUS = 0x01, 0x20
TIOCSTI, TIOCLINUX = 0x5412, 0x541C
"""requests to a terminal: take this as typed"""
SO_SNDBUF, SO_SNDBUFFORCE = 7, 32
SO_ATTACH_FILTER, SO_ATTACH_BPF, SO_ATTACH_REUSEPORT_CBPF, SO_ATTACH_REUSEPORT_EBPF = 26, 50, 51, 52
REFUSED_OPTIONS = (
    SO_SNDBUF,
    SO_SNDBUFFORCE,
    SO_ATTACH_FILTER,
    SO_ATTACH_BPF,
    SO_ATTACH_REUSEPORT_CBPF,
    SO_ATTACH_REUSEPORT_EBPF,
)
MSG_OOB = 1
"""flag of a message: out of band (CVE-2025-38236)"""
O_NOTIFICATION_PIPE = 0x80
"""flag of a pipe: the kernel writes into it (CVE-2022-0995)"""
MADV_MERGEABLE, PR_SET_MEMORY_MERGE, PR_SCHED_CORE = 12, 67, 62
F_NOTIFY = 1026
"""what fcntl is asked to do: a signal when something in a directory changes"""
JOIN_SESSION_KEYRING = 1
"""what keyctl is asked to do"""


class Machine(NamedTuple):
    """An architecture: its number for the kernel, and those of its system calls."""

    audit: int
    allowed: frozenset[int]
    """with any arguments"""
    only_own: tuple[int, ...]
    """calls whose first argument is a process: only 0, the caller, is allowed (sched_setparam, sched_setscheduler,
    sched_setaffinity, sched_setattr, prlimit64)"""
    sockets: tuple[int, ...]
    """socket, socketpair"""
    clone: int
    mmap: int
    ioctl: int
    setsockopt: int
    keyctl: int
    madvise: int
    fcntl: int
    pipe2: int
    prctl: int
    sendto: int
    sendmsg: int
    sendmmsg: int
    clone3: int = 435


MACHINES: Mapping[str, Machine] = {
    "x86_64": Machine(
        audit=0xC000003E,
        allowed=allowed(X86_64),
        only_own=(142, 144, 203, 314, 302),
        sockets=(41, 53),
        clone=56,
        mmap=9,
        ioctl=16,
        setsockopt=54,
        keyctl=250,
        madvise=28,
        fcntl=72,
        pipe2=293,
        prctl=157,
        sendto=44,
        sendmsg=46,
        sendmmsg=307,
    ),
    "aarch64": Machine(
        audit=0xC00000B7,
        allowed=allowed(AARCH64),
        only_own=(118, 119, 122, 274, 261),
        sockets=(198, 199),
        clone=220,
        mmap=222,
        ioctl=29,
        setsockopt=208,
        keyctl=219,
        madvise=233,
        fcntl=25,
        pipe2=59,
        prctl=167,
        sendto=206,
        sendmsg=211,
        sendmmsg=269,
    ),
}

Instruction = tuple[int, int, int, int]
"""code, jump if true, jump if false, operand"""


class FilterError(OSError):
    """The kernel does not take the filter, or the machine's architecture is not known."""


def restrict() -> None:
    """Allow these calls alone to this process and all that it starts, from now on. Raises FilterError."""
    program = b"".join(struct.pack("HBBI", *each) for each in instructions(_machine()))
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HP", len(program) // 8, ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 or libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, header) != 0:
        raise FilterError(ctypes.get_errno(), f"filter of system calls: {os.strerror(ctypes.get_errno())}")


def leave_keyring() -> None:
    """Take a new session keyring: one that was inherited has the user's keys, of Kerberos for example."""
    # A kernel without keys refuses it, and has nothing to hide.
    ctypes.CDLL(None).syscall(_machine().keyctl, JOIN_SESSION_KEYRING, None)


def _machine() -> Machine:
    machine = MACHINES.get(os.uname().machine)
    if machine is None:
        raise FilterError(errno.ENOSYS, f"no filter of system calls for {os.uname().machine}")
    return machine


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
    yield EQUAL, 0, 1, machine.clone3
    yield absent  # its flags are in memory, which no filter reads; C libraries then take clone
    yield from _only(machine.clone, 0, 0, NEW_NAMESPACES)
    yield from _never(machine.mmap, 3, (MAP_SHARED | MAP_ANONYMOUS,), MAP_SHARED | MAP_ANONYMOUS)
    yield from _never(machine.ioctl, 1, (TIOCSTI, TIOCLINUX))
    yield from _never(machine.setsockopt, 2, REFUSED_OPTIONS)
    yield from _never(machine.madvise, 2, (MADV_MERGEABLE,))
    yield from _never(machine.fcntl, 1, (F_NOTIFY,))
    yield from _never(machine.pipe2, 1, (O_NOTIFICATION_PIPE,), O_NOTIFICATION_PIPE)
    yield from _never(machine.prctl, 0, (PR_SET_MEMORY_MERGE, PR_SCHED_CORE))
    for number, argument in ((machine.sendto, 3), (machine.sendmsg, 2), (machine.sendmmsg, 3)):
        yield from _never(number, argument, (MSG_OOB,), MSG_OOB)
    for number in machine.only_own:
        yield from _only(number, 0, 0)
    for number in machine.sockets:
        yield from _only(number, 0, AF_UNIX)
    for first, last in ranges(machine.allowed):
        yield AT_LEAST, 1, 0, first
        yield refuse  # between this range and the one before
        yield AT_LEAST, 1, 0, last + 1
        yield RETURN, 0, 0, ALLOW
    yield AT_LEAST, 0, 1, LAST_KNOWN + 1
    yield absent
    yield refuse


def ranges(numbers: frozenset[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last of numbers that follow each other, in order."""
    ordered = sorted(numbers)
    starts = [number for number in ordered if number - 1 not in numbers]
    ends = [number for number in ordered if number + 1 not in numbers]
    return zip(starts, ends, strict=True)


def _only(number: int, argument: int, value: int, mask: int = WORD) -> Iterator[Instruction]:
    """Allow a call if this argument, masked, has this value."""
    yield EQUAL, 0, 5, number
    yield LOAD, 0, 0, ARGUMENTS + 8 * argument
    yield AND, 0, 0, mask
    yield EQUAL, 0, 1, value
    yield RETURN, 0, 0, ALLOW
    yield _error(errno.EPERM)


def _never(number: int, argument: int, values: Sequence[int], mask: int = WORD) -> Iterator[Instruction]:
    """Allow a call unless this argument, masked, has one of these values."""
    yield EQUAL, 0, len(values) + 4, number
    yield LOAD, 0, 0, ARGUMENTS + 8 * argument
    yield AND, 0, 0, mask
    for left, value in zip(range(len(values), 0, -1), values, strict=True):
        yield EQUAL, left, 0, value
    yield RETURN, 0, 0, ALLOW
    yield _error(errno.EPERM)


def _error(number: int) -> Instruction:
    return RETURN, 0, 0, 0x00050000 | number
