"""Measures the network between the ranks before the first step: the whole group, and pair by pair where that is slow.

A link that hangs is named: pairs exchange messages before the whole group meets, and have less time than the group.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

from rljob_trainer.learners.errors import LinkError
from rljob_trainer.learners.link_report import Link, LinkReport, Pair, named, rounds, sent, wants_all_pairs

T = TypeVar("T")
PAIR_S = 30.0
"""longest wait for one message; NCCL connects two ranks at their first one"""
BUDGET_S = 5.0
"""for all pairs; the round that exceeds it is the last"""
FIRST_ROUNDS = 2
"""that are always measured"""
REPEATS = 3
"""the fastest counts"""
SMALL = 8
"""[bytes]"""
LARGE = {"cpu": 1 << 22, "cuda": 1 << 26}
"""[bytes]"""
POLL_S = 0.0002
CAUSE_S = 5.0
"""for a pair to report its link, before all others report that the group failed"""


class Wire:
    """Messages between ranks over the default process group, each with a deadline."""

    def __init__(self, device: torch.device, pair_s: float = PAIR_S) -> None:
        self.device = device
        self.pair_s = pair_s

    def exchange(self, partner: int, message: torch.Tensor) -> None:
        """Send the message to the partner, and get its message of the same size. Raises RuntimeError."""
        got = torch.empty_like(message)
        works = dist.batch_isend_irecv([dist.P2POp(dist.isend, message, partner), dist.P2POp(dist.irecv, got, partner)])
        for work in works:
            self._finish(work, self.pair_s)

    def all_reduce(self, message: torch.Tensor) -> None:
        """Add the message of all ranks. Raises RuntimeError."""
        # Longer than a pair has, so that the two ranks of a link that hangs report it before the others do.
        self._finish(dist.all_reduce(message, async_op=True), 2 * self.pair_s)

    def _finish(self, work: "dist.Work", limit_s: float) -> None:
        if self.device.type == "cpu":
            work.wait(timedelta(seconds=limit_s))
            return
        deadline = time.monotonic() + limit_s
        while not work.is_completed():  # waiting for NCCL would only put the wait into the stream
            if time.monotonic() > deadline:
                raise RuntimeError(f"no answer within {limit_s:g} s")
            time.sleep(POLL_S)


def arrive(store: dist.Store, rank: int, ranks: int, place: str, timeout: timedelta) -> tuple[str, ...]:
    """Return the place of each rank, once all are here. Raises LinkError that names those that are not."""
    store.set(str(rank), place)
    deadline = time.monotonic() + timeout.total_seconds()
    for other in range(ranks):
        left = max(0.001, deadline - time.monotonic())
        try:
            store.wait([str(other)], timedelta(seconds=left))
        except RuntimeError as error:
            there = [each for each in range(ranks) if store.check([str(each)])]
            missing = [each for each in range(ranks) if each not in there]
            here = ", ".join(f"rank {each} on {store.get(str(each)).decode()}" for each in there)
            raise LinkError(
                f"ranks {missing} have not come to the other ranks within {timeout.total_seconds():g} s; here: {here}"
            ) from error
    return tuple(store.get(str(each)).decode() for each in range(ranks))


def measure(wire: Wire, store: dist.Store, rank: int, places: Sequence[str]) -> LinkReport:
    """Measure the network, on every rank; return what all have measured. Raises LinkError for a link that hangs."""
    group = _Group(wire, store, rank, tuple(places))
    ranks, links = len(places), list[Link]()
    began = time.monotonic()
    plan = rounds(ranks)
    for pairs in plan[:FIRST_ROUNDS]:
        links += group.round(pairs)
        group.is_late(began)  # no rank begins the next one before all have ended this one
    small, large = (_message(wire, size) for size in (SMALL, LARGE[wire.device.type]))
    latency_s = group.together(lambda: _fastest(lambda: wire.all_reduce(small)))
    seconds = group.together(lambda: _fastest(lambda: wire.all_reduce(large)))
    bandwidth = sent(ranks, large.numel(), seconds)
    if group.wants_all_pairs(bandwidth, links):
        for pairs in plan[FIRST_ROUNDS:]:
            links += group.round(pairs)
            if group.is_late(began):
                break
    return LinkReport(group.places, latency_s, bandwidth, group.gathered("all", links))


@dataclass(frozen=True, slots=True)
class _Group:
    """This rank among the others. Methods are collective."""

    wire: Wire
    store: dist.Store
    rank: int
    places: tuple[str, ...]

    def round(self, pairs: Sequence[Pair]) -> list[Link]:
        """Take part in one round; return the link if this is its first rank."""
        pair = next((pair for pair in pairs if self.rank in pair), None)
        if pair is None:
            return []
        wire, partner = self.wire, pair[0] + pair[1] - self.rank
        small, large = (_message(wire, size) for size in (SMALL, LARGE[wire.device.type]))
        try:
            wire.exchange(partner, small)  # connects the two
            latency_s = _fastest(lambda: wire.exchange(partner, small))
            seconds = _fastest(lambda: wire.exchange(partner, large))
        except RuntimeError as error:
            both = " and ".join(named(rank, self.places) for rank in pair)
            raise self._dead(f"{both} cannot exchange data over the network: {error}") from error
        return [Link(*pair, latency_s, large.numel() / seconds)] if self.rank == pair[0] else []

    def is_late(self, began: float) -> bool:
        """Return the same on every rank, once all are here: whether one of them has exceeded the budget."""
        late = torch.tensor([float(time.monotonic() - began > BUDGET_S)], device=self.wire.device)
        self.together(lambda: self.wire.all_reduce(late))
        return bool(late.item())

    def together(self, act: Callable[[], T]) -> T:
        try:
            return act()
        except RuntimeError as error:
            self._wait_for_cause()
            who = f"{named(self.rank, self.places)} cannot exchange data over the network with"
            raise self._dead(f"{who} all {len(self.places)} ranks: {error}") from error

    def wants_all_pairs(self, bandwidth: float, links: Sequence[Link]) -> bool:
        """Return what rank 0 decides with the links of all ranks."""
        known = self.gathered("first", links)
        if self.rank == 0:
            self.store.set("more", str(int(wants_all_pairs(bandwidth, known))))
        return bool(self.store.get("more") == b"1")

    def gathered(self, key: str, links: Sequence[Link]) -> tuple[Link, ...]:
        """Return the links of all ranks."""
        self.store.set(f"{key}/{self.rank}", json.dumps([asdict(link) for link in links]))
        texts = [self.store.get(f"{key}/{rank}") for rank in range(len(self.places))]
        return tuple(Link(**link) for text in texts for link in json.loads(text))

    def _wait_for_cause(self) -> None:
        """Let a pair say first that its link hangs: gloo closes all connections of the rank that notices it."""
        deadline = time.monotonic() + CAUSE_S
        while not self.store.check(["dead"]) and time.monotonic() < deadline:
            time.sleep(0.1)

    def _dead(self, text: str) -> LinkError:
        """Return the first error of all ranks: those of others follow, because a rank that failed no longer answers."""
        first = self.store.compare_set("dead", "", text)
        return LinkError(first.decode())


def _message(wire: Wire, size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.uint8, device=wire.device)


def _fastest(act: Callable[[], None]) -> float:
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        act()
        times.append(time.perf_counter() - began)
    return min(times)
