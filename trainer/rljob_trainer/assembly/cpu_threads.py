"""How many CPU threads each process computes with."""

import os
from dataclasses import dataclass

from rljob_api.sections import Placement
from rljob_api.sizing.topology import sizes
from rljob_trainer.assembly.foundation import Foundation


@dataclass(frozen=True, slots=True)
class Threads:
    """Threads of one process of each kind."""

    rank: int
    engine: int


def cpu_threads(foundation: Foundation) -> Threads:
    """Return how many CPU threads each process computes with on this machine."""
    spec, placed = foundation.spec, foundation.topology
    cores = len(os.sched_getaffinity(0))
    # A replay has as many threads as the run that it repeats, and so the same sums to the bit.
    engines = len(placed.engines) if spec.debug.replay is None else sizes(spec).engines
    return threads(spec.placement, cores, len(placed.learner), engines)


def threads(placement: Placement, cores: int, ranks: int, engines: int) -> Threads:
    """Share the cores: alternately when colocated, else half to the learner and half to the engines; at least one each.

    Where one of them is missing, the other gets all.
    """
    alone = not ranks or not engines
    learner_cores, engine_cores = (
        (cores, cores) if alone or placement is Placement.COLOCATED else (cores // 2, cores - cores // 2)
    )
    return Threads(rank=max(1, learner_cores // max(1, ranks)), engine=max(1, engine_cores // max(1, engines)))
