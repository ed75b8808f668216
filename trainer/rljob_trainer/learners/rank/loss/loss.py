"""The loss of a micro-batch: a policy objective, a KL penalty and an entropy bonus, as sums over response tokens.

    loss = sum over tokens of weight x (importance weight x objective + c KL - e H)

Weights are normalised over the whole optimizer step, so the sum over micro-batches and data-parallel ranks is the loss.

Axes: R response tokens.
"""

from dataclasses import dataclass

import torch

from rljob_trainer.learners.config import Estimator, LossSettings
from rljob_trainer.learners.objectives.objective import Objective, Responses
from rljob_trainer.learners.objectives.ratio import product
from rljob_trainer.learners.rank.loss.importance import correction
from rljob_trainer.learners.rank.loss.reduction import Sums, token_sums

MOST_K3, MOST_LOG_RATIO = 10.0, 20.0
"""of a token [nats]; both are verl's"""


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


def policy_loss(
    logprobs_R: torch.Tensor, entropy_R: torch.Tensor, targets: Targets, settings: LossSettings, objective: Objective
) -> tuple[torch.Tensor, Sums]:
    """Return the loss of one micro-batch (a scalar to differentiate) and the sums of its metrics."""
    weights_R = targets.weights_R
    counts_R = (weights_R != 0).double()
    # Not the weight alone: 0 x an infinite slope is NaN.
    logprobs_R = torch.where(weights_R != 0, logprobs_R, logprobs_R.detach())
    learner_R = logprobs_R.detach() if targets.old_logprobs_R is None else targets.old_logprobs_R
    # Of a token whose log-probability an engine could not say, the learner's own is the best guess: its ratio is 1.
    engine_R = targets.engine_logprobs_R.to(learner_R.dtype)
    engine_R = torch.where(engine_R.isfinite(), engine_R, learner_R)
    responses = Responses(
        logprobs_R=logprobs_R,
        old_logprobs_R=learner_R if settings.old == "learner" else engine_R,
        advantages_R=targets.advantages_R,
        counts_R=counts_R,
        sequences_R=targets.sequences_R,
        num_sequences=targets.num_sequences,
    )
    surrogate = objective(responses, settings)
    if surrogate.loss_R.shape != logprobs_R.shape:
        raise ValueError(f"{settings.objective} returned losses {tuple(surrogate.loss_R.shape)}, one a token is wanted")
    objective_R = surrogate.loss_R
    importance_R = cut_R = None
    if settings.importance is not None:
        corrected = correction(responses, engine_R, settings.importance)
        importance_R, cut_R = corrected.weights_R, corrected.cut_R
        objective_R = product(objective_R, importance_R)
    loss = pg = product(objective_R, weights_R).sum()
    kl_R = None
    if settings.kl is not None:
        assert targets.reference_logprobs_R is not None
        kl_R = kl_estimate(logprobs_R, targets.reference_logprobs_R, settings.kl.estimator, settings.kl.clamp)
        loss = loss + settings.kl.coefficient * product(kl_R, weights_R).sum()
    if settings.entropy_coefficient:
        loss = loss - settings.entropy_coefficient * (entropy_R * weights_R).sum()
    mismatch_R = (learner_R - engine_R).abs() if settings.sampled else None
    sums = token_sums(
        counts_R,
        kl=kl_R,
        entropy=entropy_R if settings.entropy != "none" else None,
        surprise=-logprobs_R,
        ratio=surrogate.ratio_R,
        clip_fraction=surrogate.clipped_R,
        logprob_mismatch=mismatch_R,
        max_mismatch=mismatch_R,
        importance_weight=importance_R,
        importance_cut=cut_R,
    )
    # Weights are part of them already, so they are no means over tokens.
    sums |= {"loss": loss.detach().double(), "policy_loss": pg.detach().double()}
    return loss, sums


def kl_estimate(logprobs_R: torch.Tensor, reference_R: torch.Tensor, estimator: Estimator, clamp: bool) -> torch.Tensor:
    """Return k1, k2 or k3 of http://joschu.net/blog/kl-approx.html for samples of the policy, token by token.

    With `clamp`, k3 ends at `MOST_K3` and has no gradient beyond. The log-ratio is limited below first, because an
    infinite exponential has the gradient 0 x inf.
    """
    log_ratio_R = logprobs_R - reference_R
    match estimator:
        case "k1":
            return log_ratio_R
        case "k2":
            return 0.5 * log_ratio_R.square()
        case "k3" if clamp:
            return k3(log_ratio_R.clamp(min=-MOST_LOG_RATIO)).clamp(max=MOST_K3)
        case "k3":
            return k3(log_ratio_R)


def k3(log_ratio_R: torch.Tensor) -> torch.Tensor:
    """Return exp(-x) - 1 + x: never negative, 0 only at 0."""
    return torch.expm1(-log_ratio_R) + log_ratio_R
