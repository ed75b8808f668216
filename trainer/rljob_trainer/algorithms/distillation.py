"""On-policy distillation: the student samples, a teacher judges every token, https://arxiv.org/abs/2306.13649.

    A_t = c (R_i - mean(R)) - (log p(t) - log q(t))        p: student, q: teacher, c: `teacher.rewardCoefficient`

The expectation of log p - log q over the student's samples is the reverse KL from the teacher, so that its policy
gradient with A_t lowers each token's own share of it; what later tokens owe to an earlier one is left out (a discount
of 0, https://thinkingmachines.ai/blog/on-policy-distillation). Both are taken at the sampling temperature.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rljob_api import sections
from rljob_trainer.algorithms.algorithm import Algorithm, GroupOutcome, Value
from rljob_trainer.algorithms.baseline import centred


@dataclass(frozen=True, slots=True)
class Taught:
    """What the teacher finds likelier than the student, token by token, and the reward's part in it."""

    reward_coefficient: float

    def __call__(self, outcomes: Sequence[GroupOutcome]) -> Sequence[Sequence[Value]]:
        """Return the advantages of all tokens. Raises ValueError without the teacher's judgement."""
        return [self._of_group(outcome) for outcome in outcomes]

    def _of_group(self, outcome: GroupOutcome) -> tuple[Value, ...]:
        if outcome.penalties_G is None:
            raise ValueError("distillation needs what the teacher says of the samples")
        return tuple(
            self.reward_coefficient * better - divergence_T
            for better, divergence_T in zip(centred(outcome.rewards_G), outcome.penalties_G, strict=True)
        )


def distillation(settings: sections.Algorithm) -> Algorithm:
    return Algorithm(Taught(settings.teacher.reward_coefficient if settings.teacher else 0.0))
