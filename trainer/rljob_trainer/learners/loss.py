"""The loss of a micro-batch: a policy objective, a KL penalty and an entropy bonus, as sums over response tokens.

    loss = sum over tokens of weight x (importance weight x objective + c KL - e H)

Weights are normalised over the whole optimizer step, so the sum over micro-batches and data-parallel ranks is the loss.

Axes: R response tokens.
"""

from dataclasses import dataclass, fields

import torch

from rljob_trainer.learners.config import Estimator, LossSettings
from rljob_trainer.learners.importance import correction
from rljob_trainer.learners.objectives.objective import Objective, Responses


@dataclass(frozen=True, slots=True)
class Targets:
    """What the loss of a micro-batch depends on besides the policy."""

    advantages_R: torch.Tensor
    weights_R: torch.Tensor
    sequences_R: torch.Tensor
    """which sequence of the micro-batch a token belongs to, from 0"""
    num_sequences: int
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
    surprise: torch.Tensor
    """of the negative log-probabilities"""
    ratio: torch.Tensor
    clipped: torch.Tensor
    mismatch: torch.Tensor
    importance: torch.Tensor
    """of the weights between engine and learner, after truncation or masking"""
    cut: torch.Tensor
    """tokens whose weight was truncated or masked"""
    tokens: torch.Tensor
    max_mismatch: torch.Tensor
    """not a sum: the largest"""

    def stacked(self) -> torch.Tensor:
        """Return the sums, in order; `max_mismatch` is left out."""
        return torch.stack([getattr(self, field.name) for field in fields(self)[:-1]])


def policy_loss(
    logprobs_R: torch.Tensor, entropy_R: torch.Tensor, targets: Targets, settings: LossSettings, objective: Objective
) -> tuple[torch.Tensor, LossSums]:
    """Return the loss of one micro-batch (a scalar to differentiate) and its sums."""
    weights_R = targets.weights_R
    counts_R = (weights_R != 0).double()
    learner_R = logprobs_R.detach() if targets.old_logprobs_R is None else targets.old_logprobs_R
    responses = Responses(
        logprobs_R=logprobs_R,
        old_logprobs_R=learner_R if settings.old == "learner" else targets.engine_logprobs_R.to(learner_R.dtype),
        advantages_R=targets.advantages_R,
        counts_R=counts_R,
        sequences_R=targets.sequences_R,
        num_sequences=targets.num_sequences,
    )
    surrogate = objective(responses, settings)
    if surrogate.loss_R.shape != logprobs_R.shape:
        raise ValueError(f"{settings.objective} returned losses {tuple(surrogate.loss_R.shape)}, one a token is wanted")
    objective_R = surrogate.loss_R
    importance_R, cut_R = torch.ones_like(counts_R), torch.zeros_like(counts_R)
    if settings.importance is not None:
        corrected = correction(responses, targets.engine_logprobs_R, settings.importance)
        importance_R, cut_R = corrected.weights_R, corrected.cut_R
        objective_R = objective_R * importance_R
    loss = pg = (objective_R * weights_R).sum()
    kl_R = torch.zeros_like(logprobs_R)
    if settings.kl is not None:
        assert targets.reference_logprobs_R is not None
        kl_R = kl_estimate(logprobs_R, targets.reference_logprobs_R, settings.kl.estimator)
        loss = loss + settings.kl.coefficient * (kl_R * weights_R).sum()
    if settings.entropy_coefficient:
        loss = loss - settings.entropy_coefficient * (entropy_R * weights_R).sum()
    mismatch_R = (learner_R - targets.engine_logprobs_R).abs()
    sums = LossSums(
        loss=loss.detach().double(),
        policy_loss=pg.detach().double(),
        kl=(kl_R.detach() * counts_R).sum(),
        entropy=(entropy_R.detach() * counts_R).sum(),
        surprise=-(logprobs_R.detach() * counts_R).sum(),
        ratio=(surrogate.ratio_R.detach() * counts_R).sum(),
        clipped=(surrogate.clipped_R * counts_R).sum(),
        mismatch=(mismatch_R * counts_R).sum(),
        importance=(importance_R * counts_R).sum(),
        cut=(cut_R * counts_R).sum(),
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
