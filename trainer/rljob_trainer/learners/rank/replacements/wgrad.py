"""Weight gradients written straight into the gradient buffer.

Megatron can add a linear layer's weight gradient to the buffer in the matrix multiplication itself, instead of making
a tensor and adding it afterwards, but it looks for Apex's CUDA extension. `install()` gives it the two functions that
it calls, in PyTorch. It can go when Megatron offers a PyTorch fallback (0.19 does not).
"""

from types import SimpleNamespace

import torch
from megatron.core.tensor_parallel import layers

from rljob_trainer.learners.rank.replacements.matrices import matmul


def install() -> None:
    """Let Megatron's `gradient_accumulation_fusion` use PyTorch. Changes nothing where Apex is installed."""
    if not layers._grad_accum_fusion_available:
        layers.fused_weight_gradient_mlp_cuda = SimpleNamespace(wgrad_gemm_accum_fp32=accumulate)
        layers._grad_accum_fusion_available = True


def accumulate(inputs: torch.Tensor, grad_outputs: torch.Tensor, main_grad: torch.Tensor) -> None:
    """Add `grad_outputs.T @ inputs` to `main_grad` (fp32), in place."""
    if not grad_outputs.is_cuda:
        main_grad.add_(matmul(grad_outputs.t(), inputs))  # no mixed-precision matrix product on CPUs
    elif grad_outputs.dtype == torch.float32:
        main_grad.addmm_(grad_outputs.t(), inputs)
    else:
        torch.addmm(main_grad, grad_outputs.t(), inputs, out_dtype=torch.float32, out=main_grad)
