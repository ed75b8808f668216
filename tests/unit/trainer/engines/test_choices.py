"""The plugin by which engines say which experts each token was sent to."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rljob_trainer.engines.command import ANY_SITE, CPU_SITE


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Any:
    for site in (ANY_SITE, CPU_SITE):
        monkeypatch.syspath_prepend(site)
    import rljob_sglang_choices

    return rljob_sglang_choices


@pytest.mark.parametrize("started_so", [True, False])
def test_every_request_asks_for_experts_if_the_engine_was_started_so(plugin: Any, started_so: bool) -> None:
    manager = SimpleNamespace(server_args=SimpleNamespace(enable_return_routed_experts=started_so))
    request, embedding = SimpleNamespace(return_routed_experts=False), SimpleNamespace()
    passed = [plugin.with_experts(lambda *all_: all_, manager, each, "http") for each in (request, embedding)]
    assert passed == [(manager, request, "http"), (manager, embedding, "http")]
    assert request.return_routed_experts is started_so
    assert vars(embedding) == {}, "a request that has no such question is left alone"


@pytest.mark.usefixtures("plugin")
def test_the_memory_of_experts_is_what_sglang_expects() -> None:
    import rljob_sglang_experts

    cache = SimpleNamespace(_log_allocation=lambda: None)
    rljob_sglang_experts.plain_memory(cache, 5, 3, 2, "experts")
    assert (cache.buffer.shape, cache.buffer.dtype) == ((5, 3, 2), torch.int32)
    assert not cache.buffer.any()
    assert (cache.num_tokens, cache.num_layers, cache.topk_size, cache.name) == (5, 3, 2, "experts")
