"""DAPO's soft penalty of responses that come near the token limit, https://arxiv.org/abs/2503.14476.

    0                                        len <= longest - buffer
    -penalty x (len - (longest - buffer)) / buffer        up to the limit, where it is -penalty

Training rewards have it, evaluations do not: there the question is whether an answer is right.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rljob_api.sections import Spec
from rljob_trainer.parts import Rewards
from rljob_trainer.samples import Group, ScoredGroup


@dataclass(frozen=True, slots=True)
class Shaped:
    """Rewards less the penalty of their responses' lengths."""

    rewards: Rewards
    longest: int
    """the token limit"""
    buffer: int
    penalty: float

    def score(self, groups: Sequence[Group]) -> tuple[ScoredGroup, ...]:
        """Return the groups with a reward for each sample, in the same order."""
        return tuple(
            ScoredGroup(
                scored.group,
                tuple(
                    reward + length_penalty(len(sample.tokens_T), self.longest, self.buffer, self.penalty)
                    for reward, sample in zip(scored.rewards_G, scored.group.samples_G, strict=True)
                ),
            )
            for scored in self.rewards.score(groups)
        )


def length_penalty(length: int, longest: int, buffer: int, penalty: float) -> float:
    """Return what is added to the reward of a response of `length` tokens: 0 or less."""
    beyond = length - (longest - buffer)
    return -penalty * min(max(beyond, 0), buffer) / buffer


def shaped(rewards: Rewards, spec: Spec) -> Rewards:
    """Return the rewards as `algorithm.overlong` says."""
    overlong = spec.algorithm.overlong
    if overlong is None:
        return rewards
    return Shaped(rewards, spec.rollout.sampling.max_new_tokens, overlong.buffer, overlong.penalty)
