"""Which files code that may be hostile can open, by Landlock: it writes below /tmp and /dev/shm, and reads no
/proc/PID.

It needs no privileges, and holds for the process that asks for it and for all that it starts. Before Linux 5.19 nothing
is done: then such code can find out where the paths of its sandbox lie on the machine, and that it may be the last
process that the kernel ends when memory is short.
"""

import ctypes
import os
import struct
from collections.abc import Iterator
from pathlib import Path

PR_SET_NO_NEW_PRIVS = 38
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
"""numbers of the system calls, on all architectures"""
GET_VERSION, PATH_BENEATH = 1, 1
WRITE_FILE, READ_FILE, REFER, TRUNCATE = 1 << 1, 1 << 2, 1 << 13, 1 << 14
WITH_REFER, WITH_TRUNCATE = 2, 3
"""versions; one without REFER would forbid to move files between directories"""
SCRATCH = ("/tmp", "/dev/shm")  # the sandbox's own
DEVICES = ("null", "zero", "full", "random", "urandom")
OF_THE_MACHINE = ("cpuinfo", "meminfo", "stat", "loadavg", "uptime", "version", "filesystems", "sys")
"""in /proc: what programs size themselves by"""


def restrict() -> None:
    """Allow this process and all that it starts to open these files alone, from now on. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(CREATE_RULESET, None, 0, GET_VERSION)
    if version < WITH_REFER:
        return
    _checked(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    handled = READ_FILE | WRITE_FILE | REFER | (TRUNCATE if version >= WITH_TRUNCATE else 0)
    rules = _checked(libc.syscall(CREATE_RULESET, struct.pack("Q", handled), 8, 0))
    try:
        for path, access in _allowed():
            _allow(libc, rules, path, access & handled)
        _checked(libc.syscall(RESTRICT_SELF, rules, 0))
    finally:
        os.close(rules)


def _allowed() -> Iterator[tuple[Path, int]]:
    """Yield what may be done below each path that is there."""
    yield from ((Path(entry), READ_FILE) for entry in os.scandir("/") if entry.name != "proc")
    yield from ((Path("/proc") / name, READ_FILE) for name in OF_THE_MACHINE)
    yield from ((Path("/dev") / name, READ_FILE | WRITE_FILE) for name in DEVICES)
    yield from ((Path(directory), READ_FILE | WRITE_FILE | REFER | TRUNCATE) for directory in SCRATCH)


def _allow(libc: ctypes.CDLL, rules: int, path: Path, access: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH)
    except OSError:  # not there, or a link to nowhere
        return
    try:
        beneath = ctypes.create_string_buffer(struct.pack("=Qi", access, descriptor))
        _checked(libc.syscall(ADD_RULE, rules, PATH_BENEATH, beneath, 0))
    finally:
        os.close(descriptor)


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"Landlock: {os.strerror(ctypes.get_errno())}")
    return result
