"""GRPO: Group Relative Policy Optimization, https://arxiv.org/abs/2402.03300.

    A_i = (R_i - mean(R)) / (std(R) + 1e-6)        R: rewards of the group, std unbiased

`normalizeBy: None` leaves the division out: with `lossBy: Constant` that is Dr. GRPO, https://arxiv.org/abs/2503.20783.
`normalizeBy: Batch` divides by the standard deviation of all rewards of the rollout, https://arxiv.org/abs/2508.08221.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rljob_api import sections
from rljob_api.sections import NormalizeBy
from rljob_trainer.algorithms.algorithm import Algorithm, GroupOutcome, Value
from rljob_trainer.algorithms.baseline import centred, deviation


@dataclass(frozen=True, slots=True)
class GroupRelative:
    """Score minus the group's mean, over a standard deviation. A group whose scores all agree gives zeros."""

    normalize_by: NormalizeBy

    def __call__(self, outcomes: Sequence[GroupOutcome]) -> Sequence[Sequence[Value]]:
        groups = [outcome.scores_G for outcome in outcomes]
        match self.normalize_by:
            case NormalizeBy.GROUP:
                scales = [deviation(scores_G) for scores_G in groups]
            case NormalizeBy.BATCH:
                scales = [deviation([score for scores_G in groups for score in scores_G])] * len(groups)
            case NormalizeBy.NONE:
                scales = [1.0] * len(groups)
        return [
            tuple(value / scale for value in centred(scores_G)) for scores_G, scale in zip(groups, scales, strict=True)
        ]


def grpo(settings: sections.Algorithm) -> Algorithm:
    return Algorithm(GroupRelative(settings.normalize_by))
