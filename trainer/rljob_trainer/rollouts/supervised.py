"""Training on the data's own responses: what stands in the loop where engines would make responses, and rewards judge.

    prompts ─► References ─► batches ─► learner ─► report ─► checkpoints
                                           ▲
                            HeldOutReferences measures here

The journal, checkpoints and resuming are those of every run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isnan

from rljob_trainer.batches.token_values import Measurement
from rljob_trainer.data.prompt_scheduler import PromptScheduler
from rljob_trainer.data.read_ahead import MadeOfRows
from rljob_trainer.data.render import SftResponse
from rljob_trainer.metrics import Accuracy, LearnerMetrics, Publication, perplexity_of
from rljob_trainer.parts import Report
from rljob_trainer.reporting.first_step import of_references, rendered
from rljob_trainer.reporting.records import CheckRecord, RenderedRecord
from rljob_trainer.samples import Group, Prompt, Sample, ScoredGroup


@dataclass(frozen=True, slots=True)
class References:
    """Rollouts and rewards that are read: each prompt has one response, without a reward."""

    scheduler: PromptScheduler
    references: MadeOfRows[SftResponse]
    """of the stream's rows"""
    prompts_per_step: int

    def collect(self, step: int) -> tuple[Group, ...]:
        """Return the groups of `step`."""
        return self.collect_round(step, self.prompts_per_step)

    def collect_round(self, step: int, num_prompts: int) -> tuple[Group, ...]:
        """Return the groups of the next prompts, which are journaled as issued for `step`."""
        prompts = self.scheduler.issue(step, num_prompts)
        rows = tuple(self.scheduler.stream.row(prompt.uid) for prompt in prompts)
        self.references.expect(rows)
        groups = tuple(answered(prompt, self.references[row], step) for prompt, row in zip(prompts, rows, strict=True))
        self.references.expect(self.scheduler.stream.upcoming(num_prompts))
        return groups

    def score(self, groups: Sequence[Group]) -> tuple[ScoredGroup, ...]:
        """Return the groups without rewards."""
        return tuple(ScoredGroup(group, ()) for group in groups)

    def consumed(self, step: int) -> None:
        """Journal that the learner has taken its step on the prompts of `step`."""
        self.scheduler.journal.consumed(step)


@dataclass(frozen=True, slots=True)
class HeldOutReferences:
    """Measures how well the learner knows responses that it is not trained on."""

    groups: Sequence[Group]
    logprobs: Measurement

    def measure(self) -> Accuracy:
        """Return their perplexity; None where it is not a number."""
        surprise = -self.logprobs.mean(self.groups)
        perplexity = None if isnan(surprise) else perplexity_of(surprise)
        return Accuracy(sampled=None, greedy=None, questions=len(self.groups), perplexity=perplexity)


def answered(prompt: Prompt, reference: SftResponse, step: int = 0) -> Group:
    """Return the prompt with the data's own response, as if weights of version `step` had made it."""
    sample = Sample(
        tokens_T=reference.tokens_T,
        logprobs_T=(),
        text=reference.text,
        version=step,
        finish_reason="stop",
        engine="",
        segments=reference.segments,
    )
    return Group(prompt, (sample,))


@dataclass(frozen=True, slots=True)
class FirstReferences:
    """A report that also records what the first step has shown of data and model."""

    report: Report
    record: Callable[[str, Sequence[CheckRecord], Sequence[RenderedRecord]], None]
    """gets the fingerprint, what was measured, and responses behind their prompts"""
    fingerprint: str
    """of the model that training begins with"""

    def step(
        self, step: int, groups: Sequence[ScoredGroup], training: LearnerMetrics, publication: Publication
    ) -> None:
        """Report a step."""
        if step == 1:
            self.record(self.fingerprint, of_references(groups, training), rendered(groups))
        self.report.step(step, groups, training, publication)

    def evaluation(self, step: int, accuracy: Accuracy) -> None:
        """Report an evaluation."""
        self.report.evaluation(step, accuracy)
