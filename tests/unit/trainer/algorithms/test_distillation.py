"""On-policy distillation against its formula, and its expected gradient against that of the exact reverse KL: fp64."""

from typing import Any

import pytest
import torch

from rljob_api.sections import Algorithm, Teacher
from rljob_trainer.algorithms.algorithm import CLIP, GroupOutcome
from rljob_trainer.algorithms.factory import algorithm
from rljob_trainer.batches.loss_weights import by_token
from rljob_trainer.learners.config import LossSettings
from rljob_trainer.learners.objectives import objective
from rljob_trainer.learners.rank.loss.loss import Targets, policy_loss
from support.tables import each_of
from support.trainer.algorithm_batches import NUM_BATCHES, Batch, batch

SEEDS = range(NUM_BATCHES)
VOCABULARY = 7


def distilled(coefficient: float) -> Any:
    teacher = Teacher(checkpoint="models/teacher", reward_coefficient=coefficient)
    return algorithm(Algorithm(name="distillation", teacher=teacher)).advantage


def wanted(b: Batch, coefficient: float) -> torch.Tensor:
    """Return the formula, written token by token; what other algorithms call the reference is the teacher."""
    padded_D_T = torch.zeros_like(b.mask_D_T)
    for i, length in enumerate(b.lengths_D):
        others = [b.rewards_D[j].item() for j in range(len(b.groups_D)) if b.groups_D[j] == b.groups_D[i]]
        better = b.rewards_D[i].item() - sum(others) / len(others)
        for t in range(length):
            padded_D_T[i, t] = coefficient * better - (b.old_D_T[i, t] - b.reference_D_T[i, t])
    return padded_D_T


@pytest.mark.parametrize("coefficient", [0.0, 0.3, 2.0])
def test_advantages_are_those_of_the_formula(coefficient: float) -> None:
    batches = [batch(seed) for seed in SEEDS]
    ours = [b.padded(distilled(coefficient)(b.outcomes(b.old_D_T - b.reference_D_T))) for b in batches]
    torch.testing.assert_close(torch.cat(ours), torch.cat([wanted(b, coefficient) for b in batches]), rtol=0, atol=1e-6)
    assert torch.cat(ours).count_nonzero() > 500


@each_of(SEEDS)
def test_the_expected_gradient_is_that_of_the_reverse_kl(seed: int) -> None:
    """Every token of a small vocabulary is a sample with its own probability as weight: the expectation, exactly."""
    torch.manual_seed(seed)
    logits_V = torch.randn(VOCABULARY, dtype=torch.float64, requires_grad=True)
    teacher_V = torch.randn(VOCABULARY, dtype=torch.float64).log_softmax(0)
    student_V = logits_V.log_softmax(0)
    divergence_V = (student_V - teacher_V).detach()
    ((advantages),) = [
        distilled(0.0)([GroupOutcome((0.0,) * VOCABULARY, (1,) * VOCABULARY, tuple(divergence_V[:, None].numpy()))])
    ]
    targets = Targets(
        advantages_R=torch.tensor([float(value[0]) for value in advantages[0]], dtype=torch.float64),
        weights_R=student_V.detach().exp(),
        sequences_R=torch.arange(VOCABULARY),
        num_sequences=VOCABULARY,
        engine_logprobs_R=student_V.detach(),
        old_logprobs_R=None,
        reference_logprobs_R=None,
    )
    loss, _ = policy_loss(student_V, torch.zeros(VOCABULARY).double(), targets, LossSettings(), objective.load(CLIP))
    exact = (student_V.exp() * (student_V - teacher_V)).sum()
    (ours,) = torch.autograd.grad(loss, logits_V, retain_graph=True)
    (theirs,) = torch.autograd.grad(exact, logits_V)
    assert loss.item() == pytest.approx(exact.item(), abs=1e-6)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    assert theirs.norm() > 1e-3


@each_of(SEEDS)
def test_the_loss_of_a_batch_is_its_mean_of_log_ratio_times_divergence(seed: int) -> None:
    b = batch(seed)
    advantages = b.padded(distilled(0.5)(b.outcomes(b.old_D_T - b.reference_D_T)))
    mask = b.mask_D_T.bool()
    given = b.targets(by_token(b.lengths_D))
    new = b.new_D_T[mask].clone().requires_grad_()
    targets = Targets(
        advantages_R=advantages[mask],
        weights_R=given.weights_R,
        sequences_R=given.sequences_R,
        num_sequences=given.num_sequences,
        engine_logprobs_R=given.engine_logprobs_R,
        old_logprobs_R=None,
        reference_logprobs_R=None,
    )
    loss, _ = policy_loss(new, torch.zeros_like(new), targets, LossSettings(), objective.load(CLIP))
    loss.backward()
    slope = -wanted(b, 0.5)[mask] / sum(b.lengths_D)
    assert loss.item() == pytest.approx(slope.sum().item(), abs=1e-6)
    assert new.grad is not None
    torch.testing.assert_close(new.grad, slope, rtol=0, atol=1e-6)


def test_nothing_is_learned_without_a_judgement() -> None:
    with pytest.raises(ValueError, match=r"^distillation needs what the teacher says of the samples$"):
        distilled(0.0)([GroupOutcome((0.0, 1.0), (2, 2))])
