"""The learner of an algorithm with a critic: trains both of them on a rollout, or at first the critic alone. No torch.

    batches ─► critic (one optimizer step each) ─► policy (one optimizer step each) ─► metrics of both

The critic's targets were made from its values before any of these steps, so the order of the two changes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from rljob_trainer.batches.batches import StepBatch
from rljob_trainer.metrics import LearnerMetrics, OptimizerStep, combined, over_steps


class Both(Protocol):
    """Policy and critic of a `LearnerGroup`; a protocol for the fake of tests, which has no ranks.

    Both methods change weights and raise TrainingDivergedError.
    """

    def train(self, batches: Sequence[StepBatch]) -> LearnerMetrics:
        """Take the policy's optimizer steps."""

    def train_critic(self, batches: Sequence[StepBatch]) -> Sequence[OptimizerStep]:
        """Take the critic's."""


@dataclass
class ActorCritic:
    """A learner that trains policy and critic on the same batches."""

    learner: Both
    critic_only: int
    """rollouts from now on that train the critic alone"""

    def train(self, batches: Sequence[StepBatch]) -> LearnerMetrics:
        """Take the optimizer steps. Where the policy takes none, nothing is measured of it but tokens and KL."""
        critic = summary(self.learner.train_critic(batches), explained_variance(batches))
        if self.critic_only > 0:
            self.critic_only -= 1
            tokens, kl = sum(batch.tokens for batch in batches), next((batch.kl for batch in batches), None)
            policy = LearnerMetrics(train_tokens=tokens, kl=kl)
        else:
            policy = self.learner.train(batches)
        return combined(policy, critic)


def summary(steps: Sequence[OptimizerStep], explained: float | None) -> LearnerMetrics:
    """Return one rollout's optimizer steps of the critic as one; without any, what is known is zero."""
    idle = LearnerMetrics(value_loss=0.0, value_clip_fraction=0.0, critic_grad_norm=0.0)
    return replace(over_steps(steps) if steps else idle, explained_variance=explained)


def explained_variance(batches: Sequence[StepBatch]) -> float | None:
    """Return 1 - var(return - value) / var(return) over all response tokens with a weight; None if no return differs.

    1: the critic knew every return; 0: no better than a constant; below: worse than one.
    """
    fits = [
        (micro_batch.value_targets, micro_batch.weights_R != 0)
        for batch in batches
        for share in batch.micro_batches_by_rank
        for micro_batch in share
        if micro_batch.value_targets is not None
    ]
    if not fits:
        return None
    returns = np.concatenate([fit.returns[counts_R] for fit, counts_R in fits]).astype(float)
    values = np.concatenate([fit.old_values[counts_R] for fit, counts_R in fits]).astype(float)
    if len(returns) == 0 or returns.min() == returns.max():
        return None
    return float(1.0 - np.var(returns - values) / np.var(returns))
