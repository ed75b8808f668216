"""GRPO: Group Relative Policy Optimization, https://arxiv.org/abs/2402.03300.

    A_i = (R_i - mean(R)) / (std(R) + 1e-6)        R: rewards of the group, std unbiased

`normalizeBy: none` leaves the division out: with `lossBy: constant` that is Dr. GRPO, https://arxiv.org/abs/2503.20783.
`normalizeBy: batch` divides by the standard deviation of all rewards of the rollout, https://arxiv.org/abs/2508.08221.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rljob_api import sections
from rljob_trainer.algorithms.algorithm import Algorithm, Outcome, Value
from rljob_trainer.algorithms.baseline import centred, deviation


@dataclass(frozen=True, slots=True)
class GroupRelative:
    """Score minus the group's mean, over a standard deviation. A group whose scores all agree gives zeros."""

    normalize_by: Literal["group", "batch", "none"]

    def __call__(self, outcomes: Sequence[Outcome]) -> Sequence[Sequence[Value]]:
        groups = [outcome.scores_G for outcome in outcomes]
        match self.normalize_by:
            case "group":
                scales = [deviation(scores_G) for scores_G in groups]
            case "batch":
                scales = [deviation([score for scores_G in groups for score in scores_G])] * len(groups)
            case "none":
                scales = [1.0] * len(groups)
        return [
            tuple(value / scale for value in centred(scores_G)) for scores_G, scale in zip(groups, scales, strict=True)
        ]


def grpo(settings: sections.Algorithm) -> Algorithm:
    return Algorithm(GroupRelative(settings.normalize_by))
