"""SGLang plugin: every answer says which experts each token was sent to, if the engine was started to return them.

SGLang finds it by the entry point in `rljob_sglang_choices-1.dist-info`, because this directory is on the PYTHONPATH of
the engine's processes and of nothing else. Changes to SGLang 0.5.17:
- a request must ask for the experts, and sglang-router 0.3.2 does not forward the question: an engine with
  `--enable-return-routed-experts` is always asked;
- the host memory for them is pinned, which PyTorch refuses without a GPU: there it is plain memory.
Goes when the router forwards `return_routed_experts`, and SGLang pins only beside a GPU.
"""

from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

ASKED = "sglang.srt.managers.tokenizer_manager.TokenizerManager.generate_request"
MEMORY = "sglang.srt.state_capturer.base.BaseHostCache.__init__"


def register() -> None:
    """Called by SGLang in each of its processes before they start to work."""
    HookRegistry.register(ASKED, with_experts, HookType.AROUND)
    if not torch.cuda.is_available():
        HookRegistry.register(MEMORY, plain_memory, HookType.REPLACE)


def with_experts(original: Callable[..., Any], manager: Any, request: Any, *others: Any, **named: Any) -> Any:
    """Stand in for `generate_request`."""
    if manager.server_args.enable_return_routed_experts and hasattr(request, "return_routed_experts"):
        request.return_routed_experts = True
    return original(manager, request, *others, **named)


def plain_memory(cache: Any, num_tokens: int, num_layers: int, topk_size: int, name: str) -> None:
    """Stand in for `BaseHostCache.__init__`."""
    cache.buffer = torch.zeros((num_tokens, num_layers, topk_size), dtype=torch.int32)
    cache.num_tokens, cache.num_layers, cache.topk_size, cache.name = num_tokens, num_layers, topk_size, name
    cache._log_allocation()
