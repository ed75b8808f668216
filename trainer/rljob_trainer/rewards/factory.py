"""Chooses the reward function that `spec.reward` names, and applies it to groups.

groups ──► each part: who judges ──► threshold ──► x weight ──► sum ──► is it finite? ──► scored groups
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rljob_api.sections import Part, Reward, RewardKind
from rljob_trainer.rewards.errors import RewardError
from rljob_trainer.rewards.function import Failure, Judge, Response, Score
from rljob_trainer.samples import Group, Prompt, ScoredGroup

log = logging.getLogger(__name__)

LARGEST = 1e30
"""of a reward: the learner computes advantages and losses in fp32, which ends at 3.4e38"""


@dataclass(frozen=True, slots=True)
class PartReward:
    """One of several rewards, or the only one."""

    judge: Judge
    name: str = "reward"
    function: str = ""
    """what judges, in the manifest's words"""
    weight: float = 1.0
    threshold: float | None = None
    first_line: bool = False
    failure_score: float | None = None
    """reward of a response that could not be judged; None: that is an error"""

    def scores(self, responses: Sequence[Response]) -> Iterator[Score]:
        """Yield a score, after the threshold, or a failure for each response. A score that is not finite stays it."""
        judged = [Response(response.prompt, self._judged(response.text)) for response in responses]
        for score in self.judge(judged):
            yield score if isinstance(score, Failure) else self._settled(score)

    def rewards(self, responses: Sequence[Response]) -> "Judged":
        """Return a reward for each response. Raises RewardError at the first failure, unless failures have a score.

        If all responses fail, an error is raised even if failures have a score.
        """
        scores: list[float] = []
        failures: list[Failure | None] = []
        for response, score in zip(responses, self.scores(responses), strict=True):
            scores.append(self._failed(response, score) if isinstance(score, Failure) else score)
            failures.append(score if isinstance(score, Failure) else None)
        if len(failures) > 1 and all(failures) and (last := failures[-1]):
            raise RewardError(f"not one of {len(failures)} responses could be judged; the last: {last.reason}")
        return Judged(scores, [failure is not None for failure in failures])

    def _failed(self, response: Response, failure: Failure) -> float:
        if self.failure_score is None:
            raise RewardError(failure.reason)
        fields = self.name, response.prompt.uid, self.failure_score, failure.reason.partition("\n")[0]
        log.warning("action=score_failure part=%s prompt=%s score=%g reason=%s", *fields)
        return self.failure_score

    def _judged(self, text: str) -> str:
        return first_line(text) if self.first_line else text

    def _settled(self, score: float) -> float:
        return score if self.threshold is None or not math.isfinite(score) else float(score >= self.threshold)


@dataclass(frozen=True, slots=True)
class Judged:
    """The scores of one part for all responses, in order."""

    scores: Sequence[float]
    failed: Sequence[bool]
    """whether a score stands for a failure"""


@dataclass(frozen=True, slots=True)
class Rewards:
    """Scores groups while the loop waits: judging takes far less time than generating."""

    parts: tuple[PartReward, ...]

    def score(self, groups: Sequence[Group]) -> tuple[ScoredGroup, ...]:
        """Return the groups with a reward for each sample, in the same order. Raises RewardError."""
        responses = [Response(group.prompt, sample.text) for group in groups for sample in group.samples_G]
        judged = [part.rewards(responses) for part in self.parts]
        scored, first = [], 0
        for group in groups:
            rows = range(first, first + len(group.samples_G))
            scored.append(self._scored(group, judged, rows))
            first = rows.stop
        return tuple(scored)

    def _scored(self, group: Group, judged: Sequence[Judged], rows: range) -> ScoredGroup:
        by_part = list(zip(self.parts, judged, strict=True))
        return ScoredGroup(
            group=group,
            rewards_G=tuple(combined(self.parts, [said.scores[row] for said in judged], group.prompt) for row in rows),
            parts_G={part.name: tuple(said.scores[row] for row in rows) for part, said in by_part if len(by_part) > 1},
            failures=sum(said.failed[row] for said in judged for row in rows),
        )


def combined(parts: Sequence[PartReward], scores: Sequence[float], prompt: Prompt) -> float:
    """Return the weighted sum of the parts' scores of one response.

    Raises RewardError if that is no number that the learner can use; the text names the question and what judged.
    """
    reward = sum(part.weight * score for part, score in zip(parts, scores, strict=True))
    if abs(reward) <= LARGEST:  # false for NaN
        return reward
    terms = " + ".join(
        f"{part.weight:g} x {score:g} ({part.function or part.name})" for part, score in zip(parts, scores, strict=True)
    )
    raise RewardError(
        f"prompt {prompt.uid}: the reward is {reward:g}, which is {terms}; a finite number of at most {LARGEST:.2g} is "
        f"expected. Question: {prompt.question!r:.200}"
    )


@dataclass(frozen=True, slots=True)
class RewardContext:
    """Where rewards are computed."""

    log: Path
    """receives the output of users' functions"""
    environ: Mapping[str, str]
    """source of the headers that services need"""
    with_metadata: bool = False
    """whether services get the metadata of prompts"""
    alive: Callable[[], None] = lambda: None
    """called regularly while responses are judged"""


def rewards(spec: Reward, around: RewardContext, stack: ExitStack) -> Rewards:
    """Return what scores groups in the way that `spec.reward` says; `stack` ends what it has started.

    Raises RewardError if a reward cannot be loaded.
    """
    return Rewards(tuple(part_reward(part, around, stack) for part in spec.judgings))


def part_reward(part: Part, around: RewardContext, stack: ExitStack) -> PartReward:
    return PartReward(
        judge=judge(part, around, stack),
        name=part.name,
        function=part.function or (part.remote.url if part.remote else str(part.kind)),
        weight=part.weight,
        threshold=part.threshold,
        first_line=part.first_line,
        failure_score=part.failure_score,
    )


def judge(part: Part, around: RewardContext, stack: ExitStack) -> Judge:
    """Return the reward function. Imports are local because each costs seconds that other kinds do not need."""
    match part.kind:
        case RewardKind.TASK:
            from rljob_trainer.rewards.task import task_score

            return task_score
        case RewardKind.EXACT_MATCH:
            from rljob_trainer.rewards.exact_match import exact_match

            return exact_match
        case RewardKind.F1:
            from rljob_trainer.rewards.f1 import f1

            return f1
        case RewardKind.PYTHON | RewardKind.MATH:
            from rljob_trainer.rewards.python import python_reward

            function = python_reward(part, around.log, around.alive)
            stack.callback(function.close)
            return function
        case RewardKind.REMOTE:
            from rljob_trainer.rewards.remote import remote_reward

            return remote_reward(part, around.with_metadata, around.environ, around.alive)


def first_line(text: str) -> str:
    """Return the first line, trimmed, without a final full stop."""
    return text.partition("\n")[0].strip().removesuffix(".").rstrip()
