"""Limits of the findings: what a manifest leaves open, and where a finding ends. Pure.

A value that stays at its limit crosses it at every second step. So a finding begins beyond its limit, and ends only
where the value is better than the limit by EASE.
"""

from dataclasses import dataclass, replace
from math import inf
from typing import Final

from rljob_api.sections import Device, Spec, Watch
from rljob_trainer.reporting.first_step import MEAN_LIMIT, format_of

EASE: Final = 0.1
"""share of a limit"""
USUAL_WAIT: Final = 0.5
"""above it, a learner with half of its GPUs would still be fast enough"""
MOST_SLOWED: Final = 0.1
"""share of the readings of a GPU in which heat or its power supply slowed it down, mean of the window"""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits that depend on more than `spec.watch`; infinite: no limit."""

    mismatch: float = inf
    """of the mean |engine - learner| [nats]"""
    oldest: float = inf
    """of the age of a single token [steps]"""
    data_wait: float = inf
    """of the share of a step that the learner waits for samples"""
    slowed: float = MOST_SLOWED
    """of the share of readings in which a GPU is slowed down"""


def bounds(spec: Spec) -> Bounds:
    """Return the limits of a manifest that depend on more than `spec.watch`."""
    return Bounds(
        mismatch=mismatch_limit(spec),
        oldest=spec.ahead.max_staleness if spec.ahead else inf,
        data_wait=data_wait_limit(spec),
    )


def eased(limits: Watch) -> Watch:
    """Return the limits at which findings end, each better than where it begins.

    The limits of single steps stay: a gradient that is a spike, and the number of steps that were skipped.
    """
    less = 1 - EASE
    return limits.model_copy(
        update={
            "reward_drop": limits.reward_drop * less,
            "entropy_share": limits.entropy_share * (1 + EASE),
            "loss_rise": limits.loss_rise * less,
            "truncated": limits.truncated * less,
            "repeated": limits.repeated * less,
            "no_signal": limits.no_signal * less,
            # 1 is an even load: what counts is how far above it a load is.
            "engine_imbalance": 1 + (limits.engine_imbalance - 1) * less,
            "expert_load": 1 + (limits.expert_load - 1) * less,
            "staleness": None if limits.staleness is None else limits.staleness * less,
        }
    )


def eased_bounds(bounds: Bounds) -> Bounds:
    """Return the bounds at which findings end. The age of a single token is a promise, which has no tolerance."""
    less = 1 - EASE
    return replace(
        bounds, mismatch=bounds.mismatch * less, data_wait=bounds.data_wait * less, slowed=bounds.slowed * less
    )


def mismatch_limit(spec: Spec) -> float:
    """Return the limit of the mismatch: the manifest's, or else that of the first step.

    With rollouts ahead there is no default limit: the learner has changed since the samples were generated.
    """
    if spec.watch.mismatch is not None:
        return spec.watch.mismatch
    return inf if spec.ahead else MEAN_LIMIT[format_of(spec)]


def data_wait_limit(spec: Spec) -> float:
    """Return the limit of the wait for samples.

    Without one in the manifest, only a learner on separate GPUs with rollouts ahead has a limit: a learner that
    shares GPUs with the engines must wait. Without learner or engines there is no wait.
    """
    if not (spec.has_engines and spec.debug.learner):
        return inf
    if spec.watch.data_wait is not None:
        return spec.watch.data_wait
    return USUAL_WAIT if spec.ahead and spec.runtime.device is Device.GPU else inf
