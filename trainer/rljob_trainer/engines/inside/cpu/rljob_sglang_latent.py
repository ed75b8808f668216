"""Latent attention of DeepSeek's models, for SGLang on CPU.

SGLang 0.5.17 takes its `torch_native` attention for Triton's where it chooses how a prompt attends: to keys and values
of all heads that are handed over beside the cache. `torch_native` reads the cache alone, which has only latents. Here
prompts attend to the latents, as tokens do that come after them.
For CPUs it also has angles of YaRN alone, and stops at a model without; here it makes them as on a GPU.
Goes when SGLang chooses so for `torch_native`, and has all angles on CPUs.
"""

from typing import Any


def prompts_attend_to_latents(_model: object, *_: Any, **__: Any) -> None:
    """Called after SGLang has made a model: its way of attending is chosen at each of its passes."""
    from sglang.srt.models.deepseek_common.attention_backend_handler import AttentionBackendRegistry

    AttentionBackendRegistry.register("torch_native", to_latents)


def to_latents(_attention: object, _batch: object) -> Any:
    """Return SGLang's name for attention to latents."""
    from sglang.srt.models.deepseek_common.attention_forward_methods.forward_methods import AttnForwardMethod

    return AttnForwardMethod.MLA


def angles(*arguments: Any) -> Any:
    """Stand in for `get_rope_cpu`, whose last argument is the device: return what turns queries and keys."""
    from sglang.srt.layers.rotary_embedding.factory import get_rope

    return get_rope(*arguments[:-1])
