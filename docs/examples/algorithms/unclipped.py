"""RLOO's advantages in a policy gradient whose ratio has no bounds: `algorithm.name: unclipped:unclipped`."""

from rljob_trainer.algorithms.algorithm import Algorithm, PerGroup
from rljob_trainer.algorithms.rloo import leave_one_out
from rljob_trainer.learners.objectives.objective import Surrogate


def ratio_times_advantage(responses, settings):
    ratio_R = (responses.logprobs_R - responses.old_logprobs_R).exp()
    return Surrogate(-ratio_R * responses.advantages_R, ratio_R, ratio_R != ratio_R)  # nothing is clipped


def unclipped(settings):
    return Algorithm(PerGroup(leave_one_out), objective="unclipped:ratio_times_advantage")
