"""PPO's clipped surrogate, https://arxiv.org/abs/1707.06347, with two bounds (clip-higher of DAPO,
https://arxiv.org/abs/2503.14476) and, if asked for, dual clip (https://arxiv.org/abs/1912.09729).

    r = exp(new - old log-probability)                      low, high, c: clipLow, clipHigh, dualClip
    L = max(-r A, -clip(r, 1 - low, 1 + high) A)
    L = min(L, -c A)                                        where A < 0, with dual clip
"""

import torch

from rljob_trainer.learners.config import LossSettings
from rljob_trainer.learners.objectives.objective import Responses, Surrogate
from rljob_trainer.learners.objectives.ratio import product, ratio


def clip(responses: Responses, settings: LossSettings) -> Surrogate:
    """Return the clipped surrogate of each token."""
    ratio_R = ratio(responses.logprobs_R - responses.old_logprobs_R)
    surrogate = clipped_surrogate(ratio_R, responses.advantages_R, settings.clip_low, settings.clip_high)
    return surrogate if settings.dual_clip is None else dual(surrogate, responses.advantages_R, settings.dual_clip)


def clipped_surrogate(ratio_R: torch.Tensor, advantages_R: torch.Tensor, low: float, high: float) -> Surrogate:
    """Return max(-r A, -clip(r) A)."""
    free_R = product(-ratio_R, advantages_R)
    bounded_R = -ratio_R.clamp(1.0 - low, 1.0 + high) * advantages_R
    return Surrogate(torch.maximum(free_R, bounded_R), ratio_R, bounded_R > free_R)


def dual(surrogate: Surrogate, advantages_R: torch.Tensor, most: float) -> Surrogate:
    """Return the surrogate with a loss of at most -c A where the advantage is negative."""
    bound_R = -most * advantages_R
    beyond_R = (advantages_R < 0) & (surrogate.loss_R > bound_R)
    return Surrogate(
        torch.where(beyond_R, bound_R, surrogate.loss_R), surrogate.ratio_R, surrogate.clipped_R | beyond_R
    )
