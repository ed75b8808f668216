"""Samples that are read instead of made: the data's own responses, or rollouts of an earlier run. No engine runs."""

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rljob_api.control import EngineStatus
from rljob_trainer.assembly.foundation import Foundation
from rljob_trainer.assembly.null_parts import NoEngines, NoGpuSharing
from rljob_trainer.assembly.stages import Learning, Material
from rljob_trainer.assembly.step_batches import measurement
from rljob_trainer.data.dataset import Dataset
from rljob_trainer.data.prompt_scheduler import PromptScheduler
from rljob_trainer.data.read_ahead import MadeOfRows
from rljob_trainer.data.references import references
from rljob_trainer.data.render import Renderer, SftResponse
from rljob_trainer.data.rows import Row
from rljob_trainer.data.tokenizer import load_tokenizer
from rljob_trainer.engines.placement import Slots
from rljob_trainer.parts import Evaluation, Sampled
from rljob_trainer.rollouts.evaluation import NoHeldOut
from rljob_trainer.rollouts.recorded import Replay
from rljob_trainer.rollouts.supervised import HeldOutReferences, References, answered


class NoFleet:
    """There are no engines to start or to watch."""

    def wait_until_ready(self) -> None:
        """Return at once."""

    def engines(self) -> Sequence[EngineStatus]:
        """Return no engine."""
        return ()

    def watchers(self) -> Sequence[Awaitable[None]]:
        """Watch nothing."""
        return ()

    def learner_is_gone(self) -> None:
        """Nothing knows a learner."""


@dataclass(frozen=True, slots=True)
class RecordedSource:
    """Rollouts of an earlier run, for `spec.debug.replay`."""

    foundation: Foundation

    def start(self, material: Material, slots: Slots) -> "RecordedSampling":
        """Start nothing."""
        return RecordedSampling(self.foundation, material)


def recorded_source(foundation: Foundation, model: Path, data: Dataset) -> RecordedSource:
    """Read nothing yet: which dump belongs to these prompts is checked once they are known."""
    return RecordedSource(foundation)


@dataclass(frozen=True, slots=True)
class RecordedSampling(NoFleet):
    """Reads groups and rewards from a dump."""

    foundation: Foundation
    material: Material

    def of(self, foundation: Foundation, material: Material) -> "RecordedSampling":
        """Return it with what lasts as long as one learner."""
        return replace(self, foundation=foundation, material=material)

    def sampled(self, scheduler: PromptScheduler, learning: Learning) -> Sampled:
        """Return recorded rollouts and rewards; no accuracy is measured."""
        prompts_per_step = self.foundation.spec.rollout.prompts_per_step
        replay = Replay(self.material.dump, self.material.made, scheduler, prompts_per_step)
        return Sampled(replay, replay, NoGpuSharing(), NoEngines(), NoHeldOut())


@dataclass(frozen=True, slots=True)
class ResponseSource:
    """The data's own responses, tokenised."""

    foundation: Foundation
    responses: MadeOfRows[SftResponse]

    def start(self, material: Material, slots: Slots) -> "ResponseSampling":
        """Start nothing."""
        return ResponseSampling(self.foundation, material, self.responses)


def response_source(foundation: Foundation, model: Path, data: Dataset) -> ResponseSource:
    """Render the training rows' responses. Raises DataError."""
    return ResponseSource(foundation, _rendered(foundation, model, data.read.train))


@dataclass(frozen=True, slots=True)
class ResponseSampling(NoFleet):
    """Reads each prompt's response from the data."""

    foundation: Foundation
    material: Material
    responses: MadeOfRows[SftResponse]

    def of(self, foundation: Foundation, material: Material) -> "ResponseSampling":
        """Return it with what lasts as long as one learner."""
        return replace(self, foundation=foundation, material=material)

    def sampled(self, scheduler: PromptScheduler, learning: Learning) -> Sampled:
        """Return the data's responses, unjudged; held-out rows measure the learner's perplexity."""
        source = References(scheduler, self.responses, self.foundation.spec.rollout.prompts_per_step)
        return Sampled(source, source, NoGpuSharing(), NoEngines(), self._perplexity(learning))

    def _perplexity(self, learning: Learning) -> Evaluation:
        data = self.material.data
        if not data.held_out:
            return NoHeldOut()
        responses = _rendered(self.foundation, self.material.model, data.read.held_out)
        return HeldOutReferences(
            groups=tuple(answered(prompt, responses[row]) for row, prompt in enumerate(data.held_out)),
            logprobs=measurement(self.foundation, self.material, learning.group.logprobs, NoGpuSharing()),
        )


def _rendered(foundation: Foundation, model: Path, rows: Sequence[Row]) -> MadeOfRows[SftResponse]:
    spec = foundation.spec
    return references(rows, Renderer(spec.data, load_tokenizer(model)), spec.rollout.sampling.max_new_tokens)
