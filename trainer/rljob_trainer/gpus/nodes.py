"""A reader of GPUs on each node of the Ray cluster, also on those that join later."""

import asyncio
import logging
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rljob_trainer.gpus.nvml import open_reader
from rljob_trainer.gpus.readings import Looked, names_of
from rljob_trainer.processes.actor_calls import ask

log = logging.getLogger(__name__)

ANSWER_S = 10.0
"""longest wait for a node: its actor starts, or its driver hangs"""


class NodeReader:
    """What runs in a Ray actor of a node."""

    def __init__(self, node: str, visible: str | None, count: int) -> None:
        self._reader = open_reader(node, names_of(visible, count))

    def look(self) -> Looked:
        return self._reader.look()


class RayNodes:
    """The nodes with GPUs."""

    def __init__(self, visible: str | None) -> None:
        """`visible`: CUDA_VISIBLE_DEVICES of a Ray on one machine; None: a node's GPUs are all of the run."""
        self._visible = visible
        self._readers: dict[str, Any] = {}
        self._silent: set[str] = set()

    async def look(self) -> tuple[Looked, ...]:
        try:
            there = {node["NodeID"]: node for node in await asyncio.to_thread(ray.nodes) if is_read(node)}
            self._readers = {name: self._readers.get(name) or self._start(node) for name, node in there.items()}
        except RayError as error:  # a run does not fail because its GPUs cannot be looked at
            log.warning("action=read_gpus outcome=no_nodes reason=%r", error)
        answers = await asyncio.gather(*(self._ask(name, reader) for name, reader in self._readers.items()))
        return tuple(looked for looked in answers if looked is not None)

    def stop(self) -> None:
        """End all readers."""
        for reader in self._readers.values():
            ray.kill(reader)

    def _start(self, node: dict[str, Any]) -> Any:
        where = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        reader = ray.remote(NodeReader).options(num_cpus=0, max_restarts=-1, scheduling_strategy=where)
        return reader.remote(node["NodeManagerAddress"], self._visible, int(node["Resources"]["GPU"]))

    async def _ask(self, name: str, reader: Any) -> Looked | None:
        try:
            looked = await asyncio.wait_for(ask(reader, NodeReader.look), ANSWER_S)
        except (TimeoutError, RayError) as error:
            if name not in self._silent:
                log.warning("action=read_gpus node=%s outcome=no_answer reason=%r", name, error)
            self._silent.add(name)
            return None
        self._silent.discard(name)
        return looked


def is_read(node: dict[str, Any]) -> bool:
    """Whether a node of `ray.nodes()` is alive and has GPUs."""
    return bool(node["Alive"]) and node["Resources"].get("GPU", 0) >= 1
