"""SGLang plugin for GPUs: gives memory back only when no kernel uses it any more.

SGLang finds it by the entry point in `rljob_sglang_gpu-1.dist-info`, because this directory is on the PYTHONPATH of the
engine's processes and of nothing else. SGLang 0.5.17 unmaps the memory of the KV cache while kernels that it has
started may still run, and waits for them afterwards. On a GPU that other processes use, too, they are late, and the
engine ends with `an illegal memory access`. `benchmarks/gpu_memory_release.py` shows it.
Goes when SGLang waits first.
"""

from typing import Any

import torch
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

RELEASE = (
    "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager.release_memory_occupation"
)


def register() -> None:
    """Called by SGLang in each of its processes before they start to work."""
    HookRegistry.register(RELEASE, wait_for_kernels, HookType.BEFORE)


def wait_for_kernels(*_: Any, **__: Any) -> None:
    """Wait until the GPU has done all that was asked of it."""
    torch.cuda.synchronize()
