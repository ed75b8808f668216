"""Where exp(new - old) overflows: exact zeros where a bound or a weight takes the gradient away, else no change."""

from dataclasses import replace

import pytest
import torch

from rljob_api.sections import ImportanceBound, ImportanceLevel, ImportanceSampling, Kl
from rljob_trainer.algorithms.algorithm import CISPO, CLIP, GSPO
from rljob_trainer.learners.config import LossSettings
from rljob_trainer.learners.objectives import objective
from rljob_trainer.learners.objectives.objective import Responses, Surrogate
from rljob_trainer.learners.objectives.ratio import product, ratio
from rljob_trainer.learners.rank.loss.loss import Targets, policy_loss
from rljob_trainer.learners.rank.loss.reduction import Sums

FAR = 90.0
"""a log-ratio whose exp is no fp32"""
NEAR = 0.1
SETTINGS = {
    "clip": LossSettings(CLIP),
    "dual": LossSettings(CLIP, dual_clip=3.0),
    "gspo": LossSettings(GSPO),
    "cispo": LossSettings(CISPO),
}
TOKENS = 4
"""of four sequences; the first is far from the old policy"""


def targets(advantages: tuple[float, ...], weights: tuple[float, ...] = (0.25,) * TOKENS) -> Targets:
    old_R = torch.full((TOKENS,), -100.0)
    return Targets(
        advantages_R=torch.tensor(advantages),
        weights_R=torch.tensor(weights),
        sequences_R=torch.arange(TOKENS),
        num_sequences=TOKENS,
        engine_logprobs_R=old_R,
        old_logprobs_R=old_R,
        reference_logprobs_R=old_R,
    )


def learned(given: Targets, settings: LossSettings, distance: float = FAR) -> tuple[torch.Tensor, torch.Tensor, Sums]:
    """Return loss, gradient and sums with the first token so far from the old policy, and the others near it."""
    new_R = (torch.tensor([distance] + [NEAR] * (TOKENS - 1)) - 100.0).requires_grad_()
    loss, sums = policy_loss(new_R, torch.zeros(TOKENS), given, settings, objective.load(settings.objective))
    return loss.detach(), torch.autograd.grad(loss, new_R)[0], sums


@pytest.mark.parametrize("distance", [5.0, FAR, 1000.0])
@pytest.mark.parametrize(
    ("name", "advantage", "loss"),
    [
        ("clip", 2.0, -2.4),
        ("clip", 0.0, 0.0),
        ("dual", 2.0, -2.4),
        ("dual", 0.0, 0.0),
        ("dual", -2.0, 6.0),
        ("gspo", 2.0, -2.4),
        ("gspo", 0.0, 0.0),
    ],
)
def test_beyond_a_bound_the_gradient_is_zero_and_the_loss_is_the_bound(
    name: str, advantage: float, loss: float, distance: float
) -> None:
    made, gradient, _ = learned(targets((advantage, 1.0, -1.0, 1.0)), SETTINGS[name], distance)
    others = -torch.tensor([NEAR]).exp() * torch.tensor([1.0, -1.0, 1.0])
    assert gradient[0] == 0.0
    torch.testing.assert_close(gradient[1:], others / 4)
    torch.testing.assert_close(made, (loss + others.sum()) / 4, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("advantage", [-2.0, 0.0, 2.0])
def test_a_far_token_without_weight_is_as_if_it_were_not_there(name: str, advantage: float) -> None:
    without = (0.0, 0.25, 0.25, 0.25)
    settings = replace(SETTINGS[name], kl=Kl(coefficient=0.1, clamp=False))
    far = learned(targets((advantage, 1.0, -1.0, 1.0), without), settings, -1000.0 if name == "cispo" else FAR)
    near = learned(targets((advantage, 1.0, -1.0, 1.0), without), settings, NEAR)
    torch.testing.assert_close(far, near, rtol=0, atol=0)
    assert far[1][0] == 0.0 and far[2]["ratio"].isfinite()


def test_an_infinite_penalty_without_weight_has_no_gradient() -> None:
    given = targets((1.0,) * TOKENS, (0.0, 0.25, 0.25, 0.25))
    loss, gradient, sums = learned(given, LossSettings(kl=Kl(coefficient=0.1, clamp=False)), -1000.0)
    assert loss.isfinite() and gradient.isfinite().all() and gradient[0] == 0.0 and sums["kl"].isfinite()


@pytest.mark.parametrize("name", ["clip", "gspo"])
def test_a_far_token_that_a_correction_masks_has_no_gradient(name: str) -> None:
    mask = ImportanceSampling(kind=ImportanceBound.MASK, level=ImportanceLevel.TOKEN, low=0.5, high=2.0)
    given = targets((-2.0, 1.0, -1.0, 1.0))
    masked = replace(given, engine_logprobs_R=given.engine_logprobs_R - torch.tensor([5.0, 0.0, 0.0, 0.0]))
    settings = replace(SETTINGS[name], importance=mask)
    loss, gradient, _ = learned(masked, settings)
    others, wanted, _ = learned(masked, settings, NEAR)
    torch.testing.assert_close((loss, gradient), (others, wanted), rtol=0, atol=0)
    assert gradient[0] == 0.0


@pytest.mark.parametrize("name", ["clip", "gspo"])
def test_a_gradient_that_is_too_large_is_not_hidden(name: str) -> None:
    _, gradient, _ = learned(targets((-2.0, 1.0, -1.0, 1.0)), SETTINGS[name])
    assert gradient[0] == torch.inf and gradient[1:].isfinite().all()


def test_a_user_s_objective_gets_no_gradient_for_a_token_without_weight() -> None:
    def unclipped(responses: Responses, settings: LossSettings) -> Surrogate:
        ratio_R = (responses.logprobs_R - responses.old_logprobs_R).exp()
        return Surrogate(-ratio_R * responses.advantages_R, ratio_R, ratio_R != ratio_R)

    new_R = torch.tensor([FAR - 100.0] + [NEAR - 100.0] * 3).requires_grad_()
    given = targets((1.0,) * TOKENS, (0.0, 0.25, 0.25, 0.25))
    loss, _ = policy_loss(new_R, torch.zeros(TOKENS), given, LossSettings(), unclipped)
    (gradient,) = torch.autograd.grad(loss, new_R)
    assert gradient[0] == 0.0 and gradient.isfinite().all() and loss.isfinite()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_elsewhere_the_ratio_is_exp_to_the_last_bit(dtype: torch.dtype) -> None:
    points = torch.linspace(-120.0, 88.0, 2001).to(dtype)
    ours, plain = points.clone().requires_grad_(), points.clone().requires_grad_()
    slopes = torch.linspace(-1.0, 1.0, 2001).to(dtype)
    assert torch.equal(ratio(ours), plain.exp())
    found, wanted = (torch.autograd.grad(f, x, slopes)[0] for f, x in ((ratio(ours), ours), (plain.exp(), plain)))
    assert torch.equal(found, wanted)


def test_a_ratio_that_is_no_number_stays_none() -> None:
    x = torch.tensor([torch.nan, torch.inf]).requires_grad_()
    (gradient,) = torch.autograd.grad(ratio(x), x, torch.tensor([0.0, 0.0]))
    assert gradient[0].isnan() and gradient[1] == 0.0


def test_a_product_with_no_weight_is_zero_and_any_other_is_the_product() -> None:
    values, weights = torch.tensor([torch.inf, torch.nan, torch.inf, 3.0]), torch.tensor([0.0, 0.0, -1.0, 0.5])
    assert product(values, weights).tolist() == [0.0, 0.0, -torch.inf, 1.5]
