"""Matrices in FP8: values and scales."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_trainer.sync.rank.quantised import fp8
from rljob_trainer.sync.rank.quantised.fp8 import AT_ONCE
from rljob_trainer.sync.rank.sender import SendError
from support.trainer.quantised_values import expanded

HALF_STEP = 2.0**-4
"""largest error of a number in e4m3, which has 3 bits after the first, as a share of the number"""
SMALLEST = 2.0**-9
"""smallest number of e4m3 but 0"""


@given(outputs=st.integers(1, 300), inputs=st.integers(1, 300), power=st.integers(-30, 30), seed=st.integers(0, 9))
def test_the_weights_come_back_within_the_error_of_e4m3(outputs: int, inputs: int, power: int, seed: int) -> None:
    weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed)) * 2.0**power
    quantised, scale = fp8.parts("w", weight)
    assert quantised.shape == weight.shape and quantised.dtype == torch.float8_e4m3fn
    assert scale.shape == (-(-outputs // 128), -(-inputs // 128)) and scale.dtype == torch.float32
    back, scales = expanded(quantised, scale), expanded(torch.ones_like(weight), scale)
    assert ((back - weight).abs() <= HALF_STEP * 1.001 * weight.abs() + SMALLEST / 2 * scales).all()


def test_the_scale_is_the_largest_magnitude_of_its_own_block_by_448() -> None:
    weight = torch.zeros(256, 384)
    weight[5, 200], weight[130, 383], weight[255, 0] = -896.0, 44.8, 1.0
    quantised, scale = fp8.parts("w", weight)
    np.testing.assert_allclose(scale, [[1, 2, 1], [1 / 448, 1, 0.1]], rtol=1e-6)
    assert quantised[5, 200].float() == -448 and quantised[130, 383].float() == 448 and quantised[255, 0].float() == 448


@pytest.mark.parametrize("value", [0.0, 2.0**-133, 2.0**-120])
def test_a_block_without_a_number_that_a_scale_can_hold_becomes_zeros(value: float) -> None:
    quantised, scale = fp8.parts("w", torch.full((3, 3), value, dtype=torch.bfloat16))
    assert scale.tolist() == [[1.0]]
    assert torch.equal(quantised.float(), torch.zeros(3, 3))


def test_the_smallest_scale_is_still_used() -> None:
    quantised, scale = fp8.parts("w", torch.full((1, 1), 448 * 2.0**-126))
    assert scale.item() == 2.0**-126 and quantised.float().item() == 448


def test_a_tall_matrix_is_quantised_as_its_parts_are() -> None:
    weight = torch.randn(AT_ONCE * 128 * 2 + 200, 10)
    quantised, scale = fp8.parts("w", weight)
    for begin in range(0, len(weight), 128):
        part, own = fp8.parts("w", weight[begin : begin + 128])
        assert torch.equal(quantised[begin : begin + 128].float(), part.float())
        assert torch.equal(scale[begin // 128], own[0])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", [(0, 0), (199, 129)])
def test_a_matrix_that_is_not_finite_is_refused_by_name(bad: float, place: tuple[int, int]) -> None:
    weight = torch.zeros(200, 130)
    weight[place] = bad
    with pytest.raises(SendError, match=r"^quantise w: has numbers that are not finite$"):
        fp8.parts("w", weight)
