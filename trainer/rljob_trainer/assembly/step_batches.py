"""What makes the batches of a step, and what is measured for them."""

from functools import partial

from rljob_api.sections import KlTarget
from rljob_api.sizing.batch import batch
from rljob_api.sizing.flops import Work
from rljob_trainer.assembly.engine_weights import choices, shape_of
from rljob_trainer.assembly.foundation import Foundation
from rljob_trainer.assembly.settings import loss_settings
from rljob_trainer.assembly.stages import Material
from rljob_trainer.batches.batches import Batches
from rljob_trainer.batches.loss_weights import aggregation
from rljob_trainer.batches.packing import Packing
from rljob_trainer.batches.penalties import KlPenalties, Penalties, no_penalties
from rljob_trainer.batches.token_values import Measure, Measurement, SharedGpus, Values, no_values
from rljob_trainer.learners.group import LearnerGroup


def step_batches(foundation: Foundation, material: Material, group: LearnerGroup, gpu_sharing: SharedGpus) -> Batches:
    """Return what makes the batches of a step."""
    spec, algorithm = foundation.spec, material.algorithm
    loss = loss_settings(spec, algorithm)
    return Batches(
        advantage=algorithm.advantage,
        penalties=_penalties(foundation, material, group, gpu_sharing),
        weights=aggregation(spec),
        keep_zero_advantage=loss.kl is not None or loss.entropy_coefficient > 0 or algorithm.returns is not None,
        global_batch_size=batch(spec).global_batch_size,
        packing=packing(foundation, material),
        values=_values(foundation, material, group, gpu_sharing),
        returns=algorithm.returns,
        choices=choices(spec, material.model),
    )


def measurement(foundation: Foundation, material: Material, measure: Measure, gpu_sharing: SharedGpus) -> Measurement:
    """Return a measure of the learner's, packed as training packs."""
    return Measurement(measure, gpu_sharing, packing(foundation, material))


def packing(foundation: Foundation, material: Material) -> Packing:
    """Return how the learner's layout wants sequences packed."""
    layout, max_tokens = foundation.topology.layout, foundation.spec.training.micro_batch_tokens
    work = Work.of(shape_of(material.model))
    return Packing(layout.data, max_tokens, layout.data_ranks_meet, layout.micro_batch_multiple, work)


def _penalties(foundation: Foundation, material: Material, group: LearnerGroup, gpu_sharing: SharedGpus) -> Penalties:
    spec, kl = foundation.spec, foundation.spec.algorithm.kl
    if spec.algorithm.teacher is not None:
        estimates: Measure = group.divergence
        coefficient = 1.0
    elif kl is not None and kl.added_to is KlTarget.REWARD:
        estimates = partial(group.kl, estimator=kl.estimator, clamp=kl.clamp)
        coefficient = kl.coefficient
    else:
        return no_penalties
    return KlPenalties(measurement(foundation, material, estimates, gpu_sharing), coefficient)


def _values(foundation: Foundation, material: Material, group: LearnerGroup, gpu_sharing: SharedGpus) -> Values:
    if foundation.spec.algorithm.critic is None:
        return no_values
    return measurement(foundation, material, group.values, gpu_sharing)
