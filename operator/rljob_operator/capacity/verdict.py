"""Never, Later or Fits: a job against all that limits its pods, and the nearest setting that fits. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rljob_api.errors import ManifestError
from rljob_api.reading.manifest import parse
from rljob_api.sections import Placement, Spec
from rljob_operator.capacity.demand import Pods, as_kueue_counts, demand, total
from rljob_operator.capacity.obstacle import Obstacle, Outcome
from rljob_operator.capacity.packing import Node, against_nodes
from rljob_operator.capacity.quantities import shown
from rljob_operator.capacity.queues import Queues, against_queue
from rljob_operator.capacity.quotas import Limit, Quota, against_limits, against_quotas, completed
from rljob_operator.identity import Manifest
from rljob_operator.job.admitted_job import AdmittedJob

MOST_TRIED = 24
"""settings that are tried for the nearest one that fits"""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What limits the pods of one namespace."""

    quotas: tuple[Quota, ...] = ()
    limits: tuple[Limit, ...] = ()
    nodes: tuple[Node, ...] | None = None
    """None: they may not be seen"""
    coming: tuple[Node, ...] | None = None
    """nodes that an autoscaler can bring; None: not known"""
    namespace: str = ""
    queues: Queues | None = None
    """of Kueue; None: they may not be seen"""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a job fits."""

    outcome: Outcome
    needs: Mapping[str, int]
    """of each resource, by all pods together"""
    obstacles: tuple[Obstacle, ...]
    """of this outcome"""
    instead: str | None = None
    """the nearest setting that fits, and what it needs"""

    @property
    def message(self) -> str:
        """Return `needs 12 × nvidia.com/gpu; ...; spec.placement: Colocated would need 8 × nvidia.com/gpu`."""
        short = dict.fromkeys(obstacle.resource for obstacle in self.obstacles if obstacle.resource is not None)
        needs = ", ".join(shown(name, self.needs[name]) for name in short if name in self.needs)
        texts = dict.fromkeys(obstacle.text for obstacle in self.obstacles)
        return "; ".join([*([f"needs {needs}"] if needs else []), *texts, *([self.instead] if self.instead else [])])


def verdict(job: AdmittedJob, capacity: Capacity, searches_for_later: bool = True) -> Verdict:
    """Return how a job fits that has no pods yet.

    The search for the nearest setting that fits takes ten times as long as all the rest. Without `searches_for_later`
    it is made only for a job that never fits.
    """
    found = judged(demand(job), capacity, job.spec.scheduling.queue)
    if found.outcome is Outcome.FITS or (found.outcome is Outcome.LATER and not searches_for_later):
        return found
    return replace(found, instead=_nearest(job, found, capacity))


def judged(pods: Sequence[Pods], capacity: Capacity, queue: str | None = None) -> Verdict:
    """Return how these pods fit, which are of a job in this LocalQueue; obstacles of the worst outcome only."""
    whole = tuple(completed(each, capacity.limits) for each in pods)
    obstacles = [*against_limits(whole, capacity.limits), *against_quotas(whole, capacity.quotas)]
    if capacity.nodes is not None:
        obstacles.extend(against_nodes(whole, capacity.nodes, capacity.coming))
    if queue is not None and capacity.queues is not None:
        counted = tuple(completed(as_kueue_counts(each), capacity.limits) for each in pods)
        obstacles.extend(against_queue(counted, capacity.namespace, queue, capacity.queues))
    worst = max((obstacle.outcome for obstacle in obstacles), default=Outcome.FITS)
    return Verdict(worst, total(whole), tuple(each for each in obstacles if each.outcome is worst))


def _nearest(job: AdmittedJob, found: Verdict, capacity: Capacity) -> str | None:
    """Return the first setting with a better outcome, and what it needs of what is short."""
    short = [obstacle.resource for obstacle in found.obstacles if obstacle.resource is not None]
    for _, (changes, named) in zip(range(MOST_TRIED), _changes(job.spec), strict=False):
        changed = _with(job, changes)
        if changed is None:
            continue
        other = judged(demand(changed), capacity, job.spec.scheduling.queue)
        if other.outcome < found.outcome:
            needs = ", ".join(shown(name, other.needs[name]) for name in dict.fromkeys(short) if name in other.needs)
            return f"{named} would need {needs}" if needs else f"{named} would fit"
    return None


Changes = Mapping[str, object]
"""value by path, for example `training.nodes`"""


def _changes(spec: Spec) -> Iterator[tuple[Changes, str]]:
    """Yield smaller settings, nearest first, with their text."""
    engines, nodes, per_node = spec.rollout.engines, spec.training.nodes, spec.training.gpus_per_node
    if spec.placement is Placement.DISAGGREGATED:
        yield {"placement": "Colocated"}, "spec.placement: Colocated"
        for fewer in _fewer(engines):
            yield {"rollout.engines": fewer}, f"spec.rollout.engines: {fewer}"
    for fewer in _fewer(nodes):
        yield _smaller(spec, fewer, per_node), f"spec.training.nodes: {fewer}{_and_engines(spec, fewer, per_node)}"
    for fewer in _fewer(per_node):
        yield _smaller(spec, nodes, fewer), f"spec.training.gpusPerNode: {fewer}{_and_engines(spec, nodes, fewer)}"


def _fewer(count: int) -> Iterator[int]:
    """Yield smaller counts: the next few, then halves."""
    near = range(count - 1, max(0, count - 4), -1)
    yield from near
    half = count // 2
    while half >= 1:
        if half not in near:
            yield half
        half //= 2


def _smaller(spec: Spec, nodes: int, per_node: int) -> Changes:
    changes: dict[str, object] = {"training.nodes": nodes, "training.gpusPerNode": per_node}
    engines = _engines(spec, nodes, per_node)
    return changes if engines is None else {**changes, "rollout.engines": engines}


def _and_engines(spec: Spec, nodes: int, per_node: int) -> str:
    engines = _engines(spec, nodes, per_node)
    return "" if engines is None else f" with spec.rollout.engines: {engines}"


def _engines(spec: Spec, nodes: int, per_node: int) -> int | None:
    """Return how many engines fit where they share the learner's GPUs; None: they all do, or have their own."""
    room = nodes * per_node // spec.rollout.gpus_per_engine
    shares = spec.placement is Placement.COLOCATED and spec.has_engines
    return max(1, room) if shares and room < spec.rollout.engines else None


def _with(job: AdmittedJob, changes: Changes) -> AdmittedJob | None:
    """Return the job with some values changed; None: that breaks a rule."""
    manifest: Manifest = {**job.manifest, "spec": dict(job.manifest["spec"])}
    for path, value in changes.items():
        section, _, name = path.rpartition(".")
        if section:
            manifest["spec"][section] = {**manifest["spec"].get(section, {}), name: value}
        else:
            manifest["spec"][name] = value
    try:
        return replace(job, manifest=manifest, spec=parse(manifest).spec)
    except ManifestError:
        return None
