"""A rival of the learner: Qwen3 in plain PyTorch over packed sequences, compiled, all in bf16.

It is what an expert writes who needs no parallelism and no fp32 master weights: variable-length flash attention, one
compiled function for a layer, another for log-probabilities and loss, fused AdamW.

Axes: N tokens of a micro-batch, R response tokens, H heads, G key-value heads, D head size.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch.nn.attention.varlen import varlen_attn

from rljob_trainer.batches.packing import MicroBatch

EPSILON, THETA = 1e-6, 10000.0
"""of transformers' Qwen3Config"""
NAMES = (
    "input_layernorm",
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.q_norm",
    "self_attn.k_norm",
    "self_attn.o_proj",
    "post_attention_layernorm",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)


def compiled_step(
    checkpoint: Path, batches: Sequence[MicroBatch], head_dim: int, learning_rate: float, device: str
) -> Callable[[], float]:
    """Return a function that takes one optimizer step and returns the loss of before."""
    weights = {
        name: tensor.to(device).requires_grad_() for name, tensor in load_file(checkpoint / "model.safetensors").items()
    }
    layers = [[weights[f"model.layers.{index}.{name}.weight"] for name in NAMES] for index in _layers(weights)]
    optimizer = torch.optim.AdamW(weights.values(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    layer, head = torch.compile(_layer, dynamic=False), torch.compile(_loss, dynamic=False)
    inputs = [_inputs(batch, head_dim, device) for batch in batches]

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        losses = []
        for tokens, cos, sin, offsets, longest, rows, targets, factors in inputs:
            hidden = F.embedding(tokens, weights["model.embed_tokens.weight"])
            for parameters in layers:
                hidden = layer(hidden, parameters, cos, sin, offsets, longest, head_dim)
            normed = F.rms_norm(hidden[rows], hidden.shape[-1:], weights["model.norm.weight"], EPSILON)
            loss = head(normed, weights["model.embed_tokens.weight"], targets, factors)
            loss.backward()
            losses.append(loss.detach())
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0, foreach=True)
        optimizer.step()
        return float(sum(losses))

    return step


def _layers(weights: Mapping[str, torch.Tensor]) -> range:
    return range(1 + max(int(name.split(".")[2]) for name in weights if name.startswith("model.layers.")))


def _inputs(batch: MicroBatch, head_dim: int, device: str) -> tuple[torch.Tensor, ...]:
    offsets = torch.from_numpy(batch.cu_seqlens_S1.astype("int32"))
    lengths = offsets.diff()
    positions = torch.arange(len(batch.tokens_T)) - offsets[:-1].repeat_interleave(lengths)
    angles = positions[:, None] / THETA ** (torch.arange(0, head_dim, 2) / head_dim)
    values = (
        torch.from_numpy(batch.tokens_T.copy()),
        angles.cos()[:, None].bfloat16(),
        angles.sin()[:, None].bfloat16(),
        offsets,
        lengths.max(),
        torch.from_numpy(batch.positions_R.copy()),
        torch.from_numpy(batch.targets_R.copy()),
        torch.from_numpy((batch.weights_R * batch.advantages_R).astype("float32")),
    )
    return tuple(each.item() if each.ndim == 0 else each.to(device) for each in values)


def _layer(
    x: torch.Tensor,
    parameters: Sequence[torch.Tensor],
    cos: torch.Tensor,
    sin: torch.Tensor,
    offsets: torch.Tensor,
    longest: int,
    head_dim: int,
) -> torch.Tensor:
    first, q, k, v, q_norm, k_norm, o, second, gate, up, down = parameters
    normed = F.rms_norm(x, x.shape[-1:], first, EPSILON)
    queries, keys, values = (F.linear(normed, weight).unflatten(-1, (-1, head_dim)) for weight in (q, k, v))
    queries = _turned(F.rms_norm(queries, (head_dim,), q_norm, EPSILON), cos, sin)
    keys = _turned(F.rms_norm(keys, (head_dim,), k_norm, EPSILON), cos, sin)
    attended = varlen_attn(queries, keys, values, offsets, offsets, longest, longest, window_size=(-1, 0))
    x = x + F.linear(attended.flatten(1), o)
    normed = F.rms_norm(x, x.shape[-1:], second, EPSILON)
    return x + F.linear(F.silu(F.linear(normed, gate)) * F.linear(normed, up), down)


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def _loss(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    logprobs = -F.cross_entropy(F.linear(hidden, weight).float(), targets, reduction="none")
    return -(factors * torch.exp(logprobs - logprobs.detach())).sum()
