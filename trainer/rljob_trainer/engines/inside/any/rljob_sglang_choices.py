"""SGLang plugin: every answer says which experts each token was sent to, if the engine was started to return them.

SGLang finds it by the entry point in `rljob_sglang_choices-1.dist-info`, because this directory is on the PYTHONPATH of
the engine's processes and of nothing else. In SGLang 0.5.17 a request must ask for the experts, and sglang-router
0.3.2 does not forward the question: an engine with `--enable-return-routed-experts` is always asked. Goes when the
router forwards `return_routed_experts`.
"""

from collections.abc import Callable
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

ASKED = "sglang.srt.managers.tokenizer_manager.TokenizerManager.generate_request"


def register() -> None:
    """Called by SGLang in each of its processes before they start to work."""
    HookRegistry.register(ASKED, with_experts, HookType.AROUND)


def with_experts(original: Callable[..., Any], manager: Any, request: Any, *others: Any, **named: Any) -> Any:
    """Stand in for `generate_request`."""
    if manager.server_args.enable_return_routed_experts and hasattr(request, "return_routed_experts"):
        request.return_routed_experts = True
    return original(manager, request, *others, **named)
