"""Memory of a learner's rank that an engine on the same slot maps: CUDA IPC on a GPU, files in /dev/shm on a CPU.

SGLang loads tensors out of one flat piece of memory (`load_format: flattened_bucket`), of which it is sent a handle,
pickled. There are two pieces, filled in turns. They are made once and live as long as the rank: PyTorch would otherwise
keep a piece for ever when an engine dies before it has read it, because it counts readers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from rljob_trainer.sync.layout import TensorSpec, buckets
from rljob_trainer.sync.rank.sender import Digesting
from rljob_trainer.sync.rank_calls import Digests

Export = Generator[tuple[str, torch.Tensor], None, None]
"""of tensors as announced, see `sender.checked`"""

ALIGNMENT = 16
"""of each tensor in a piece [bytes]: more than the size of any type"""
PIECES = 2


@dataclass(frozen=True, slots=True)
class Tensor:
    """Where a tensor lies in a piece of memory [bytes]."""

    spec: TensorSpec
    start: int

    @property
    def stop(self) -> int:
        """Return where it ends."""
        return self.start + self.spec.nbytes


def placed(specs: Iterable[TensorSpec]) -> tuple[Tensor, ...]:
    """Return tensors one after the other, each aligned."""
    tensors: list[Tensor] = []
    for spec in specs:
        start = tensors[-1].stop if tensors else 0
        tensors.append(Tensor(spec, -(-start // ALIGNMENT) * ALIGNMENT))
    return tuple(tensors)


class SharedMemory:
    """Buckets of weights in shared memory, one after the other."""

    def __init__(self, specs: Iterable[TensorSpec], bucket_bytes: int, device: torch.device) -> None:
        self.buckets = tuple(placed(bucket) for bucket in buckets(specs, bucket_bytes))
        nbytes = max((bucket[-1].stop for bucket in self.buckets), default=0)
        pieces = min(PIECES, len(self.buckets))
        self._pieces = [torch.empty(nbytes, dtype=torch.uint8, device=device) for _ in range(pieces)]
        self._handle = _cuda_handles(self._pieces) if device.type == "cuda" else _file_handles(self._pieces)

    def fill(self, index: int, tensors: Sequence[torch.Tensor]) -> str:
        """Copy the tensors of a bucket; return the handle that SGLang reads, once they are there."""
        bucket, number = self.buckets[index], index % PIECES
        for each, tensor in zip(bucket, tensors, strict=True):
            self._pieces[number][each.start : each.stop].copy_(tensor.reshape(-1).view(torch.uint8))
        if self._pieces[number].is_cuda:
            torch.cuda.current_stream(self._pieces[number].device).synchronize()
        return _pickled({"flattened_tensor": self._handle(number), "metadata": _metadata(bucket)})


class Sharing:
    """The weights of one publication on their way through shared memory."""

    def __init__(self, memory: SharedMemory, export: Export, digesting: Digesting | None) -> None:
        self._memory = memory
        self._export = export
        self._digesting = digesting

    def share(self, index: int) -> str:
        """Fill the next bucket; return its handle. The weights must not change before `finish`. Raises SendError."""
        taken = list(islice(self._export, len(self._memory.buckets[index])))
        if self._digesting is not None:
            for name, tensor in taken:
                self._digesting.add(name, tensor)
        return self._memory.fill(index, [tensor for _, tensor in taken])

    def finish(self) -> Digests | None:
        """Return the digests of what engines must hold, on the rank that makes them. Raises SendError."""
        next(self._export, None)  # lets it complain about tensors too many
        return None if self._digesting is None else self._digesting.result()

    def abandon(self) -> None:
        """Export to the end, for other ranks would wait for ever; the publication has failed."""
        self._export.close()


class _Mapped:
    """Pickles as what a reader calls to map memory."""

    def __init__(self, reduced: tuple[Any, ...]) -> None:
        self._reduced = reduced

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reduced


def _cuda_handles(pieces: Sequence[torch.Tensor]) -> Callable[[int], Any]:
    """Return the handle of each piece, made once: PyTorch wraps the memory in another count of readers each time."""
    from sglang.srt.utils.patch_torch import monkey_patch_torch_reductions
    from torch.multiprocessing import reductions

    monkey_patch_torch_reductions()  # a GPU is then named by its UUID, for each process numbers GPUs differently
    reduced = [reductions.reduce_tensor(piece) for piece in pieces]
    return lambda number: _Mapped(reduced[number])


def _file_handles(pieces: Sequence[torch.Tensor]) -> Callable[[int], Any]:
    """Return tensors that pickle as names of files: any process can open these, not only a child."""
    torch.multiprocessing.set_sharing_strategy("file_system")
    return lambda number: pieces[number]


def _metadata(bucket: Sequence[Tensor]) -> list[Any]:
    from sglang.srt.weight_sync.tensor_bucket import FlattenedTensorMetadata

    return [
        FlattenedTensorMetadata(
            name=each.spec.name,
            shape=torch.Size(each.spec.shape),
            dtype=getattr(torch, each.spec.dtype),
            start_idx=each.start,
            end_idx=each.stop,
            numel=each.spec.nbytes,
        )
        for each in bucket
    ]


def _pickled(content: Any) -> str:
    from sglang.srt.utils.common import MultiprocessingSerializer

    return str(MultiprocessingSerializer.serialize(content, output_str=True))
