"""GELU by tanh in the gated MLP: ours for CPUs, and Megatron's own for GPUs, which is compiled there."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from megatron.core.fusions.fused_bias_geglu import bias_geglu_impl

from rljob_trainer.learners.rank.replacements.swiglu import geglu


@pytest.mark.parametrize("gated", [geglu, bias_geglu_impl], ids=["ours", "megatron"])
def test_values_and_gradients_are_those_of_torch(gated: Callable[..., torch.Tensor]) -> None:
    torch.manual_seed(0)
    x = 3 * torch.randn(5, 1, 16)
    x.requires_grad_()
    upstream = torch.randn(5, 1, 8)
    gate, up = x.chunk(2, -1)
    wanted = F.gelu(gate, approximate="tanh") * up
    with torch.compiler.set_stance("force_eager"):
        found = gated(x, None)
        gradients = torch.autograd.grad(found, x, upstream)
    torch.testing.assert_close(found, wanted, rtol=0, atol=2e-6)
    torch.testing.assert_close(gradients, torch.autograd.grad(wanted, x, upstream), rtol=0, atol=5e-6)
