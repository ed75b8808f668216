"""Random batches for the algorithms, padded as other systems have them, and as our own types.

Python's own generator makes them, which gives the same numbers in every version. Axes: D samples, T padded tokens.
"""

import random
from dataclasses import dataclass, replace
from functools import cache

import torch

from rljob_trainer.algorithms.algorithm import GroupOutcome
from rljob_trainer.learners.rank.loss.loss import Targets

NUM_BATCHES = 100
LONGEST = 5
"""T, and the constant of a loss that is divided by one"""
FAR = (8, 60)
"""how many times as far from the old policy the reference is, where estimates of their divergence end"""
REWARDS = (0.0, 1.0, 0.5, -0.25, 2.0)


@dataclass(frozen=True)
class Batch:
    """A rollout of few groups; everything in fp64."""

    groups_D: tuple[int, ...]
    """the group of each sample; groups lie side by side"""
    lengths_D: tuple[int, ...]
    rewards_D: torch.Tensor
    advantages_D: torch.Tensor
    """what objectives are given; not made from the rewards"""
    mask_D_T: torch.Tensor
    new_D_T: torch.Tensor
    old_D_T: torch.Tensor
    reference_D_T: torch.Tensor
    engine_D_T: torch.Tensor
    entropy_D_T: torch.Tensor
    probe_D_T: torch.Tensor
    """random directions: values that agree along them agree"""
    values_D_T: torch.Tensor
    """a critic's before its first update; not zero where there is no token"""
    new_values_D_T: torch.Tensor
    returns_D_T: torch.Tensor
    """what value losses are given; not made from rewards and values"""

    def outcomes(self, kl_D_T: torch.Tensor | None = None) -> list[GroupOutcome]:
        """Return the groups, with a penalty for each token if one is given."""
        return [self._outcome(group, kl_D_T) for group in dict.fromkeys(self.groups_D)]

    def _outcome(self, group: int, kl_D_T: torch.Tensor | None) -> GroupOutcome:
        rows = [row for row, each in enumerate(self.groups_D) if each == group]
        lengths = tuple(self.lengths_D[row] for row in rows)
        penalties = None if kl_D_T is None else tuple(kl_D_T[row, : self.lengths_D[row]].numpy() for row in rows)
        values = tuple(self.values_D_T[row, : self.lengths_D[row]].numpy() for row in rows)
        return GroupOutcome(tuple(self.rewards_D[row].item() for row in rows), lengths, penalties, values)

    def padded(self, groups: list[list[object]]) -> torch.Tensor:
        """Return advantages of groups as a matrix, zero where there is no token."""
        values = [torch.as_tensor(value, dtype=torch.float64) for group in groups for value in group]
        padded_D_T = torch.zeros_like(self.mask_D_T)
        for row, (value, length) in enumerate(zip(values, self.lengths_D, strict=True)):
            padded_D_T[row, :length] = value
        return padded_D_T

    def targets(self, weights_D: tuple[float, ...]) -> Targets:
        """Return what our loss is given."""
        mask = self.mask_D_T.bool()
        rows_D_T = torch.arange(len(self.lengths_D))[:, None].expand(mask.shape)
        return Targets(
            advantages_R=self.advantages_D[:, None].expand(mask.shape)[mask],
            weights_R=torch.tensor(weights_D, dtype=torch.float64)[:, None].expand(mask.shape)[mask],
            sequences_R=rows_D_T[mask],
            num_sequences=len(self.lengths_D),
            engine_logprobs_R=self.engine_D_T[mask],
            old_logprobs_R=self.old_D_T[mask],
            reference_logprobs_R=self.reference_D_T[mask],
        )


@cache
def batch(seed: int) -> Batch:
    """Return one batch: the seed says all."""
    draw = random.Random(seed)
    sizes = [draw.choice((2, 3, 4)) for _ in range(2)]
    groups = tuple(group for group, size in enumerate(sizes) for _ in range(size))
    lengths = tuple(1 + int(draw.random() * LONGEST) for _ in groups)

    def tokens(low: float, high: float) -> torch.Tensor:
        return torch.tensor([[low + (high - low) * draw.random() for _ in range(LONGEST)] for _ in groups]).double()

    mask = torch.tensor([[float(index < length) for index in range(LONGEST)] for length in lengths]).double()
    old = tokens(-3.0, -0.05)
    return Batch(
        groups_D=groups,
        lengths_D=lengths,
        rewards_D=torch.tensor([draw.choice(REWARDS) for _ in groups]).double(),
        advantages_D=torch.tensor([draw.choice((-1.0, 1.0)) * (0.1 + draw.random()) for _ in groups]).double(),
        mask_D_T=mask,
        new_D_T=old + tokens(-0.9, 0.9),
        old_D_T=old,
        reference_D_T=old + tokens(-0.5, 0.5),
        engine_D_T=old + tokens(-1.0, 1.0),
        entropy_D_T=tokens(0.0, 2.0),
        probe_D_T=tokens(-1.0, 1.0),
        values_D_T=(values := tokens(-1.0, 1.5)),
        new_values_D_T=values + tokens(-0.5, 0.5),
        returns_D_T=tokens(-1.0, 1.5),
    )


def far(b: Batch, times: int) -> Batch:
    """Return the batch with a reference that is as many times as far from the old policy."""
    return replace(b, reference_D_T=b.old_D_T + times * (b.reference_D_T - b.old_D_T))
