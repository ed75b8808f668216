"""Causal attention over sequences laid end to end, on GPUs: the fastest implementation that is installed.

FlashAttention 2 is part of PyTorch. FlashAttention 4 is written for Hopper and Blackwell, and comes with SGLang. Which
one is faster depends on heads and lengths, so both are timed once, on the first micro-batch of each kind.

Axes: T tokens, S sequences, H heads, G key-value heads, D head size.
"""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.util import find_spec
from itertools import accumulate
from typing import Protocol

import torch
from torch.nn.attention.varlen import varlen_attn

log = logging.getLogger(__name__)

ROUNDS = 3
"""of forward and backward, of which the fastest counts"""
TOLERANCE = 2e-2
"""largest relative difference between two results in bf16; a wrong mask differs by far more"""
DISK_CACHE = "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED"
"""lets FlashAttention 4 keep its compiled kernels, or each process compiles them for 10 s"""


def uploaded(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor of the CPU on the device; a copy from ordinary memory would wait for all work of a GPU."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


@dataclass(frozen=True, slots=True)
class Runs:
    """Tokens laid end to end."""

    offsets: torch.Tensor
    """int32, from 0 to the number of tokens"""
    longest: int

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device) -> "Runs":
        """Return runs of these lengths."""
        return cls(uploaded(torch.tensor([0, *accumulate(lengths)], dtype=torch.int32), device), max(lengths))


@dataclass(frozen=True, slots=True)
class Sight:
    """What queries see, and how sharply."""

    window: int | None = None
    """tokens that each sees, itself included; None: all before it"""
    scale: float | None = None
    """of the products of query and key; None: 1 / sqrt(D)"""

    @property
    def bounds(self) -> tuple[int, int]:
        """how many keys before and after its own each query sees, as FlashAttention wants it; -1: any number"""
        return -1 if self.window is None else self.window - 1, 0


PLAIN = Sight()


class Attend(Protocol):
    """One implementation."""

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        queries: Runs,
        keys: Runs | None = None,
        sight: Sight = PLAIN,
    ) -> torch.Tensor:
        """Return [T, H, D] for queries [T, H, D] and keys and values [T, G, D]. Differentiable.

        With `keys`, a sequence has more keys and values than queries: its queries are those of its last tokens.
        """


@dataclass(frozen=True, slots=True)
class Kind:
    """Micro-batches for which the same implementation is taken to be the fastest."""

    heads: int
    groups: int
    head_dim: int
    longest: int
    """sequence, as a power of two"""
    sight: Sight = PLAIN


@dataclass
class Fastest:
    """Attends with the fastest of several implementations; the first is the one that the others must agree with."""

    implementations: Mapping[str, Attend]
    seconds: Callable[[Callable[[], object]], float]
    """how long a call takes"""
    chosen: dict[Kind, str] = field(default_factory=dict)

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        queries: Runs,
        keys: Runs | None = None,
        sight: Sight = PLAIN,
    ) -> torch.Tensor:
        """Return what the implementation for this kind of micro-batch returns."""
        longest = (keys or queries).longest
        if sight.window is not None and sight.window >= longest:  # it hides nothing
            sight = replace(sight, window=None)
        kind = Kind(q.shape[1], k.shape[1], q.shape[2], longest.bit_length(), sight)
        if kind not in self.chosen:
            self.chosen[kind] = self._fastest(kind, (q, k, v), queries, keys)
        return self.implementations[self.chosen[kind]](q, k, v, queries, keys, sight)

    def _fastest(self, kind: Kind, qkv: Sequence[torch.Tensor], queries: Runs, keys: Runs | None) -> str:
        first = next(iter(self.implementations))
        if kind.sight.window is not None and not sees_windows(self.implementations[first], qkv[0].device):
            raise RuntimeError(
                f"{first} of torch {torch.__version__} does not keep to the model's windows; "
                "use another version of torch"
            )
        if len(self.implementations) == 1:
            return first
        q, k, v = (each.detach().requires_grad_() for each in qkv)

        def attended(name: str) -> tuple[torch.Tensor, ...]:
            with torch.enable_grad():
                out = self.implementations[name](q, k, v, queries, keys, kind.sight)
                return out, *torch.autograd.grad(out, (q, k, v), q.detach())

        wanted = attended(first)
        seconds: dict[str, float] = {}
        for name in self.implementations:
            try:
                equal = all(map(_agrees, attended(name), wanted))
            except Exception as error:  # noqa: BLE001 compiled at run time: any error, and there is another one
                log.warning("action=attention implementation=%s left_out=%s: %s", name, type(error).__name__, error)
                continue
            if equal:
                seconds[name] = min(self.seconds(lambda name=name: attended(name)) for _ in range(ROUNDS))  # type: ignore[misc]
            else:
                log.warning("action=attention implementation=%s left_out=its result differs from %s", name, first)
        best = min(seconds, key=lambda name: seconds[name], default=first)
        times = " ".join(f"{name}={1e3 * time:.2f}ms" for name, time in seconds.items())
        log.info("action=attention kind=%s chosen=%s %s", kind, best, times)
        return best


def flash_2(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    queries: Runs,
    keys: Runs | None = None,
    sight: Sight = PLAIN,
) -> torch.Tensor:
    """Attend by FlashAttention 2, as PyTorch has it."""
    keys = keys or queries
    attended: torch.Tensor = varlen_attn(
        q,
        k,
        v,
        queries.offsets,
        keys.offsets,
        queries.longest,
        keys.longest,
        scale=sight.scale,
        window_size=sight.bounds,  # none after a query's own: causal
    )
    return attended


def flash_4(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    queries: Runs,
    keys: Runs | None = None,
    sight: Sight = PLAIN,
) -> torch.Tensor:
    """Attend by FlashAttention 4."""
    keys = keys or queries
    attended, _lse = _flash_4()(
        q,
        k,
        v,
        cu_seqlens_q=queries.offsets,
        cu_seqlens_k=keys.offsets,
        max_seqlen_q=queries.longest,
        max_seqlen_k=keys.longest,
        softmax_scale=sight.scale,
        causal=True,
        **({} if sight.window is None else {"window_size": sight.bounds}),
    )
    return attended


@cache
def _flash_4() -> Callable[..., tuple[torch.Tensor, torch.Tensor | None]]:
    os.environ.setdefault(DISK_CACHE, "1")
    from flash_attn.cute import flash_attn_varlen_func  # compiles on import

    imported: Callable[..., tuple[torch.Tensor, torch.Tensor | None]] = flash_attn_varlen_func
    return imported


@cache
def fastest(device: torch.device) -> Fastest:
    """Return what this process attends with on a device; it remembers what it has measured."""
    return Fastest(implementations(device), seconds_on_gpu)


@cache
def fastest_from_the_end(device: torch.device) -> Fastest:
    """Return the same for queries that have more keys.

    Raises RuntimeError if the first implementation takes them for the first tokens: losses would be wrong in silence.
    """
    first, attend = next(iter(implementations(device).items()))
    if not attends_from_the_end(attend, device):
        raise RuntimeError(
            f"{first} of torch {torch.__version__} takes queries with more keys for those of the first tokens, and "
            "training.contextParallel needs those of the last: set it to 1, or use another version of torch"
        )
    return fastest(device)


def attends_from_the_end(attend: Attend, device: torch.device) -> bool:
    """Return whether one query with two keys is taken for the second token's: it attends to both of them then."""
    q = torch.zeros(1, 1, 64, dtype=torch.bfloat16, device=device)
    v = torch.tensor([0.0, 1.0], dtype=q.dtype, device=device).view(2, 1, 1).expand(2, 1, 64).contiguous()
    out = attend(q, torch.zeros_like(v), v, Runs.of([1], device), Runs.of([2], device))
    return bool((out.float() - 0.5).abs().max() < 0.1)


def sees_windows(attend: Attend, device: torch.device) -> bool:
    """Return whether the third token, with a window of two, sees the second and itself: losses would be wrong else."""
    q = torch.zeros(3, 1, 64, dtype=torch.bfloat16, device=device)
    v = torch.tensor([9.0, 3.0, 0.0], dtype=q.dtype, device=device).view(3, 1, 1).expand(3, 1, 64).contiguous()
    whole, last = Runs.of([3], device), Runs.of([1], device)
    every = attend(q, torch.zeros_like(v), v, whole, None, Sight(2))
    alone = attend(q[:1], torch.zeros_like(v), v, last, whole, Sight(2))
    wanted = torch.tensor([9.0, 6.0, 1.5, 1.5], device=device)
    return bool((torch.cat([every, alone])[:, 0, 0].float() - wanted).abs().max() < 0.1)


def implementations(device: torch.device) -> Mapping[str, Attend]:
    """Return those that can run on a device."""
    found: dict[str, Attend] = {"FlashAttention 2": flash_2}
    if device.type == "cuda" and torch.cuda.get_device_capability(device)[0] in (9, 10) and has_flash_4():
        found["FlashAttention 4"] = flash_4
    return found


def has_flash_4() -> bool:
    """Return whether FlashAttention 4 is installed and imports: it does not with every version of what it needs."""
    if find_spec("flash_attn") is None:
        return False
    try:
        _flash_4()
    except Exception as error:  # noqa: BLE001 compiled on import: any error, and there is another implementation
        if not (isinstance(error, ModuleNotFoundError) and error.name == "flash_attn.cute"):
            log.warning("action=attention implementation=FlashAttention 4 left_out=%s: %s", type(error).__name__, error)
        return False
    return True


def seconds_on_gpu(work: Callable[[], object]) -> float:
    """Return how long the GPU needs for `work`."""
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began.record()
    work()
    ended.record()
    ended.synchronize()
    return float(began.elapsed_time(ended)) / 1e3


def _agrees(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool((one.float() - other.float()).norm() <= TOLERANCE * other.float().norm())
