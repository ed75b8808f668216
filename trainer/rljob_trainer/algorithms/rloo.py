"""RLOO: REINFORCE leave-one-out, https://arxiv.org/abs/2402.14740.

A_i = R_i - mean of the other rewards of the group = n / (n - 1) x (R_i - mean(R))        n: samples of the group
"""

from collections.abc import Sequence

from rljob_api import sections
from rljob_trainer.algorithms.algorithm import Algorithm, PerGroup
from rljob_trainer.algorithms.baseline import centred


def leave_one_out(scores_G: Sequence[float]) -> tuple[float, ...]:
    """Return each score minus the mean of the others; zero for a lone sample, which has no others."""
    n = len(scores_G)
    return tuple(n / (n - 1) * value if n > 1 else 0.0 for value in centred(scores_G))


def rloo(settings: sections.Algorithm) -> Algorithm:
    return Algorithm(PerGroup(leave_one_out))
