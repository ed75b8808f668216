"""Chooses the reward function that the manifest names and applies it to groups."""

from collections.abc import Sequence
from dataclasses import dataclass

from rljob_api.sections import Reward, RewardKind
from rljob_trainer.rewards.function import Response, RewardFunction
from rljob_trainer.samples import Group, ScoredGroup


@dataclass(frozen=True, slots=True)
class Rewards:
    """Scores groups inline: verifiers take far less time than the responses that they judge."""

    function: RewardFunction
    threshold: float | None = None
    first_line: bool = False

    def score(self, groups: Sequence[Group]) -> tuple[ScoredGroup, ...]:
        """Return the groups with a reward for each sample, in the same order. Raises RewardError."""
        responses = [
            Response(group.prompt, self._judged(sample.text)) for group in groups for sample in group.samples_G
        ]
        rewards = iter([self._settled(reward) for reward in self.function(responses)])
        return tuple(ScoredGroup(group, tuple(next(rewards) for _ in group.samples_G)) for group in groups)

    def _judged(self, text: str) -> str:
        return first_line(text) if self.first_line else text

    def _settled(self, reward: float) -> float:
        return reward if self.threshold is None else float(reward >= self.threshold)


def rewards(spec: Reward) -> Rewards:
    """Return what scores groups in the way that `spec.reward` says. Raises RewardError if it cannot be loaded."""
    return Rewards(reward(spec), spec.threshold, spec.first_line)


def reward(spec: Reward) -> RewardFunction:
    """Return the function. The imports are local because each costs seconds that the other kinds need not wait for."""
    match spec.kind:
        case RewardKind.TASK:
            from rljob_trainer.rewards.task import task_score

            return task_score
        case RewardKind.MATH:
            from rljob_trainer.rewards.math_answer import math_answer

            return math_answer
        case RewardKind.EXACT_MATCH:
            from rljob_trainer.rewards.exact_match import exact_match

            return exact_match
        case RewardKind.PYTHON:
            from rljob_trainer.rewards.python import python_reward

            assert spec.function is not None, "the manifest's rules ask for it"
            return python_reward(spec.function)


def first_line(text: str) -> str:
    """Return the first line, trimmed, without a final full stop."""
    return text.partition("\n")[0].strip().removesuffix(".").rstrip()
