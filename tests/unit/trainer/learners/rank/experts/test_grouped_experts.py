"""All experts of a rank in one product, against one after the other."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from rljob_trainer.learners.rank.experts import grouped_experts
from rljob_trainer.learners.rank.experts.grouped_experts import _Products, can_group

OUTPUTS, INPUTS = 12, 8


def one_by_one(tokens: torch.Tensor, counts: list[int], weights: list[torch.Tensor]) -> torch.Tensor:
    parts = zip(tokens.split(counts), weights, strict=True)
    return torch.cat([part @ weight.t() for part, weight in parts])


def together(tokens: torch.Tensor, counts: list[int], weights: list[torch.Tensor]) -> torch.Tensor:
    ends = torch.tensor(counts).cumsum(0).to(torch.int32)
    return _Products.apply(tokens, counts, ends, *weights)


def gradients(function: Any, counts: list[int]) -> list[torch.Tensor]:
    """Return output and gradients of tokens and weights, for the same random numbers."""
    random = torch.Generator().manual_seed(0)
    tokens = torch.randn(sum(counts), INPUTS, generator=random, requires_grad=True)
    weights = [torch.randn(OUTPUTS, INPUTS, generator=random, requires_grad=True) for _ in counts]
    output = function(tokens, counts, weights)
    output.backward(torch.randn(output.shape, generator=random))
    return [output.detach(), *(each.grad for each in (tokens, *weights))]


@pytest.mark.parametrize("counts", [[3, 5, 2], [0, 4, 0], [1, 0, 7], [5]])
def test_products_and_gradients_are_those_of_each_expert_alone(counts: list[int]) -> None:
    ours = gradients(together, counts)
    torch.testing.assert_close(ours, gradients(one_by_one, counts))


def test_an_expert_without_tokens_has_a_gradient_of_zero_whatever_the_kernel_left(monkeypatch: Any) -> None:
    plain = F.grouped_mm

    def careless(left: torch.Tensor, right: torch.Tensor, *, offs: torch.Tensor) -> torch.Tensor:
        product = plain(left, right, offs=offs)
        if product.ndim == 3:
            product[torch.diff(offs, prepend=torch.zeros(1, dtype=offs.dtype)) == 0] = float("nan")
        return product

    monkeypatch.setattr(grouped_experts.F, "grouped_mm", careless)
    *_, last = gradients(together, [2, 0])
    assert torch.equal(last, torch.zeros(OUTPUTS, INPUTS))


def test_a_gradient_that_is_one_number_for_all_is_taken_too() -> None:
    tokens = torch.ones(3, INPUTS, requires_grad=True)
    weights = [torch.ones(OUTPUTS, INPUTS, requires_grad=True) for _ in range(2)]
    together(tokens, [1, 2], weights).sum().backward()
    assert torch.equal(tokens.grad, torch.full((3, INPUTS), float(OUTPUTS)))


PLAIN = {
    "gated_linear_unit": True,
    "activation_func": F.silu,
    "bias_activation_fusion": True,
    "add_bias_linear": False,
    "moe_apply_probs_on_input": False,
    "hidden_size": 24,
    "moe_ffn_hidden_size": 16,
    "expert_tensor_parallel_size": 2,
}


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({}, True),
        ({"gated_linear_unit": False}, False),
        ({"activation_func": F.gelu}, False),
        ({"bias_activation_fusion": False}, False),
        ({"add_bias_linear": True}, False),
        ({"moe_apply_probs_on_input": True}, False),
        ({"hidden_size": 20}, False),
        ({"moe_ffn_hidden_size": 24}, False),
        ({"moe_ffn_hidden_size": 24, "expert_tensor_parallel_size": None}, True),
    ],
)
def test_only_what_the_product_computes_is_grouped(change: dict[str, Any], wanted: bool) -> None:
    assert can_group(SimpleNamespace(**PLAIN | change)) is wanted
