"""The loss of a critic on a micro-batch, https://arxiv.org/abs/1707.06347 with the clipping of its authors' code.

    clipped = clip(V, old V - valueClip, old V + valueClip)
    loss = sum over tokens of weight x max((V - return)^2, (clipped - return)^2) / 2

Weights are those of the policy's loss, normalised over the whole optimizer step. Axes: R response tokens.
"""

from dataclasses import dataclass

import torch

from rljob_trainer.learners.rank.loss.reduction import Sums, token_sums


@dataclass(frozen=True, slots=True)
class Fit:
    """What values are fitted to."""

    old_values_R: torch.Tensor
    returns_R: torch.Tensor
    weights_R: torch.Tensor


def value_loss(values_R: torch.Tensor, fit: Fit, clip: float) -> tuple[torch.Tensor, Sums]:
    """Return the loss (a scalar to differentiate) and the sums of its metrics."""
    moves_R = values_R - fit.old_values_R
    near_R = fit.old_values_R + moves_R.clamp(-clip, clip)
    free_R, bounded_R = (values_R - fit.returns_R).square(), (near_R - fit.returns_R).square()
    loss = 0.5 * (torch.maximum(free_R, bounded_R) * fit.weights_R).sum()
    # Inside the range, too, rounding makes the two differ: old + (V - old) is not V.
    clipped_R = (moves_R.abs() > clip) & (bounded_R > free_R)
    sums = token_sums((fit.weights_R != 0).double(), value_clip_fraction=clipped_R)
    return loss, sums | {"value_loss": loss.detach().double()}
