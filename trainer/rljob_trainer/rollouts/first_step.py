"""Looks at the first step of a run, from where the learner and the report stand; all later ones it only hands on.

The learner's log-probabilities of the engines' samples cost one more forward pass, once.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from rljob_api.sections import Precision, Quantization
from rljob_trainer.batches.batches import StepBatch
from rljob_trainer.batches.packing import MicroBatch
from rljob_trainer.batches.token_values import Measure
from rljob_trainer.metrics import Accuracy, LearnerMetrics, Publication
from rljob_trainer.parts import Learner, Report
from rljob_trainer.reporting.first_step import LearnerView, checks, rendered
from rljob_trainer.reporting.records import CheckRecord, RenderedRecord
from rljob_trainer.samples import ScoredGroup, sequences

Logprobs = Sequence[Sequence[npt.NDArray[np.float32]]]
"""for each data-parallel share and micro-batch: of its response tokens [nats]"""


@dataclass
class FirstStep:
    """Learner and report of a run that begins at step 0."""

    learner: Learner
    logprobs: Measure
    """of the learner, before it is trained"""
    zeros: Callable[[], Sequence[str]]
    """names of the learner's tensors that hold nothing but zeros"""
    report: Report
    record: Callable[[str, Sequence[CheckRecord], Sequence[RenderedRecord]], None]
    """gets the fingerprint, what was measured, and samples as engines received and returned them"""
    fingerprint: str
    """of the model that training begins with"""
    engines: Precision | Quantization
    """format of the weights that engines compute with"""
    zero_kl: bool
    """whether the reported KL is that of a model against itself"""
    rewards_alone: bool
    """whether nothing but its reward says which sample of a prompt is better"""
    _view: LearnerView | None = None
    _batches: Sequence[StepBatch] = ()
    _begun: bool = False

    def train(self, batches: Sequence[StepBatch]) -> LearnerMetrics:
        """Take the optimizer steps; before the first of all, see what the learner thinks of the samples."""
        if not self._begun:
            self._begun = True
            full = [batch for batch in batches if any(batch.micro_batches_by_rank)]
            self._view = view(
                full, [self.logprobs(batch.micro_batches_by_rank) for batch in full], self.zeros() if full else ()
            )
            self._batches = full
        return self.learner.train(batches)

    def step(
        self, step: int, groups: Sequence[ScoredGroup], training: LearnerMetrics, publication: Publication
    ) -> None:
        """Report a step."""
        if step == 1:
            contradicted = contradictions(groups, self._batches) if self.rewards_alone else None
            found = checks(groups, training, self._view, self.engines, self.zero_kl, contradicted)
            self._batches = ()
            self.record(self.fingerprint, found, rendered(groups))
        self.report.step(step, groups, training, publication)

    def evaluation(self, step: int, accuracy: Accuracy) -> None:
        """Report an evaluation."""
        self.report.evaluation(step, accuracy)


def view(batches: Sequence[StepBatch], logprobs: Sequence[Logprobs], zeros: Sequence[str]) -> LearnerView | None:
    """Return how the learner's log-probabilities compare with the engines'; None when no token counts."""
    own, engines = [], []
    for batch, by_rank in zip(batches, logprobs, strict=True):
        for micro_batches, results in zip(batch.micro_batches_by_rank, by_rank, strict=True):
            for micro_batch, logprobs_R in zip(micro_batches, results, strict=True):
                counts_R = micro_batch.weights_R != 0
                own.append(logprobs_R[counts_R].astype(np.float64))
                engines.append(micro_batch.logprobs_R[counts_R].astype(np.float64))
    if not sum(map(len, own)):
        return None
    learner_D, engine_D = np.concatenate(own), np.concatenate(engines)
    differences_D = np.abs(learner_D - engine_D)
    return LearnerView(float(learner_D.mean()), float(differences_D.mean()), float(differences_D.max()), tuple(zeros))


def contradictions(groups: Sequence[ScoredGroup], batches: Sequence[StepBatch]) -> float | None:
    """Return the share of pairs of samples of one prompt whose advantages are not in the order of their rewards.

    Advantages are those that the learner gets, found by their samples' tokens: samples that occur with different ones
    are left out. None when no two samples have different rewards.
    """
    advantages: dict[tuple[int, ...], set[float]] = {}
    for micro_batch in (each for batch in batches for rank in batch.micro_batches_by_rank for each in rank):
        for tokens, advantage in trained(micro_batch):
            advantages.setdefault(tokens, set()).add(advantage)
    known = {tokens: min(found) for tokens, found in advantages.items() if len(found) == 1}
    pairs = contradicted = 0
    for group in groups:
        firsts = [sequences(group.group.prompt, sample)[0] for sample in group.group.samples_G]
        keys_G = [(*first.prompt_T, *first.tokens_T) for first in firsts]
        judged = zip(group.rewards_G, keys_G, strict=bool(group.rewards_G))  # without a reward nothing is judged
        scored = [(reward, known[key]) for reward, key in judged if key in known]
        for (reward, advantage), (other_reward, other_advantage) in combinations(scored, 2):
            pairs += reward != other_reward
            contradicted += (reward - other_reward) * (advantage - other_advantage) < 0
    return contradicted / pairs if pairs else None


def trained(batch: MicroBatch) -> Iterator[tuple[tuple[int, ...], float]]:
    """Yield the tokens of each sequence, prompt and response, and the mean advantage of those it is trained on."""
    for number, (start, end) in enumerate(zip(batch.cu_seqlens_S1[:-1], batch.cu_seqlens_S1[1:], strict=True)):
        yield tuple(batch.tokens_T[start:end].tolist()), float(batch.advantages_R[batch.sequences_R == number].mean())
