"""SGLang plugin for machines without GPUs: makes /weights_checker work, and starts and rollouts fast.

SGLang finds it by the entry point in `rljob_sglang_cpu-1.dist-info`, because this directory is on the PYTHONPATH of the
engine's processes and of nothing else. Changes to SGLang 0.5.17:
- the checksum begins with `torch.cuda.synchronize()`, which raises without a GPU: nothing is to be waited for here;
- tensors are hashed with xxh3 instead of sha256: 12 GB/s instead of 1.4 GB/s. The learner does the same
  (`rljob_trainer/sync/rank/digest.py`);
- attention of many sequences is one call instead of one for each (`rljob_sglang_attention.py`);
- fp32 matrices are multiplied by oneDNN instead of MKL, and a token is sampled with one random number
  (`rljob_sglang_matrices.py`);
- experts are chosen by SGLang's PyTorch code: on CPUs it calls a kernel that is published for GPUs only
  (`rljob_sglang_experts.py`), and remembered in memory that is not pinned, for PyTorch pins only beside a GPU;
- prompts of models with latent attention attend to the latents in the cache (`rljob_sglang_latent.py`);
- FP8 matrices are expanded and multiplied by PyTorch, for SGLang's kernels need AMX and are not published
  (`rljob_sglang_fp8.py`), and are broadcast as bytes, for Gloo does not know the type;
- so are INT4 matrices, for which SGLang has kernels on GPUs alone (`rljob_sglang_int4.py`);
- scheduler and detokenizer are forked. SGLang spawns them, because a process that has used CUDA cannot be forked, and
  each imports all of SGLang and PyTorch again: 8 s of a core and 0.9 GB each;
- the tokenizer is loaded once, before that: SGLang's processes load it four times, 1.3 s each;
- Megatron-core, which is there for the learner, is not imported: SGLang's debugging aids do, and it takes 2 s.
Goes when SGLang's checksum runs on CPU at the speed of memory, and its attention in batches.
"""

import logging
import multiprocessing
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import rljob_sglang_attention
import rljob_sglang_experts
import rljob_sglang_fp8
import rljob_sglang_int4
import rljob_sglang_latent
import rljob_sglang_matrices
import rljob_sglang_packed
import torch
import xxhash
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from sglang.srt.utils.hf_transformers import tokenizer

log = logging.getLogger(__name__)


def register() -> None:
    """Called by SGLang in each of its processes before they start to work."""
    sys.modules.setdefault("megatron", None)  # type: ignore[arg-type]  # so that importing it raises
    HookRegistry.register("torch.cuda.synchronize", nothing_to_wait_for, HookType.REPLACE)
    HookRegistry.register("sglang.srt.utils.weight_checker._hash_tensor", xxh3, HookType.REPLACE)
    HookRegistry.register("sglang.srt.utils.hf_transformers.tokenizer.get_tokenizer", loaded_once, HookType.AROUND)
    HookRegistry.register("sglang.srt.entrypoints.engine._set_envs_and_config", fork_from_here_on, HookType.AFTER)
    for place, ours in {
        "quantization.unquant.UnquantizedLinearMethod.apply": rljob_sglang_matrices.linear,
        "logits_processor.LogitsProcessor._compute_lm_head": rljob_sglang_matrices.logits,
        "sampler.sampling_from_probs_torch": rljob_sglang_matrices.sample,
    }.items():
        HookRegistry.register(f"sglang.srt.layers.{place}", ours, HookType.AROUND)
    for name, ours in {
        "fused_topk": rljob_sglang_experts.chosen,
        "biased_grouped_topk": rljob_sglang_experts.chosen_in_groups,
    }.items():
        HookRegistry.register(f"sglang.srt.layers.moe.topk.{name}", ours, HookType.REPLACE)
    pinned = "sglang.srt.state_capturer.base.BaseHostCache.__init__"
    HookRegistry.register(pinned, rljob_sglang_experts.plain_memory, HookType.REPLACE)
    made = "sglang.srt.model_loader.loader._initialize_model"
    HookRegistry.register(made, rljob_sglang_latent.prompts_attend_to_latents, HookType.AFTER)
    rope = "sglang.srt.layers.rotary_embedding.factory.get_rope_cpu"
    HookRegistry.register(rope, rljob_sglang_latent.angles, HookType.REPLACE)
    fp8, processed = "sglang.srt.layers.quantization.fp8", "process_weights_after_loading_block_quant"
    for name, ours in {
        f"Fp8LinearMethod.{processed}": rljob_sglang_fp8.as_loaded,
        f"Fp8MoEMethod.{processed}": rljob_sglang_fp8.as_loaded,
        "Fp8LinearMethod.apply": rljob_sglang_fp8.linear,
        "Fp8MoEMethod.apply": rljob_sglang_fp8.experts,
    }.items():
        HookRegistry.register(f"{fp8}.{name}", ours, HookType.REPLACE)
    for name, ours in {
        "sglang.srt.layers.quantization.compressed_tensors.compressed_tensors.CompressedTensorsConfig"
        "._check_scheme_supported": rljob_sglang_int4.is_supported,
        f"{rljob_sglang_packed.LINEAR}.apply_weights": rljob_sglang_int4.linear,
        f"{rljob_sglang_packed.EXPERTS}.apply_weights": rljob_sglang_int4.experts,
    }.items():
        HookRegistry.register(name, ours, HookType.REPLACE)
    HookRegistry.register("torch.distributed.broadcast", broadcast_of_bytes, HookType.AROUND)
    backend = "sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend"
    HookRegistry.register(f"{backend}._run_sdpa_forward_extend", rljob_sglang_attention.extend, HookType.AROUND)
    HookRegistry.register(f"{backend}._run_sdpa_forward_decode", rljob_sglang_attention.decode, HookType.AROUND)


def fork_from_here_on(_: None, arguments: Any) -> None:
    """Undo SGLang's choice of a start method, which it has just made, and load what all processes need."""
    multiprocessing.set_start_method("fork", force=True)
    if not arguments.skip_tokenizer_init:
        tokenizer.get_tokenizer(
            arguments.tokenizer_path,
            tokenizer_mode=arguments.tokenizer_mode,
            trust_remote_code=arguments.trust_remote_code,
            revision=arguments.revision,
            tokenizer_backend=arguments.tokenizer_backend,
        )


@cache
def loaded_once(load: Callable[..., Any], name: str, *args: object, **options: object) -> Any:
    """Return the tokenizer; load it if neither this process nor the one it was forked from has."""
    log.info("Load tokenizer %s %s", name, options)
    return load(name, *args, **options)


def nothing_to_wait_for(device: object = None) -> None:
    """Return at once: work on a CPU is done when the call returns."""


def broadcast_of_bytes(original: Callable[..., Any], tensor: torch.Tensor, *arguments: Any, **options: Any) -> Any:
    """Stand in for `torch.distributed.broadcast`: Gloo does not know FP8, and copies bytes as well."""
    return original(tensor.view(torch.uint8) if tensor.dtype == torch.float8_e4m3fn else tensor, *arguments, **options)


def xxh3(tensor: torch.Tensor) -> str:
    """Return the hash of the tensor's bytes, hexadecimal."""
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return xxhash.xxh3_64_hexdigest(memoryview(flat.numpy()))
