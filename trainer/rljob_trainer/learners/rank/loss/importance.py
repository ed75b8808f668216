"""Importance sampling between the engine that sampled and the learner that trains, which never agree to the last bit.

    w = exp(learner - engine log-probability)               of a token, or summed over its response
    Truncate (TIS, https://fengyao.notion.site/off-policy-rl):   clip(w, low, high)
    Mask (MIS; IcePop, https://arxiv.org/abs/2510.18855):        w if low <= w <= high else 0

Where rollouts continue while the learner trains, the engine had older weights, and w corrects for that too: with the
ratio left to the learner's own updates this is decoupled PPO (https://arxiv.org/abs/2110.00641, AReaL's
https://arxiv.org/abs/2505.24298).

The weight multiplies the policy objective and is not differentiated. The learner's is its log-probability before the
first update on these samples, so that the ratio of new to old policy stays the objective's own. A masked token still
counts in the mean. Axes: R response tokens.
"""

from dataclasses import dataclass

import torch

from rljob_api.sections import ImportanceBound, ImportanceLevel, ImportanceSampling
from rljob_trainer.learners.objectives.objective import Responses


@dataclass(frozen=True, slots=True)
class Correction:
    """What each token's objective is multiplied by."""

    weights_R: torch.Tensor
    cut_R: torch.Tensor
    """true where the weight was outside the bounds"""


def correction(responses: Responses, engine_logprobs_R: torch.Tensor, settings: ImportanceSampling) -> Correction:
    """Return the weights of the tokens, without gradients."""
    log_weights_R = responses.old_logprobs_R.detach() - engine_logprobs_R
    if settings.level is ImportanceLevel.SEQUENCE:
        log_weights_R = responses.sums(log_weights_R)
    raw_R = log_weights_R.exp()
    bounded_R = raw_R.clamp(settings.low, settings.high)
    cut_R = bounded_R != raw_R
    return Correction(bounded_R if settings.kind is ImportanceBound.TRUNCATE else torch.where(cut_R, 0.0, raw_R), cut_R)
