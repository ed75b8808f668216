"""The part `queue`: many jobs for few GPUs, created at once, while the operator is killed. Are the GPUs used?"""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass

from api import RLJOBS, all_of, connected
from arena import NAMESPACE, Arena, arena

from local_cluster.kubectl import Manifest
from support.operator.fake_head import serving
from support.operator.queue_fleet import (
    CLIENTS,
    QUEUE,
    Seen,
    ShortLivedHeads,
    Watches,
    fleet,
    out_of_order,
    queue_of_kueue,
    quota,
)
from support.waiting import eventually

LONGEST_S = 3600.0
GPUS_OF_NODE = 8
SIZES = ((2, 1), (2, 1), (2, 2), (2, 2), (2, 4), (2, 8))
"""(GPUs of a pod, pods) of jobs; pods are alike, so kube-scheduler cannot break up room that the queue has found"""


@dataclass(frozen=True)
class QueueUse:
    """What the watches have shown."""

    jobs: int
    gpus: int
    life_s: float
    seconds: float
    """until the last job had ended"""
    seen: Seen
    out_of_order: int

    @property
    def held(self) -> float:
        """Share of the GPUs that were reserved while somebody waited."""
        return self.seen.held_gpu_s / (self.gpus * self.seen.busy_s)

    @property
    def ending(self) -> float:
        """Share of the GPUs that had a pod of a job without a reservation, which ends, while somebody waited."""
        return self.seen.ending_gpu_s / (self.gpus * self.seen.busy_s)

    @property
    def bound(self) -> float:
        """Share of the GPUs that had a pod while somebody waited."""
        return self.seen.bound_gpu_s / (self.gpus * self.seen.busy_s)


def queue_use(jobs: int, gpus: int, life_s: float, kills: int, is_kueues: bool = False) -> QueueUse:
    """Run so many jobs, whose drivers live so long, and kill the operator so often on the way.

    `is_kueues`: they wait in a queue of Kueue, which has the quota; else in the operator's, under a ResourceQuota.
    """
    heads = ShortLivedHeads(life_s)
    nodes = gpus // GPUS_OF_NODE
    with arena(8 * jobs, nodes, GPUS_OF_NODE, has_kueue=is_kueues) as place, serving(heads) as url:
        place.start_kuberay()
        if is_kueues:
            place.start_kueue()
            place.kubectl.apply(*queue_of_kueue(NAMESPACE, gpus))
        else:
            place.kubectl.apply(quota(NAMESPACE, gpus))
        given = fleet(jobs, SIZES, queue=QUEUE if is_kueues else None)
        watches = Watches(place.kubectl, NAMESPACE)
        began = time.monotonic()
        try:
            _run(place, url, watches.seen, given, [jobs * (kill + 1) // (kills + 1) for kill in range(kills)])
        finally:
            watches.close()
        seconds = time.monotonic() - began
    return QueueUse(jobs, gpus, life_s, seconds, watches.seen, len(out_of_order(watches.seen)))


def _run(place: Arena, url: str, seen: Seen, jobs: Sequence[Manifest], kills: Sequence[int]) -> None:
    """Create the jobs, and kill the operator when so many of them have ended."""
    first, *later = (*kills, len(jobs))
    with place.operator(url) as operator:
        eventually(lambda: operator.log, lambda text: "action=lead" in text)
        asyncio.run(_create_at_once(place, jobs))
        _until_ended(seen, first)
        operator.kill()
    for ended in later:
        with place.operator(url) as operator:
            _until_ended(seen, ended)
            operator.kill()


async def _create_at_once(place: Arena, jobs: Sequence[Manifest]) -> None:
    """Create jobs by twenty clients at once: connections, because twenty kubectls take both cores."""
    async with connected(place.server) as api:

        async def create(job: Manifest) -> None:
            body = {**job, "metadata": {"name": job["metadata"]["name"], "namespace": NAMESPACE}}
            await api.send("POST", RLJOBS, json.dumps(body).encode())

        await all_of(create, jobs, CLIENTS)


def _until_ended(seen: Seen, number: int) -> None:
    deadline = time.monotonic() + LONGEST_S
    while len(seen.ended) < number:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{len(seen.ended)} of {number} jobs have ended in {LONGEST_S:.0f} s")
        time.sleep(0.2)
