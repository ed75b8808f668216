"""The critic's loss and its gradient against the formula and against verl 0.9.1, on random batches in fp64."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from rljob_trainer.batches.loss_weights import by_constant, by_sample, by_token
from rljob_trainer.learners.rank.loss.reduction import Sums
from rljob_trainer.learners.rank.loss.value_loss import Fit, value_loss
from support.trainer import naive_algorithms
from support.trainer.algorithm_batches import LONGEST, NUM_BATCHES, Batch, batch

SEEDS = range(NUM_BATCHES)
VERL = json.loads((Path(__file__).parents[5] / "support" / "trainer" / "verl_values.json").read_text())
WEIGHTS = {"token": by_token, "sample": by_sample, "constant": lambda lengths: by_constant(LONGEST, lengths)}
VALUE_CLIP = 0.2
"""that verl's values were made with"""


def fit(b: Batch, by: str) -> Fit:
    mask = b.mask_D_T.bool()
    weights_D = torch.tensor(WEIGHTS[by](b.lengths_D), dtype=torch.float64)
    return Fit(b.values_D_T[mask], b.returns_D_T[mask], weights_D[:, None].expand(mask.shape)[mask])


def ours(b: Batch, by: str, clip: float) -> tuple[torch.Tensor, torch.Tensor, Sums]:
    """Return loss, gradient for every padded token, and sums."""
    new = b.new_values_D_T.clone().requires_grad_()
    loss, sums = value_loss(new[b.mask_D_T.bool()], fit(b, by), clip)
    return loss.detach(), torch.autograd.grad(loss, new)[0], sums


@pytest.mark.parametrize("clip", [0.05, VALUE_CLIP, 100.0])
@pytest.mark.parametrize("by", WEIGHTS)
def test_loss_and_gradient_are_those_of_the_formula(by: str, clip: float) -> None:
    found = [ours(batch(seed), by, clip) for seed in SEEDS]
    news = [batch(seed).new_values_D_T.clone().requires_grad_() for seed in SEEDS]
    losses = [naive_algorithms.value_loss(batch(seed), by, clip, new) for seed, new in zip(SEEDS, news, strict=True)]
    torch.testing.assert_close(
        torch.stack([each[0] for each in found]), torch.stack(losses).detach(), rtol=0, atol=1e-6
    )
    gradients = torch.cat([torch.autograd.grad(loss, new)[0] for loss, new in zip(losses, news, strict=True)])
    torch.testing.assert_close(torch.cat([each[1] for each in found]), gradients, rtol=0, atol=1e-6)
    assert gradients.abs().max() > 0.01


@pytest.mark.parametrize("by", WEIGHTS)
def test_loss_and_gradient_are_those_of_verl(by: str) -> None:
    results = [ours(batch(seed), by, VALUE_CLIP) for seed in SEEDS]
    found = [
        [loss.item(), (gradient * batch(seed).probe_D_T).sum().item()]
        for seed, (loss, gradient, _) in zip(SEEDS, results, strict=True)
    ]
    np.testing.assert_allclose(found, VERL[f"value-{by}"], rtol=0, atol=1e-6)


def test_what_the_clip_range_changed_is_counted() -> None:
    b = batch(3)
    places = [(row, t) for row, length in enumerate(b.lengths_D) for t in range(length)]
    errors = [b.new_values_D_T[p].item() - b.returns_D_T[p].item() for p in places]
    moves = [b.new_values_D_T[p].item() - b.values_D_T[p].item() for p in places]
    bounded = [
        abs(max(min(move, VALUE_CLIP), -VALUE_CLIP) - move + error) > abs(error)
        for move, error in zip(moves, errors, strict=True)
    ]
    loss, _, sums = ours(b, "token", VALUE_CLIP)
    assert sums["value_loss"].dtype == torch.float64
    assert sums["value_loss"].item() == loss.item()
    assert (sums["value_clip_fraction"].item(), sums["response_tokens"].item()) == (sum(bounded), len(places))
    assert 0 < sum(bounded) < len(places)


def test_rounding_inside_the_range_is_not_counted_as_clipping() -> None:
    draw = torch.Generator().manual_seed(3)
    old, moves, errors = (torch.rand(20_000, generator=draw) * 2 - 1 for _ in range(3))
    old, new = 0.09 * old, 0.09 * moves
    near = Fit(old, new + 0.01 * errors, torch.ones(20_000))
    rounded = (old + (new - old).clamp(-VALUE_CLIP, VALUE_CLIP) - near.returns_R).square()
    assert (rounded > (new - near.returns_R).square()).count_nonzero() > 1_000
    assert value_loss(new, near, VALUE_CLIP)[1]["value_clip_fraction"].item() == 0.0


def test_a_move_beyond_the_range_counts_only_where_it_raises_the_loss() -> None:
    old, new = torch.zeros(4), torch.tensor([0.2, 0.3, 0.3, -0.3])
    beyond = Fit(old, torch.tensor([1.0, 1.0, -1.0, -1.0]), torch.ones(4))
    assert value_loss(new, beyond, 0.25)[1]["value_clip_fraction"].item() == 2.0
    assert value_loss(new, beyond, 0.3)[1]["value_clip_fraction"].item() == 0.0


def test_a_token_without_weight_changes_nothing() -> None:
    b = batch(8)
    whole = fit(b, "token")
    kept = torch.arange(len(whole.weights_R)) % 3 != 1
    masked = Fit(whole.old_values_R, whole.returns_R, whole.weights_R * kept)
    fewer = Fit(whole.old_values_R[kept], whole.returns_R[kept], whole.weights_R[kept])
    new = b.new_values_D_T[b.mask_D_T.bool()].requires_grad_()
    loss, sums = value_loss(new, masked, VALUE_CLIP)
    without, sums_without = value_loss(new[kept], fewer, VALUE_CLIP)
    torch.testing.assert_close(loss, without)
    torch.testing.assert_close(sums, sums_without)
    torch.testing.assert_close(torch.autograd.grad(loss, new), torch.autograd.grad(without, new))
