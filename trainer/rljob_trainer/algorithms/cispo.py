"""CISPO of MiniMax-M1, https://arxiv.org/abs/2506.13585.

GRPO's advantages; the clipped ratio is a weight and not differentiated: `learners/objectives/cispo.py`.
"""

from rljob_api import sections
from rljob_trainer.algorithms.algorithm import CISPO, Algorithm
from rljob_trainer.algorithms.grpo import GroupRelative


def cispo(settings: sections.Algorithm) -> Algorithm:
    return Algorithm(GroupRelative(settings.normalize_by), CISPO)
