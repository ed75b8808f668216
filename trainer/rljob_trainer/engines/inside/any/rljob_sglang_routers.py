"""SGLang plugin: engines compute GLM-4.5 and DeepSeek-V3 as their authors do, with the weights published last.

SGLang finds it by the entry point in `rljob_sglang_routers-1.dist-info`, because this directory is on the PYTHONPATH of
the engine's processes and of nothing else. In SGLang 0.5.17 `Glm4MoeGate` keeps an fp32 copy of its weight from the
first request on. In bf16 that copy is not the weight itself, an update does not reach it, and /weights_checker leaves
it out: engines would choose experts by the weights that they began with. Goes when an update drops the copy.

The norms of DeepSeek's latents have another epsilon in its model and in transformers; SGLang gives them
`rms_norm_eps`, which is another in Moonlight. Goes when SGLang has it, too.
"""

from typing import Any

import torch
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

MADE = "sglang.srt.model_loader.loader._initialize_model"
GATE = "Glm4MoeGate"
LATENT = "DeepseekV2AttentionMLA"
NORMS = ("q_a_layernorm", "kv_a_layernorm")
EPSILON = 1e-6


def register() -> None:
    """Called by SGLang in each of its processes before they start to work."""
    HookRegistry.register(MADE, without_copies, HookType.AFTER)
    HookRegistry.register(MADE, with_own_epsilon, HookType.AFTER)


def without_copies(model: torch.nn.Module, *_: Any, **__: Any) -> None:
    """Let the model's routers keep no copies; it has no weights yet, and no CUDA graphs."""
    for kind in {type(module) for module in model.modules()}:
        if kind.__name__ == GATE:
            kind.forward = logits


def with_own_epsilon(model: torch.nn.Module, *_: Any, **__: Any) -> None:
    """Give the norms of latents their epsilon; it is read at each pass."""
    for module in model.modules():
        if type(module).__name__ == LATENT:
            for name in NORMS:
                if hasattr(module, name):  # queries may have no latent
                    getattr(module, name).variance_epsilon = EPSILON


def logits(gate: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    """Return the logits [N, E] in fp32, as SGLang computes them."""
    return torch.nn.functional.linear(hidden_states.float(), gate.weight.float())
