"""A delta restores any bytes exactly, and what is no delta is refused."""

import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rljob_trainer.engines import weight_delta
from rljob_trainer.engines.weight_delta import HEADER, Bytes, DeltaError, apply, encoded, threads

WORKERS = threads("test")
NAN_BF16, NAN_FP32 = (np.frombuffer(pattern, np.uint8) for pattern in (b"\xc1\x7f\x01\xff", b"\x01\x00\xc0\x7f"))


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_delta, "BLOCK_ELEMENTS", 5)


def delta(old: Bytes, new: Bytes, width: int, begin: int = 0) -> bytes:
    return b"".join(encoded(old, new, begin, width, WORKERS))


def applied(content: bytes, weights: Bytes) -> Bytes:
    held = weights.copy()
    apply(content, held, WORKERS)
    return held


@st.composite
def versions(draw: st.DrawFn) -> tuple[int, int, Bytes, Bytes]:
    """Return the width of an element, an odd or even place, and two versions of as many elements."""
    width, elements = draw(st.sampled_from((1, 2, 4))), draw(st.integers(0, 23))
    some = arrays(np.uint8, width * elements)
    return width, draw(st.integers(0, 9)), draw(some), draw(some)


@given(versions())
def test_any_bytes_become_any_others(drawn: tuple[int, int, Bytes, Bytes]) -> None:
    width, begin, old, new = drawn
    before, after = (
        np.concatenate([np.full(begin, 7, np.uint8), each, np.full(1, 9, np.uint8)]) for each in (old, new)
    )
    assert applied(delta(old, new, width, begin), before).tobytes() == after.tobytes()


@given(versions(), st.data())
def test_what_changes_a_little_is_restored_and_what_does_not_is_left_out(
    drawn: tuple[int, int, Bytes, Bytes], data: st.DataObject
) -> None:
    width, _, old, other = drawn
    is_new = np.repeat(data.draw(arrays(np.bool_, len(old) // width)), width)
    new = np.where(is_new, other, old)
    content = delta(old, new, width)
    assert applied(content, old).tobytes() == new.tobytes()
    assert (content == b"") == (old.tobytes() == new.tobytes())


@pytest.mark.parametrize(("width", "pattern"), [(2, NAN_BF16), (4, NAN_FP32)])
def test_patterns_of_nan_are_restored_to_the_bit(width: int, pattern: Bytes) -> None:
    numbers = np.zeros(len(pattern), np.uint8)
    assert applied(delta(numbers, pattern, width), numbers).tobytes() == pattern.tobytes()
    assert applied(delta(pattern, numbers, width), pattern).tobytes() == numbers.tobytes()


@pytest.mark.parametrize(("dtype", "share", "most"), [(np.uint16, 0.05, 0.03), (np.uint32, 0.05, 0.03)])
def test_few_and_small_changes_make_a_small_delta(
    monkeypatch: pytest.MonkeyPatch, dtype: type[np.unsignedinteger[int]], share: float, most: float
) -> None:
    monkeypatch.undo()
    chance = np.random.default_rng(0)
    old = chance.integers(0, np.iinfo(dtype).max, 2**18, dtype)
    new = old + np.where(chance.random(2**18) < share, chance.choice((1, -1), 2**18), 0).astype(dtype)
    content = delta(old.view(np.uint8), new.view(np.uint8), old.itemsize)
    assert len(content) < most * old.nbytes
    assert applied(content, old.view(np.uint8)).tobytes() == new.tobytes()


def test_everything_changed_by_chance_is_hardly_larger_than_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    old, new = np.random.default_rng(0).integers(0, 256, (2, 2**18), np.uint8)
    assert len(delta(old, new, 4)) < 1.01 * 2**18


WEIGHTS = np.arange(20, dtype=np.uint8)
FIRST = np.array([1, 0, 0, 0], np.uint8)


def broken(whole: bytes) -> Iterator[tuple[str, bytes]]:
    begin, elements, width, *lengths = HEADER.unpack_from(whole)
    parts = whole[HEADER.size :]
    yield "a header that ends early", whole[: HEADER.size - 1]
    yield "a block that ends early", whole[:-1]
    yield "another width", HEADER.pack(begin, elements, 3, *lengths) + parts
    yield "a block behind the end", HEADER.pack(begin + 2, elements, width, *lengths) + parts
    yield "more elements than bits", HEADER.pack(0, 9, 2, *lengths) + parts
    yield "fewer elements than differences", HEADER.pack(0, 1, 2, *lengths) + parts
    yield "an unchanged element behind the end", delta(WEIGHTS[:4], WEIGHTS[:4] ^ FIRST, 2, begin=18)
    yield "no zstd", whole[: HEADER.size] + bytes(len(parts))


WHOLE = delta(WEIGHTS[:4], WEIGHTS[:4] + np.uint8(1), 2, begin=16)


@pytest.mark.parametrize("content", [pytest.param(content, id=what) for what, content in broken(WHOLE)])
def test_what_does_not_read_as_a_delta_is_refused(content: bytes) -> None:
    with pytest.raises(DeltaError, match="cannot be read"):
        applied(content, WEIGHTS)


def test_the_order_of_blocks_does_not_matter() -> None:
    old, new = np.zeros(40, np.uint8), np.arange(40, dtype=np.uint8)
    content = list(encoded(old, new, 0, 4, WORKERS))
    assert len(content) == 2
    assert applied(b"".join(reversed(content)), old).tobytes() == new.tobytes()


def test_threads_are_no_more_than_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(3)))
    with threads("few") as few:
        assert isinstance(few, ThreadPoolExecutor)
        assert few._max_workers == 3


def test_a_header_has_the_same_size_on_every_machine() -> None:
    assert HEADER.size == struct.calcsize("<QIBII") == 21
