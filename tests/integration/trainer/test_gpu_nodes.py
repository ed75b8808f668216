"""A reader on each node with GPUs. Ray is real; its GPUs are numbers, so NVML has nothing to say."""

import asyncio
from collections.abc import Iterator

import pytest
import ray

from rljob_trainer.gpus.nodes import RayNodes, is_read
from rljob_trainer.gpus.readings import Looked
from support.waiting import eventually


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    ray.init(address="local", num_cpus=1, num_gpus=2, include_dashboard=False, object_store_memory=100 * 2**20)
    yield RayNodes(visible=None)
    ray.shutdown()


async def looks(nodes: RayNodes) -> tuple[Looked, ...]:
    """Return the first answer: the reader's process may start for longer than a look waits."""
    for _ in range(30):
        if looked := await nodes.look():
            return looked
    return ()


def test_each_node_has_one_reader_that_takes_no_cpu_and_no_gpu(nodes: RayNodes) -> None:
    assert asyncio.run(looks(nodes)) == asyncio.run(nodes.look()) == (Looked(),)
    assert len(nodes._readers) == 1
    assert ray.available_resources()["GPU"] == ray.cluster_resources()["GPU"] == 2


def test_a_reader_that_was_killed_is_left_out_and_does_not_end_the_run(nodes: RayNodes) -> None:
    asyncio.run(looks(nodes))
    nodes.stop()
    eventually(lambda: asyncio.run(nodes.look()), until=lambda found: found == ())  # Ray ends actors a while later


def test_only_living_nodes_with_gpus_are_read() -> None:
    kinds = [(True, {"GPU": 8.0}), (True, {"CPU": 4.0}), (True, {"GPU": 0.0}), (False, {"GPU": 8.0})]
    assert [is_read({"Alive": alive, "Resources": there}) for alive, there in kinds] == [True, False, False, False]
