"""Looks at the first step of a run, from where the learner and the report stand; all later ones it only hands on.

The learner's log-probabilities of the engines' samples cost one more forward pass, once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rljob_api.sections import Precision
from rljob_trainer.batches import StepBatch
from rljob_trainer.evaluation import Accuracy
from rljob_trainer.metrics import Publication, TrainMetrics
from rljob_trainer.parts import Learner, Report
from rljob_trainer.reporting.first_step import LearnerView, checks, rendered
from rljob_trainer.reporting.records import CheckRecord, RenderedRecord
from rljob_trainer.samples import ScoredGroup

Logprobs = Sequence[Sequence[npt.NDArray[np.float32]]]
"""for each data-parallel share and micro-batch: of its response tokens [nats]"""


@dataclass
class FirstStep:
    """Learner and report of a run that begins at step 0."""

    learner: Learner
    logprobs: Callable[[StepBatch], Logprobs]
    """of the learner, before it is trained"""
    report: Report
    tell: Callable[[str, Sequence[CheckRecord], Sequence[RenderedRecord]], None]
    """told of the fingerprint, what was measured, and samples as the engines got and gave them"""
    fingerprint: str
    """of the model that training begins with"""
    precision: Precision
    zero_kl: bool
    """whether the KL that the step tells is that of one model against itself"""
    _view: LearnerView | None = None
    _begun: bool = False

    def train(self, batches: Sequence[StepBatch]) -> TrainMetrics:
        """Take the optimizer steps; before the first of all, see what the learner thinks of the samples."""
        if not self._begun:
            self._begun = True
            full = [batch for batch in batches if any(batch.micro_batches_by_rank)]
            self._view = view(full, [self.logprobs(batch) for batch in full])
        return self.learner.train(batches)

    def step(self, step: int, groups: Sequence[ScoredGroup], training: TrainMetrics, publication: Publication) -> None:
        """Tell people what happened in a step."""
        if step == 1:
            found = checks(groups, training, self._view, self.precision, self.zero_kl)
            self.tell(self.fingerprint, found, rendered(groups))
        self.report.step(step, groups, training, publication)

    def evaluation(self, step: int, accuracy: Accuracy) -> None:
        """Tell people what the held-out questions said."""
        self.report.evaluation(step, accuracy)


def view(batches: Sequence[StepBatch], logprobs: Sequence[Logprobs]) -> LearnerView | None:
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
    return LearnerView(float(learner_D.mean()), float(differences_D.mean()), float(differences_D.max()))
