"""What has changed between two versions of the weights, compressed. Knows neither tensors nor engines, only bytes.

A delta is a row of blocks, each of some elements of 1, 2 or 4 bytes. A block says which of its elements differ, by one
bit for each, and by how much: the difference of the bit patterns as integers, which is small where the weights are
close. Small differences have high bytes of zeros; the bytes are sorted by their place, and zstd makes little of both
parts. Blocks without a difference are left out. Any bytes are restored exactly, those of NaN too.
"""

import os
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow

Bytes = npt.NDArray[np.uint8]

BLOCK_ELEMENTS = 2**22
HEADER = struct.Struct("<QIBII")
"""where the block begins [bytes], elements, bytes of one, compressed bytes of the bits and of the differences"""
SIGNED: dict[int, type[np.signedinteger[Any]]] = {1: np.int8, 2: np.int16, 4: np.int32}
UNSIGNED: dict[int, type[np.unsignedinteger[Any]]] = {1: np.uint8, 2: np.uint16, 4: np.uint32}
ZSTD = pyarrow.Codec("zstd", compression_level=1)  # level 3 takes longer and is not smaller
MOST_THREADS = 8


class DeltaError(RuntimeError):
    """A delta does not lead from what is held to what is wanted; the text says why. Nothing else is wrong."""


@dataclass(frozen=True, slots=True)
class _Block:
    """A block of a delta, as it was read."""

    begin: int
    stop: int
    """places in the weights [bytes]"""
    width: int
    bits: memoryview
    differences: memoryview


def threads(name: str) -> ThreadPoolExecutor:
    """Return threads for blocks: numpy and zstd compute at the same time in them."""
    return ThreadPoolExecutor(min(MOST_THREADS, len(os.sched_getaffinity(0))), thread_name_prefix=name)


def encoded(old: Bytes, new: Bytes, begin: int, width: int, workers: ThreadPoolExecutor) -> Iterator[bytes]:
    """Yield the blocks that lead from `old` to `new`, which have the same length, a multiple of `width` [bytes].

    They stand at `begin` [bytes] in the weights. Neither may change before the last block is yielded.
    """
    step = BLOCK_ELEMENTS * width
    starts = range(0, len(new), step)
    return workers.map(
        lambda start: _encoded(old[start : start + step], new[start : start + step], begin + start, width), starts
    )


def apply(delta: bytes, weights: Bytes, workers: ThreadPoolExecutor) -> None:
    """Change `weights` in place by the blocks of a delta.

    Raises DeltaError if it does not read as a delta of weights of this size; they may be changed in part then.
    """
    try:
        for _ in workers.map(lambda block: _apply(block, weights), list(_blocks(delta))):
            pass
    except (struct.error, ValueError, KeyError, OSError) as error:
        raise DeltaError(f"the delta cannot be read: {error}") from error


def _encoded(old: Bytes, new: Bytes, begin: int, width: int) -> bytes:
    difference = new.view(UNSIGNED[width]) - old.view(UNSIGNED[width])
    is_changed = difference != 0
    changed = difference[is_changed].view(SIGNED[width])
    if not changed.size:
        return b""
    folded = (changed << 1) ^ (changed >> (8 * width - 1))  # 0, -1, 1, -2: small for both signs
    by_place = np.ascontiguousarray(folded.view(np.uint8).reshape(-1, width).T)
    bits, differences = _compressed(np.packbits(is_changed)), _compressed(by_place)
    return HEADER.pack(begin, len(difference), width, len(bits), len(differences)) + bits + differences


def _blocks(delta: bytes) -> Iterator[_Block]:
    content, at = memoryview(delta), 0
    while at < len(content):
        begin, elements, width, *lengths = HEADER.unpack_from(content, at)
        parts = at + HEADER.size, at + HEADER.size + lengths[0], at + HEADER.size + sum(lengths)
        if parts[2] > len(content):
            raise ValueError(f"it ends {parts[2] - len(content)} bytes early")
        yield _Block(begin, begin + elements * width, width, content[parts[0] : parts[1]], content[parts[1] : parts[2]])
        at = parts[2]


def _apply(block: _Block, weights: Bytes) -> None:
    if block.stop > len(weights):
        raise ValueError(f"a block ends at byte {block.stop} of {len(weights)}")
    held = weights[block.begin : block.stop].view(UNSIGNED[block.width])
    bits = _decompressed(block.bits, -(-len(held) // 8))
    is_changed = np.unpackbits(bits, count=len(held)).view(np.bool_)
    by_place = _decompressed(block.differences, int(np.count_nonzero(is_changed)) * block.width)
    folded = np.ascontiguousarray(by_place.reshape(block.width, -1).T).view(UNSIGNED[block.width])[:, 0]
    held[is_changed] += (folded >> 1) ^ (~(folded & 1) + 1)


def _compressed(content: Bytes) -> bytes:
    compressed: bytes = ZSTD.compress(content, asbytes=True)
    return compressed


def _decompressed(content: memoryview, size: int) -> Bytes:
    """Return `size` bytes. Raises OSError if it is another number."""
    return np.frombuffer(ZSTD.decompress(content, decompressed_size=size), np.uint8)
