"""What `chaos` runs in a pod, by exec: finds processes by role, sends one of them a signal, reads the newest step.

    python -I -c TEXT_OF_THIS_FILE RUN_DIRECTORY [ROLE SIGNAL DRAW]

Prints one line of JSON. Only the standard library: nothing of rljob is imported in the pod.
"""

import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

ROLES = {
    "driver": rb"(?s).*\0-m\0rljob_trainer\.driver\0",
    "router": rb"sglang::router",
    "engine": rb"sglang::sched",
    "rank": rb"ray::RankHost",
}
"""by role: how the command line begins"""
TAIL = 2**18
"""of the record of all steps [bytes]"""


def processes(proc: Path) -> dict[str, list[dict[str, int]]]:
    """Return pid and start of the processes of each role, the oldest first."""
    found: dict[str, dict[int, dict[str, int]]] = {role: {} for role in ROLES}
    for directory in proc.iterdir():
        if not directory.name.isdecimal():
            continue
        try:
            line, stat = (directory / "cmdline").read_bytes(), (directory / "stat").read_text()
        except OSError:
            continue  # it has just ended, or is another user's
        fields = stat.rpartition(")")[2].split()
        for role, begins in ROLES.items():
            if re.match(begins, line):
                pid = int(directory.name)
                found[role][pid] = {"pid": pid, "parent": int(fields[1]), "started": int(fields[19])}
    # A process that was just forked has the command line of its parent.
    return {
        role: sorted(
            ({"pid": each["pid"], "started": each["started"]} for each in of.values() if each["parent"] not in of),
            key=lambda each: (each["started"], each["pid"]),
        )
        for role, of in found.items()
    }


def newest_step(events: Path, now: float) -> dict[str, float] | None:
    """Return the newest step of a run, and how old its record is [s]; None: it has none yet."""
    try:
        with events.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
            lines = file.read(TAIL).split(b"\n")
    except OSError:
        return None
    for line in reversed(lines):
        try:
            record: Any = json.loads(line)
            if record["kind"] == "step":
                return {"step": int(record["step"]), "age": now - float(record["time"])}
        except (ValueError, KeyError, TypeError):
            continue  # torn, or of another kind
    return None


def main(directory: str, role: str = "", name: str = "", draw: str = "0") -> None:
    found = processes(Path("/proc"))
    hit = None
    if role and found[role]:
        hit = found[role][int(float(draw) * len(found[role]))]["pid"]
        os.kill(hit, getattr(signal, name))
    step = newest_step(Path(directory) / "events.jsonl", time.time())
    sys.stdout.write(json.dumps({"processes": found, "hit": hit, "step": step}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
