"""Which process sits on which GPU."""

from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as some

from rljob_api.reading.manifest import load
from rljob_api.sections import MOST_RANKS, Placement
from rljob_api.sizing.parallel_layout import ParallelLayout
from rljob_api.sizing.topology import Node, PlacedEngine, Shape, Sizes, Slot, lay_out, topology


@some.composite
def sizes(draw, placement):
    tensor, pipeline, context = draw(some.integers(1, 4)), draw(some.integers(1, 3)), draw(some.integers(1, 3))
    gpus_per_node = draw(some.integers(1, 3)) * tensor * pipeline * context
    nodes = draw(some.integers(1, 4))
    divisors = [size for size in range(1, gpus_per_node + 1) if gpus_per_node % size == 0]
    per_engine = some.sampled_from(divisors) if placement is Placement.COLOCATED else some.integers(1, 8)
    return Sizes(
        placement=placement,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        layout=ParallelLayout(tensor, pipeline, context=context).over(nodes * gpus_per_node),
        engines=draw(some.integers(1, 9)),
        gpus_per_engine=draw(per_engine),
    )


either = some.sampled_from(Placement).flatmap(sizes)


@given(sizes(Placement.COLOCATED))
def test_colocated_needs_the_larger_of_learner_and_engines(wanted):
    assert lay_out(wanted).gpus == max(wanted.ranks, wanted.engines * wanted.gpus_per_engine)


@given(sizes(Placement.DISAGGREGATED))
def test_disaggregated_needs_the_sum_of_learner_and_engines(wanted):
    assert lay_out(wanted).gpus == wanted.ranks + wanted.engines * wanted.gpus_per_engine


@given(either)
def test_every_rank_has_a_slot_of_its_own(wanted):
    where = lay_out(wanted)
    taken = Counter(rank.slot for rank in where.learner)

    assert len(where.learner) == wanted.ranks
    assert set(taken.values()) == {1}
    assert taken.keys() <= set(where.slots)


@given(either)
def test_every_engine_has_slots_of_its_own_on_one_node(wanted):
    where = lay_out(wanted)
    taken = Counter(slot for engine in where.engines for slot in engine.slots)

    assert set(taken.values()) == {1}
    assert taken.keys() <= set(where.slots)
    assert {len(engine.slots) for engine in where.engines} == {wanted.gpus_per_engine}
    assert all(len({slot.node for slot in engine.slots}) == 1 for engine in where.engines)


@given(sizes(Placement.DISAGGREGATED))
def test_disaggregated_processes_share_no_slot(wanted):
    where = lay_out(wanted)
    learner = {rank.slot for rank in where.learner}

    assert learner.isdisjoint(slot for engine in where.engines for slot in engine.slots)


@given(either)
def test_every_slot_is_used(wanted):
    where = lay_out(wanted)
    used = {rank.slot for rank in where.learner} | {slot for engine in where.engines for slot in engine.slots}

    assert used == set(where.slots)


@given(either)
def test_every_coordinate_of_the_learner_occurs_once(wanted):
    where = lay_out(wanted)
    axes = (where.layout.tensor, where.layout.context, where.layout.data, where.layout.pipeline)
    coordinates = sorted((rank.tensor, rank.context, rank.data, rank.pipeline) for rank in where.learner)

    assert coordinates == list(product(*map(range, axes)))


def test_ranks_are_in_megatrons_order_tensor_then_data_then_pipeline():
    where = lay_out(
        Sizes(Placement.COLOCATED, 1, 8, ParallelLayout(tensor=2, pipeline=2, data=2), engines=1, gpus_per_engine=1)
    )

    assert [(rank.tensor, rank.data, rank.pipeline) for rank in where.learner] == [
        (0, 0, 0),
        (1, 0, 0),
        (0, 1, 0),
        (1, 1, 0),
        (0, 0, 1),
        (1, 0, 1),
        (0, 1, 1),
        (1, 1, 1),
    ]


def test_counting_the_largest_run_makes_no_node_rank_or_engine():
    where = lay_out(
        Sizes(
            Placement.DISAGGREGATED,
            MOST_RANKS // 8,
            8,
            ParallelLayout(8).over(MOST_RANKS),
            engines=MOST_RANKS,
            gpus_per_engine=1,
        )
    )

    assert (where.gpus, where.num_nodes, where.ranks, where.num_engines) == (200_000, 25_000, 100_000, 100_000)
    assert where.shapes == (Shape("trainer", 8, 12_500), Shape("rollout", 8, 12_500))
    assert vars(where).keys() == where.__dataclass_fields__.keys()


@given(either)
def test_counts_are_those_of_what_is_named(wanted):
    where = lay_out(wanted)

    assert where.num_nodes == len(where.nodes)
    assert where.ranks == len(where.learner)
    assert where.num_engines == len(where.engines)
    assert where.gpus == len(where.slots)


def test_a_rollout_node_holds_whole_engines():
    where = lay_out(Sizes(Placement.DISAGGREGATED, 1, 8, ParallelLayout(8), engines=3, gpus_per_engine=3))

    assert where.nodes == (Node("trainer", 0, 8), Node("rollout", 0, 6), Node("rollout", 1, 3))
    assert where.engines[2] == PlacedEngine(2, (Slot(2, 0), Slot(2, 1), Slot(2, 2)))
    assert where.engines[2].name == "engine-2"


@pytest.mark.parametrize(("placement", "gpus", "nodes"), [("Colocated", 8, 1), ("Disaggregated", 16, 2)])
def test_the_topology_of_a_manifest_follows_its_placement(good, placement, gpus, nodes):
    where = topology(load(f"{good}\n  placement: {placement}").spec)

    assert (where.gpus, len(where.nodes), where.layout.data) == (gpus, nodes, 8)


@pytest.mark.parametrize(
    ("placement", "debug", "nodes", "processes"),
    [
        ("Colocated", "{replay: runs/first/rollouts}", (Node("workers", 0, 8),), (8, 0)),
        ("Colocated", "{rolloutOnly: true}", (Node("workers", 0, 8),), (0, 8)),
        ("Disaggregated", "{replay: runs/first/rollouts}", (Node("trainer", 0, 8),), (8, 0)),
        ("Disaggregated", "{rolloutOnly: true}", (Node("rollout", 0, 8),), (0, 8)),
        ("Disaggregated", "{dumpRollouts: true}", (Node("trainer", 0, 8), Node("rollout", 0, 8)), (8, 8)),
    ],
)
def test_a_debug_mode_needs_no_gpus_for_the_part_that_it_leaves_out(good, placement, debug, nodes, processes):
    where = topology(load(f"{good}\n  placement: {placement}\n  debug: {debug}").spec)

    assert (where.nodes, (len(where.learner), len(where.engines))) == (nodes, processes)
