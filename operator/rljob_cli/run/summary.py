"""The last lines of `rljob run`: what came out, from the run's own record of events."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rljob_api.exits import Exit
from rljob_trainer.reporting.records import CheckRecord

Event = dict[str, Any]


ENDS: Mapping[int, str] = {Exit.OK: "", Exit.PREEMPTED: "stopped: ", Exit.INTERRUPTED: "interrupted: "}
"""how the line begins; with every other exit code the run has failed"""
MOST_WARNINGS = 8


def summary(records: Sequence[Event], seconds: float, report: Path, code: int = Exit.OK) -> str:
    """Return, for example, `held-out accuracy 0.11 -> 0.61 (greedy 0.30 -> 0.72), 200 steps, 240 s; report: PATH`.

    What was not measured, or not written, is left out. A run that is not done says so first: `failed: 3 steps, 40 s`.
    """
    evaluations = [record for record in records if record.get("kind") == "evaluation"]
    steps = max((record["step"] for record in records if record.get("kind") == "step"), default=0)
    accuracy = _change(evaluations, "sampled")
    greedy = _change(evaluations, "greedy")
    perplexity = _change([record for record in records if record.get("kind") == "perplexity"], "perplexity", ".3g")
    facts = [f"{steps} steps", f"{seconds:.0f} s"]
    if accuracy and greedy:
        facts.insert(0, f"held-out accuracy {accuracy} (greedy {greedy})")
    elif accuracy:
        facts.insert(0, f"held-out accuracy {accuracy}")
    elif perplexity:
        facts.insert(0, f"held-out perplexity {perplexity}")
    said = ENDS.get(code, "failed: ") + ", ".join(facts)
    return said + (f"; report: {report}" if report.exists() else "")


def warnings(records: Sequence[Event]) -> list[str]:
    """Return what the first step has shown and should not have, and what `spec.watch` has found, in a line each."""
    found = [line for record in records for line in _warning(record)]
    more = [f"and {len(found) - MOST_WARNINGS} more findings, see the report"] if len(found) > MOST_WARNINGS else []
    return found[:MOST_WARNINGS] + more


def _warning(record: Event) -> Iterator[str]:
    if record["kind"] == "finding":
        yield f"step {record['step']}: {record['name']}: {record['evidence']}; {record['advice']}"
    if record["kind"] == "first_step":
        checks = map(CheckRecord.model_validate, record["checks"])
        if breaches := [check.summary for check in checks if check.breached]:
            yield f"first step: {'; '.join(breaches)}; the report lists possible causes"


def recorded(events: Path) -> list[Event]:
    """Return the run's records; none where nothing was recorded."""
    if not events.exists():
        return []
    with events.open() as lines:
        # A process that is killed leaves half a line.
        return [json.loads(line) for line in lines if line.endswith("\n")]


def _change(evaluations: list[Event], key: str, form: str = ".2f") -> str | None:
    values = [record[key] for record in evaluations if record.get(key) is not None]
    if not values:
        return None
    shown = [format(value, form) for value in values]
    return f"{shown[0]} -> {shown[-1]}" if len(shown) > 1 else shown[0]
