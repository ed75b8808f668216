"""Shows samples with who wrote what of them: in columns for people, as JSON for programs."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from itertools import accumulate
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rljob_cli.terminal.formats import one_line, visible
from rljob_cli.trials.reward_view import number
from rljob_trainer.assembly.rollout_trial import RolloutTrial, Tried
from rljob_trainer.reporting.first_step import sent
from rljob_trainer.samples import Branch, Sample

AUTHORS = {True: "model", False: "environment"}


def as_json(trial: RolloutTrial) -> str:
    """Return the samples as a JSON object; null is a score that is not there."""
    content = {"run_would_end": trial.run_would_end, "samples": [record(each) for each in trial.tried]}
    return json.dumps(content, indent=2, ensure_ascii=False)


def record(tried: Tried) -> dict[str, Any]:
    sample = tried.sample
    return {
        **asdict(tried.verdict),
        "prompt": sent(tried.prompt, sample),
        "segments": [{"author": author, "tokens": tokens, "text": text} for author, tokens, text in pieces(tried)],
        "finish_reason": sample.finish_reason,
        "trained_tokens": sample.num_trained,
        "dropped": sample.dropped,
    }


def as_text(trial: RolloutTrial) -> RenderableType:
    """Return the samples for people: what stands beside `model` is trained on, the rest is not."""
    shown: list[RenderableType] = []
    for each in trial.tried:
        shown += [Text(headline(each), style="bold"), conversation(each), *map(Text, failures(each)), Text("")]
    if trial.run_would_end:
        shown.append(Text("a run would leave such samples out; reward.failureScore gives them a score instead"))
    return Group(*shown)


def headline(tried: Tried) -> str:
    sample, verdict = tried.sample, tried.verdict
    parts = [f"{name} {number(score)}" for name, score in verdict.scores.items()] if len(verdict.scores) > 1 else []
    trained = "dropped, not trained on" if sample.dropped else f"{sample.num_trained} tokens are trained on"
    label = f"label {one_line(verdict.label)}"
    return ", ".join(
        [f"row {verdict.row}", label, f"reward {number(verdict.reward)}", *parts, sample.finish_reason, trained]
    )


def conversation(tried: Tried) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(Text("prompt", style="dim"), Text(visible(sent(tried.prompt, tried.sample)), style="dim"))
    for author, _, text in pieces(tried):
        style = "" if author == AUTHORS[True] else "dim"
        table.add_row(Text(author, style=style), Text(visible(text), style=style))
    return table


def pieces(tried: Tried) -> Iterator[tuple[str, int, str]]:
    """Yield who wrote how many tokens, and their text; `branch` has the prompt of an agent's further branch."""
    sample = tried.sample
    if not sample.segments:
        yield AUTHORS[True], len(sample.tokens_T), sample.text
    begins, begin = branch_begins(sample), 0
    for segment in sample.segments:
        if begin in begins:
            yield "branch", len(begins[begin].prompt_T), begins[begin].text
        yield AUTHORS[segment.by_model], segment.length, segment.text
        begin += segment.length


def branch_begins(sample: Sample) -> dict[int, Branch]:
    """Return the branches of an agent's sample after the first, by their places among its tokens."""
    places = accumulate((branch.length for branch in sample.branches), initial=0)
    return dict(list(zip(places, sample.branches, strict=False))[1:])


def failures(tried: Tried) -> Iterator[str]:
    yield from (f"failed: {name}: {reason.partition(chr(10))[0]}" for name, reason in tried.verdict.failures.items())
