"""Shows the trial of a reward: as a table for people, as JSON for programs."""

import json
from collections.abc import Iterator
from dataclasses import asdict

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rljob_trainer.assembly.reward_trial import TOTAL, Trial, Verdict

MOST_SHOWN = 60
"""characters of a question, label or response in the table"""


def as_json(trial: Trial) -> str:
    """Return the trial as a JSON object; null is a score that is not there."""
    content = {
        "run_would_end": trial.run_would_end,
        "seconds": {name: round(value, 6) for name, value in trial.seconds.items()},
        "responses": [asdict(verdict) for verdict in trial.verdicts],
    }
    return json.dumps(content, indent=2, ensure_ascii=False)


def as_table(trial: Trial, *, boxes: bool) -> RenderableType:
    """Return the trial for people; `boxes` draws lines around the table."""
    parts = list(trial.seconds)
    several = parts if len(parts) > 1 else []
    table = Table(box=box.ROUNDED if boxes else None, pad_edge=boxes)
    for name in ("row", "question", "label", "response"):
        table.add_column(name, overflow="fold")
    for name in (*several, "reward"):
        table.add_column(name, justify="right", no_wrap=True)
    for verdict in trial.verdicts:
        texts = (verdict.question, verdict.label, verdict.response)
        scores = [number(verdict.scores[name]) for name in several]
        table.add_row(str(verdict.row), *(Text(cut(text)) for text in texts), *scores, number(verdict.reward))
    return Group(table, *(Text(line) for line in notes(trial)))


def notes(trial: Trial) -> Iterator[str]:
    """Yield a line for each failure, for what a run would do about them, and for the time it took."""
    for verdict in trial.verdicts:
        yield from (f"failed: row {verdict.row}, {name}: {reason}" for name, reason in failures(verdict))
    for name in trial.useless:
        yield f"{name} failed on every response: a run would end at its first step, with any failureScore"
    if trial.run_would_end and not trial.useless:
        can_have_score = any(name != TOTAL for verdict in trial.verdicts for name in verdict.failures)
        instead = "; reward.failureScore gives such responses a score instead" if can_have_score else ""
        yield f"a run would leave such responses out{instead}"
    times = [f"{name} {1000 * seconds / len(trial.verdicts):.1f} ms" for name, seconds in trial.seconds.items()]
    yield f"time for one response: {', '.join(times)}"


def failures(verdict: Verdict) -> list[tuple[str, str]]:
    return [(name, reason.partition("\n")[0]) for name, reason in verdict.failures.items()]


def number(value: float | None) -> str:
    return "failed" if value is None else f"{value:.4g}"


def cut(text: str) -> str:
    line = json.dumps(text, ensure_ascii=False)[1:-1]
    return line if len(line) <= MOST_SHOWN else f"{line[: MOST_SHOWN - 1]}…"
