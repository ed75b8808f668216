"""Supervised fine-tuning: the responses are the data's own, and each of their tokens has the same weight.

A_i = 1        the objective is the negative log-likelihood: `learners/objectives/likelihood.py`
"""

from collections.abc import Sequence

from rljob_api import sections
from rljob_trainer.algorithms.algorithm import LIKELIHOOD, Algorithm, GroupOutcome, Value


def ones(outcomes: Sequence[GroupOutcome]) -> Sequence[Sequence[Value]]:
    """Return 1 for every response."""
    return [(1.0,) * len(outcome.lengths_G) for outcome in outcomes]


def sft(settings: sections.Algorithm) -> Algorithm:
    return Algorithm(ones, LIKELIHOOD)
