"""The GPU memory of colocated engines, part by part: what they give up while the learner trains, and take back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rljob_trainer.engines.client import EngineClient, each

Parts = frozenset[str]
"""of an engine's memory, by SGLang's names (`GPU_MEMORY_ALL_TYPES` of 0.5.17)"""
NOTHING: Parts = frozenset()
WITHOUT_CACHE: Parts = frozenset({"cuda_graph", "weights"})
ALL: Parts = WITHOUT_CACHE | {"kv_cache"}
DEADLINE_S = 60.0
"""of one request to release or to allocate [s]"""


class Sharing(Protocol):
    """How a learner shares engines' GPUs, see `Together` and `sync.gpu_sharing.LeavingLearner`."""

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


class Residency:
    """Which parts of its GPU memory each engine has."""

    def __init__(self) -> None:
        self._held: dict[str, Parts] = {}
        """by the engine's name"""

    def started(self, engine: str) -> None:
        """Note that a new process of an engine has all parts."""
        self._held[engine] = ALL

    async def hold(self, engines: Sequence[EngineClient], wanted: Parts) -> dict[str, str]:
        """Let engines have these parts and no others; return the failures by name."""
        _, failed = await each({engine.name: self._change(engine, wanted) for engine in engines})
        return failed

    async def _change(self, engine: EngineClient, wanted: Parts) -> None:
        held = self._held[engine.name]
        if released := held - wanted:
            await engine.release_memory(released, DEADLINE_S)
        if resumed := wanted - held:
            await engine.resume_memory(resumed, DEADLINE_S)
        self._held[engine.name] = wanted
