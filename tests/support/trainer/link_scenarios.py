"""What ranks do to measure the network between them, where some links are slow or dead."""

import time
from datetime import timedelta

import torch
import torch.distributed as dist

from rljob_trainer.learners.link_report import LinkReport, Pair
from rljob_trainer.learners.rank.rendezvous.links import Wire, arrive, measure


class UnevenWire(Wire):
    """A network on which some pairs need longer for each message."""

    def __init__(self, rank: int, slow: dict[Pair, float], pair_s: float) -> None:
        super().__init__(torch.device("cpu"), pair_s)
        self._rank = rank
        self._slow = slow

    def exchange(self, partner: int, message: torch.Tensor) -> None:
        pair = (min(self._rank, partner), max(self._rank, partner))
        if self._rank == pair[1]:
            time.sleep(self._slow.get(pair, 0.0))
        super().exchange(partner, message)


def measured(rank: int, world_size: int, port: int, slow: dict[Pair, float], pair_s: float) -> LinkReport:
    """Return what this rank knows of the network."""
    store = dist.TCPStore("127.0.0.1", port, world_size, is_master=rank == 0, timeout=timedelta(seconds=60))
    dist.init_process_group("gloo", store=dist.PrefixStore("ranks", store), rank=rank, world_size=world_size)
    found = measure(UnevenWire(rank, slow, pair_s), store, rank, [f"pod-{each}" for each in range(world_size)])
    _leave_together(store, rank, world_size)
    return found


def arrives(rank: int, world_size: int, port: int, missing: int, limit_s: float) -> tuple[str, ...]:
    """Come to the others, unless this is the missing rank."""
    store = dist.TCPStore("127.0.0.1", port, is_master=rank == 0, timeout=timedelta(seconds=60))
    if rank == missing:
        time.sleep(60)
    places = arrive(store, rank, world_size, f"pod-{rank}", timedelta(seconds=limit_s))
    _leave_together(store, rank, world_size)
    return places


def _leave_together(store: dist.TCPStore, rank: int, world_size: int) -> None:
    """Let rank 0, which serves the store, end last."""
    store.set(f"done/{rank}", "")
    for other in range(world_size if rank == 0 else 0):
        store.get(f"done/{other}")
