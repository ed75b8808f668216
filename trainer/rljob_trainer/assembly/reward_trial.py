"""Tries the reward of a manifest on real rows, without a model: what `rljob reward test` shows.

rows of data.train ──► given responses, or the label and nothing ──► every part of the reward ──► what a run would do
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rljob_api.sections import RewardKind, Spec
from rljob_trainer.data.packages import cache_directory, checkpoint
from rljob_trainer.data.sources import questions
from rljob_trainer.rewards.errors import RewardError
from rljob_trainer.rewards.factory import PartReward, Rewards, combined
from rljob_trainer.rewards.function import Failure, Response, Score
from rljob_trainer.samples import Prompt

Texts = Sequence[str]
TOTAL = "total reward"
"""no part is called like this: their names have no spaces"""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the reward says of one response."""

    row: int
    question: str
    label: str
    response: str
    scores: Mapping[str, float | None]
    """of each part, before its weight; None: it failed, or it is not finite"""
    failures: Mapping[str, str]
    """part -> why it failed; `TOTAL`: why the parts together are no reward"""
    reward: float | None
    """what would be trained on; None: the run would end"""


@dataclass(frozen=True, slots=True)
class Trial:
    """What the reward says of all responses."""

    verdicts: tuple[Verdict, ...]
    seconds: Mapping[str, float]
    """how long each part took for all of them [s]"""
    useless: tuple[str, ...]
    """parts that failed on every one of several responses: a run would end, with any failureScore"""

    @property
    def run_would_end(self) -> bool:
        return bool(self.useless) or any(verdict.reward is None for verdict in self.verdicts)


def prompts(spec: Spec, rows: int | None, environ: Mapping[str, str]) -> tuple[Prompt, ...]:
    """Return the first rows to train on; None: all. Raises DataError and ModelError.

    They are rendered only if a part of the reward reads prompts: a service gets the prompt as the engine does.
    """
    read = questions(spec.data).train[:rows]
    if all(part.kind is not RewardKind.REMOTE for part in spec.reward.judgings):
        return tuple(
            Prompt(str(number), row.question, "", (), row.label, row.metadata) for number, row in enumerate(read)
        )
    # Local, because it takes seconds that the other kinds need not wait for.
    from rljob_trainer.conversations.factory import schemas
    from rljob_trainer.data.render import Renderer
    from rljob_trainer.data.tokenizer import load_tokenizer

    model = checkpoint(spec.model.checkpoint, cache_directory(environ))
    renderer = Renderer(spec.data, load_tokenizer(model), schemas(spec))
    return tuple(renderer.prompt(str(number), row) for number, row in enumerate(read))


def usual_texts(prompt: Prompt) -> Texts:
    """Return what to judge where nothing is given: the label, which ought to be worth much, and nothing at all."""
    return (prompt.label, "")


def trial(rewards: Rewards, prompts: Sequence[Prompt], texts: Sequence[Texts]) -> Trial:
    """Judge the texts for each prompt. Raises RewardError when a reward cannot be computed at all."""
    responses = [Response(prompt, text) for prompt, given in zip(prompts, texts, strict=True) for text in given]
    scores: dict[str, list[Score]] = {}
    seconds: dict[str, float] = {}
    for part in rewards.parts:
        began = time.monotonic()
        scores[part.name] = list(part.scores(responses))
        seconds[part.name] = time.monotonic() - began
    rows = [number for number, given in enumerate(texts) for _ in given]
    verdicts = tuple(
        verdict(rewards.parts, rows[at], response, {name: found[at] for name, found in scores.items()})
        for at, response in enumerate(responses)
    )
    useless = tuple(
        name for name, found in scores.items() if len(found) > 1 and all(isinstance(one, Failure) for one in found)
    )
    return Trial(verdicts, seconds, useless)


def verdict(parts: Sequence[PartReward], row: int, response: Response, scores: Mapping[str, Score]) -> Verdict:
    """Return what the parts say of one response, and what a run makes of it."""
    failures = {name: score.reason for name, score in scores.items() if isinstance(score, Failure)}
    counted = {part.name: part.failure_score if part.name in failures else scores[part.name] for part in parts}
    worth = [found for part in parts if isinstance(found := counted[part.name], int | float)]
    reward = None
    if len(worth) == len(parts):
        try:
            reward = combined(parts, worth, response.prompt)
        except RewardError as error:
            failures[TOTAL] = str(error)
    return Verdict(
        row=row,
        question=response.prompt.question,
        label=response.prompt.label,
        response=response.text,
        scores={name: finite(score) for name, score in scores.items()},
        failures=failures,
        reward=reward,
    )


def finite(score: Score) -> float | None:
    """Return the score; None for a failure and for what JSON has no number for."""
    return None if isinstance(score, Failure) or not math.isfinite(score) else score
