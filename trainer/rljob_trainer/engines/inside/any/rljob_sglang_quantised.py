"""SGLang plugin: quantised weights are loaded in full, and /weights_checker hashes them as they were published.

SGLang finds it by the entry point in `rljob_sglang_quantised-1.dist-info`, because this directory is on the PYTHONPATH
of the engine's processes and of nothing else. Changes to SGLang 0.5.17:
- `LlamaForCausalLM.load_weights` renames `weight_scale_inv` to `weight_scale`, does not find that in a layer with
  scales of blocks, and skips it with a warning: these scales are loaded here;
- the checksum of a quantised weight is that of the bf16 weight that it stands for, and the scales have none: equal
  hashes would not mean equal bytes, and each check would expand all weights. Each tensor is hashed by itself here;
- matrices in INT4: `rljob_sglang_packed.py`.
Goes when SGLang loads the scales, and can be asked for hashes of the bytes.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import rljob_sglang_packed
import torch
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

FOUND = "sglang.srt.utils.weight_checker._build_quantized_set"
MADE = "sglang.srt.model_loader.loader._initialize_model"
LLAMA = "LlamaForCausalLM"
"""and what is derived from it, such as Mistral"""
SCALE = ".weight_scale_inv"
FUSED: dict[str, tuple[str, str | int]] = {
    "q_proj": ("qkv_proj", "q"),
    "k_proj": ("qkv_proj", "k"),
    "v_proj": ("qkv_proj", "v"),
    "gate_proj": ("gate_up_proj", 0),
    "up_proj": ("gate_up_proj", 1),
}
"""name of a matrix -> its layer in SGLang, and which part of it"""

Weights = Iterable[tuple[str, torch.Tensor]]


def register() -> None:
    """Called by SGLang in each of its processes before they start to work."""
    HookRegistry.register(FOUND, read_in_another_way, HookType.REPLACE)
    HookRegistry.register(MADE, with_scales, HookType.AFTER)
    rljob_sglang_packed.register()


def read_in_another_way(model: Any) -> dict[str, Any]:
    """Let every parameter be hashed by itself: as it is, unless kernels have it in another layout."""
    return dict(rljob_sglang_packed.as_published(model))


def with_scales(model: Any, *_: Any, **__: Any) -> None:
    """Let a Llama load scales, too."""
    if any(kind.__name__ == LLAMA for kind in type(model).__mro__):
        model.load_weights = partial(load, model, model.load_weights)


def load(model: torch.nn.Module, original: Callable[[Weights], Any], weights: Weights) -> Any:
    """Stand in for `load_weights`: load the scales, and leave all else to SGLang."""
    return original(without_scales(dict(model.named_parameters()), weights))


def without_scales(parameters: dict[str, Any], weights: Weights) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield all weights but scales of blocks, which are loaded as they come."""
    for name, tensor in weights:
        module = name.removesuffix(SCALE).rpartition(".")[2]
        layer, part = FUSED.get(module, (module, None))
        found = parameters.get(name.replace(f".{module}{SCALE}", f".{layer}{SCALE}"))
        if not name.endswith(SCALE) or found is None:
            yield name, tensor
        elif part is None:
            found.weight_loader(found, tensor)
        else:
            found.weight_loader(found, tensor, part)
