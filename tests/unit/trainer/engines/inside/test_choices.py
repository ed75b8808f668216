"""The plugin by which engines say which experts each token was sent to."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from support.trainer.engine_plugins import imported


@pytest.fixture
def plugin() -> Iterator[Any]:
    with imported("rljob_sglang_choices") as plugin:
        yield plugin


@pytest.mark.parametrize("started_so", [True, False])
def test_every_request_asks_for_experts_if_the_engine_was_started_so(plugin: Any, started_so: bool) -> None:
    manager = SimpleNamespace(server_args=SimpleNamespace(enable_return_routed_experts=started_so))
    request, embedding = SimpleNamespace(return_routed_experts=False), SimpleNamespace()
    passed = [plugin.with_experts(lambda *all_: all_, manager, each, "http") for each in (request, embedding)]
    assert passed == [(manager, request, "http"), (manager, embedding, "http")]
    assert request.return_routed_experts is started_so
    assert vars(embedding) == {}, "a request that has no such question is left alone"


def test_the_memory_of_experts_is_what_sglang_expects() -> None:
    cache = SimpleNamespace(_log_allocation=lambda: None)
    with imported("rljob_sglang_experts") as experts:
        experts.plain_memory(cache, 5, 3, 2, "experts")
    assert (cache.buffer.shape, cache.buffer.dtype) == ((5, 3, 2), torch.int32)
    assert not cache.buffer.any()
    assert (cache.num_tokens, cache.num_layers, cache.topk_size, cache.name) == (5, 3, 2, "experts")
