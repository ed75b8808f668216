"""Shows what came of a run: as a table for people, as JSON for programs."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rljob_cli.terminal.formats import rate, seconds
from rljob_trainer.reporting.reading.history import History, accuracy_change, result
from rljob_trainer.reporting.records import EvaluationRecord, PerplexityRecord

NAMED_SHARE = 0.005
"""phases below this share are added up under `rest`"""


def as_table(history: History, report: Path) -> RenderableType:
    """Return a few lines for people; the path stands alone on the last one."""
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", no_wrap=True)
    rows.add_column(overflow="fold")
    for name, content in _rows(history):
        rows.add_row(name, content)
    head = Text.assemble((history.run.job, "bold"), f"  {history.outcome or 'not finished'}")
    return Group(head, Text(result(history), style="bold"), rows, Text(str(report), no_wrap=True, overflow="ignore"))


def as_json(history: History, report: Path) -> str:
    """Return the same as a JSON object; null is what was not measured."""
    content: dict[str, Any] = {
        "job": history.run.job,
        "outcome": history.outcome,
        "message": history.message,
        "result": result(history),
        "steps": history.step,
        "steps_wanted": history.run.steps,
        "seconds": round(history.seconds, 3),
        "driver_starts": history.driver_starts,
        "goodput": history.goodput.model_dump(mode="json") if history.goodput else None,
        "accuracy_before": _accuracy(history.before),
        "accuracy_after": _accuracy(history.after),
        "perplexity_before": _perplexity(history.perplexities[:1]),
        "perplexity_after": _perplexity(history.perplexities[1:][-1:]),
        "phase_seconds": {phase: round(value, 3) for phase, value in history.parts.items()},
        "rollout_tokens_per_second": history.rollout_tokens_per_second,
        "train_tokens_per_second": history.train_tokens_per_second,
        "reward_parts": history.ends_of_steps[-1].reward_parts if history.steps else {},
        "reward_failures": reward_failures(history),
        "findings": [finding.model_dump(mode="json", exclude={"kind"}) for finding in history.findings],
        "engine_failures": [incident.model_dump(mode="json", exclude={"kind"}) for incident in history.incidents],
        "report": str(report),
    }
    return json.dumps(content, indent=2, ensure_ascii=False)


def _rows(history: History) -> list[tuple[str, str]]:
    starts = f", {history.driver_starts} driver starts" if history.driver_starts > 1 else ""
    rows = [("reason", history.message)] if history.message else []
    rows += [
        ("steps", f"{history.step} of {history.run.steps}"),
        ("time", f"{seconds(history.seconds)}{starts}"),
        ("goodput", str(history.goodput or "")),
        ("phases", _phases(history)),
        (
            "tokens/s",
            f"rollout {rate(history.rollout_tokens_per_second)}, train {rate(history.train_tokens_per_second)}",
        ),
    ]
    rows += [("reward parts", _reward_parts(history))] if _reward_parts(history) else []
    for name in history.evaluation_sets:
        if len(measured := tuple(history.accuracies(name).values())) > 1:
            rows.append((f"on {name}", accuracy_change(measured[0], measured[-1])))
    if failures := reward_failures(history):
        rows.append(("not judged", f"{failures} judgements failed"))
    checks = history.first_step.checks if history.first_step else ()
    rows += [("first step", check.summary) for check in checks if check.breached]
    for finding in history.findings:
        rows.append(("finding", f"step {finding.step}: {finding.name}: {finding.evidence}"))
    for incident in history.incidents:
        back = "not back" if incident.return_seconds is None else f"back after {seconds(incident.return_seconds)}"
        rows.append(("failure", f"{incident.engine} at step {incident.step + 1}: {incident.cause}, {back}"))
    return rows


def _reward_parts(history: History) -> str:
    """Return the mean of each part in the first and the last step."""
    if not history.steps:
        return ""
    first, last = (step.reward_parts for step in history.ends_of_steps)
    return ", ".join(f"{name} {first[name]:.2f} → {last[name]:.2f}" for name in last if name in first)


def reward_failures(history: History) -> int:
    """Return how many judgements failed in the whole run."""
    of_steps = history.total(lambda step: step.reward_failures)
    return round(of_steps) + sum(record.reward_failures for record in history.evaluations)


def _phases(history: History) -> str:
    parts = history.parts
    total = sum(parts.values())
    shares = {part: value / total for part, value in parts.items()}
    named = [f"{phase} {share:.1%}" for phase, share in shares.items() if share >= NAMED_SHARE]
    rest = sum(share for share in shares.values() if share < NAMED_SHARE)
    return ", ".join([*named, f"rest {rest:.1%}"] if rest else named)


def _perplexity(found: Sequence[PerplexityRecord]) -> dict[str, Any] | None:
    return found[0].model_dump(include={"step", "perplexity", "n"}) if found else None


def _accuracy(evaluation: EvaluationRecord | None) -> dict[str, Any] | None:
    return None if evaluation is None else evaluation.model_dump(include={"step", "sampled", "greedy", "n", "sets"})
