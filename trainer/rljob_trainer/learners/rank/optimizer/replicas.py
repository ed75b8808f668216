"""Parameters that several ranks hold, and how they stay equal.

Every tensor rank holds some whole: norms, routers, what comes before the latents of attention.

Each rank computes their gradients by itself, and two ranks get other last bits: on GPUs the samples of a prompt add
their gradients to its last token in any order, and data-parallel sums may run over another network. AdamW divides a
gradient by its own size: where that is hardly more than rounding, two ranks step in different directions, and their
copies drift apart. Megatron makes these gradients equal only where tensor ranks share out tokens, and those of the
norms of queries and keys.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from rljob_trainer.learners.copies import UnequalCopy

LARGE = 2**20
"""numbers; smaller gradients are averaged together, larger ones where they lie"""
PIECE = 2**22
"""numbers of a tensor that are summed at once"""
MOST = 8
"""unequal copies that a rank names: a learner has thousands of parameters and hundreds of ranks"""


def average_gradients(chunks: Sequence[Any]) -> None:
    """Give all tensor ranks the same gradients of the parameters that each of them holds whole.

    To be called when gradients are summed over data-parallel ranks, which may sum in another order, too. Collective.
    """
    group = parallel_state.get_tensor_model_parallel_group()
    if group.size() == 1:
        return
    held = [parameter for chunk in chunks for parameter in chunk.parameters()]
    gradients = [parameter.main_grad for parameter in held if parameter.requires_grad and _is_whole(parameter)]
    small = [each for each in gradients if each.numel() < LARGE]
    together = torch.cat([each.view(-1) for each in small]) if small else None
    for each in (*(each for each in gradients if each.numel() >= LARGE), *([together] if small else [])):
        dist.all_reduce(each, group=group)
        each.div_(group.size())
    if together is not None:
        parts = together.split([each.numel() for each in small])
        torch._foreach_copy_(small, [part.view_as(each) for part, each in zip(parts, small, strict=True)])


def _is_expert(parameter: torch.nn.Parameter) -> bool:
    return not getattr(parameter, "allreduce", True)


def _is_whole(parameter: torch.nn.Parameter) -> bool:
    """Whether every tensor rank holds the parameter whole. Of experts none is: each rank has other ones."""
    return not parameter.tensor_model_parallel and not _is_expert(parameter)


def unequal_copies(chunks: Sequence[Any]) -> tuple[UnequalCopy, ...]:
    """Return what several ranks hold and is not equal on all of them, bit by bit. Collective, with one answer on all.

    Tensor ranks hold norms, routers and their biases; data-parallel and context ranks everything outside of experts;
    expert-data ranks the same experts; the first and the last pipeline stage a tied embedding. The first of the ranks
    that hold a parameter names it, at most `MOST` of them.
    """
    held = list(_held(chunks))
    shared = [each for each in held if not each.is_expert]
    found: list[UnequalCopy] = []
    for group, members in (
        (parallel_state.get_tensor_model_parallel_group(), [each for each in shared if each.is_whole]),
        (parallel_state.get_data_parallel_group(with_context_parallel=True), shared),
        (parallel_state.get_expert_data_parallel_group(), [each for each in held if each.is_expert]),
        (_embedding_group(), [each for each in held if each.is_tied]),
    ):
        if group is not None and group.size() > 1 and members:
            found += _unequal(members, group)
    of_all: list[list[UnequalCopy]] = [[] for _ in range(dist.get_world_size())]
    own = [copy for copy in found if copy.ranks[0] == dist.get_rank()]
    dist.all_gather_object(of_all, own[:MOST])
    return tuple(copy for of_rank in of_all for copy in of_rank)


@dataclass(frozen=True)
class _Held:
    """A parameter, or a buffer that a checkpoint holds, on this rank."""

    name: str
    tensor: torch.Tensor
    is_expert: bool
    is_whole: bool
    """whether tensor ranks do not share it out"""
    is_tied: bool

    @cached_property
    def checksum(self) -> torch.Tensor:
        """Computed once: several groups of ranks may compare it."""
        return _checksum(self.tensor)


def _held(chunks: Sequence[Any]) -> Iterator[_Held]:
    for chunk in chunks:
        numbers = {name: module.layer_number - 1 for name, module in chunk.named_modules() if _is_layer(name, module)}
        for name, parameter in chunk.named_parameters():
            is_tied = getattr(parameter, "shared_embedding", False)
            whose = _is_expert(parameter), _is_whole(parameter), is_tied
            yield _Held(_in_model(name, numbers), parameter.detach(), *whose)
        for prefix, module in chunk.named_modules():
            for name, buffer in module.named_buffers(prefix, recurse=False):
                if name.rpartition(".")[2] not in module._non_persistent_buffers_set:
                    yield _Held(_in_model(name, numbers), buffer, is_expert=False, is_whole=True, is_tied=False)


def _is_layer(name: str, module: Any) -> bool:
    return name.rpartition(".")[2].isdigit() and hasattr(module, "layer_number")


def _in_model(name: str, numbers: Mapping[str, int]) -> str:
    """Return a name without wrappers, and with the layer's number in the whole model instead of in its chunk."""
    for layer, number in numbers.items():
        if name.startswith(f"{layer}."):
            name = f"{layer.rpartition('.')[0]}.{number}{name.removeprefix(layer)}"
            break
    return name.removeprefix("module.")


def _embedding_group() -> Any:
    """Return the ranks that hold a tied embedding, if this is one of them."""
    return parallel_state.get_embedding_group() if parallel_state.is_rank_in_embedding_group() else None


def _unequal(members: Sequence[_Held], group: Any) -> list[UnequalCopy]:
    own = torch.stack([each.checksum for each in members])
    of_all = [torch.empty_like(own) for _ in range(group.size())]
    dist.all_gather(of_all, own, group=group)
    differs = torch.stack([(each != of_all[0]).any(1) for each in of_all], dim=1).tolist()
    ranks = tuple(dist.get_process_group_ranks(group))
    return [
        UnequalCopy(each.name, ranks, tuple(rank for rank, other in zip(ranks, others, strict=True) if other))
        for each, others in zip(members, differs, strict=True)
        if any(others)
    ]


def _checksum(tensor: torch.Tensor) -> torch.Tensor:
    """Return two sums over the bits of a tensor; the second one notices numbers that changed places.

    The tensor is read in pieces: as 64-bit numbers it would take up to eight times its memory.
    """
    kind = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    bits, sums = tensor.reshape(-1).view(kind), torch.zeros(2, dtype=torch.int64, device=tensor.device)
    for start in range(0, len(bits), PIECE):
        piece = bits[start : start + PIECE].long()
        places = torch.arange(start + 1, start + 1 + len(piece), device=tensor.device)
        sums += torch.stack([piece.sum(), (piece * places).sum()])
    return sums
