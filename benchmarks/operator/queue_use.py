"""The part `queue`: many jobs for few GPUs, created at once, while the operator is killed. Are the GPUs used?"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from arena import NAMESPACE, Arena, arena

from support.operator.fake_head import serving
from support.operator.queue_fleet import Seen, ShortLivedHeads, Watches, apply_at_once, fleet, out_of_order, quota

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
    def bound(self) -> float:
        """Share of the GPUs that had a pod while somebody waited."""
        return self.seen.bound_gpu_s / (self.gpus * self.seen.busy_s)


def queue_use(jobs: int, gpus: int, life_s: float, kills: int) -> QueueUse:
    """Run so many jobs, whose drivers live so long, and kill the operator so often on the way."""
    heads = ShortLivedHeads(life_s)
    with arena(pods=8 * jobs, nodes_with_gpus=gpus // GPUS_OF_NODE, gpus=GPUS_OF_NODE) as place, serving(heads) as url:
        place.kubectl.apply(quota(NAMESPACE, gpus))
        place.start_kuberay()
        watches = Watches(place.kubectl, NAMESPACE)
        began = time.monotonic()
        try:
            _run(place, url, watches.seen, jobs, [jobs * (kill + 1) // (kills + 1) for kill in range(kills)])
        finally:
            watches.close()
        seconds = time.monotonic() - began
    return QueueUse(jobs, gpus, life_s, seconds, watches.seen, len(out_of_order(watches.seen)))


def _run(place: Arena, url: str, seen: Seen, jobs: int, kills: Sequence[int]) -> None:
    """Create the jobs, and kill the operator when so many of them have ended."""
    with place.operator(url) as operator:
        apply_at_once(place.kubectl, NAMESPACE, fleet(jobs, SIZES))
        _until_ended(seen, kills[0] if kills else jobs)
        operator.kill()
    for ended in (*kills[1:], jobs):
        with place.operator(url) as operator:
            _until_ended(seen, ended)
            operator.kill()


def _until_ended(seen: Seen, number: int) -> None:
    deadline = time.monotonic() + LONGEST_S
    while len(seen.ended) < number:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{len(seen.ended)} of {number} jobs have ended in {LONGEST_S:.0f} s")
        time.sleep(0.2)
