"""What is left of quotas and nodes while room is taken and given back."""

from dataclasses import replace

from rljob_operator.capacity.quotas import Limit
from rljob_operator.queueing.free_capacity import FreeCapacity, Shortage
from support.operator.queue_world import GPU, nodes, quotas, workers


def test_all_that_a_job_has_taken_is_given_back():
    room = FreeCapacity(quotas(ml=8))
    room.take("a", "ml", (workers(4),), ())
    room.take("a", "ml", (workers(4, group="more"),), ())
    assert room.find("ml", (workers(1),)) != ()
    room.give_back("a")
    assert room.find("ml", (workers(8),)) == ()


def test_nodes_that_a_job_has_taken_in_two_steps_are_free_again():
    room, four = FreeCapacity(nodes(8)), workers(4)
    for _ in range(2):
        spots = room.find("ml", (four,))
        assert isinstance(spots, tuple)
        room.take("a", "ml", (four,), spots)
    room.give_back("a")
    assert room.find("ml", (workers(8),)) == ((workers(8), 0),)


def test_a_limit_range_counts_for_pods_of_its_namespace_alone():
    small = Limit("small", "Container", {}, {GPU: 1000}, {}, {})
    room = FreeCapacity(replace(quotas(ml=8, other=8), limits={"ml": (small,)}))
    assert isinstance(room.find("ml", (workers(2),)), Shortage)
    assert room.find("other", (workers(2),)) == ()
