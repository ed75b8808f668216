"""Matrices in INT4: values, scales and words, beside compressed-tensors."""

import pytest
import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import quantize
from compressed_tensors.quantization.utils.helpers import calculate_qparams
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.sizing.int4 import Int4
from rljob_trainer.sync.rank.quantised import int4
from rljob_trainer.sync.rank.sender import SendError
from support.trainer.quantised_values import unpacked

ARGUMENTS = QuantizationArgs(**Int4().config(())["config_groups"]["group_0"]["weights"])
"""what engines get, as compressed-tensors reads it"""
TINY = torch.finfo(torch.bfloat16).tiny


def by_compressed_tensors(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return words and scales; scales are rounded to bf16 before weights are divided by them."""
    groups = weight.float().view(len(weight), -1, ARGUMENTS.group_size)
    scale = calculate_qparams(groups.amin(-1), groups.amax(-1), ARGUMENTS)[0].bfloat16()
    numbers = quantize(weight.float(), scale.float(), torch.zeros_like(scale.float()), ARGUMENTS, dtype=torch.int8)
    return pack_to_int32(numbers, ARGUMENTS.num_bits), scale


@given(
    outputs=st.integers(1, 70),
    groups=st.integers(1, 9),
    power=st.integers(-100, 100),
    seed=st.integers(0, 9),
    dtype=st.sampled_from([torch.bfloat16, torch.float32]),
)
def test_words_and_scales_are_those_of_compressed_tensors_to_the_bit(
    outputs: int, groups: int, power: int, seed: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = (torch.randn(outputs, groups * 32, generator=generator) * 2.0**power).to(dtype)
    words, scale, shape = int4.parts("w", weight)
    wanted_words, wanted_scale = by_compressed_tensors(weight)
    assert torch.equal(words, wanted_words) and words.dtype == torch.int32
    assert torch.equal(scale, wanted_scale) and scale.dtype == torch.bfloat16
    assert shape.tolist() == [outputs, groups * 32] and shape.dtype == torch.int32
    back = unpacked(words, scale, shape)
    steps = scale.float().repeat_interleave(32, 1)
    assert ((back - weight.float()).abs() <= 0.53 * steps).all(), "half a step, and the scale is rounded"


def test_a_number_goes_to_the_nearest_step_and_halves_to_the_even_one() -> None:
    weight = torch.zeros(1, 32)
    weight[0, :8] = torch.tensor([7.5, -7.5, 0.5, 1.5, 2.5, -0.5, 2.51, -3.49])
    words, scale, shape = int4.parts("w", weight)
    assert scale.tolist() == [[1.0]]
    assert unpacked(words, scale, shape)[0, :8].tolist() == [7, -8, 0, 2, 2, 0, 3, -3]


def test_the_first_of_eight_numbers_is_in_the_lowest_bits() -> None:
    assert int4.packed(torch.tensor([[1, 2, 3, 4, 5, 6, 7, 0]], dtype=torch.uint8)).tolist() == [[0x07654321]]
    assert int4.packed(torch.full((1, 8), 15, dtype=torch.uint8)).tolist() == [[-1]]


def test_each_group_of_a_row_has_its_own_scale() -> None:
    weight = torch.zeros(2, 64)
    weight[0, 31], weight[0, 32], weight[1, 63] = 7.5, -15.0, 3.75
    assert int4.parts("w", weight)[1].tolist() == [[1.0, 2.0], [1.0, 0.5]]


@pytest.mark.parametrize("value", [0.0, 2.0**-133, 7 * TINY])
def test_a_group_without_a_number_that_a_scale_can_hold_becomes_zeros(value: float) -> None:
    words, scale, shape = int4.parts("w", torch.full((3, 32), value))
    assert scale.tolist() == [[1.0]] * 3
    assert torch.equal(unpacked(words, scale, shape), torch.zeros(3, 32))


def test_the_smallest_scale_is_still_used() -> None:
    words, scale, shape = int4.parts("w", torch.full((1, 32), 7.5 * TINY))
    assert scale.item() == TINY
    assert unpacked(words, scale, shape)[0, 0] == 7 * TINY


def test_a_large_matrix_is_quantised_as_its_rows_are(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(10, 64)
    words, scale, _ = int4.parts("w", weight)
    for at_once in (1, 64 * 3):
        monkeypatch.setattr(int4, "AT_ONCE", at_once)
        found = int4.parts("w", weight)
        assert torch.equal(found[0], words) and torch.equal(found[1], scale)


def test_a_matrix_that_is_not_contiguous_is_quantised_as_its_copy_is() -> None:
    weight = torch.randn(64, 32).t()
    for found, wanted in zip(int4.parts("w", weight), int4.parts("w", weight.contiguous()), strict=True):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", [(0, 0), (63, 95)])
def test_a_matrix_that_is_not_finite_is_refused_by_name(bad: float, place: tuple[int, int]) -> None:
    weight = torch.zeros(64, 96)
    weight[place] = bad
    with pytest.raises(SendError, match=r"^quantise w: has numbers that are not finite$"):
        int4.parts("w", weight)
