"""GSPO, https://arxiv.org/abs/2507.18071: one ratio for a whole response, its tokens' geometric mean.

    s = exp(mean over t of (new_t - old_t))
    s_t = stop(s) x exp(new_t - stop(new_t))                GSPO-token: s in value, the gradient of token t
    L = max(-s_t A_t, -clip(s_t, 1 - low, 1 + high) A_t)

With one advantage for all tokens its gradient is that of the sequence form. The paper's bounds are 3e-4 and 4e-4.
"""

from rljob_trainer.learners.config import LossSettings
from rljob_trainer.learners.objectives.clip import clipped_surrogate
from rljob_trainer.learners.objectives.objective import Responses, Surrogate
from rljob_trainer.learners.objectives.ratio import ratio


def gspo(responses: Responses, settings: LossSettings) -> Surrogate:
    """Return the clipped surrogate of each token at the ratio of its sequence."""
    fixed_R = responses.logprobs_R.detach()
    mean_R = responses.means(fixed_R - responses.old_logprobs_R)
    ratio_R = ratio(mean_R + responses.logprobs_R - fixed_R)
    return clipped_surrogate(ratio_R, responses.advantages_R, settings.clip_low, settings.clip_high)
