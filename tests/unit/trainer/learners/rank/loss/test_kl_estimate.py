"""Estimates of the divergence from the reference, against the formula in Python's own floats."""

import math

import pytest
import torch

from rljob_trainer.learners.rank.loss.loss import kl_estimate

DISTANCES = (-200.0, -89.0, -25.0, -20.5, -2.7, -2.63, -2.55, -1.0, 0.0, 1.0, 10.9, 11.1, 20.5, 25.0, 200.0, math.inf)
"""new less reference log-probability; k3 is 10 at -2.61 and at 11.0"""


def estimated(distance: float, estimator: str, clamp: bool, dtype: torch.dtype) -> tuple[float, float]:
    """Return the estimate and its slope."""
    new = torch.tensor([distance], dtype=dtype, requires_grad=True)
    estimate = kl_estimate(new, torch.zeros(1, dtype=dtype), estimator, clamp)  # type: ignore[arg-type]
    return estimate.item(), torch.autograd.grad(estimate.sum(), new)[0].item()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("distance", DISTANCES)
def test_k3_ends_at_ten_and_pulls_no_more_beyond(distance: float, dtype: torch.dtype) -> None:
    free = math.exp(-distance) - 1 + distance
    wanted = (free, 1 - math.exp(-distance)) if free < 10 else (10.0, 0.0)
    assert estimated(distance, "k3", True, dtype) == pytest.approx(wanted, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("distance", DISTANCES)
def test_without_the_clamp_k3_grows_without_end(distance: float) -> None:
    wanted = math.exp(-distance) - 1 + distance, 1 - math.exp(-distance)
    assert estimated(distance, "k3", False, torch.float64) == pytest.approx(wanted)


@pytest.mark.parametrize("clamp", [True, False])
@pytest.mark.parametrize("distance", DISTANCES)
def test_k1_and_k2_have_no_end(distance: float, clamp: bool) -> None:
    assert estimated(distance, "k1", clamp, torch.float64) == (distance, 1.0)
    assert estimated(distance, "k2", clamp, torch.float64) == (distance**2 / 2, distance)
