"""The order in which engines hold INT4 weights is that of SGLang's own code for Marlin's kernels."""

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

from support.trainer.engine_plugins import imported

pytestmark = pytest.mark.filterwarnings("ignore")

INPUTS, OUTPUTS = 384, 192


@pytest.fixture
def packed() -> Iterator[Any]:
    with imported("rljob_sglang_packed") as plugin:
        yield plugin


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> Any:
    types = ModuleType("sgl_kernel.scalar_type")
    types.ScalarType = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sgl_kernel.scalar_type", types)
    from sglang.test import test_marlin_utils

    return test_marlin_utils


def test_words_are_in_the_order_of_marlin_and_come_back(packed: Any, theirs: Any) -> None:
    numbers = torch.randint(0, 16, (INPUTS, OUTPUTS))
    words = packed.packed(numbers.to(torch.uint8).view(-1, 8, OUTPUTS).transpose(1, 2).contiguous()).squeeze(-1)
    found = packed.marlin(words)
    assert torch.equal(found, theirs.marlin_weights(numbers, INPUTS, OUTPUTS, 4, theirs.get_weight_perm(4)))
    assert torch.equal(packed.gptq(found), words)
    experts = torch.stack([words, words.flip(0)])
    assert torch.equal(packed.marlin(experts)[1], packed.marlin(experts[1]))
    assert torch.equal(packed.gptq(packed.marlin(experts)), experts)


def test_scales_are_in_the_order_of_marlin(packed: Any, theirs: Any) -> None:
    scale = torch.randn(INPUTS // 32, OUTPUTS).bfloat16()
    wanted = theirs.marlin_permute_scales(scale, INPUTS, OUTPUTS, 32)
    assert torch.equal(packed.permuted(scale, packed.scale_order()), wanted)
    of_experts = packed.permuted(torch.stack([scale, scale + 1]), packed.scale_order())
    assert torch.equal(of_experts[0], wanted)
    assert torch.equal(packed.permuted(wanted, packed.inverse(packed.scale_order())), scale)
