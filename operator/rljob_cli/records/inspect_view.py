"""Shows what `rljob inspect` has found: as tables for people, as JSON for programs."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rljob_cli.terminal.formats import size
from rljob_trainer.rundir.inspection import CheckpointFacts, Facts, JournalFacts, RolloutFacts

MOST_FILES = 12
MOST_STEPS = 30
MOST_PROMPTS = 8
KINDS = {CheckpointFacts: "checkpoint", JournalFacts: "journal", RolloutFacts: "rollouts"}


def as_json(found: Sequence[Facts]) -> str:
    """Return everything as a JSON list; each entry has its `kind`."""
    return json.dumps([{"kind": KINDS[type(facts)]} | asdict(facts) for facts in found], indent=2, ensure_ascii=False)


def as_tables(found: Sequence[Facts], *, boxes: bool) -> RenderableType:
    """Return everything for people; `boxes` draws lines around tables."""
    return Group(*(part for facts in found for part in _of(facts, boxes)))


def _of(facts: Facts, boxes: bool) -> Iterator[RenderableType]:
    yield Text(f"{KINDS[type(facts)]} {facts.path}", style="bold")
    match facts:
        case CheckpointFacts():
            yield from _checkpoint(facts, boxes)
        case JournalFacts():
            yield from _journal(facts)
        case RolloutFacts():
            yield from _rollouts(facts, boxes)
    yield from (Text(f"damaged: {problem}", style="red") for problem in facts.problems)


def _checkpoint(facts: CheckpointFacts, boxes: bool) -> Iterator[RenderableType]:
    epoch, offset = facts.prompts or (None, None)
    total = sum(file.size for file in facts.files)
    yield _pairs(
        ("step", facts.step),
        ("saved by", facts.layout),
        ("precision", facts.precision),
        ("model", facts.model),
        ("questions", facts.data),
        ("resumes at", None if epoch is None else f"epoch {epoch}, question {offset}"),
        ("files", f"{len(facts.files)}, {size(total)}"),
        ("state", "damaged" if facts.problems else "verified"),
    )
    table = _table(("file", "size", "state"), boxes)
    for file in facts.files[:MOST_FILES]:
        table.add_row(file.name, size(file.size), file.state)
    yield table
    if len(facts.files) > MOST_FILES:
        yield Text(f"and {len(facts.files) - MOST_FILES} more files; -o json shows all")


def _journal(facts: JournalFacts) -> Iterator[RenderableType]:
    last = facts.commits[-1] if facts.commits else None
    yield _pairs(
        ("steps", facts.steps),
        ("prompts", f"{facts.issued} issued, {facts.consumed} consumed, {facts.committed} committed"),
        ("commits", len(facts.commits)),
        ("last commit", f"step {last[0]} in {last[1]}" if last else "none"),
        ("outstanding", _some(facts.outstanding)),
        ("torn line", f"{facts.torn} bytes" if facts.torn else "none"),
        ("audit", "inconsistent" if facts.problems else "consistent"),
    )


def _rollouts(facts: RolloutFacts, boxes: bool) -> Iterator[RenderableType]:
    table = _table(("step", "rounds", "prompts", "samples", "reward", "tokens", "state"), boxes)
    for step in facts.steps[-MOST_STEPS:]:
        rounds = "+".join(map(str, step.rounds)) if len(step.rounds) > 1 else str(len(step.rounds))
        reward = "" if step.reward is None else f"{step.reward:.4g}"
        state = "damaged" if step.problems else "verified"
        table.add_row(*map(str, (step.step, rounds, sum(step.rounds), step.samples, reward, step.tokens, state)))
    yield table
    if len(facts.steps) > MOST_STEPS:
        yield Text(f"and {len(facts.steps) - MOST_STEPS} earlier steps; -o json shows all")
    if sample := facts.sample:
        yield Text(f"prompt {sample.uid} of step {sample.step}, as the engine got it:", style="bold")
        yield Text(sample.prompt)
        yield Text(f"response of weights {sample.version}, reward {sample.reward:.4g}, {sample.finish_reason}:", "bold")
        yield Text(sample.response)
        yield Text(f"label: {sample.label}")


def _pairs(*pairs: tuple[str, object]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(overflow="fold")
    for name, value in pairs:
        if value is not None:
            table.add_row(name, Text(str(value)))
    return table


def _table(names: Sequence[str], boxes: bool) -> Table:
    table = Table(box=box.ROUNDED if boxes else None, pad_edge=boxes)
    for name in names:
        table.add_column(name, justify="left" if name in ("file", "state") else "right", overflow="fold")
    return table


def _some(uids: Sequence[str]) -> str:
    if not uids:
        return "none"
    more = f" and {len(uids) - MOST_PROMPTS} more" if len(uids) > MOST_PROMPTS else ""
    return f"{len(uids)}: {', '.join(uids[:MOST_PROMPTS])}{more}"
