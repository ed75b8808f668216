"""CISPO, https://arxiv.org/abs/2506.13585: the clipped ratio weights the log-probability; every token has a gradient.

    r = exp(new - old log-probability)
    L = -stop(clip(r, 1 - low, 1 + high)) A new             new: the policy's log-probability

The paper has no lower bound: `clipLow: 1`.
"""

from rljob_trainer.learners.config import LossSettings
from rljob_trainer.learners.objectives.objective import Responses, Surrogate


def cispo(responses: Responses, settings: LossSettings) -> Surrogate:
    """Return the weighted log-probability of each token."""
    ratio_R = (responses.logprobs_R.detach() - responses.old_logprobs_R).exp()
    weight_R = ratio_R.clamp(1.0 - settings.clip_low, 1.0 + settings.clip_high)
    return Surrogate(-weight_R * responses.advantages_R * responses.logprobs_R, ratio_R, weight_R != ratio_R)
