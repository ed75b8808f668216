"""The learner's side of a publication by deltas: lives in the process of learner rank 0.

It keeps the bytes of what it offered last in host memory. An offer compares them with the new weights, tensor by
tensor, and writes what has changed. The whole weights are written only when a machine lacks the base of the delta.
`engines/actor/weight_copy.py` reads these files.
"""

from __future__ import annotations

import secrets
from collections.abc import Generator, Iterable
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
import xxhash

from rljob_api.sizing.tensors import ITEM_BYTES
from rljob_trainer.engines import weight_delta
from rljob_trainer.engines.weight_delta import Bytes
from rljob_trainer.engines.weight_offer import Delta, WeightFiles, digest
from rljob_trainer.private_files import READABLE, changed
from rljob_trainer.sync.layout import TensorSpec
from rljob_trainer.sync.rank.sender import SendError, safetensors_header

Export = Generator[tuple[str, torch.Tensor], None, None]
"""of tensors as announced, see `sender.checked`"""

WRITING = "writing"
MOST_SHARE = 0.9
"""of the weights' size: a larger delta would save less time than it takes"""


class DeltaWriter:
    """Writes each version of the weights as what has changed since the one before."""

    def __init__(self, specs: Iterable[TensorSpec]) -> None:
        self._specs = {spec.name: spec for spec in specs}
        self._header, self._offsets = safetensors_header(self._specs.values())
        self._weights: Bytes = np.zeros(len(self._header) + sum(spec.nbytes for spec in self._specs.values()), np.uint8)
        self._weights[: len(self._header)] = np.frombuffer(self._header, np.uint8)
        self._digest: str | None = None
        """of `_weights`; None: they are of no version, or of parts of two"""
        self._threads = weight_delta.threads("delta")

    def offer(self, export: Export, directory: Path) -> WeightFiles:
        """Write a delta to the version of the exported tensors, if there is one before and the delta is smaller.

        Files of earlier versions are removed. Raises SendError and OSError; the next offer then has no delta.
        """
        directory.mkdir(parents=True, exist_ok=True)
        base, self._digest = self._digest, None
        writing = directory / f"delta-{WRITING}"
        with closing(export), changed(writing, READABLE) as file:
            file.truncate(0)
            output = _Output(file, 0 if base is None else int(MOST_SHARE * len(self._weights)))
            for name, tensor in export:
                self._take(name, tensor, output)
        self._digest = digest(self._weights)
        is_of_use = not output.is_full and self._digest != base
        delta = Delta(base, output.digest(), output.nbytes) if base is not None and is_of_use else None
        files = WeightFiles(directory, self._digest, len(self._weights), delta, secrets.token_hex(8))
        kept = {files.whole_path}
        if delta is not None:
            kept.add(writing.rename(files.delta_path))
        for path in {*directory.glob("delta-*"), *directory.glob("whole-*")} - kept:
            path.unlink()
        return files

    def write_whole(self, files: WeightFiles) -> None:
        """Write the weights of the last offer, unless they are there. Raises SendError if `files` is another offer."""
        if files.digest != self._digest:
            raise SendError(f"write {files.whole_path}: the last offer was {self._digest}")
        if files.whole_path.exists():
            return
        writing = files.directory / f"whole-{WRITING}"
        with changed(writing, READABLE) as file:
            file.truncate(0)
            file.write(self._weights.data)
        writing.rename(files.whole_path)

    def _take(self, name: str, tensor: torch.Tensor, output: _Output) -> None:
        new: Bytes = tensor.cpu().reshape(-1).view(torch.uint8).numpy()
        begin = self._offsets[name]
        old = self._weights[begin : begin + len(new)]
        if not output.is_full:
            width = ITEM_BYTES[self._specs[name].dtype]
            for block in weight_delta.encoded(old, new, begin, width, self._threads):
                output.write(block)
        old[:] = new


class _Output:
    """A file that is of use only as long as it is small."""

    def __init__(self, file: BinaryIO, limit: int) -> None:
        self._file = file
        self._limit = limit
        self._digest = xxhash.xxh3_128()
        self.nbytes = 0

    @property
    def is_full(self) -> bool:
        """Whether it has reached its limit: nothing more is written."""
        return self.nbytes >= self._limit

    def write(self, content: bytes) -> None:
        self.nbytes += len(content)
        if not self.is_full:
            self._file.write(content)
            self._digest.update(content)

    def digest(self) -> str:
        return self._digest.hexdigest()
