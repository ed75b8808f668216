"""More and fewer engines in the middle of a run: real Ray nodes that come and go, SGLang, router, Megatron."""

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from ray.util import placement_group_table

from rljob_api.control import EngineState
from rljob_api.exits import Exit
from rljob_api.sections import Device, Placement
from rljob_api.sizing.parallel_layout import ParallelLayout
from rljob_api.sizing.topology import Sizes, lay_out
from rljob_trainer.data.prompts import order
from rljob_trainer.engines.placement import engine_reservation, reserve
from support.trainer.ray_pods import PodDriver, RayPods
from support.trainer.whole_run import PROMPTS_PER_STEP, QUESTIONS, expected_journal

pytestmark = pytest.mark.timeout(1800)

HELD_OUT = 8
STEPS = 100_000
"""more than anybody waits for: the run is drained in the end"""


@pytest.fixture
def pods() -> Iterator[RayPods]:
    with pytest.MonkeyPatch.context() as patch:  # Ray's workers do not know pytest's `pythonpath`
        patch.setenv("PYTHONPATH", os.pathsep.join(entry for entry in sys.path if entry))
        patch.setenv("RAY_OBJECT_STORE_ALLOW_SLOW_STORAGE", "1")
        pods = RayPods()
        yield pods
    pods.stop()


@pytest.fixture
def driver(pods: RayPods, tiny_llama_dir: Path, tmp_path: Path) -> Iterator[PodDriver]:
    """A run with one engine that has come to its second step. It waits for the trainer's pod, which comes last."""
    pods.add("rollout")
    pods.add("trainer")
    driver = PodDriver(
        tiny_llama_dir,
        tmp_path,
        pods.cluster.address,
        engines=1,
        rollout={"engines": 7, "routerPolicy": "RoundRobin", "contextLength": 256, "sampling": {"maxNewTokens": 64}},
        training={"steps": STEPS},
        checkpoint={"interval": STEPS},
    )
    driver.runs()
    driver.steps(2)
    yield driver
    driver.stop()


def uids(steps: int) -> list[str]:
    rows = QUESTIONS - HELD_OUT
    epochs = steps * PROMPTS_PER_STEP // rows + 1
    return [f"{epoch}:{row}" for epoch in range(epochs) for row in order(rows, 0, epoch)]


def test_learner_and_engines_sit_on_the_pods_that_are_for_them(pods: RayPods) -> None:
    groups = {pods.add(group).node_id: group for group in ("rollout", "rollout", "rollout", "trainer")}
    ray.init(address=pods.cluster.address, log_to_driver=False)
    try:
        wanted = lay_out(Sizes(Placement.DISAGGREGATED, 1, 1, ParallelLayout(), engines=2, gpus_per_engine=1))
        slots = reserve(wanted, Device.CPU, 60)
        another = engine_reservation(wanted, Device.CPU)
        asyncio.run(another.acquire())
        where = [
            groups[placement_group_table(group)["bundles_to_node_id"][0]]
            for group in (*(slots.places[slot].group for slot in wanted.slots), another._gang.group)
        ]
        another.release()
    finally:
        ray.shutdown()
    assert where == ["trainer", "rollout", "rollout", "rollout"]


def test_a_run_goes_on_while_an_engine_comes_and_goes(pods: RayPods, driver: PodDriver) -> None:
    driver.scale(1, 2)
    driver.steps(2)
    waiting = driver.engine("engine-1")
    assert waiting is not None
    assert (waiting.state, waiting.node, waiting.url) == (EngineState.STARTING, None, None), "there is no pod for it"

    pod = pods.add("rollout")
    states: list[EngineState] = []
    healthy = driver.until(lambda status: states.append(status.engines[1].state) or states[-1] == "Healthy")
    new = healthy.engines[1]
    assert EngineState.DEAD not in states
    assert new.version is not None
    assert new.version >= 2, "it serves with the weights of now, not of the beginning"
    assert new.node is not None
    assert new.url is not None
    driver.until(lambda _: "Decode batch" in driver.engine_log("engine-1"))
    driver.steps(3)

    driver.scale(2, 1)
    driver.until(lambda status: len(status.engines) == 1)
    pods.remove(pod)
    driver.steps(3)
    assert driver.status().incidents == ()

    assert driver.drain() == Exit.PREEMPTED, driver.log
    done = driver.journal[-1]["step"]
    assert driver.journal == expected_journal(done, PROMPTS_PER_STEP, STEPS, uids(done))
    pods.stop()
    assert driver.left_behind() == []
