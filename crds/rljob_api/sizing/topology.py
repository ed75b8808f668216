"""Which processes a run has, on how many GPUs of how many nodes. The only place that knows.

Admission, the trainer's placement groups, the operator's cluster and `rljob plan` all ask here. On a machine without
GPUs a slot is one process instead of one GPU; nothing else changes.

    Colocated        learner and engines on the same slots, alternately:  max(learner, engines) slots
    Disaggregated    each on other slots:                                learner + engines slots

A topology is a few numbers, however large the run: admission and the operator count nodes by their shapes. It names
single nodes, ranks and engines for those who ask, on the run's own machines.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from rljob_api.sections import Placement, Spec
from rljob_api.sizing.parallel_layout import ParallelLayout, parallel_layout

NodeGroup = Literal["workers", "trainer", "rollout"]
GPU = "nvidia.com/gpu"
"""what a pod that wants GPUs asks Kubernetes for, unless `pods.gpuResource` names another resource"""
REST = "-rest"
"""ends the name of a Ray worker group for a last node with fewer GPUs than the others of its group"""


@dataclass(frozen=True, slots=True)
class Slot:
    """One GPU."""

    node: int
    """index in `Topology.nodes`"""
    gpu: int
    """index on its node"""


@dataclass(frozen=True, slots=True)
class Node:
    """One machine, pod or Ray node."""

    group: NodeGroup
    """`workers` holds both learner and engines; `trainer` and `rollout` hold one kind"""
    index: int
    """number within its group"""
    gpus: int

    @property
    def name(self) -> str:
        return f"{self.group}-{self.index}"


@dataclass(frozen=True, slots=True)
class Shape:
    """Nodes that are alike, and follow each other."""

    group: NodeGroup
    gpus: int
    """of each"""
    count: int
    first: int = 0
    """number of the first within its group"""


@dataclass(frozen=True, slots=True)
class LearnerRank:
    """One process of the learner, with its coordinates in Megatron's order: tensor, context, data, pipeline."""

    rank: int
    tensor: int
    context: int
    data: int
    pipeline: int
    slot: Slot


@dataclass(frozen=True, slots=True)
class PlacedEngine:
    """The slots of one SGLang server."""

    index: int
    slots: tuple[Slot, ...]
    """one for each tensor-parallel rank, all on one node"""

    @property
    def name(self) -> str:
        return f"engine-{self.index}"


@dataclass(frozen=True)  # no slots: a cached property needs a place
class Topology:
    """Where every process of a run sits."""

    placement: Placement
    layout: ParallelLayout
    shapes: tuple[Shape, ...]
    """the nodes, in their order"""
    ranks: int
    """of the learner; 0: it is left out"""
    num_engines: int
    gpus_per_engine: int

    @property
    def gpus(self) -> int:
        return sum(shape.gpus * shape.count for shape in self.shapes)

    @property
    def num_nodes(self) -> int:
        return sum(shape.count for shape in self.shapes)

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """Every node. Made when first asked for, as are ranks, engines and slots; to count them, use the fields."""
        return tuple(
            Node(shape.group, shape.first + index, shape.gpus) for shape in self.shapes for index in range(shape.count)
        )

    @cached_property
    def learner(self) -> tuple[LearnerRank, ...]:
        """Every rank of the learner, on the first slots that are for it; engines may need more."""
        slots = self._slots("workers", "trainer")
        return tuple(self._rank(rank, slot) for rank, slot in zip(range(self.ranks), slots, strict=False))

    @cached_property
    def engines(self) -> tuple[PlacedEngine, ...]:
        slots, size = tuple(self._slots("workers", "rollout")), self.gpus_per_engine
        return tuple(PlacedEngine(index, slots[index * size : (index + 1) * size]) for index in range(self.num_engines))

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """Every slot, node by node: bundle i of a placement group is slot i."""
        return tuple(self._slots("workers", "trainer", "rollout"))

    def _slots(self, *groups: NodeGroup) -> Iterator[Slot]:
        first = 0
        for shape in self.shapes:
            if shape.group in groups:
                for index in range(first, first + shape.count):
                    yield from (Slot(index, gpu) for gpu in range(shape.gpus))
            first += shape.count

    def _rank(self, rank: int, slot: Slot) -> LearnerRank:
        above, tensor = divmod(rank, self.layout.tensor)
        above, context = divmod(above, self.layout.context)
        pipeline, data = divmod(above, self.layout.data)
        return LearnerRank(rank, tensor, context, data, pipeline, slot)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The numbers of a manifest that decide the topology."""

    placement: Placement
    nodes: int
    gpus_per_node: int
    layout: ParallelLayout
    engines: int
    gpus_per_engine: int

    @property
    def ranks(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def engines_per_node(self) -> int:
        """Whole engines on a rollout node, for which it has as much room as a trainer node: no engine is on two."""
        return max(1, self.gpus_per_node // self.gpus_per_engine)


def topology(spec: Spec) -> Topology:
    """Return where every process of a valid spec sits; the learner or the engines may be left out."""
    return lay_out(sizes(spec), learner=spec.debug.learner, engines=spec.has_engines)


def gpu_resource(spec: Spec) -> str:
    """Return the resource of Kubernetes that stands for one GPU of this job."""
    return (spec.pods.gpu_resource if spec.pods else None) or GPU


def sizes(spec: Spec) -> Sizes:
    return Sizes(
        placement=spec.placement,
        nodes=spec.training.nodes,
        gpus_per_node=spec.training.gpus_per_node,
        layout=parallel_layout(spec.training),
        engines=spec.rollout.engines,
        gpus_per_engine=spec.rollout.gpus_per_engine,
    )


def lay_out(wanted: Sizes, *, learner: bool = True, engines: bool = True) -> Topology:
    """Return the topology of sizes that fit each other (`rules/` says which do), or a part of it."""
    ranks, count = wanted.ranks if learner else 0, wanted.engines if engines else 0
    return Topology(
        placement=wanted.placement,
        layout=wanted.layout,
        shapes=tuple(shapes(wanted, ranks, count)),
        ranks=ranks,
        num_engines=count,
        gpus_per_engine=wanted.gpus_per_engine,
    )


def shapes(wanted: Sizes, ranks: int, engines: int) -> Iterator[Shape]:
    """Yield the shapes of nodes that these numbers of ranks and engines need."""
    rollout = engines * wanted.gpus_per_engine
    if wanted.placement is Placement.COLOCATED:
        yield from filled("workers", max(ranks, rollout), wanted.gpus_per_node)
    else:
        yield from filled("trainer", ranks, wanted.gpus_per_node)
        yield from filled("rollout", rollout, wanted.engines_per_node * wanted.gpus_per_engine)


def filled(group: NodeGroup, gpus: int, per_node: int) -> Iterator[Shape]:
    """Yield nodes for this number of GPUs; only the last one may have fewer than the others."""
    full, rest = divmod(gpus, per_node)
    if full:
        yield Shape(group, per_node, full)
    if rest:
        yield Shape(group, rest, 1, first=full)
