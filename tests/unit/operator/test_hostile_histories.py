"""Whatever the API server refuses, heads answer and drivers do, in whatever order: no GPU is held beyond its bound.

A random history with random faults comes first, then faults that stay, and something that has to happen all the same.
"""

import asyncio
import random
from typing import Any

import pytest

from rljob_api.exits import Exit
from rljob_operator.attempts.escalation import SHORTEST_DRAIN_S, STOP_S
from rljob_operator.execution.statuses import PATIENCE_S
from support.operator.hostile_world import CALLS, GRACE_S, STEP_S, Faults, HostileWorld
from support.operator.operator_world import DEFAULTS

SLACK_S = 20 * STEP_S
"""looks, requests that are lost by chance, watches that are late [s]"""
END_S = 2 * SHORTEST_DRAIN_S + STOP_S + PATIENCE_S + GRACE_S + SLACK_S
SEEDS = [*range(2), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 30))]
JOB: dict[str, Any] = {"recovery": {"startTimeoutSeconds": 200}}


def some_faults(dice: random.Random, *spared: str) -> Faults:
    """Return random faults; a call that is spared fails by chance only."""
    return Faults(
        chance=dice.choice([0.0, 0.1, 0.5]),
        for_good={call for call in CALLS if call not in spared and dice.random() < 0.3},
        silence=dice.choice([0.0, 0.5, 0.9, 1.0]),
        denial=dice.choice([0.0, 0.0, 0.5]),
        lies=dice.choice([0.0, 0.5, 1.0]),
        lag=dice.choice([0.0, 0.5]),
        obeys=dice.random() < 0.5,
        hangs=dice.random() < 0.3,
        is_edited=dice.random() < 0.2,
    )


async def begun(seed: int, **sections: Any) -> HostileWorld:
    """Return a world in which both jobs train, after some random faults."""
    world = HostileWorld(seed, **{**JOB, **sections})
    await world.run(8 * STEP_S)
    assert world.status["phase"] == "Training"
    for _ in range(world.random.randint(0, 6)):
        world.faults = some_faults(world.random)
        if world.random.random() < 0.2:
            world.restart()
        if world.random.random() < 0.2:
            world.ends(world.random.choice([Exit.FAILED, Exit.LOST_PEER, -9]))
        await world.run(world.random.choice([2, 5, 10]) * STEP_S)
    return world


@pytest.mark.parametrize("seed", SEEDS)
def test_a_suspended_job_is_freed_in_time(seed: int):
    async def lived() -> None:
        world = await begun(seed)
        world.edit(suspend=True)
        world.faults = some_faults(world.random, "delete")
        await world.run(END_S)
        assert world.clusters == [], world.faults
        assert world.is_neighbour_well

    asyncio.run(lived())


@pytest.mark.parametrize("seed", SEEDS)
def test_the_active_deadline_frees_a_job_in_time(seed: int):
    async def lived() -> None:
        world = await begun(seed, scheduling={"activeDeadlineSeconds": 2000})
        world.faults = some_faults(world.random, "delete")
        await world.run(2000 + END_S)
        assert world.clusters == [], world.faults
        assert world.is_neighbour_well

    asyncio.run(lived())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_driver_that_has_ended_is_noticed_in_time(seed: int):
    """Another driver trains in its place, or nothing holds its GPUs."""

    async def lived() -> None:
        world = await begun(seed)
        world.faults = Faults(chance=world.random.choice([0.0, 0.2]), for_good=set(world.random.sample(CALLS[:6], 2)))
        await world.run(10 * STEP_S)
        ended = set(world.in_ray)
        world.ends(world.random.choice([0, Exit.FAILED, Exit.DIVERGED, Exit.LOST_PEER]))
        await world.run(DEFAULTS.longest_start_s + END_S)
        assert world.clusters == [] or set(world.in_ray) - ended, world.faults
        assert world.is_neighbour_well

    asyncio.run(lived())


@pytest.mark.parametrize("seed", SEEDS)
def test_an_attempt_whose_pods_do_not_start_holds_the_others_for_a_time_only(seed: int):
    async def lived() -> None:
        world = HostileWorld(seed, **JOB)
        world.faults = Faults(chance=world.random.choice([0.0, 0.3]), is_stuck=True)
        await world.run(DEFAULTS.longest_start_s)
        first = set(world.clusters)
        await world.run(END_S)
        assert first.isdisjoint(world.clusters), world.faults
        assert world.is_neighbour_well

    asyncio.run(lived())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_well_run_survives_refusals_silences_and_denials(seed: int):
    """What a mesh, a proxy or an API server can do ends no run."""

    async def lived() -> None:
        world = HostileWorld(seed, **JOB)
        await world.run(8 * STEP_S)
        dice = world.random
        for _ in range(6):
            faults = some_faults(dice)
            world.faults = Faults(faults.chance, faults.for_good, faults.silence, faults.denial, lag=faults.lag)
            await world.run(dice.choice([5, 20, 60]) * STEP_S)
        world.faults = Faults()
        await world.run(10 * STEP_S)
        assert world.status["phase"] == "Training"
        assert world.clusters == ["sums-7f3a1-1"]
        assert world.is_neighbour_well

    asyncio.run(lived())
