"""Keeps one server process: no process, shared memory or scratch file of it outlives its owner.

Run as a script, with the standard library only: `python -I -S keeper.py SCRATCH LOG SERVER_ARGUMENT...`. The owner has
the other end of standard input: when that closes - because the owner asks for it, or because the owner was killed - the
server's whole tree is killed. The same happens when the server, or one of its named parts (`sglang::scheduler`, ...),
ends by itself: half a server must not keep answering. (PR_SET_PDEATHSIG alone would not do: it follows the thread that
forked, and Ray's actors run in short-lived threads.) One line of JSON on standard output has the server's pid, a
second one how it ended.
"""

import ctypes
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
PART_PREFIX = "sglang::"
LOOK_FOR_PARTS_S = 1.0
"""between two looks for new parts and their shared memory, while the server starts"""
LOOK_AGAIN_S = 5.0
STARTING_S = 180.0
KILL_S = 10.0
TRACKERS_S = 3.0
SHARED_MEMORY = Path("/dev/shm")
MAPPED = re.compile(rf"(\d+) +{SHARED_MEMORY}/(?:sgl|torch_|psm_|sem\.)")
"""a line of /proc/PID/maps: the inode, then the name that the file had when it was mapped"""
NOTES = "shared-memory"
"""file in a server's scratch directory: what its processes map, for those who clean up when the keeper is killed too"""


def main(scratch: Path, log: Path, argv: list[str]) -> int:
    """Run the server until it, a part of it, or its owner ends; return the server's exit code (negative: signal)."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # this process adopts orphans of the tree, to find and reap them
    # As `private_files.appended`, of which this program without packages knows nothing.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
    with os.fdopen(os.open(log, flags, 0o600), "ab") as output:
        server = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            close_fds=False,  # what the owner has handed down; our own are not inherited
            preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),
        )
    report(pid=server.pid, keeper=os.getpid())
    shared_memory: set[str] = set()
    reason = watch(server, shared_memory, scratch / NOTES)
    failed_at = time.time()
    code = server.poll()  # before the killing: its own code, if it ended by itself
    survivors = kill_tree(shared_memory)
    server.poll()
    remove(scratch, shared_memory)
    report(reason=reason, code=code, failed_at=failed_at, survivors=survivors)
    return 0


def watch(server: "subprocess.Popen[bytes]", shared_memory: set[str], notes: Path) -> str:
    """Return why the server has to go; note the shared memory that its processes map."""
    poll = select.poll()
    poll.register(sys.stdin.fileno(), select.POLLIN | select.POLLHUP)
    server_fd = os.pidfd_open(server.pid)
    poll.register(server_fd, select.POLLIN)
    parts: dict[int, str] = {}
    known: set[int] = set()
    started = time.monotonic()
    while True:
        starting = time.monotonic() - started < STARTING_S
        ready = [fd for fd, _ in poll.poll(1000 * (LOOK_FOR_PARTS_S if starting else LOOK_AGAIN_S))]
        if server_fd in ready:
            return "the server ended"
        for fd in ready:
            return f"{parts[fd]} ended" if fd in parts else "the owner is gone"
        for pid in descendants(os.getpid()):
            if new := mapped(pid) - shared_memory:
                shared_memory |= new
                notes.write_text("\n".join(sorted(shared_memory)))
            if pid not in known and (name := part_name(pid)):
                known.add(pid)
                part = f"{name} (pid {pid})"
                try:
                    part_fd = os.pidfd_open(pid)
                except ProcessLookupError:
                    return f"{part} ended"
                parts[part_fd] = part
                poll.register(part_fd, select.POLLIN)


def kill_tree(shared_memory: set[str]) -> list[int]:
    """Kill everything below us, and return what is still there after KILL_S [s].

    Python's resource trackers come last: they end by themselves when their users have, and unlink their semaphores,
    also one that was made and whose maker has ended since we last looked.
    """
    deadline = time.monotonic() + KILL_S
    trackers_deadline = time.monotonic() + TRACKERS_S
    while (alive := descendants(os.getpid())) and time.monotonic() < deadline:
        for pid in alive:
            shared_memory |= mapped(pid)
        for pid in alive:
            patient = is_resource_tracker(pid) and time.monotonic() < trackers_deadline
            send(pid, signal.SIGCONT if patient else signal.SIGKILL)  # one that is stopped could not end by itself
        reap()
        time.sleep(0.02)
    return alive


def is_resource_tracker(pid: int) -> bool:
    """Return whether a process is one of Python's resource trackers."""
    try:
        return b"multiprocessing.resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def send(pid: int, number: int) -> None:
    """Send a signal to a process that may be gone already."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def reap() -> None:
    """Collect ended children, adopted ones included."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return


def descendants(root: int) -> list[int]:
    """Return the pids of all processes below `root`."""
    children: dict[int, list[int]] = {}
    for pid in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        if (parent := parent_of(pid)) is not None:
            children.setdefault(parent, []).append(pid)
    found = list(children.get(root, []))
    for pid in found:  # grows while we go through it
        found += children.get(pid, [])
    return found


def parent_of(pid: int) -> int | None:
    """Return the parent's pid, or None when there is no such process any more."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(stat.rpartition(")")[2].split()[1])


def part_name(pid: int) -> str:
    """Return the name of a part of the server, or "" for another process.

    A program that a part starts (`lscpu`) has the part's name until it is executed, and ends soon: it is not a part.
    """
    name = command_name(pid)
    parent = parent_of(pid) if name.startswith(PART_PREFIX) else None
    return name if parent is not None and command_name(parent) != name else ""


def command_name(pid: int) -> str:
    """Return the name that a process gave itself (its first 15 characters), or "" when it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def noted(scratch: Path) -> set[str]:
    """Return the shared memory that a keeper has noted in its scratch directory."""
    notes = scratch / NOTES
    names = notes.read_text().splitlines() if notes.exists() else []
    return {name for name in names if Path(name).parent == SHARED_MEMORY}


def remove(scratch: Path, shared_memory: set[str]) -> None:
    """Remove what a server leaves in files."""
    for name in shared_memory:
        Path(name).unlink(missing_ok=True)
    shutil.rmtree(scratch, ignore_errors=True)


def mapped(pid: int) -> set[str]:
    """Return the files below /dev/shm that SGLang or multiprocessing made and this process maps.

    By inode: glibc gives a semaphore its name after it has mapped it under another one.
    """
    try:
        inodes = set(MAPPED.findall(Path(f"/proc/{pid}/maps").read_text()))
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return set()
    return {entry.path for entry in os.scandir(SHARED_MEMORY) if str(entry.inode()) in inodes} if inodes else set()


def report(**facts: object) -> None:
    """Write one line for the owner, who may be gone."""
    try:
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        sys.stdout = None  # nothing to flush at exit


def leave_home() -> None:
    """Continue as an orphan in its own session: Ray kills the children of an actor that ends."""
    if os.fork():
        os._exit(0)
    os.setsid()


if __name__ == "__main__":
    leave_home()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the owner's to handle; it closes our standard input
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
