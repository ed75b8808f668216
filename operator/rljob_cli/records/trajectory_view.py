"""Shows kept trajectories: a page of a step as a table, one of them turn by turn or token by token; all as JSON."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, repeat
from math import fsum, isfinite
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rljob_cli.terminal.formats import counted, one_line, visible
from rljob_trainer.rundir.trajectories import Author, Piece, Row, Trajectory, pieces, row
from rljob_trainer.samples import Answer

ROWS = 50
"""samples of a page"""
TOKENS = 200
"""tokens of a page"""
MOST_TEXT = 4000
"""characters of a part; JSON has all"""
COLUMNS = (
    *("sample", "prompt", "turns", "calls", "branches", "tokens", "trained", "reward", "ended", "weights", "engine"),
    "seconds",
)
TOKEN_COLUMNS = ("place", "author", "token", "log-probability", "weights", "trained on")


@dataclass(frozen=True, slots=True)
class Page:
    """Some of the samples of a step."""

    step: int
    steps: tuple[int, ...]
    """that have been kept"""
    number: int
    """from 1"""
    rows: tuple[Row, ...]
    samples: int
    """of the step"""


def page_as_json(page: Page) -> str:
    """Return a page as a JSON object."""
    samples = [asdict(each) for each in page.rows]
    kept = {"first": page.steps[0], "last": page.steps[-1], "steps": len(page.steps)}
    content = {"step": page.step, "kept": kept, "page": page.number, "of": page.samples, "samples": samples}
    return json.dumps(_plain(content), indent=2, ensure_ascii=False)


def page_as_table(page: Page) -> RenderableType:
    """Return a page for people, with what else there is."""
    table = _table(COLUMNS)
    for each in page.rows:
        table.add_row(
            str(each.number),
            each.prompt,
            str(each.turns),
            str(each.calls),
            str(each.branches),
            str(each.tokens),
            "dropped" if each.dropped else str(each.trained_tokens),
            _number(each.reward),
            "cut off" if each.cut_off else each.finish_reason,
            "+".join(map(str, each.versions)),
            each.engine,
            "" if each.seconds is None else f"{each.seconds:.2f}",
        )
    return Group(table, Text(""), *map(Text, _around(page)))


def as_json(step: int, trajectory: Trajectory) -> str:
    """Return a trajectory as a JSON object; null is a number that is not finite, or not there."""
    content = {
        "step": step,
        **asdict(row(trajectory)),
        "label": trajectory.prompt.label,
        "scores": trajectory.scores,
        "parts": [asdict(piece) for piece in pieces(trajectory)],
    }
    return json.dumps(_plain(content), indent=2, ensure_ascii=False)


def as_text(step: int, trajectory: Trajectory) -> RenderableType:
    """Return a trajectory turn by turn: who wrote what, how many tokens, by which weights, and how likely."""
    shown: list[RenderableType] = [Text(_headline(step, trajectory), style="bold")]
    first = min((answer.began for answer in trajectory.sample.answers), default=0.0)
    for piece in pieces(trajectory):
        about = "; ".join((_about(piece), *(_answered(answer, first) for answer in piece.answers)))
        shown += [Text(""), Text(about, style="bold" if piece.author is Author.MODEL else "dim")]
        shown.append(Text(visible(_shortened(piece.text)), style="" if piece.author is Author.MODEL else "dim"))
    return Group(*shown)


def tokens_as_table(step: int, trajectory: Trajectory, number: int) -> RenderableType:
    """Return a page of the tokens, the prompts' among them."""
    table, first = _table(TOKEN_COLUMNS), (number - 1) * TOKENS
    total = 0
    for total, (author, token, logprob, version, trained) in enumerate(_tokens(pieces(trajectory)), 1):
        if first < total <= first + TOKENS:
            weights = "" if version is None else str(version)
            said = "" if logprob is None else f"{logprob:.5f}"
            table.add_row(str(total - 1), author, str(token), said, weights, "yes" if trained else "")
    last = min(total, first + TOKENS)
    more = f"; --page {number + 1} shows more" if last < total else ""
    around = f"tokens {first} to {last - 1} of {total}{more}" if first < total else f"there are {total} tokens"
    return Group(Text(_headline(step, trajectory), style="bold"), Text(""), table, Text(""), Text(around))


def _tokens(parts: Iterator[Piece]) -> Iterator[tuple[str, int, float | None, int | None, bool]]:
    for piece in parts:
        versions = chain.from_iterable(repeat(version, tokens) for version, tokens in piece.versions)
        for token, logprob, version in zip(
            piece.tokens_T,
            chain(piece.logprobs_T, repeat(None)),
            chain(versions, repeat(None)),
            strict=False,
        ):
            yield piece.author.value, token, logprob, version, piece.trained


def _headline(step: int, trajectory: Trajectory) -> str:
    facts = row(trajectory)
    trained = "dropped, not trained on" if facts.dropped else f"{facts.trained_tokens} tokens are trained on"
    several = trajectory.scores if len(trajectory.scores) > 1 else {}
    return ", ".join(
        (
            f"step {step}, sample {facts.number}, prompt {facts.prompt}",
            f"label {one_line(trajectory.prompt.label)}",
            f"reward {_number(facts.reward)}",
            *(f"{name} {_number(score)}" for name, score in several.items()),
            f"{counted(facts.turns, 'turn')}, {counted(facts.branches, 'branch', 'branches')}",
            f"cut off ({facts.finish_reason})" if facts.cut_off else facts.finish_reason,
            trained,
            *(
                []
                if facts.seconds is None
                else [f"{facts.seconds:.2f} s, {facts.model_seconds:.2f} s of them the model's"]
            ),
        )
    )


def _about(piece: Piece) -> str:
    tokens = counted(len(piece.tokens_T), "token")
    if piece.author is Author.PROMPT and piece.branch:
        return f"prompt of branch {piece.branch}: {tokens}"
    if piece.author is not Author.MODEL:
        return f"{piece.author.value}: {tokens}"
    weights = " then ".join(f"{version} ({made})" for version, made in piece.versions)
    made = weights if len(piece.versions) > 1 else weights.partition(" ")[0]
    mean = f", mean log-probability {fsum(piece.logprobs_T) / len(piece.logprobs_T):.4f}" if piece.logprobs_T else ""
    return f"model: {tokens}, weights {made}{mean}{'' if piece.trained else ', not trained on'}"


def _answered(answer: Answer, first: float) -> str:
    """Return when an answer was asked for, after the first request, how long it took, and what it calls."""
    calls = f", calls {', '.join(answer.calls)}" if answer.calls else ""
    return f"asked at {answer.began - first:.2f} s, {answer.seconds:.2f} s by {answer.engine}{calls}"


def _around(page: Page) -> Iterator[str]:
    first = (page.number - 1) * ROWS
    if page.rows:
        more = f"; --page {page.number + 1} shows more" if first + len(page.rows) < page.samples else ""
        yield f"step {page.step}, samples {first} to {first + len(page.rows) - 1} of {page.samples}{more}"
    else:
        yield f"step {page.step} has {counted(page.samples, 'sample')}"
    yield f"kept: {counted(len(page.steps), 'step')}, {page.steps[0]} to {page.steps[-1]}"


def _table(columns: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in columns:
        table.add_column(name, no_wrap=True)
    return table


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"


def _shortened(text: str) -> str:
    if len(text) <= MOST_TEXT:
        return text
    half = MOST_TEXT // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters; --output json has them]\n{text[-half:]}"


def _plain(value: Any) -> Any:
    """Return what JSON has; it has no numbers that are not finite."""
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not isfinite(value) else value
