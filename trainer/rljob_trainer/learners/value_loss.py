"""The loss of a critic on a micro-batch, https://arxiv.org/abs/1707.06347 with the clipping of its authors' code.

    clipped = clip(V, old V - valueClip, old V + valueClip)
    loss = sum over tokens of weight x max((V - return)^2, (clipped - return)^2) / 2

Weights are those of the policy's loss, normalised over the whole optimizer step. Axes: R response tokens.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Fit:
    """What values are fitted to."""

    old_values_R: torch.Tensor
    returns_R: torch.Tensor
    weights_R: torch.Tensor


def value_loss(values_R: torch.Tensor, fit: Fit, clip: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss (a scalar to differentiate), and as sums in fp64 [3]: the loss, and of the response tokens that
    have a weight those whose loss the clip range changed, and all.
    """
    near_R = fit.old_values_R + (values_R - fit.old_values_R).clamp(-clip, clip)
    free_R, bounded_R = (values_R - fit.returns_R).square(), (near_R - fit.returns_R).square()
    loss = 0.5 * (torch.maximum(free_R, bounded_R) * fit.weights_R).sum()
    counts_R = (fit.weights_R != 0).double()
    clipped = ((bounded_R > free_R) * counts_R).sum()
    return loss, torch.stack([loss.detach().double(), clipped, counts_R.sum()])
