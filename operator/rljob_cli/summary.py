"""The last line of `rljob run`: what came out, from the run's own record of events."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Event = dict[str, Any]


def summary(events: Path, seconds: float, report: Path) -> str:
    """Return, for example, `held-out accuracy 0.11 -> 0.61 (greedy 0.30 -> 0.72), 200 steps, 240 s; report: PATH`.

    What was not measured, or not written, is left out.
    """
    records = list(_records(events)) if events.exists() else []
    evaluations = [record for record in records if record.get("kind") == "evaluation"]
    steps = max((record["step"] for record in records if record.get("kind") == "step"), default=0)
    accuracy = _change(evaluations, "sampled")
    greedy = _change(evaluations, "greedy")
    facts = [f"{steps} steps", f"{seconds:.0f} s"]
    if accuracy and greedy:
        facts.insert(0, f"held-out accuracy {accuracy} (greedy {greedy})")
    elif accuracy:
        facts.insert(0, f"held-out accuracy {accuracy}")
    return ", ".join(facts) + (f"; report: {report}" if report.exists() else "")


def _records(events: Path) -> Iterator[Event]:
    with events.open() as lines:
        for line in lines:
            # A process that is killed leaves half a line.
            if line.endswith("\n"):
                yield json.loads(line)


def _change(evaluations: list[Event], key: str) -> str | None:
    values = [record[key] for record in evaluations if record.get(key) is not None]
    if not values:
        return None
    return f"{values[0]:.2f} -> {values[-1]:.2f}" if len(values) > 1 else f"{values[0]:.2f}"
