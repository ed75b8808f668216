"""GSPO: Group Sequence Policy Optimization, https://arxiv.org/abs/2507.18071.

GRPO's advantages; the probability ratio is one of whole responses: `learners/objectives/gspo.py`.
"""

from rljob_api import sections
from rljob_trainer.algorithms.algorithm import GSPO, Algorithm
from rljob_trainer.algorithms.grpo import GroupRelative


def gspo(settings: sections.Algorithm) -> Algorithm:
    return Algorithm(GroupRelative(settings.normalize_by), GSPO)
