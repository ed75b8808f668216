"""Reads the results of mutmut, and prints survivors and shares."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from accepted import Accepted, changed_lines
from workspace import Workspace


class Outcome(Enum):
    KILLED = "killed"
    SURVIVED = "survived"
    NOT_REACHED = "not reached"
    """no test calls the function"""
    UNKNOWN = "unknown"
    """the tests did not run: an interruption, or a test that pytest cannot find again by its name"""


@dataclass(frozen=True)
class Mutant:
    name: str
    module: str
    diff: str
    """empty unless it survived"""


def outcomes(workspace: Workspace, names: Sequence[str]) -> list[tuple[Mutant, Outcome]]:
    """Read mutmut's results. The working directory is the workspace's."""
    from mutmut.mutation.diff_apply import get_diff_for_mutant

    codes: dict[str, int | None] = {}
    paths: dict[str, Path] = {}
    for file in workspace.files:
        results = Path("mutants") / f"{file}.meta"
        found = json.loads(results.read_text())["exit_code_by_key"] if results.exists() else {}
        codes |= found
        paths |= dict.fromkeys(found, file)
    result = []
    for name in names:
        outcome = _outcome(codes.get(name))
        diff = get_diff_for_mutant(name, path=paths[name]) if outcome is not Outcome.KILLED else ""
        module = ".".join(paths[name].with_suffix("").parts[1:])
        result.append((Mutant(name, module, diff), outcome))
    return result


def _outcome(code: int | None) -> Outcome:
    match code:
        case 0:
            return Outcome.SURVIVED
        case 5 | 33:
            return Outcome.NOT_REACHED
        case None | 2 | 255:  # 255: pytest refused its arguments, which mutmut calls a timeout
            return Outcome.UNKNOWN
        case _:
            return Outcome.KILLED  # a failed test, an endless loop, or a process that died


def summary(found: Sequence[tuple[Mutant, Outcome]], accepted: Sequence[Accepted], whole: bool) -> str:
    """Return the survivors with their diffs, then a table by module."""
    reasons = {(entry.module, entry.removed, entry.added): entry for entry in accepted}
    used: set[Accepted] = set()
    lines: list[str] = []
    table: dict[str, Counter[str]] = {}
    for mutant, outcome in found:
        counts = table.setdefault(mutant.module, Counter())
        counts["mutants"] += 1
        entry = reasons.get((mutant.module, *changed_lines(mutant.diff)))
        if outcome is Outcome.KILLED:
            counts["killed"] += 1
        elif entry is not None:
            counts["accepted"] += 1
            used.add(entry)
        else:
            counts[outcome.value] += 1
            lines += [f"\n{outcome.value}: {mutant.name}", *mutant.diff.splitlines()[2:]]
    total: Counter[str] = sum(table.values(), Counter())
    lines += ["", f"{'module':58} mutants  killed accepted survived not reached   share"]
    lines += [_row(module, counts) for module, counts in sorted(table.items())]
    lines += [_row("total", total)]
    if whole:
        lines += [f"accepted, but does not survive: {entry}" for entry in accepted if entry not in used]
    lines += [f"survivors without a reason: {total['survived'] + total['not reached'] + total['unknown']}"]
    return "\n".join(lines)


def _row(name: str, counts: Counter[str]) -> str:
    """The share is that of killed mutants among all but the accepted ones."""
    share = counts["killed"] / max(1, counts["mutants"] - counts["accepted"])
    cells = (counts["mutants"], counts["killed"], counts["accepted"], counts["survived"], counts["not reached"])
    return f"{name:58} {cells[0]:7} {cells[1]:7} {cells[2]:8} {cells[3]:8} {cells[4]:11} {share:6.1%}"
