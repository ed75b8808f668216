"""What scores are compared with, and what they are divided by. Pure.

Axes: G samples of one prompt, T response tokens of one sample.
"""

import statistics
from collections.abc import Sequence

import numpy as np

from rljob_trainer.algorithms.algorithm import Value

EPSILON = 1e-6
"""keeps a division by a standard deviation finite; slime and verl add the same"""
VARIANCE_EPSILON = 1e-8
"""added to a variance before its root is taken; verl and OpenRLHF add the same"""


def centred(scores_G: Sequence[float]) -> tuple[float, ...]:
    """Return each score minus the group's mean: exact zeros where all agree, also for a lone sample.

    Raises ValueError if the group is empty.
    """
    if not scores_G:
        raise ValueError("a group without samples has no advantages")
    if min(scores_G) == max(scores_G):
        return (0.0,) * len(scores_G)
    mean = statistics.fmean(scores_G)
    return tuple(score - mean for score in scores_G)


def deviation(scores: Sequence[float]) -> float:
    """Return the unbiased standard deviation (divided by n - 1), plus an epsilon; 1 for less than two scores."""
    return statistics.stdev(scores) + EPSILON if len(scores) > 1 else 1.0


def whitened(groups: Sequence[Sequence[Value]], lengths: Sequence[Sequence[int]]) -> list[tuple[Value, ...]]:
    """Return all values minus their mean, over their standard deviation: (A - mean) / sqrt(var + 1e-8).

    Mean and unbiased variance are taken over the response tokens of all groups. Where all tokens agree, zeros.
    """
    values = [value for group in groups for value in group]
    counts = [length for group in lengths for length in group]
    tokens = [np.broadcast_to(np.asarray(value, float), count) for value, count in zip(values, counts, strict=True)]
    every_T = np.concatenate([np.empty(0), *tokens])
    if len(every_T) < 2 or every_T.min() == every_T.max():
        return [(0.0,) * len(group) for group in groups]
    mean, scale = float(every_T.mean()), float(np.sqrt(every_T.var(ddof=1) + VARIANCE_EPSILON))
    return [tuple((value - mean) / scale for value in group) for group in groups]
