"""Parameters that every tensor rank holds whole: norms, routers, what comes before the latents of attention.

Each rank computes their gradients by itself, and two ranks get other last bits: on GPUs the samples of a prompt add
their gradients to its last token in any order, and data-parallel sums may run over another network. AdamW divides a
gradient by its own size: where that is hardly more than rounding, two ranks step in different directions, and their
copies drift apart. Megatron makes these gradients equal only where tensor ranks share out tokens, and those of the
norms of queries and keys.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state

LARGE = 2**20
"""numbers; smaller gradients are averaged together, larger ones where they lie"""


def average_gradients(chunks: Sequence[Any]) -> None:
    """Give all tensor ranks the same gradients of the parameters that each of them holds whole.

    To be called when gradients are summed over data-parallel ranks, which may sum in another order, too. Collective.
    """
    group = parallel_state.get_tensor_model_parallel_group()
    if group.size() == 1:
        return
    gradients = [parameter.main_grad for _, parameter in replicated(chunks)]
    small = [each for each in gradients if each.numel() < LARGE]
    together = torch.cat([each.view(-1) for each in small]) if small else None
    for each in (*(each for each in gradients if each.numel() >= LARGE), *([together] if small else [])):
        dist.all_reduce(each, group=group)
        each.div_(group.size())
    if together is not None:
        parts = together.split([each.numel() for each in small])
        torch._foreach_copy_(small, [part.view_as(each) for part, each in zip(parts, small, strict=True)])


def replicated(chunks: Sequence[Any]) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Yield the trained parameters that every tensor rank holds whole, by name.

    Experts are not among them: where each rank has whole experts, each has others.
    """
    for chunk in chunks:
        for name, parameter in chunk.named_parameters():
            is_expert = not getattr(parameter, "allreduce", True)
            if parameter.requires_grad and not parameter.tensor_model_parallel and not is_expert:
                yield name, parameter


def differing(chunks: Sequence[Any]) -> list[str]:
    """Return the names of parameters whose copies differ between this rank and other tensor ranks. Collective."""
    group = parallel_state.get_tensor_model_parallel_group()
    held = list(replicated(chunks))
    if group.size() == 1 or not held:
        return []
    own = torch.stack([_checksum(parameter) for _, parameter in held])
    of_all = [torch.empty_like(own) for _ in range(group.size())]
    dist.all_gather(of_all, own, group=group)
    is_other = torch.stack([(each != own).any(1) for each in of_all]).any(0)
    return [name for (name, _), other in zip(held, is_other.tolist(), strict=True) if other]


def _checksum(parameter: torch.Tensor) -> torch.Tensor:
    """Return two sums over the bits of a parameter; the second one notices places that were exchanged."""
    kind = {2: torch.int16, 4: torch.int32}[parameter.element_size()]
    bits = parameter.detach().view(-1).view(kind).long()
    return torch.stack([bits.sum(), (bits * torch.arange(1, len(bits) + 1, device=bits.device)).sum()])
