"""Runs an agent's program once: `python -m rljob_trainer.agents.command_process`, started by `commands.py`.

    first line of standard input ──► what to run, as JSON     program, directory, limits
    end of standard input        ──► the program is killed     the driver asks for it, or is gone
    one line on standard output  ◄── how it ended, as JSON

The program and all that it has started are killed when it ends, at its time limit, and when this process is killed:
also what has left its process group, because this process adopts it. Of its output the beginning and the end are kept.
"""

import ctypes
import json
import os
import resource
import selectors
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rljob_trainer.processes.keeper import PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, kill_tree

KEPT_BYTES = 8192
"""of the beginning of the output, and of its end"""
LINE_BYTES = 65536
"""longest last line of standard output that is read"""
PART_BYTES = 65536
REST_S = 1.0
"""for output that is on its way when the program has ended [s]"""


@dataclass
class Output:
    """The beginning and the end of what was written."""

    kept: int
    size: int = 0
    head: bytes = b""
    tail: bytes = field(default=b"", repr=False)

    def add(self, part: bytes) -> None:
        """Take what was written next."""
        self.size += len(part)
        room = self.kept - len(self.head)
        self.head += part[:room]
        self.tail = (self.tail + part[room:])[-self.kept :] if len(part) > room else self.tail

    @property
    def text(self) -> str:
        """What was kept."""
        left_out = self.size - len(self.head) - len(self.tail)
        between = f"\n... {left_out} bytes ...\n".encode() if left_out else b""
        return (self.head + between + self.tail).decode(errors="replace")


def main() -> None:
    """Run the program, and say how it ended."""
    setup = json.loads(sys.stdin.buffer.readline())
    said = ran(setup)
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


def ran(setup: dict[str, Any]) -> dict[str, Any]:
    """Return how the program ended: its exit code, whether it was late, its output and its last line."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # adopts what the program leaves, to kill it
    memory_bytes = setup["memory_bytes"]

    def limited() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    with Path(setup["task"]).open("rb") as task:
        try:
            program = subprocess.Popen(
                setup["argv"],
                cwd=setup["directory"],
                stdin=task,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=limited,  # safe: this process has one thread
            )
        except OSError as error:
            return {"code": None, "late": False, "output": f"cannot be started: {error}", "last_line": ""}
    output, lines = Output(KEPT_BYTES), Output(LINE_BYTES)
    late = watched(program, time.monotonic() + setup["timeout_s"], output, lines)
    code = program.poll()
    kill_tree(set())
    return {"code": code, "late": late, "output": output.text, "last_line": last_line(lines)}


def watched(program: "subprocess.Popen[bytes]", deadline: float, output: Output, lines: Output) -> bool:
    """Read what the program writes until it ends, or the driver is gone; return whether its time was over first."""
    ended = os.pidfd_open(program.pid)
    assert program.stdout is not None
    assert program.stderr is not None
    pipes = {program.stdout.fileno(): (output, lines), program.stderr.fileno(): (output,)}
    over: float | None = None
    with selectors.DefaultSelector() as ready:
        for each in (*pipes, ended, sys.stdin.fileno()):
            ready.register(each, selectors.EVENT_READ)
        while pipes or over is None:
            left_s = (deadline if over is None else over) - time.monotonic()
            if left_s <= 0:
                return over is None
            for key, _ in ready.select(left_s):
                if key.fd == ended:
                    over = time.monotonic() + REST_S  # what it has started may hold the pipes open
                    ready.unregister(ended)
                elif key.fd not in pipes:
                    return False  # the driver does not want it any more
                elif part := os.read(key.fd, PART_BYTES):
                    for each_output in pipes[key.fd]:
                        each_output.add(part)
                else:
                    ready.unregister(key.fd)
                    del pipes[key.fd]
    return False


def last_line(lines: Output) -> str:
    """Return the last line that is not empty; "" if it is too long."""
    last = (lines.head + lines.tail if lines.size <= 2 * lines.kept else b"x" * lines.kept + lines.tail).rstrip()
    line = last.rpartition(b"\n")[2]
    return line.decode(errors="replace") if len(line) < lines.kept else ""


if __name__ == "__main__":
    main()
