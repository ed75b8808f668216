"""Rewards of samples whose agent may have given them one: only the others are judged."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rljob_trainer.parts import EarlyRewards
from rljob_trainer.samples import Group, ScoredGroup


@dataclass(frozen=True, slots=True)
class GivenRewards:
    """Takes what is given, and asks for the rest."""

    rewards: EarlyRewards
    """judges the samples without a reward"""

    def begin(self, group: Group) -> None:
        """Begin to judge the samples of a group that have no reward."""
        self.rewards.begin(_asked(group))

    def score(self, groups: Sequence[Group]) -> tuple[ScoredGroup, ...]:
        """Return the groups with a reward for each sample: first those that agents gave.

        Raises RewardError and AwayError.
        """
        judged = self.rewards.score(list(map(_asked, groups)))
        return tuple(_with_given(group, scored) for group, scored in zip(groups, judged, strict=True))


def _asked(group: Group) -> Group:
    return replace(group, samples_G=tuple(each for each in group.samples_G if each.reward is None))


def _with_given(group: Group, judged: ScoredGroup) -> ScoredGroup:
    given = [(sample, sample.reward) for sample in group.samples_G if sample.reward is not None]
    samples_G = (*(sample for sample, _ in given), *judged.group.samples_G)
    rewards_G = (*(reward for _, reward in given), *judged.rewards_G)
    return replace(judged, group=replace(group, samples_G=samples_G), rewards_G=rewards_G)
