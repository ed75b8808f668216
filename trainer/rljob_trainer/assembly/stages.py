"""What differs between kinds of runs, as small protocols. `mode.py` chooses who implements them.

Source ─ start ─► Sampling ─ sampled ─► parts that make or read samples
                  Learning ─ trained ─► parts that train
"""

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rljob_api.control import EngineStatus
from rljob_trainer.algorithms.algorithm import Algorithm
from rljob_trainer.assembly.foundation import Foundation
from rljob_trainer.batches.token_values import SharedGpus
from rljob_trainer.data.dataset import Dataset
from rljob_trainer.data.prompt_scheduler import PromptScheduler
from rljob_trainer.data.prompts import PromptStream
from rljob_trainer.engines.placement import Slots
from rljob_trainer.engines.pool import EnginePool
from rljob_trainer.learners.group import LearnerGroup
from rljob_trainer.parts import Sampled, Trained, Weights
from rljob_trainer.rundir.checkpoints import Found
from rljob_trainer.rundir.journal import Journal
from rljob_trainer.rundir.rollout_files import Dump, Made
from rljob_trainer.sync.publisher import Transport
from rljob_trainer.sync.transport import Receiver
from rljob_trainer.sync.weights import EngineWeights


class Learning(Protocol):
    """The started process group that holds the weights: a learner, or the files of a checkpoint."""

    @property
    def group(self) -> LearnerGroup:
        """Its processes."""

    def transport(self, receivers: Mapping[str, Receiver]) -> Transport:
        """Return how its weights reach engines, beside which the receivers are."""

    def gpu_sharing(self, weights: EngineWeights, pool: EnginePool) -> SharedGpus:
        """Return how it shares GPUs with engines."""

    def published(self, weights: Weights, first: int) -> Weights:
        """Publish version `first`; return what publishes the later ones."""

    def trained(self, gpu_sharing: SharedGpus) -> Trained:
        """Return the loop's parts that train."""


class Sampling(Protocol):
    """The started source of samples."""

    def wait_until_ready(self) -> None:
        """Return when it has started. Raises EngineStartError."""

    def engines(self) -> Sequence[EngineStatus]:
        """Return the state of each engine."""

    def watchers(self) -> Sequence[Awaitable[None]]:
        """Return what must run beside the loop."""

    def of(self, foundation: Foundation, material: "Material") -> "Sampling":
        """Return it for a learner that begins, with what lasts as long as that one."""

    def sampled(self, scheduler: PromptScheduler, learning: Learning) -> Sampled:
        """Return the loop's parts that make or read samples; engines hold the first weights then."""

    def learner_is_gone(self) -> None:
        """Have engines forget a learner whose ranks are gone."""


class Source(Protocol):
    """Where samples come from: checked, and not started."""

    def start(self, material: "Material", slots: Slots) -> Sampling:
        """Start what makes them; return without waiting for it."""


@dataclass(frozen=True, slots=True)
class Material:
    """What a run works on: read and checked before engines and learner start."""

    model: Path
    """Hugging Face checkpoint that training begins with"""
    fingerprint: str
    """of the model"""
    data: Dataset
    source: Source
    algorithm: Algorithm
    teacher: Path | None
    """Hugging Face checkpoint of the teacher; None: there is none"""
    stream: PromptStream
    journal: Journal
    dump: Dump
    """where rollouts are written or read"""
    made: Made
    """what decides the samples of this run"""
    resume: Found | None
    """the checkpoint to resume from"""

    @property
    def first(self) -> int:
        """Steps done."""
        return self.resume.checkpoint.step if self.resume else 0
