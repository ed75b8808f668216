"""The learner's side of a publication: lives in the process of learner rank 0, which has all Hugging Face tensors.

One pass over the tensors does both: it moves them, and digests them in threads meanwhile. The driver's side, which
announces the tensors to engines and compares the digests, is `sync/publisher.py`.
"""

import json
import os
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist

from rljob_api.sizing.tensors import ITEM_BYTES
from rljob_trainer.private_files import READABLE, changed
from rljob_trainer.sync.layout import EngineTensor, Sharding, TensorSpec, buckets, engine_tensors
from rljob_trainer.sync.rank.digest import Digest, host_bytes, tensor_digest
from rljob_trainer.sync.rank.group import abandon_group, join_group
from rljob_trainer.sync.rank_calls import Backend, Digests

Named = Iterable[tuple[str, torch.Tensor]]
Bucket = list[tuple[str, torch.Tensor]]

DIGEST_THREADS = 2
FILE_NAME = "model.safetensors"
WRITING = "model.safetensors.writing"
DTYPE_CODES = {
    "float32": "F32",
    "bfloat16": "BF16",
    "float16": "F16",
    "float8_e4m3fn": "F8_E4M3",
    "int32": "I32",
}


class SendError(RuntimeError):
    """The tensors could not be brought on their way."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """A process group that the learner is in."""

    group: dist.ProcessGroup
    timeout: timedelta


@dataclass(frozen=True, slots=True)
class Sending:
    """A bucket on its way to the engines."""

    bucket: Bucket
    works: list[dist.Work]


class WeightSender:
    """Sends weights to engines, again and again; `specs` fixes names, order, shapes and types once and for all."""

    def __init__(self, specs: Iterable[TensorSpec], sharding: Sharding, digest: Digest) -> None:
        self._specs = {spec.name: spec for spec in specs}
        self._ranks = [engine_tensors(tuple(self._specs.values()), sharding, rank) for rank in range(sharding.ranks)]
        self._digest = digest
        self._threads = ThreadPoolExecutor(DIGEST_THREADS, thread_name_prefix="digest")
        self._meeting: Meeting | None = None
        self._writing: Digesting | None = None

    def connect(self, address: str, port: int, world_size: int, name: str, backend: Backend, timeout_s: float) -> None:
        """Meet the engines as rank 0 of a new group; every transfer in it has the same deadline."""
        self.disconnect()
        group = join_group(address, port, world_size, 0, name, backend, timeout_s)
        self._meeting = Meeting(group, timedelta(seconds=timeout_s))

    def send(self, tensors: Named, bucket_bytes: int) -> Digests:
        """Broadcast all tensors; return the digests of what an engine must hold now. Raises SendError.

        A bucket is gathered from the learner's ranks while the bucket before it is sent. So there are copies of two
        buckets at most.
        """
        if (meeting := self._meeting) is None:
            raise SendError("send: not connected")
        digesting = self.digesting()
        sending: Sending | None = None
        with closing(checked(self._specs.values(), tensors)) as export:
            for bucket in buckets(self._specs.values(), bucket_bytes):
                gathered = list(islice(export, len(bucket)))
                self._finish(sending, meeting)
                sending = self._begin(gathered, meeting)
                for name, tensor in gathered:
                    digesting.add(name, tensor)
            next(export, None)  # lets it complain about tensors too many
            self._finish(sending, meeting)
        return digesting.result()

    def write(self, tensors: Named, directory: Path) -> None:
        """Write a Hugging Face checkpoint's weights. They are digested meanwhile, and while engines read: `written`.

        The file is rewritten in place, for fresh pages cost more than the copy, but it has its name only while it is
        whole: a reader finds all of it or none.
        """
        directory.mkdir(parents=True, exist_ok=True)
        header, offsets = safetensors_header(self._specs.values())
        writing, whole = directory / WRITING, directory / FILE_NAME
        if whole.exists():
            whole.rename(writing)
        with closing(self.digested(tensors)) as export, changed(writing, READABLE) as file:
            os.pwrite(file.fileno(), header, 0)
            for name, tensor in export:
                _write_at(file.fileno(), tensor.cpu(), offsets[name])
            file.truncate(len(header) + sum(spec.nbytes for spec in self._specs.values()))
        writing.rename(whole)

    def digested(self, tensors: Named) -> Generator[tuple[str, torch.Tensor], None, None]:
        """Yield tensors to be written; they are digested meanwhile, and while engines read. Raises SendError."""
        digesting = self.digesting()
        with closing(checked(self._specs.values(), tensors)) as export:
            for name, tensor in export:
                digesting.add(name, tensor)
                yield name, tensor
        self._writing = digesting

    def written(self) -> Digests:
        """Return the digests of what an engine that has read all must hold; the weights must still be the same."""
        if self._writing is None:
            raise SendError("written: nothing has been")
        return self._writing.result()

    def digests(self, tensors: Named) -> Digests:
        """Return the digests of what an engine with these weights must hold."""
        digesting = self.digesting()
        for name, tensor in checked(self._specs.values(), tensors):
            digesting.add(name, tensor)
        return digesting.result()

    def digesting(self) -> "Digesting":
        """Return what digests the tensors of one publication."""
        return Digesting(self._ranks, self._digest, self._threads)

    def disconnect(self) -> None:
        """Leave the group; members that still wait in it notice the closed connection."""
        meeting, self._meeting = self._meeting, None
        if meeting is not None:
            abandon_group(meeting.group)

    def _begin(self, bucket: Bucket, meeting: Meeting) -> Sending:
        with self._leaving_at_error(bucket):
            return Sending(bucket, [meeting.group.broadcast(_known(tensor), 0) for _, tensor in bucket])

    def _finish(self, sending: Sending | None, meeting: Meeting) -> None:
        """Wait until a bucket has arrived; None: there was none before."""
        if sending is None:
            return
        with self._leaving_at_error(sending.bucket):
            for work in sending.works:
                work.wait(meeting.timeout)

    @contextmanager
    def _leaving_at_error(self, bucket: Bucket) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            self.disconnect()
            raise SendError(f"broadcast {bucket[0][0]} to {bucket[-1][0]}: {error}") from error


class Digesting:
    """Digests engine tensors in threads, each as soon as its last piece is there; frees what is not needed."""

    def __init__(self, ranks: list[tuple[EngineTensor, ...]], digest: Digest, threads: ThreadPoolExecutor) -> None:
        self._digest = digest
        self._threads = threads
        self._futures: list[dict[str, Future[str]]] = [{} for _ in ranks]
        self._waiting: dict[str, list[tuple[int, EngineTensor]]] = {}
        self._seen: dict[str, torch.Tensor] = {}
        for rank, held in enumerate(ranks):
            for wanted in held:
                for piece in wanted.pieces:
                    self._waiting.setdefault(piece.name, []).append((rank, wanted))

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Note a tensor, which must not change before `result` returns."""
        self._seen[name] = tensor
        for rank, wanted in list(self._waiting.get(name, [])):
            if all(piece.name in self._seen for piece in wanted.pieces):
                tensors = {piece.name: self._seen[piece.name] for piece in wanted.pieces}
                self._futures[rank][wanted.name] = self._threads.submit(tensor_digest, wanted, tensors, self._digest)
                self._done(rank, wanted)

    def result(self) -> Digests:
        """Return all digests when they are done."""
        return tuple({name: future.result() for name, future in rank.items()} for rank in self._futures)

    def _done(self, rank: int, wanted: EngineTensor) -> None:
        for piece in wanted.pieces:
            self._waiting[piece.name].remove((rank, wanted))
            if not self._waiting[piece.name]:
                del self._seen[piece.name]


def checked(specs: Iterable[TensorSpec], tensors: Named) -> Generator[tuple[str, torch.Tensor], None, None]:
    """Yield contiguous tensors; raise SendError unless they come as announced, for the engines count on it.

    Exhausts `tensors` also when it is closed early: exporting is collective, other ranks would wait for ever.
    """
    expected = iter(specs)
    export = iter(tensors)
    try:
        for name, tensor in export:
            seen = TensorSpec(name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
            if (wanted := next(expected, None)) != seen:
                raise SendError(f"export: expected {wanted}, got {seen}")
            yield name, tensor.detach().contiguous()
        if (missing := next(expected, None)) is not None:
            raise SendError(f"export: ended before {missing.name}")
    finally:
        deque(export, maxlen=0)


def specs_of(tensors: Named) -> tuple[TensorSpec, ...]:
    """Return names, shapes and types of tensors, in their order."""
    return tuple(
        TensorSpec(name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")) for name, tensor in tensors
    )


def safetensors_header(specs: Iterable[TensorSpec]) -> tuple[bytes, dict[str, int]]:
    """Return the file's beginning, and where in the file each tensor begins.

    Wide types come first, so that each tensor begins at a multiple of its type's size: PyTorch maps no other.
    """
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    begins: dict[str, int] = {}
    end = 0
    for spec in sorted(specs, key=lambda each: -ITEM_BYTES[each.dtype]):
        begins[spec.name] = end
        end += spec.nbytes
        entries[spec.name] = {
            "dtype": DTYPE_CODES[spec.dtype],
            "shape": list(spec.shape),
            "data_offsets": [begins[spec.name], end],
        }
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    return header, {name: len(header) + begin for name, begin in begins.items()}


def _known(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor as the group knows it: Gloo does not know FP8, and engines on a CPU receive its bytes, too."""
    is_unknown = ITEM_BYTES[str(tensor.dtype).removeprefix("torch.")] == 1 and not tensor.is_cuda
    return tensor.view(torch.uint8) if is_unknown else tensor


def _write_at(file: int, tensor: torch.Tensor, offset: int) -> None:
    data = host_bytes(tensor)
    while data:
        written = os.pwrite(file, data, offset)
        data, offset = data[written:], offset + written
