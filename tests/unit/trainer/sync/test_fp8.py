"""Matrices in FP8: values, scales, and which matrices are quantised."""

import traceback

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.failures.diagnosis import diagnose
from rljob_api.failures.scan import scan
from rljob_trainer.sync import fp8
from rljob_trainer.sync.fp8 import AT_ONCE
from rljob_trainer.sync.layout import LayoutError, TensorSpec
from rljob_trainer.sync.sender import SendError, specs_of
from support.trainer.fp8_values import expanded

LAYER = "model.layers.0"
Q, GATE, NORM = f"{LAYER}.self_attn.q_proj.weight", f"{LAYER}.mlp.gate.weight", f"{LAYER}.input_layernorm.weight"
HEAD, BIAS, EXPERT = "lm_head.weight", f"{LAYER}.self_attn.q_proj.bias", f"{LAYER}.mlp.experts.0.up_proj.weight"
LEFT_ALONE = ("lm_head", f"{LAYER}.mlp.gate")
HALF_STEP = 2.0**-4
"""largest error of a number in e4m3, which has 3 bits after the first, as a share of the number"""
SMALLEST = 2.0**-9
"""smallest number of e4m3 but 0"""


def tensors() -> dict[str, torch.Tensor]:
    axes = {Q: (200, 130), BIAS: (200,), GATE: (4, 130), EXPERT: (128, 256), NORM: (130,), HEAD: (300, 130)}
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(shape, generator=generator).bfloat16() for name, shape in axes.items()}


@given(outputs=st.integers(1, 300), inputs=st.integers(1, 300), power=st.integers(-30, 30), seed=st.integers(0, 9))
def test_the_weights_come_back_within_the_error_of_e4m3(outputs: int, inputs: int, power: int, seed: int) -> None:
    weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed)) * 2.0**power
    quantised, scale = fp8.pair("w", weight)
    assert quantised.shape == weight.shape and quantised.dtype == torch.float8_e4m3fn
    assert scale.shape == (-(-outputs // 128), -(-inputs // 128)) and scale.dtype == torch.float32
    back, scales = expanded(quantised, scale), expanded(torch.ones_like(weight), scale)
    assert ((back - weight).abs() <= HALF_STEP * 1.001 * weight.abs() + SMALLEST / 2 * scales).all()


def test_the_scale_is_the_largest_magnitude_of_its_own_block_by_448() -> None:
    weight = torch.zeros(256, 384)
    weight[5, 200], weight[130, 383], weight[255, 0] = -896.0, 44.8, 1.0
    quantised, scale = fp8.pair("w", weight)
    np.testing.assert_allclose(scale, [[1, 2, 1], [1 / 448, 1, 0.1]], rtol=1e-6)
    assert quantised[5, 200].float() == -448 and quantised[130, 383].float() == 448 and quantised[255, 0].float() == 448


@pytest.mark.parametrize("value", [0.0, 2.0**-133, 2.0**-120])
def test_a_block_without_a_number_that_a_scale_can_hold_becomes_zeros(value: float) -> None:
    quantised, scale = fp8.pair("w", torch.full((3, 3), value, dtype=torch.bfloat16))
    assert scale.tolist() == [[1.0]]
    assert torch.equal(quantised.float(), torch.zeros(3, 3))


def test_the_smallest_scale_is_still_used() -> None:
    quantised, scale = fp8.pair("w", torch.full((1, 1), 448 * 2.0**-126))
    assert scale.item() == 2.0**-126 and quantised.float().item() == 448


def test_a_tall_matrix_is_quantised_as_its_parts_are() -> None:
    weight = torch.randn(AT_ONCE * 128 * 2 + 200, 10)
    quantised, scale = fp8.pair("w", weight)
    for begin in range(0, len(weight), 128):
        part, own = fp8.pair("w", weight[begin : begin + 128])
        assert torch.equal(quantised[begin : begin + 128].float(), part.float())
        assert torch.equal(scale[begin // 128], own[0])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", [(0, 0), (199, 129)])
def test_a_matrix_that_is_not_finite_is_refused_by_name(bad: float, place: tuple[int, int]) -> None:
    weight = torch.zeros(200, 130)
    weight[place] = bad
    with pytest.raises(SendError, match=r"^quantise w: has numbers that are not finite$"):
        fp8.pair("w", weight)


def test_linear_layers_become_pairs_and_all_else_stays_in_its_order() -> None:
    given = tensors()
    found = dict(fp8.quantised(given.items(), LEFT_ALONE))
    assert list(found) == [Q, f"{Q}_scale_inv", BIAS, GATE, EXPERT, f"{EXPERT}_scale_inv", NORM, HEAD]
    assert all(found[name] is given[name] for name in (BIAS, GATE, NORM, HEAD))
    assert torch.equal(found[Q].float(), fp8.pair(Q, given[Q])[0].float())


def test_what_is_announced_is_what_is_published() -> None:
    announced = fp8.specs(specs_of(tensors().items()), LEFT_ALONE)
    assert announced == specs_of(fp8.quantised(tensors().items(), LEFT_ALONE))


@pytest.mark.parametrize(
    ("left_alone", "said"),
    [
        (("lm_head",), f"modules_to_not_convert lacks what is no linear layer: {GATE}"),
        ((f"{LAYER}.mlp.gate",), f"modules_to_not_convert lacks what is no linear layer: {HEAD}"),
        ((*LEFT_ALONE, f"{LAYER}.self_attn.q_proj"), f"modules_to_not_convert has linear layers: {Q}"),
    ],
)
def test_a_list_that_does_not_fit_the_model_is_refused(left_alone: tuple[str, ...], said: str) -> None:
    with pytest.raises(LayoutError, match=f"^{said}$") as raised:
        fp8.specs(specs_of(tensors().items()), left_alone)
    log = "".join(traceback.format_exception(raised.value)).encode()
    assert diagnose([scan("log", log)]).findings[0].failure.code == "QuantIgnoreList"


def test_a_matrix_of_an_unknown_kind_must_be_listed() -> None:
    strange = [TensorSpec(f"{LAYER}.mlp.router_map.weight", (8, 8), "bfloat16")]
    with pytest.raises(LayoutError, match="router_map"):
        fp8.check(strange, ())
    fp8.check(strange, (f"{LAYER}.mlp.router_map",))


@pytest.mark.parametrize("bad", [True, False])
def test_a_collective_export_is_exhausted_whatever_happens(bad: bool) -> None:
    given, exported = tensors(), []
    given[Q][0, 0] = float("nan") if bad else 0.0

    def export():
        for name, tensor in given.items():
            exported.append(name)
            yield name, tensor

    published = fp8.quantised(export(), LEFT_ALONE)
    if bad:
        with pytest.raises(SendError):
            next(published)
    else:
        next(published)
        published.close()
    assert exported == list(given)
