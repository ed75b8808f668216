"""What `chaos` runs in a pod, by exec: finds processes by role, sends one of them a signal, reads the newest records.

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
MOST, LONGEST = 100, 300
"""things of a kind in an answer, and characters of a text"""
Record = dict[str, Any]


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


def newest_records(events: Path) -> list[Record]:
    """Return the newest records of a run, the oldest first."""
    try:
        with events.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
            lines = file.read(TAIL).split(b"\n")
    except OSError:
        return []
    found: list[Record] = []
    for line in lines:
        try:
            record: Any = json.loads(line)
            found.append({**record, "kind": str(record["kind"]), "time": float(record["time"])})
        except (ValueError, KeyError, TypeError, RecursionError):
            continue  # torn
    return found


def newest_step(records: list[Record], now: float) -> dict[str, float] | None:
    """Return the newest step of a run, and how old its record is [s]; None: it has none yet."""
    steps = [record for record in records if record["kind"] == "step" and isinstance(record.get("step"), int)]
    return {"step": steps[-1]["step"], "age": now - steps[-1]["time"]} if steps else None


def refused(records: list[Record], now: float) -> list[dict[str, Any]]:
    """Return the engines whose weights were not verified and that are back, and the samples that they made meanwhile.

    A sample is theirs if its step began after the engine was refused, by as many steps as its tokens may be old, and
    ended before the engine was back.
    """
    steps: dict[int, Record] = {each["step"]: each for each in records if each["kind"] == "step"}
    found = []
    for each in records:
        if each["kind"] != "engine" or each.get("cause") != "PublishFailed" or each.get("return_seconds") is None:
            continue
        back, samples = each["time"] + each["return_seconds"], 0
        for number, step in steps.items():
            before = steps.get(number - 1 - int(step.get("max_staleness") or 0))
            if before is not None and before["time"] >= each["time"] and step["time"] <= back:
                samples += int((step.get("engine_samples") or {}).get(each["engine"], 0))
        error = str(each["error"])[:LONGEST]
        found.append({"engine": each["engine"], "age": now - each["time"], "error": error, "samples": samples})
    return found[-MOST:]


def unequal(records: list[Record], now: float) -> list[dict[str, Any]]:
    """Return where ranks of the learner had different copies of a parameter."""
    found = [each for each in records if each["kind"] == "finding" and each.get("name") == "UnequalCopies"]
    return [{"age": now - each["time"], "evidence": str(each["evidence"])[:LONGEST]} for each in found][-MOST:]


def main(directory: str, role: str = "", name: str = "", draw: str = "0") -> None:
    found = processes(Path("/proc"))
    hit = None
    if role and found[role]:
        hit = found[role][int(float(draw) * len(found[role]))]["pid"]
        os.kill(hit, getattr(signal, name))
    records, now = newest_records(Path(directory) / "events.jsonl"), time.time()
    weights = {"refused": refused(records, now), "unequal": unequal(records, now)}
    sys.stdout.write(json.dumps({"processes": found, "hit": hit, "step": newest_step(records, now), **weights}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
