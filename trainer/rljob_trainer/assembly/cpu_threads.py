"""How many CPU threads each process computes with."""

from dataclasses import dataclass

from rljob_api.sections import Placement


@dataclass(frozen=True, slots=True)
class Threads:
    """Threads of one process of each kind."""

    rank: int
    engine: int


def threads(placement: Placement, cores: int, ranks: int, engines: int) -> Threads:
    """Share the cores: alternately when colocated, else half to the learner and half to the engines; at least one each.

    Where one of them is missing, the other gets all.
    """
    alone = not ranks or not engines
    learner_cores, engine_cores = (
        (cores, cores) if alone or placement is Placement.COLOCATED else (cores // 2, cores - cores // 2)
    )
    return Threads(rank=max(1, learner_cores // max(1, ranks)), engine=max(1, engine_cores // max(1, engines)))
