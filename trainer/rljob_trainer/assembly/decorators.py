"""What is wrapped around the loop's parts: rollouts that are dumped or chosen, rewards that are shaped, a first look.

    loop ─► first step ─► shaping ─► dynamic sampling ─► masking ─► leaving out ─► dumping ─► rollouts, rewards, …

`decorators` decides which and in which order; `decorated` applies them, innermost first.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from rljob_api.sections import Spec
from rljob_api.sizing.batch import batch
from rljob_trainer.algorithms.factory import smallest_group
from rljob_trainer.assembly.foundation import Foundation
from rljob_trainer.assembly.stages import Material
from rljob_trainer.learners.group import LearnerGroup
from rljob_trainer.learners.rank_calls import Rank
from rljob_trainer.parts import Learner, Report, Rewards, Source
from rljob_trainer.reporting.first_step import format_of
from rljob_trainer.rewards.overlong import Shaped, shaping
from rljob_trainer.rewards.truncated import masked
from rljob_trainer.rollouts.dynamic_sampling import DynamicRollouts, ReportWithDropped
from rljob_trainer.rollouts.first_step import FirstStep
from rljob_trainer.rollouts.lost_samples import LeavingOut
from rljob_trainer.rollouts.recorded import Dumping
from rljob_trainer.rollouts.supervised import FirstReferences


class Decorator(Enum):
    DUMPING = auto()
    """writes groups and rewards to disk"""
    LEAVING_OUT = auto()
    """drops what was lost, within a budget"""
    MASKING = auto()
    """keeps truncated responses out of the loss"""
    DYNAMIC_SAMPLING = auto()
    """chooses groups by their rewards"""
    SHAPING = auto()
    """penalises overlong responses"""
    FIRST_STEP = auto()
    """compares learner and engines on the first samples"""
    FIRST_REFERENCES = auto()
    """shows the first responses of the data"""


@dataclass(frozen=True, slots=True)
class Core:
    """The parts that decorators wrap."""

    rollouts: Source
    rewards: Rewards
    learner: Learner
    report: Report


def decorators(spec: Spec, first: int) -> tuple[Decorator, ...]:
    """Return what a run that begins at step `first` wraps around its parts, innermost first.

    Dumping is innermost: a dump holds groups as engines made and rewards judged them, so that a replay drops and
    masks and shapes the same ones. Dynamic sampling chooses by rewards before they are shaped, and knows which samples
    are masked. The first step is looked at from
    outside: with the groups that are trained on, and the rewards that they are trained with.
    """
    wanted = {
        Decorator.DUMPING: spec.has_engines and spec.debug.dump_rollouts,
        Decorator.LEAVING_OUT: not spec.is_sft,
        Decorator.MASKING: spec.algorithm.mask_truncated,
        Decorator.DYNAMIC_SAMPLING: spec.algorithm.dynamic_sampling is not None,
        Decorator.SHAPING: True,
        Decorator.FIRST_STEP: first == 0 and not spec.is_sft,
        Decorator.FIRST_REFERENCES: first == 0 and spec.is_sft,
    }
    return tuple(decorator for decorator, applies in wanted.items() if applies)


def decorated(
    core: Core, order: Sequence[Decorator], foundation: Foundation, material: Material, learner: LearnerGroup
) -> Core:
    """Return the parts with all decorators around them."""
    for decorator in order:
        core = _wrapped(core, decorator, foundation, material, learner)
    return core


def _wrapped(
    core: Core, decorator: Decorator, foundation: Foundation, material: Material, learner: LearnerGroup
) -> Core:
    spec, first_step = foundation.spec, foundation.report.first_step
    match decorator:
        case Decorator.DUMPING:
            groups = spec.rollout.prompts_per_step
            dumping = Dumping(core.rollouts, core.rewards, material.dump, material.made, groups)
            return replace(core, rollouts=dumping, rewards=dumping)
        case Decorator.LEAVING_OUT:
            leaving = _leaving_out(core, foundation, material)
            return replace(core, rollouts=leaving, rewards=leaving)
        case Decorator.MASKING:
            return replace(core, rewards=Shaped(core.rewards, masked))
        case Decorator.DYNAMIC_SAMPLING:
            return _with_dynamic_sampling(core, foundation)
        case Decorator.SHAPING:
            return replace(core, rewards=Shaped(core.rewards, shaping(spec)))
        case Decorator.FIRST_STEP:
            look = _first_step(core, foundation, material, learner)
            return replace(core, learner=look, report=look)
        case Decorator.FIRST_REFERENCES:
            return replace(core, report=FirstReferences(core.report, first_step, material.fingerprint))


def _leaving_out(core: Core, foundation: Foundation, material: Material) -> LeavingOut:
    rollout = foundation.spec.rollout
    return LeavingOut(
        source=core.rollouts,
        rewards=core.rewards,
        prompts_per_step=rollout.prompts_per_step,
        samples_per_prompt=rollout.samples_per_prompt,
        share=foundation.spec.recovery.lost_samples,
        losses=foundation.losses,
        smallest=smallest_group(material.algorithm, rollout.samples_per_prompt),
    )


def _with_dynamic_sampling(core: Core, foundation: Foundation) -> Core:
    spec, settings = foundation.spec, foundation.spec.algorithm.dynamic_sampling
    assert settings is not None, "chosen for manifests that have it"
    dynamic = DynamicRollouts(core.rollouts, core.rewards, spec.rollout.prompts_per_step, settings)
    # Dropped groups are reported with the rewards that they would have been trained with.
    report = ReportWithDropped(foundation.report, dynamic, shaping(spec))
    return replace(core, rollouts=dynamic, rewards=dynamic, report=report)


def _first_step(core: Core, foundation: Foundation, material: Material, learner: LearnerGroup) -> FirstStep:
    spec, algorithm = foundation.spec, foundation.spec.algorithm
    return FirstStep(
        learner=core.learner,
        logprobs=learner.logprobs,
        zeros=lambda: learner.call(Rank.zeros)[0],
        report=core.report,
        record=foundation.report.first_step,
        fingerprint=material.fingerprint,
        engines=format_of(spec),
        zero_kl=algorithm.teacher is None and batch(spec).steps_per_rollout == 1,
        rewards_alone=algorithm.teacher is None and algorithm.critic is None,
    )
