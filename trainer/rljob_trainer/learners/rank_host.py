"""What runs in a rank's Ray actor before the rank does. The driver imports it to name it, and so without torch."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

import ray

from rljob_trainer.processes.stacks import Stacks, thread_stacks


class RankHost:
    """What runs in a Ray actor: a rank, made when all hosts are known."""

    def __init__(self) -> None:
        self._rank: Any = None

    def address(self) -> tuple[str, int]:
        """Return this node's address and a port where this process serves a store, for the ranks or engines to meet."""
        from rljob_trainer.learners.rank.rendezvous.store import open_store  # the driver need not load torch

        host = ray.util.get_node_ip_address()
        return host, open_store(host)

    def build(self, make: Callable[..., Any], rank: int, world_size: int, address: str, port: int) -> None:
        """Make the rank; returns when all ranks have met."""
        self._rank = make(rank=rank, world_size=world_size, master_address=address, master_port=port)

    def call(self, method: str, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        """Call a method of the rank."""
        return getattr(self._rank, method)(*arguments, **options)

    def stacks(self) -> Stacks:
        """Return the stacks of all threads of this process, also while another call hangs."""
        return thread_stacks()

    def stay(self) -> None:
        """Never return: the call fails when this process is gone."""
        threading.Event().wait()
