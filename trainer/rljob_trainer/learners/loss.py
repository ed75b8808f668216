"""GRPO's policy loss: the clipped surrogate of PPO, a KL penalty and an entropy bonus, as sums over response tokens.

Weights are normalised over the whole optimizer step, so the sum over micro-batches and data-parallel ranks is the loss.

Axes: R response tokens.
"""

from dataclasses import dataclass, fields

import torch

from rljob_trainer.learners.config import Estimator, LossSettings


@dataclass(frozen=True, slots=True)
class Targets:
    """What the loss of a micro-batch depends on besides the policy."""

    advantages_R: torch.Tensor
    weights_R: torch.Tensor
    engine_logprobs_R: torch.Tensor
    old_logprobs_R: torch.Tensor | None
    """the learner's before the first update on these samples; None: this is the first, so the current ones are"""
    reference_logprobs_R: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class LossSums:
    """Sums over the response tokens that have a weight, for the metrics; fp64, without gradients."""

    loss: torch.Tensor
    policy_loss: torch.Tensor
    kl: torch.Tensor
    entropy: torch.Tensor
    ratio: torch.Tensor
    clipped: torch.Tensor
    mismatch: torch.Tensor
    tokens: torch.Tensor
    max_mismatch: torch.Tensor
    """not a sum: the largest"""

    def stacked(self) -> torch.Tensor:
        """Return the sums, in order; `max_mismatch` is left out."""
        return torch.stack([getattr(self, field.name) for field in fields(self)[:-1]])


def policy_loss(
    logprobs_R: torch.Tensor, entropy_R: torch.Tensor, targets: Targets, settings: LossSettings
) -> tuple[torch.Tensor, LossSums]:
    """Return the loss of one micro-batch (a scalar to differentiate) and its sums.

    -min(ratio A, clip(ratio, 1 - low, 1 + high) A) + c KL - e H, each token times its weight; ratio = new / old.
    """
    old_R = logprobs_R.detach() if targets.old_logprobs_R is None else targets.old_logprobs_R
    ratio_R = (logprobs_R - old_R).exp()
    clipped_R = ratio_R.clamp(1.0 - settings.clip_low, 1.0 + settings.clip_high)
    advantages_R, weights_R = targets.advantages_R, targets.weights_R
    surrogate_R = torch.maximum(-ratio_R * advantages_R, -clipped_R * advantages_R)
    loss = pg = (surrogate_R * weights_R).sum()
    kl_R = torch.zeros_like(logprobs_R)
    if settings.kl is not None:
        assert targets.reference_logprobs_R is not None
        kl_R = kl_estimate(logprobs_R, targets.reference_logprobs_R, settings.kl.estimator)
        loss = loss + settings.kl.coefficient * (kl_R * weights_R).sum()
    if settings.entropy_coefficient:
        loss = loss - settings.entropy_coefficient * (entropy_R * weights_R).sum()
    counts_R = (weights_R != 0).double()
    is_clipped_R = -clipped_R * advantages_R > -ratio_R * advantages_R
    mismatch_R = (old_R - targets.engine_logprobs_R).abs()
    sums = LossSums(
        loss=loss.detach().double(),
        policy_loss=pg.detach().double(),
        kl=(kl_R.detach() * counts_R).sum(),
        entropy=(entropy_R.detach() * counts_R).sum(),
        ratio=(ratio_R.detach() * counts_R).sum(),
        clipped=(is_clipped_R * counts_R).sum(),
        mismatch=(mismatch_R * counts_R).sum(),
        tokens=counts_R.sum(),
        max_mismatch=(mismatch_R * counts_R).max(),
    )
    return loss, sums


def kl_estimate(logprobs_R: torch.Tensor, reference_R: torch.Tensor, estimator: Estimator) -> torch.Tensor:
    """Return k1, k2 or k3 of http://joschu.net/blog/kl-approx.html for samples of the policy, token by token."""
    log_ratio_R = logprobs_R - reference_R
    match estimator:
        case "k1":
            return log_ratio_R
        case "k2":
            return 0.5 * log_ratio_R.square()
        case "k3":
            return torch.expm1(-log_ratio_R) + log_ratio_R
