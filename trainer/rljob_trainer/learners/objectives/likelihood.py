"""Negative log-likelihood, which makes the given responses more likely, no matter which model wrote them.

L = -new                                                new: the policy's log-probability
"""

import torch

from rljob_trainer.learners.config import LossSettings
from rljob_trainer.learners.objectives.objective import Responses, Surrogate


def likelihood(responses: Responses, settings: LossSettings) -> Surrogate:
    """Return the negative log-probability of each token; there is no older policy to compare with."""
    ones_R = torch.ones_like(responses.logprobs_R.detach())
    return Surrogate(-responses.logprobs_R, ones_R, ones_R == 0)
