"""Supervised fine-tuning's loss against cross entropy written out, on a hundred random batches in fp64."""

from functools import partial

import pytest
import torch

from rljob_trainer.algorithms.algorithm import LIKELIHOOD, GroupOutcome
from rljob_trainer.algorithms.sft import ones
from rljob_trainer.batches.loss_weights import by_constant, by_sample, by_token
from rljob_trainer.learners.config import LossSettings
from rljob_trainer.learners.objectives import objective
from rljob_trainer.learners.rank.loss.loss import policy_loss
from support.tables import each_of
from support.trainer.algorithm_batches import LONGEST, NUM_BATCHES, batch

SEEDS = range(NUM_BATCHES)
BY = {"token": by_token, "sample": by_sample, "constant": partial(by_constant, LONGEST)}
SETTINGS = LossSettings(LIKELIHOOD, sampled=False)
VOCABULARY = 11


@each_of([(seed, by) for seed in SEEDS for by in BY])
def test_the_loss_and_its_gradient_are_those_of_cross_entropy(seed: int, by: str) -> None:
    b = batch(seed)
    mask = b.mask_D_T.bool()
    torch.manual_seed(seed)
    logits = torch.randn(*mask.shape, VOCABULARY, dtype=torch.float64, requires_grad=True)
    targets_D_T = torch.randint(0, VOCABULARY, mask.shape)
    logprobs_R = logits.log_softmax(-1).gather(-1, targets_D_T[..., None])[..., 0][mask]

    loss, sums = policy_loss(
        logprobs_R, torch.zeros_like(logprobs_R), b.targets(BY[by](b.lengths_D)), SETTINGS, objective.load(LIKELIHOOD)
    )

    samples = range(len(b.lengths_D))
    each = [
        torch.nn.functional.cross_entropy(logits[i, :length], targets_D_T[i, :length], reduction="sum")
        for i, length in zip(samples, b.lengths_D, strict=True)
    ]
    wanted = {
        "token": sum(each) / sum(b.lengths_D),
        "sample": sum(each[i] / b.lengths_D[i] for i in samples) / len(each),
        "constant": sum(each) / (len(each) * LONGEST),
    }[by]
    assert isinstance(wanted, torch.Tensor)
    assert loss.item() == pytest.approx(wanted.item(), abs=1e-6)
    (ours,) = torch.autograd.grad(loss, logits, retain_graph=True)
    (theirs,) = torch.autograd.grad(wanted, logits)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    assert sums["surprise"].item() == pytest.approx(sum(each).item(), abs=1e-6)  # type: ignore[union-attr]  # not empty
    assert sums["clip_fraction"].item() == 0


def test_every_response_counts_the_same() -> None:
    assert ones([GroupOutcome((), (3, 1)), GroupOutcome((), (2,))]) == [(1.0, 1.0), (1.0,)]
