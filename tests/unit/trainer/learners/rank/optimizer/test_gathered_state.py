"""The optimizer's state of several data-parallel ranks: the first rank gets every number at its place.

The ranks run one after the other, the first one last; what each sends stands in for the collective.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from megatron.core.optimizer.distrib_optimizer import Range

from rljob_trainer.learners.rank.optimizer import optimizer_state
from rljob_trainer.learners.rank.optimizer.optimizer_state import STATE

Bucket = list[tuple[int, int]]
"""for each parameter the free numbers before it, and its size"""
buckets = st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 7)), min_size=1, max_size=3), max_size=3)
pieces = st.integers(1, 9) | st.just(2**24)


@dataclass
class Ranks:
    """Carries what the others send to the first rank, call by call."""

    size: int
    sent: dict[int, list[torch.Tensor]] = field(default_factory=dict)

    def run(self, parts: list[Any], gather: Callable[[Any], Any]) -> list[Any]:
        """Return what each rank gathers. Raises when a call of one has no counterpart of another."""
        others = [self._one(rank, parts, gather) for rank in range(1, self.size)]
        found = [self._one(0, parts, gather), *others]
        assert {len(sent) for sent in self.sent.values()} <= {self.calls}
        return found

    def _one(self, rank: int, parts: list[Any], gather: Callable[[Any], Any]) -> Any:
        self.calls, self.sent[rank] = 0, []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.distributed, "get_global_rank", lambda group, rank: ("global", group, rank))
            patch.setattr(torch.distributed, "gather", self._gather)
            return gather(parts[rank])

    def _gather(self, sent: torch.Tensor, received: list[torch.Tensor] | None, first: Any, group: Any) -> None:
        assert first == ("global", group, 0)
        if received is not None:
            assert len(received) == self.size
            for rank, place in enumerate(received):
                piece = sent if rank == 0 else self.sent[rank][self.calls]
                assert place.shape == piece.shape, "a collective needs equal shapes"
                place.copy_(piece)
        self.sent[group.rank()].append(sent)
        self.calls += 1


def laid_out(buffers: list[list[Bucket]], ranks: int) -> tuple[list[Any], list[dict[str, torch.Tensor]]]:
    """Return each rank's part of an optimizer as Megatron lays it out, and what its buffers hold up to the last
    parameter's end."""
    parts = [optimizer_part(rank, ranks) for rank in range(ranks)]
    numbers = itertools.count(1)
    wholes = []
    for listed in buffers:
        for part in parts:
            part.buffers.append(SimpleNamespace(buckets=[], param_dtype=torch.bfloat16, param_index_map={}))
            part.gbuf_ranges.append({(torch.bfloat16, torch.float32): []})
        whole: dict[str, list[float]] = {name: [] for name in STATE}
        for bucket in listed:
            filled = add_bucket(parts, bucket, numbers)
            for name in STATE:
                whole[name] += filled[name]
        length = max((end for _, end, _ in parts[0].buffers[-1].param_index_map.values()), default=0)
        wholes.append({name: torch.tensor(whole[name][:length]) for name in STATE})
    return parts, wholes


def optimizer_part(rank: int, ranks: int) -> Any:
    group = SimpleNamespace(rank=lambda: rank, size=lambda: ranks)
    states: dict[Any, dict[str, torch.Tensor]] = {}
    return SimpleNamespace(
        data_parallel_group=group,
        buffers=[],
        gbuf_ranges=[],
        states=states,
        _get_main_param_and_optimizer_states=lambda parameter: states[parameter],
    )


def add_bucket(parts: list[Any], bucket: Bucket, numbers: "itertools.count[int]") -> dict[str, list[float]]:
    """Share a bucket out in equal parts, padded for that. Return its numbers, with a 0 where no parameter is."""
    ranks, ends = len(parts), list(itertools.accumulate(gap + size for gap, size in bucket))
    share, before = -(-ends[-1] // ranks), parts[0].buffers[-1].buckets
    offset = sum(len(each.grad_data) for each in before)
    filled = {name: [0.0] * (ranks * share) for name in STATE}
    maps: list[dict[Any, Any]] = [{} for _ in parts]
    for parameter, (end, (_, size)) in enumerate(zip(ends, bucket, strict=True)):
        key = f"{len(parts[0].states)}-{next(numbers)}-{parameter}"
        for name in STATE:
            filled[name][end - size : end] = [float(next(numbers)) for _ in range(size)]
        for rank, part in enumerate(parts):
            part.buffers[-1].param_index_map[key] = offset + end - size, offset + end, len(before)
            low, high = max(end - size, rank * share), min(end, (rank + 1) * share)
            if low < high:
                maps[rank][key] = {"gbuf_local": Range(low - rank * share, high - rank * share)}
                part.states[key] = {name: torch.tensor([filled[name][low:high]]) for name in STATE}
    for part, places in zip(parts, maps, strict=True):
        part.buffers[-1].buckets.append(SimpleNamespace(offset=offset, grad_data=torch.zeros(ranks * share)))
        (ranges,) = part.gbuf_ranges[-1].values()
        ranges.append({"param_map": places})
    return filled


@settings(max_examples=40)
@given(st.lists(buckets, max_size=2), st.integers(1, 4), pieces)
def test_the_first_rank_gets_every_number_at_its_place(buffers: list[list[Bucket]], ranks: int, piece: int) -> None:
    parts, wholes = laid_out(buffers, ranks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimizer_state, "PIECE", piece)
        first, *others = Ranks(ranks).run(parts, lambda part: optimizer_state.gathered(part, empty_data=False))
    assert others == [None] * (ranks - 1)
    assert first == {
        index: {(torch.bfloat16, torch.float32): {name: Same(whole[name]) for name in STATE}}
        for index, whole in enumerate(wholes)
    }


@settings(max_examples=40)
@given(st.lists(buckets, max_size=2), st.integers(1, 4))
def test_without_data_every_rank_has_the_form_and_nothing_is_sent(buffers: list[list[Bucket]], ranks: int) -> None:
    parts, wholes = laid_out(buffers, ranks)
    carried = Ranks(ranks)
    found = carried.run(parts, lambda part: optimizer_state.gathered(part, empty_data=True))
    form = {
        index: {(torch.bfloat16, torch.float32): {name: Same(torch.zeros(len(whole[name]))) for name in STATE}}
        for index, whole in enumerate(wholes)
    }
    assert (found, carried.calls) == ([form] * ranks, 0)


@settings(max_examples=40)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 9))
def test_no_rank_sends_more_than_a_piece_at_once(sizes: list[int], piece: int) -> None:
    parts, _ = laid_out([[[(0, size)] for size in sizes]], 2)
    carried = Ranks(2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimizer_state, "PIECE", piece)
        carried.run(parts, lambda part: optimizer_state.gathered(part, empty_data=False))
    lengths = {len(sent) for sent in carried.sent[0]}
    assert max(lengths) == min(piece, max(-(-size // 2) for size in sizes))


def test_a_place_of_the_size_of_its_piece_receives_it_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    exact, short, received = torch.zeros(3), torch.zeros(2), list[torch.Tensor]()
    monkeypatch.setattr(torch.distributed, "get_global_rank", lambda group, rank: rank)
    monkeypatch.setattr(torch.distributed, "gather", lambda sent, into, *_: received.extend(into))
    optimizer_state.gather(torch.ones(3), [exact, short], SimpleNamespace())  # type: ignore[arg-type]
    assert received[0] is exact and received[1] is not short


def test_only_the_first_rank_makes_room_for_the_whole() -> None:
    parts, _ = laid_out([[[(0, 4)]]], 2)

    def room(part: Any) -> dict[str, torch.Tensor]:
        return optimizer_state._gathered_buffer(part, 0, part is parts[0])

    first, other = Ranks(2).run(parts, room)
    assert (first.keys(), other) == (set(STATE), {})


class Same:
    """Equals a tensor of the same type on the same device with the same numbers."""

    def __init__(self, wanted: torch.Tensor) -> None:
        self.wanted = wanted

    def __eq__(self, found: object) -> bool:
        return isinstance(found, torch.Tensor) and found.dtype == self.wanted.dtype and torch.equal(found, self.wanted)

    def __repr__(self) -> str:
        return f"Same({self.wanted})"
