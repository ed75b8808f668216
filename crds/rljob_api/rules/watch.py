"""Rules of `spec.watch`: a limit that a run can never exceed would be accepted and ignored."""

from rljob_api.rules.batches import is_sft, training
from rljob_api.rules.claims import requires
from rljob_api.rules.terms import SPEC, has, is_default, when

watch, ahead, allowed = SPEC.watch, SPEC.rollout.asynchronous, training.optimizer.max_skipped_steps
one_less = when(allowed > 0, allowed - 1, 0)
RULES = (
    requires(
        watch.non_finite,
        is_default(watch.non_finite) | (watch.non_finite < allowed),
        f"is not below spec.training.optimizer.maxSkippedSteps {allowed}, beyond which the run fails"
        f"; nearest valid: {one_less}",
    ),
    requires(
        watch.staleness,
        is_sft | ~has(watch.staleness) | has(ahead),
        "would not be used: without spec.rollout.async every token is of the current weights; leave it out",
    ),
    requires(
        watch.staleness,
        is_sft | ~has(watch.staleness) | ~has(ahead) | (watch.staleness < ahead.max_staleness),
        f"is not below spec.rollout.async.maxStaleness {ahead.max_staleness}, which no token exceeds"
        f"; nearest valid: below {ahead.max_staleness}, or a larger maxStaleness",
    ),
)
