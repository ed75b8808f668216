"""The list of system calls that are allowed, and the filter that the kernel gets."""

import re
from pathlib import Path

import pytest

from rljob_trainer.processes.allowed_calls import AARCH64, LAST_KNOWN, X86_64, allowed, rows
from rljob_trainer.processes.system_calls import ALLOW, AND, AT_LEAST, EQUAL, LOAD, MACHINES, RETURN, instructions

EPERM, ENOSYS, KILLED = 0x00050001, 0x00050026, 0x80000000
HEADER = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
INTEL, ARM = MACHINES["x86_64"], MACHINES["aarch64"]

JUDGED = ("clone", "mmap", "ioctl", "setsockopt", "madvise", "fcntl", "pipe2", "prctl", "sendto", "sendmsg", "sendmmsg")
"""calls whose arguments decide"""


def verdict(machine, number, *arguments, audit=None):
    """Return what the kernel would do with a call: the filter, run as the kernel runs it."""
    words = {0: number, 4: machine.audit if audit is None else audit}
    words |= {16 + 8 * index: value & 0xFFFFFFFF for index, value in enumerate((*arguments, *[0] * 6))}
    program, at, held = instructions(machine), 0, 0
    while True:
        code, if_true, if_false, operand = program[at]
        at += 1
        match code:
            case 0x20:
                held = words[operand]
            case 0x54:
                held &= operand
            case 0x06:
                return operand
            case 0x15:
                at += if_true if held == operand else if_false
            case 0x35:
                at += if_true if held >= operand else if_false


def test_instructions_are_those_that_are_run_here():
    assert {code for code, *_ in instructions(INTEL)} == {LOAD, EQUAL, AT_LEAST, AND, RETURN}


@pytest.mark.parametrize(("machine", "column"), [(INTEL, X86_64), (ARM, AARCH64)])
def test_all_calls_but_those_of_the_list_are_refused(machine, column):
    judged = {*machine.only_own, *machine.sockets, machine.clone3, *(getattr(machine, name) for name in JUDGED)}
    others = [number for number in range(1000) if number not in judged]
    wanted = [ALLOW if number in allowed(column) else ENOSYS if number > LAST_KNOWN else EPERM for number in others]
    assert [verdict(machine, number) for number in others] == wanted


@pytest.mark.parametrize("machine", [INTEL, ARM])
@pytest.mark.parametrize(
    ("call", "arguments", "wanted"),
    [
        ("clone", (17,), ALLOW),
        ("clone", (0x10000000 | 17,), EPERM),
        ("clone", (0x02000000,), EPERM),
        ("clone3", (0, 88), ENOSYS),
        ("mmap", (0, 4096, 3, 0x22), ALLOW),
        ("mmap", (0, 4096, 3, 0x01), ALLOW),
        ("mmap", (0, 4096, 3, 0x21), EPERM),
        ("mmap", (0, 4096, 3, 0x23), EPERM),
        ("ioctl", (0, 0x5401), ALLOW),
        ("ioctl", (0, 0x5412), EPERM),
        ("ioctl", (0, 0x541C), EPERM),
        ("ioctl", (0, (7 << 32) | 0x5412), EPERM),
        ("setsockopt", (3, 1, 9), ALLOW),
        ("setsockopt", (3, 1, 7), EPERM),
        ("setsockopt", (3, 1, 32), EPERM),
        ("setsockopt", (3, 1, 26), EPERM),
        ("setsockopt", (3, 1, 52), EPERM),
        ("madvise", (0, 4096, 4), ALLOW),
        ("madvise", (0, 4096, 12), EPERM),
        ("fcntl", (3, 2, 1), ALLOW),
        ("fcntl", (3, 1026, 1), EPERM),
        ("pipe2", (0, 0o2000000), ALLOW),
        ("pipe2", (0, 0o2000200), EPERM),
        ("prctl", (15, 0), ALLOW),
        ("prctl", (67, 1), EPERM),
        ("sendto", (3, 0, 1, 0x4000), ALLOW),
        ("sendto", (3, 0, 1, 0x4001), EPERM),
        ("sendmsg", (3, 0, 0), ALLOW),
        ("sendmsg", (3, 0, 1), EPERM),
        ("sendmmsg", (3, 0, 1, 1), EPERM),
    ],
)
def test_calls_are_judged_by_their_arguments(machine, call, arguments, wanted):
    assert verdict(machine, getattr(machine, call), *arguments) == wanted


@pytest.mark.parametrize("machine", [INTEL, ARM])
def test_only_its_own_limits_and_unix_sockets_are_a_programs_business(machine):
    assert {verdict(machine, number, 0) for number in machine.only_own} == {ALLOW}
    assert {verdict(machine, number, 7) for number in machine.only_own} == {EPERM}
    assert {verdict(machine, number, 1) for number in machine.sockets} == {ALLOW}
    assert {verdict(machine, number, each) for number in machine.sockets for each in (0, *range(2, 60))} == {EPERM}


def test_calls_by_other_numbers_are_refused():
    assert verdict(INTEL, 0x40000000) == EPERM
    assert verdict(INTEL, 0, audit=0x40000003) == KILLED


def test_no_call_stands_twice_in_the_list():
    for column in (0, X86_64, AARCH64):
        given = [row[column] for row in rows() if row[column] != "-"]
        assert len(given) == len(set(given))


@pytest.mark.skipif(not HEADER.exists(), reason="needs the kernel's headers")
def test_the_numbers_are_those_of_the_kernels_header():
    known = dict(re.findall(r"#define __NR_(\w+) (\d+)", HEADER.read_text()))
    assert {row[0]: row[X86_64] for row in rows()} == {row[0]: known[row[0]] for row in rows()}
