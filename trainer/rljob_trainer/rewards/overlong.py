"""DAPO's soft penalty of responses that come near the token limit, https://arxiv.org/abs/2503.14476.

    0                                                     len <= longest - buffer
    -penalty x (len - (longest - buffer)) / buffer        up to the limit, where it is -penalty

Training rewards have it, evaluations do not: there the question is whether an answer is right.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rljob_api.sections import Spec
from rljob_trainer.parts import Rewards
from rljob_trainer.samples import Group, ScoredGroup

Shaping = Callable[[ScoredGroup], ScoredGroup]


@dataclass(frozen=True, slots=True)
class Overlong:
    """Takes the penalty of each response's length from its reward."""

    longest: int
    """the token limit"""
    buffer: int
    penalty: float

    def __call__(self, scored: ScoredGroup) -> ScoredGroup:
        lengths = [len(sample.own_tokens) for sample in scored.group.samples_G]
        rewards = zip(scored.rewards_G, lengths, strict=True)
        return replace(
            scored,
            rewards_G=tuple(
                reward + length_penalty(length, self.longest, self.buffer, self.penalty) for reward, length in rewards
            ),
        )


def length_penalty(length: int, longest: int, buffer: int, penalty: float) -> float:
    """Return what is added to the reward of a response of `length` tokens: 0 or less."""
    beyond = length - (longest - buffer)
    return -penalty * min(max(beyond, 0), buffer) / buffer


def unshaped(scored: ScoredGroup) -> ScoredGroup:
    """Leave rewards as they are."""
    return scored


def shaping(spec: Spec) -> Shaping:
    """Return what `algorithm.overlong` does to rewards."""
    overlong = spec.algorithm.overlong
    if overlong is None:
        return unshaped
    return Overlong(spec.rollout.sampling.max_new_tokens, overlong.buffer, overlong.penalty)


@dataclass(frozen=True, slots=True)
class Shaped:
    """Rewards whose groups are changed after they were scored."""

    rewards: Rewards
    shape: Shaping

    def score(self, groups: Sequence[Group]) -> tuple[ScoredGroup, ...]:
        """Return the groups with a reward for each sample, in the same order."""
        return tuple(map(self.shape, self.rewards.score(groups)))
