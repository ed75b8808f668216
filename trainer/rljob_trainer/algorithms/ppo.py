"""PPO, https://arxiv.org/abs/1707.06347, with a critic and generalized advantage estimation (GAE),
https://arxiv.org/abs/1506.02438.

    d_t = r_t + gamma V_{t+1} - V_t                  V_t: the critic's value before token t; after the last one, 0
    A_t = d_t + gamma lambda A_{t+1}
    return_t = A_t + V_t                             what the critic is fitted to: `learners/rank/loss/value_loss.py`

The reward r_t is the sample's at its last token, less each token's penalty (`kl.addedTo: Reward`), else 0. The policy
gets A whitened over all response tokens of the rollout: (A - mean(A)) / sqrt(var(A) + 1e-8), var unbiased.

Axes: G samples of one prompt, T response tokens of one sample.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from rljob_api import sections
from rljob_trainer.algorithms.algorithm import Algorithm, GroupOutcome, Value, Values_T
from rljob_trainer.algorithms.baseline import whitened
from rljob_trainer.algorithms.errors import AlgorithmError


@dataclass(frozen=True, slots=True)
class GeneralizedAdvantage:
    """The whitened GAE of all tokens of a rollout, and the returns that belong to it."""

    gamma: float
    lambda_: float

    def __call__(self, outcomes: Sequence[GroupOutcome]) -> Sequence[Sequence[Value]]:
        """Return the advantages. Raises AlgorithmError where there are no values."""
        groups = [self._estimates(outcome) for outcome in outcomes]
        return whitened(groups, [outcome.lengths_G for outcome in outcomes])

    def returns(self, outcome: GroupOutcome) -> Sequence[Values_T]:
        """Return what the critic is to expect before each token. Raises AlgorithmError where there are no values."""
        values_G = _values(outcome)
        return [a_T + v_T for a_T, v_T in zip(self._estimates(outcome), values_G, strict=True)]

    def _estimates(self, outcome: GroupOutcome) -> list[Values_T]:
        return [
            self._estimate(rewards_T, values_T)
            for rewards_T, values_T in zip(token_rewards(outcome), _values(outcome), strict=True)
        ]

    def _estimate(self, rewards_T: Values_T, values_T: Values_T) -> Values_T:
        next_T = np.append(values_T, 0.0)[1:]
        errors_T = rewards_T + self.gamma * next_T - values_T
        decay = self.gamma * self.lambda_
        backwards = accumulate(errors_T[::-1].tolist(), lambda later, error: error + decay * later)
        return np.asarray([*backwards], float)[::-1]


def token_rewards(outcome: GroupOutcome) -> list[Values_T]:
    """Return what each response token of each sample earns: its penalty, and at the last one the sample's reward."""
    rewards = []
    for index, (reward, length) in enumerate(zip(outcome.rewards_G, outcome.lengths_G, strict=True)):
        rewards_T = np.zeros(length) if outcome.penalties_G is None else -outcome.penalties_G[index]
        rewards_T[-1:] += reward
        rewards.append(rewards_T)
    return rewards


def _values(outcome: GroupOutcome) -> tuple[Values_T, ...]:
    if outcome.values_G is None:
        raise AlgorithmError("ppo needs the values of a critic; set spec.algorithm.critic")
    return outcome.values_G


def ppo(settings: sections.Algorithm) -> Algorithm:
    if settings.critic is None:
        raise AlgorithmError("ppo needs spec.algorithm.critic")
    advantage = GeneralizedAdvantage(settings.critic.gamma, settings.critic.lambda_)
    return Algorithm(advantage, returns=advantage.returns)
