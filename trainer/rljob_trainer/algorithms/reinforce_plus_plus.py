"""REINFORCE++, https://arxiv.org/abs/2501.03262: no baseline of the group; the batch normalises.

    G_t = R - sum of beta x KL_s over the tokens s >= t        beta x KL: with `kl.addedTo: Reward`, else 0
    A_t = (G_t - mean(G)) / sqrt(var(G) + 1e-8)                over all response tokens of the rollout, var unbiased

The reward counts at the last token and nothing is discounted, so without a penalty all tokens of a sample share one A.
"""

from collections.abc import Sequence

import numpy as np

from rljob_api import sections
from rljob_trainer.algorithms.algorithm import Algorithm, GroupOutcome, Value
from rljob_trainer.algorithms.baseline import whitened


def returns_whitened(outcomes: Sequence[GroupOutcome]) -> Sequence[Sequence[Value]]:
    """Return the whitened returns-to-go of all tokens of the rollout."""
    return whitened([returns(outcome) for outcome in outcomes], [outcome.lengths_G for outcome in outcomes])


def returns(outcome: GroupOutcome) -> tuple[Value, ...]:
    """Return what comes after each token of each sample, the token's own penalty included."""
    if outcome.penalties_G is None:
        return outcome.rewards_G
    return tuple(
        reward - np.cumsum(penalties_T[::-1])[::-1]
        for reward, penalties_T in zip(outcome.rewards_G, outcome.penalties_G, strict=True)
    )


def reinforce_plus_plus(settings: sections.Algorithm) -> Algorithm:
    return Algorithm(returns_whitened)
