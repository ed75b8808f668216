"""200 jobs for 64 GPUs with the default chart, where nobody has said whether nodes may come, and kube-scheduler, which
knows no gangs. Simulated time.
"""

import random
from collections.abc import Callable

import pytest

from rljob_operator.capacity.snapshot import Snapshot
from rljob_operator.queueing.lease import CREDIT_S
from rljob_operator.queueing.ticket import Ticket
from support.operator.gangless import Gangless
from support.operator.queue_world import RULES, node, ticket, workers

JOBS = 200
STEP_S = 100.0
LIFETIMES_S = (300.0, 600.0, 1200.0)
POOLS = ({}, {"pool": "x"}, {"pool": "y"}, {"pool": "z"})

Draw = Callable[[random.Random, int], Ticket]


def gangs_of_nodes(draw: random.Random, number: int) -> Ticket:
    return ticket(f"j{number:03}", workers(8, draw.choice([1, 1, 2, 2, 4])))


def in_three_pools(draw: random.Random, number: int) -> Ticket:
    return ticket(f"j{number:03}", workers(8, draw.choice([1, 1, 2, 3]), **draw.choice(POOLS)))


def parts_of_nodes(draw: random.Random, number: int) -> Ticket:
    return ticket(f"j{number:03}", workers(draw.choice([1, 2, 4, 8]), draw.choice([1, 2, 4])))


def with_priorities(draw: random.Random, number: int) -> Ticket:
    name = draw.choice([None, None, None, "low", "high"])
    return ticket(f"j{number:03}", workers(8, draw.choice([1, 1, 2, 2, 4])), priority_class=name)


def lived(draw: Draw, seed: int, num_nodes: int = 8, jobs: int = JOBS) -> Gangless:
    """Return the queue after all jobs have come, one in a second, and have run."""
    chance = random.Random(seed)
    there = tuple(node(f"n{i}", 8, pool="xyz"[i % 3]) for i in range(num_nodes))
    queue = Gangless(Snapshot({}, {}, there, None), RULES, seed=seed)
    for number in range(jobs):
        queue.comes(draw(chance, number), chance.choice(LIFETIMES_S))
        queue.now += 1
    work_s = sum(each.gpus * queue.lifetimes[each.key] for each in queue.tickets.values()) / (8 * num_nodes)
    for _ in range(int(2.5 * work_s / STEP_S)):
        queue.live(STEP_S)
        if not queue.tickets:
            break
    return queue


@pytest.mark.parametrize(
    ("draw", "num_nodes", "num_pools"),
    [(gangs_of_nodes, 8, 1), (in_three_pools, 9, 3), (parts_of_nodes, 8, 8), (with_priorities, 8, 1)],
    ids=["gangs of nodes", "three pools", "parts of nodes", "priorities"],
)
def test_all_jobs_run_and_none_has_a_part_of_its_pods_for_long(draw: Draw, num_nodes: int, num_pools: int) -> None:
    """Gangs of whole nodes never stand in each other's way: of each pool, only one at a time waits for nodes."""
    queue = lived(draw, seed=4, num_nodes=num_nodes)
    assert (list(queue.tickets), len(queue.waited)) == ([], JOBS)
    assert queue.partial_s <= CREDIT_S
    assert queue.most_partial <= num_pools


def test_jobs_of_one_size_start_in_the_order_in_which_they_came() -> None:
    queue = lived(lambda chance, number: ticket(f"j{number:03}", workers(8, 2)), seed=5, jobs=60)
    assert list(queue.waited) == sorted(queue.waited)


def test_nobody_starves_while_younger_jobs_come_to_three_pools() -> None:
    """The first job waits for a pool that stays full; a gang in another pool starts all the same."""
    there = tuple(node(f"{pool}{i}", 8, pool=pool) for pool in "xyz" for i in range(2))
    queue = Gangless(Snapshot({}, {}, there, None), RULES)
    queue.comes(ticket("full", workers(8, 2, pool="x")), 1e9)
    queue.live(STEP_S)
    queue.comes(ticket("a", workers(8, 2, pool="x")), 600)
    for number in range(120):
        for pool in "yz":
            queue.comes(ticket(f"{pool}{number}", workers(8, 1, pool=pool)), 900)
        if number == 5:
            queue.comes(ticket("b", workers(8, 2, pool="y")), 600)
            queue.comes(ticket("c", workers(8, 2, pool="z")), 600)
            queue.comes(ticket("d", workers(8, 3)), 600)
        queue.live(STEP_S)
    assert queue.waited["ml/b"] <= RULES.patience_s + 3 * 900
    assert queue.waited["ml/c"] <= RULES.patience_s + 3 * 900
    assert "ml/d" in queue.waited
    assert "ml/a" not in queue.waited


def test_an_autoscaler_that_acts_on_pods_brings_the_nodes_of_a_gang() -> None:
    queue = Gangless(Snapshot({}, {}, (node("n0", 8),), None), RULES)
    queue.comes(ticket("gang", workers(8, 3)), 600)
    for number in range(20):
        queue.live(STEP_S)
        if queue.partial() and number >= 4 and len(queue.seen.nodes or ()) < 3:
            queue.grow(node("n1", 8), node("n2", 8))
    assert queue.waited["ml/gang"] <= 6 * STEP_S
    assert queue.revoked == 0
