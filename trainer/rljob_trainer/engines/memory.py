"""The GPU memory of a colocated engine, part by part: what it gives up while the learner trains, and takes back."""

from dataclasses import dataclass
from typing import Protocol

from rljob_trainer.engines.client import EngineClient

Parts = frozenset[str]
"""of an engine's memory, by SGLang's names (`GPU_MEMORY_ALL_TYPES` of 0.5.17)"""
NOTHING: Parts = frozenset()
WITHOUT_CACHE: Parts = frozenset({"cuda_graph", "weights"})
ALL: Parts = WITHOUT_CACHE | {"kv_cache"}
DEADLINE_S = 60.0
"""of one request to release or to allocate [s]"""


class Turns(Protocol):
    """How a learner shares engines' GPUs, see `Together` and `sync.gpu_sharing.InTurns`."""

    @property
    def publishing(self) -> Parts:
        """What engines hold while they get weights."""

    async def trained(self) -> None:
        """Let the learner give up what it does not need to publish."""

    async def published(self) -> None:
        """Let it give up the rest."""


@dataclass(frozen=True, slots=True)
class Together:
    """The learner keeps its state on the GPU beside the engine, or is elsewhere."""

    publishing: Parts = ALL

    async def trained(self) -> None:
        """Keep it."""

    async def published(self) -> None:
        """Keep it."""


async def change(engine: EngineClient, held: Parts, wanted: Parts) -> None:
    """Let an engine that holds some parts of its memory hold others. Raises EngineError."""
    if released := held - wanted:
        await engine.release_memory(released, DEADLINE_S)
    if resumed := wanted - held:
        await engine.resume_memory(resumed, DEADLINE_S)
