"""The learner's digest of what one rank of an engine must hold: equal to what SGLang's /weights_checker answers there.

On CPU both sides hash the bytes with xxh3 (ours: here; SGLang's: the plugin in `engines/inside/cpu`; SGLang's own
sha256 takes 0.4 s for 0.5 GB, longer than the transfer). On GPU SGLang's Triton kernel is used by both, so that nothing
has to be copied to the host: see `digest_gpu.py`. Neither is a defence against an enemy: they find tensors that are
lost, swapped, stale or damaged.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
import xxhash

from rljob_trainer.sync.layout import EngineTensor, Piece

Digest = Callable[[Sequence[torch.Tensor]], str]
"""of pieces, as if they were joined"""


def tensor_digest(wanted: EngineTensor, tensors: Mapping[str, torch.Tensor], digest: Digest) -> str:
    """Return the digest of one engine tensor, made of the learner's Hugging Face tensors."""
    pieces = [cut(tensors[piece.name], piece) for piece in wanted.pieces]
    if wanted.zero_rows:
        pieces.append(pieces[0].new_zeros((wanted.zero_rows, *pieces[0].shape[1:])))
    return digest(pieces)


def cut(tensor: torch.Tensor, piece: Piece) -> torch.Tensor:
    """Return the piece of a tensor, contiguous; no copy when it is so already."""
    return tensor.detach().narrow(piece.axis, piece.start, piece.stop - piece.start).contiguous()


def digest_on(device: str) -> Digest:
    """Return the digest that engines on this device compute: `cpu`, `cuda`."""
    if device == "cpu":
        return cpu_digest
    from rljob_trainer.sync.rank.digest_gpu import gpu_digest

    return gpu_digest


def cpu_digest(pieces: Sequence[torch.Tensor]) -> str:
    """Return xxh3 (64 bits, hexadecimal) over the bytes of the pieces, one after the other, without joining them."""
    digest = xxhash.xxh3_64()
    for piece in pieces:
        digest.update(host_bytes(piece))
    return digest.hexdigest()


def host_bytes(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a tensor on the CPU; no copy when it is contiguous.

    Not by `Tensor.numpy`, after which a storage could never be emptied again, see `learners.rank.optimizer.movable`.
    """
    return np.from_dlpack(tensor.detach().reshape(-1).view(torch.uint8)).data
