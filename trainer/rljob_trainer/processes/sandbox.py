"""Runs a command that may be hostile: `command_line` returns the command that runs it in new namespaces.

It needs Linux 5.12 and no privileges; root gives up its own.

| the command has | and not |
|---|---|
| the system's programs, Python, and the paths in SETTINGS, all read-only | any other file of the machine |
| its own /tmp, of limited size, which is gone with it | shared memory or IPC of others |
| an empty network | the machine's network, localhost included, and its abstract sockets |
| its own processes, of which it is the first | the others' processes, their /proc and environments |
| the environment that SETTINGS gives | the environment of this program |
| an unprivileged user | capabilities, set-uid programs, the keys of the user outside |
| the system calls and files that a program needs | others (`system_calls.py`, `file_access.py`) |

    this process ── unshare ──► new user, mounts, network, IPC ── fork ──► new process tree ── exec ──► COMMAND
         └ a child outside of the namespaces writes the user's map, for which root needs its own rights

If the kernel forbids one of the steps, the program prints why and exits with REFUSED. The kernel kills all processes of
the tree when the command ends. Only the standard library is imported, and our own modules that do the same.

Memory is not limited here: a command that runs others watches them (`call_process.py`).
"""

import ctypes
import json
import os
import resource
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

from rljob_trainer.processes import file_access, system_calls

REFUSED = 71
"""exit code: the kernel does not allow the sandbox (sysexits.h: EX_OSERR)"""
SYSTEM = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/etc/ld.so.cache",
    "/etc/alternatives",
    "/etc/localtime",
)
"""what programs of the machine need; none of it is a secret"""
DEVICES = ("null", "random", "urandom")
"""not zero: a shared mapping of it is memory that no process need have"""
DOOR = "{door}"
"""in COMMAND: stands for `fd:N`, the socket `Settings.door`"""
WAITING = 8
"""connections to a door that are not accepted yet"""
SCRATCH = ("/tmp", "/dev/shm")  # new ones for each sandbox
"""where the command may write"""
USER = 1000
"""inside"""
NOBODY = 65534
"""outside, if this program is root's"""

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
NAMESPACES = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
MNT_DETACH = 2
SYS_MOUNT_SETATTR, SYS_PIVOT_ROOT = 442, 155
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
ATTR_RDONLY, ATTR_NOSUID = 1, 2
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38

LIBC = ctypes.CDLL(None, use_errno=True)
PROGRAM = """
import json, sys
sys.path.append(sys.argv[1])
from rljob_trainer.processes.sandbox import Settings, main
sys.exit(main(Settings(**json.loads(sys.argv[2])), sys.argv[3:]))
"""
"""what the interpreter runs, with the place of our package, SETTINGS and COMMAND"""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command gets."""

    read_only: tuple[str, ...] = ()
    """files and directories, at the same place inside"""
    environment: Mapping[str, str] = field(default_factory=dict)
    door: str | None = None
    """path of a unix socket to listen on, outside"""
    restricts_itself: bool = False
    """whether the command is a server of rljob, which takes system calls and files from what it runs by itself"""
    processes: int = 64
    """most processes and threads at once"""
    file_bytes: int = 1 << 26
    """of one file; /tmp as a whole has twice as much"""


class Refused(Exception):  # noqa: N818  # a verdict on the machine
    """The kernel does not allow a step; the text says which."""


def command_line(settings: Settings, command: Sequence[str]) -> list[str]:
    """Return the command line that runs `command` in a sandbox."""
    package = str(Path(__file__).parents[2])
    return [sys.executable, "-I", "-S", "-c", PROGRAM, package, json.dumps(asdict(settings)), *command]


def refusal() -> str | None:
    """Return why this machine cannot have a sandbox; None: it can."""
    nothing = command_line(Settings(), [sys.executable, "-I", "-S", "-c", ""])
    tried = subprocess.run(nothing, capture_output=True, text=True, check=False)
    return None if tried.returncode == 0 else tried.stderr.strip() or f"the sandbox ended with {tried.returncode}"


def main(settings: Settings, command: Sequence[str]) -> int:
    """Run the command and return its exit code; end by the same signal if one has ended it."""
    channel = listening(settings.door) if settings.door else None
    try:
        system_calls.leave_keyring()
        enter(settings)
    except (Refused, system_calls.FilterError) as error:
        sys.stderr.write(f"sandbox: {error}\n")
        return REFUSED
    outside, inside = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(outside)
        become(settings, command, channel, inside)
    os.close(inside)
    if channel is not None:
        os.close(channel)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGKILL))  # it is the first process of its tree
    with os.fdopen(outside) as report:
        if reason := report.read():
            sys.stderr.write(f"sandbox: {reason}\n")
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def listening(path: str) -> int:
    """Return a descriptor of a unix socket that listens."""
    door = socket.socket(socket.AF_UNIX)
    door.bind(path)
    door.listen(WAITING)
    return door.detach()


def enter(settings: Settings) -> None:
    """Move into new namespaces and build the file system of the command; raise Refused."""
    ready, go = os.pipe()
    parent, uid, gid = os.getpid(), os.geteuid(), os.getegid()
    helper = os.fork()
    if helper == 0:
        os.close(go)
        os._exit(map_users(parent, uid, gid) if os.read(ready, 1) else 1)
    os.close(ready)
    attempt("user namespaces (unshare)", LIBC.unshare(NAMESPACES))
    os.write(go, b"1")
    os.close(go)
    if os.waitpid(helper, 0)[1] != 0:
        raise Refused("the kernel refuses a map of users in a new namespace")
    with suppress(OSError):  # a container may forbid it: a namespace inside has no more rights than this one
        Path("/proc/sys/user/max_user_namespaces").write_text("0")
    attempt("private mounts", LIBC.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))
    # While it is still the old user: another one may not get to them.
    real = visible(settings)
    sources = {path: os.open(path, os.O_PATH) for path in outermost(set(real.values()))}
    devices = {f"/dev/{name}": os.open(f"/dev/{name}", os.O_PATH) for name in DEVICES}
    os.setresgid(USER, USER, USER)
    os.setresuid(USER, USER, USER)
    build(Path(os.environ.get("TMPDIR", "/tmp")), real, sources, devices, settings)  # hidden by a mount


def map_users(pid: int, uid: int, gid: int) -> int:
    """Map the user inside to one outside without rights; return 0, or 1 if that is refused."""
    uid, gid = (uid, gid) if uid else (NOBODY, NOBODY)
    try:
        for name, text in (("setgroups", "deny"), ("gid_map", f"{USER} {gid} 1"), ("uid_map", f"{USER} {uid} 1")):
            Path(f"/proc/{pid}/{name}").write_text(text)
    except OSError:
        return 1
    return 0


def visible(settings: Settings) -> dict[str, str]:
    """Return the paths that exist, and where they are when links are resolved."""
    wanted = (*SYSTEM, *python(), *settings.read_only)
    return {path: os.path.realpath(path) for path in wanted if Path(path).exists()}


def outermost(paths: set[str]) -> list[str]:
    """Return the paths that lie in no other of them."""
    return sorted(path for path in paths if not any(str(parent) in paths for parent in Path(path).parents))


def python() -> tuple[str, ...]:
    """Return the directories of this interpreter and its packages."""
    return str(Path(sys.executable).parents[1]), sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix


def build(
    root: Path, real: Mapping[str, str], sources: Mapping[str, int], devices: Mapping[str, int], settings: Settings
) -> None:
    """Make `root` a file system with these paths, and leave all others behind."""
    size = f"size={2 * settings.file_bytes},nr_inodes=16384,mode=755"
    mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, size)
    for path, source in {**sources, **devices}.items():
        place(root / path[1:], source)
    for name in ("tmp", "dev/shm", "proc"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for path in sources:
        read_only(root / path[1:])
    for path, target in real.items():
        link(root, path, target)
    old = root / "old"
    old.mkdir()
    attempt("a new root", LIBC.syscall(SYS_PIVOT_ROOT, bytes(root), bytes(old)))
    os.chdir("/")


def place(target: Path, source: int) -> None:
    """Bind what a descriptor stands for to a place below the new root."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if stat.S_ISDIR(os.stat(source).st_mode):
        target.mkdir(exist_ok=True)
    else:
        target.touch()
    mount(f"/proc/self/fd/{source}", target, None, MS_BIND | MS_REC, None)


def link(root: Path, path: str, target: str) -> None:
    """Repeat a link: /lib is often /usr/lib, and a virtual environment's Python is another's.

    Where the command may remove files it is a mount instead.
    """
    place = root / path[1:]
    if os.path.lexists(place):
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    if not path.startswith(tuple(f"{directory}/" for directory in SCRATCH)):
        place.symlink_to(target)
    elif (source := root / target[1:]).is_dir():
        place.mkdir()
        mount(str(source), place, None, MS_BIND | MS_REC, None)
    else:
        place.touch()
        mount(str(source), place, None, MS_BIND, None)


def read_only(path: Path) -> None:
    """Forbid writing and set-uid below a mount, mounts inside included."""
    attributes = (ctypes.c_uint64 * 4)(ATTR_RDONLY | ATTR_NOSUID, 0, 0, 0)
    status = LIBC.syscall(SYS_MOUNT_SETATTR, AT_FDCWD, bytes(path), AT_RECURSIVE, attributes, ctypes.sizeof(attributes))
    attempt(f"read-only mount of {path} (mount_setattr, Linux 5.12)", status)


def become(settings: Settings, command: Sequence[str], channel: int | None, report: int) -> None:
    """Become the command, as the first process of a new tree; on an error report it and exit."""
    try:
        attempt("a tie to its parent", LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
        # Who watches the memory of processes finds it there.
        attempt("its own /proc", LIBC.mount(b"proc", b"/proc", b"proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, None))
        attempt("leaving the old root", LIBC.umount2(b"/old", MNT_DETACH))
        Path("/old").rmdir()
        read_only_root()
        attempt("no new privileges", LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        for name, most in limits(settings).items():
            resource.setrlimit(name, (most, most))
        os.setsid()
        os.chdir("/tmp")  # the sandbox's
        os.set_inheritable(report, False)
        descriptors = {0, 1, 2, report}
        if channel is not None:
            os.set_inheritable(channel, True)
            descriptors.add(channel)
        close_others(descriptors)
        argv = [part.replace(DOOR, f"fd:{channel}") for part in command]
        if not settings.restricts_itself:
            file_access.restrict()
            system_calls.restrict()
        os.execve(argv[0], argv, {"HOME": "/tmp", "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", **settings.environment})
    except (OSError, Refused, ValueError) as error:
        os.write(report, str(error).encode())
    os._exit(REFUSED)


def read_only_root() -> None:
    """Only /tmp and /dev/shm can be written to: they become separate mounts, and the root read-only."""
    for path in SCRATCH:
        mount(path, Path(path), None, MS_BIND | MS_REC, None)
    attributes = (ctypes.c_uint64 * 4)(ATTR_RDONLY, 0, 0, 0)
    attempt(
        "a read-only root", LIBC.syscall(SYS_MOUNT_SETATTR, AT_FDCWD, b"/", 0, attributes, ctypes.sizeof(attributes))
    )


def limits(settings: Settings) -> dict[int, int]:
    """Return the resource limits of each process."""
    return {
        resource.RLIMIT_NPROC: settings.processes,
        resource.RLIMIT_FSIZE: settings.file_bytes,
        resource.RLIMIT_NOFILE: 256,
        resource.RLIMIT_CORE: 0,
    }


def close_others(kept: set[int]) -> None:
    """Close all descriptors but these."""
    for low, high in pairwise((-1, *sorted(kept), 1 << 20)):
        if high - low > 1:  # Python passes an empty range to the kernel as an endless one
            os.closerange(low + 1, high)


def mount(source: str, target: Path, kind: str | None, flags: int, options: str | None) -> None:
    encoded = [text.encode() if text is not None else None for text in (kind, options)]
    attempt(f"mount of {target}", LIBC.mount(source.encode(), bytes(target), encoded[0], flags, encoded[1]))


def attempt(what: str, status: int) -> None:
    """Raise Refused if a system call has failed."""
    if status != 0:
        raise Refused(f"the kernel refuses {what}: {os.strerror(ctypes.get_errno())}")
