"""Training on the data's own responses: what stands in the loop where engines would make responses, and rewards judge.

    prompts ─► References ─► batches ─► learner ─► report ─► checkpoints

The journal, checkpoints and resuming are those of every run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rljob_trainer.data.issues import Issues
from rljob_trainer.data.references import Reference
from rljob_trainer.evaluation import Accuracy
from rljob_trainer.metrics import Publication, TrainMetrics
from rljob_trainer.parts import Report
from rljob_trainer.reporting.first_step import of_references, rendered
from rljob_trainer.reporting.records import CheckRecord, RenderedRecord
from rljob_trainer.samples import Group, Prompt, Sample, ScoredGroup


@dataclass(frozen=True, slots=True)
class References:
    """Rollouts and rewards that are read: each prompt has one response, which nobody judges."""

    issues: Issues
    references: Sequence[Reference]
    """of the stream's rows"""
    prompts_per_step: int

    def take(self, step: int) -> tuple[Group, ...]:
        """Return the groups of `step`."""
        return self.generate(step, self.prompts_per_step)

    def generate(self, step: int, num_prompts: int) -> tuple[Group, ...]:
        """Return the groups of the next prompts, which are journaled as issued for `step`."""
        prompts = self.issues.take(step, num_prompts)
        return tuple(Group(prompt, (self._sample(prompt, step),)) for prompt in prompts)

    def score(self, groups: Sequence[Group]) -> tuple[ScoredGroup, ...]:
        """Return the groups without rewards."""
        return tuple(ScoredGroup(group, ()) for group in groups)

    def consumed(self, step: int) -> None:
        """Journal that the learner has taken its step on the prompts of `step`."""
        self.issues.journal.consumed(step)

    def _sample(self, prompt: Prompt, step: int) -> Sample:
        reference = self.references[self.issues.stream.row(prompt.uid)]
        return Sample(
            tokens_T=reference.tokens_T,
            logprobs_T=(),
            text=reference.text,
            version=step,
            finish_reason="stop",
            engine="",
        )


@dataclass(frozen=True, slots=True)
class FirstReferences:
    """A report that also tells what the first step has shown of the data and the model."""

    report: Report
    tell: Callable[[str, Sequence[CheckRecord], Sequence[RenderedRecord]], None]
    """told of the fingerprint, what was measured, and responses behind their prompts"""
    fingerprint: str
    """of the model that training begins with"""

    def step(self, step: int, groups: Sequence[ScoredGroup], training: TrainMetrics, publication: Publication) -> None:
        """Tell people what happened in a step."""
        if step == 1:
            self.tell(self.fingerprint, of_references(groups, training), rendered(groups))
        self.report.step(step, groups, training, publication)

    def evaluation(self, step: int, accuracy: Accuracy) -> None:
        """Tell people what the held-out questions said."""
        self.report.evaluation(step, accuracy)
