"""Norms by 1 + weight, against transformers' own."""

from types import SimpleNamespace

import pytest
import torch
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm

from rljob_trainer.learners.rank.model.norm import CentredNorm

EPSILON = 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("axes", [(5, 1), (5, 2, 3)], ids=str)
def test_values_and_gradients_are_those_of_transformers(dtype: torch.dtype, axes: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x = torch.randn(*axes, 16, dtype=dtype, requires_grad=True)
    upstream = torch.randn_like(x)
    ours = CentredNorm(SimpleNamespace(params_dtype=dtype, sequence_parallel=True), 16, EPSILON)
    theirs = Gemma3RMSNorm(16, EPSILON).to(dtype)
    with torch.no_grad():
        theirs.weight.copy_(ours.weight.copy_(torch.randn(16)))
    one, other = ours(x), theirs(x)
    assert one.dtype == dtype and ours.weight.sequence_parallel
    torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
    found = torch.autograd.grad(one, (x, ours.weight), upstream)
    wanted = torch.autograd.grad(other, (x, theirs.weight), upstream)
    torch.testing.assert_close(found, wanted, rtol=1e-5 if dtype == torch.float32 else 2e-2, atol=1e-5)
