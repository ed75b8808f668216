"""Rules of `spec.algorithm`: which settings an algorithm reads, and which of them matter in one optimizer step.

Nothing is known of an algorithm that a user brings: it is given all settings.
"""

from rljob_api import algorithms
from rljob_api.algorithms import DISTILLATION, KNOWN
from rljob_api.rules.batches import is_sft, one_step, training
from rljob_api.rules.claims import Rule, Search, needs, requires, unused
from rljob_api.rules.model import is_checkpoint, known_model
from rljob_api.rules.names import FUNCTION, closest, letters, with_colon
from rljob_api.rules.terms import SPEC, Field, Term, default, has, is_default, matches, named, one_of, or_else

algorithm, rollout = SPEC.algorithm, SPEC.rollout
critic, teacher, overlong, dynamic = algorithm.critic, algorithm.teacher, algorithm.overlong, algorithm.dynamic_sampling
WITH_CRITIC = algorithms.names(critic=True)
CISPO = algorithms.names(objective="cispo")
OFF_POLICY = (*algorithms.names(objective="gspo"), *CISPO)
"""algorithms that are GRPO where the probability ratio is 1"""
GRPO = default(algorithm.name)
OTHER_NAMES = {"dapo": "grpo", "gae": "ppo"}
"""what other systems call an algorithm, without case and separators"""
ON_PREFERENCES = ("dpo", "ipo", "kto", "orpo", "simpo")
"""algorithms that resemble a known one in nothing but their names"""
CLAMPED = "k3"
"""the estimate that grows exponentially"""


def _without_preferences(name: str) -> str | None:
    return f"{GRPO}, which needs a reward; rljob has no training on preferences" if name in ON_PREFERENCES else None


NAME = (
    requires(
        algorithm.name,
        one_of(algorithm.name, KNOWN) | matches(algorithm.name, FUNCTION),
        "is not a known algorithm, and not of the form module:object",
        nearest=Search(
            lambda spec: (
                _without_preferences(letters(spec.algorithm.name))
                or OTHER_NAMES.get(letters(spec.algorithm.name))
                or closest(spec.algorithm.name, KNOWN)
                or with_colon(spec.algorithm.name)
                or " or ".join(KNOWN)
            ),
            says=" or ".join(KNOWN),
        ),
    ),
    requires(
        algorithm.normalize_by,
        is_default(algorithm.normalize_by) | ~one_of(algorithm.name, algorithms.names(normalizes=False)),
        f"would not be used: {algorithm.name} leaves no choice of a standard deviation"
        f"; nearest valid: {default(algorithm.normalize_by)}",
    ),
)

distils = algorithm.name == DISTILLATION
WEIGHTED = f"{teacher.reward_coefficient.at} above 0"
TEACHER = (
    needs(teacher, ~distils, f"is missing: {DISTILLATION} learns from it; set its checkpoint"),
    unused(
        teacher,
        distils,
        f"would not be asked: spec.algorithm.name is {algorithm.name}"
        f"; nearest valid: spec.algorithm.name {DISTILLATION}",
    ),
    known_model(teacher.checkpoint, ~has(teacher) | is_checkpoint(teacher.checkpoint)),
    unused(
        algorithm.kl, ~distils, f"would be a second divergence: {DISTILLATION} has that from its teacher; leave it out"
    ),
    requires(
        overlong,
        ~distils | ~has(overlong) | ~has(teacher) | (teacher.reward_coefficient > 0),
        f"would change a reward that is only measured; nearest valid: {WEIGHTED}",
    ),
    unused(
        algorithm.mask_truncated,
        ~distils | ~has(teacher) | (teacher.reward_coefficient > 0),
        f"would leave out tokens that the teacher judges; nearest valid: {WEIGHTED}",
        shows=False,
    ),
)

CLIPPING = (
    requires(
        algorithm.clip_low,
        (algorithm.clip_low <= algorithm.clip_high) | one_of(algorithm.name, CISPO),
        f"is more than clipHigh {algorithm.clip_high}; nearest valid: {algorithm.clip_high}",
    ),
    requires(
        algorithm.dual_clip,
        ~has(algorithm.dual_clip) | ~one_of(algorithm.name, OFF_POLICY),
        f"would not be used: {algorithm.name} has no such bound; leave it out",
    ),
)

MORE_STEPS = f"{training.steps_per_rollout.at} above 1"
RATIO_IS_ONE = "with one optimizer step for each rollout the ratio is 1"
ratio_to_engines = named(has(rollout.asynchronous) & ~has(algorithm.importance_sampling))
"""the old policy is the engines', and the ratio to it may be any"""


def off_policy(field: Field, holds: Term, says: str, near: str) -> Rule:
    """Refuse what has no effect where the ratio is 1: its old policy is the learner before the step's only update."""
    matters = is_sft | ratio_to_engines | ~one_step
    return requires(field, holds | matters, f"{says}: {RATIO_IS_ONE}; nearest valid: {near}")


ON_POLICY = (
    off_policy(
        algorithm.name,
        ~one_of(algorithm.name, OFF_POLICY),
        f"would be no different from {GRPO}",
        f"{GRPO}, or {MORE_STEPS}",
    ),
    *(
        off_policy(each, is_default(each), "would clip nothing", f"{default(each)}, or {MORE_STEPS}")
        for each in (algorithm.clip_low, algorithm.clip_high)
    ),
    off_policy(algorithm.dual_clip, is_default(algorithm.dual_clip), "would clip nothing", MORE_STEPS),
)

critic_only = or_else(critic.warmup_steps, 0)
CRITIC = (
    needs(
        critic,
        ~one_of(algorithm.name, WITH_CRITIC),
        f"is missing: {algorithm.name} compares rewards with a value model; set its learningRate",
    ),
    requires(
        critic,
        ~has(critic) | one_of(algorithm.name, WITH_CRITIC),
        f"is unused: {algorithm.name} has no critic; nearest valid: spec.algorithm.name {' or '.join(WITH_CRITIC)}",
    ),
    requires(
        critic.warmup_steps,
        ~has(critic) | (critic_only < training.steps),
        f"leaves the policy none of the run's {training.steps} rollouts; nearest valid: {training.steps - 1}",
        shows=critic_only,
    ),
    requires(
        critic.value_clip,
        ~has(critic) | is_default(critic.value_clip) | ~one_step,
        "would clip nothing: with one optimizer step for each rollout values are what they were"
        f"; nearest valid: {default(critic.value_clip)}, or {MORE_STEPS}",
    ),
)

kl = algorithm.kl
KL = requires(
    kl.clamp,
    ~has(kl) | is_default(kl.clamp) | (kl.estimator == CLAMPED),
    f"would not be used: {kl.estimator} is never limited; leave it out",
)

longest = rollout.sampling.max_new_tokens
LENGTHS = (
    requires(
        overlong.buffer,
        ~has(overlong) | (overlong.buffer <= longest),
        f"is more than sampling.maxNewTokens {longest}; nearest valid: {longest}",
    ),
    requires(
        dynamic.over_sample,
        ~has(dynamic) | (dynamic.max_rounds > 1) | (dynamic.over_sample > 1),
        "leaves nothing to choose from in 1 round; nearest valid: 1.5, or maxRounds 2",
    ),
)

RULES = (*NAME, *TEACHER, *CLIPPING, *ON_POLICY, *CRITIC, KL, *LENGTHS)
