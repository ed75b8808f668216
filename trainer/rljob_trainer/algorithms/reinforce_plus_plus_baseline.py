"""REINFORCE++-baseline, https://arxiv.org/abs/2501.03262: the group's mean as the baseline; the batch normalises.

B_i = R_i - mean(R)                                R: rewards of the group
A_i = (B_i - mean(B)) / sqrt(var(B) + 1e-8)        over all response tokens of the rollout, var unbiased
"""

from collections.abc import Sequence

from rljob_api import sections
from rljob_trainer.algorithms.algorithm import Algorithm, GroupOutcome, Value
from rljob_trainer.algorithms.baseline import centred, whitened


def centred_whitened(outcomes: Sequence[GroupOutcome]) -> Sequence[Sequence[Value]]:
    """Return the whitened differences from the means of the groups."""
    return whitened([centred(outcome.scores_G) for outcome in outcomes], [outcome.lengths_G for outcome in outcomes])


def reinforce_plus_plus_baseline(settings: sections.Algorithm) -> Algorithm:
    return Algorithm(centred_whitened)
