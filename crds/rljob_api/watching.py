"""What must hold for the limits of `spec.watch` that other fields bound; `rules.py` has the other rules.

A limit that a run can never exceed would be accepted and ignored.
"""

from collections.abc import Iterator

from rljob_api.cel import Cel, also_in_cel
from rljob_api.errors import Problem
from rljob_api.sections import Spec

NO_ASYNC = "would not be used: without spec.rollout.async every token is of the current weights; leave it out"


@also_in_cel(
    Cel(
        "spec.watch.nonFinite",
        "self.watch.nonFinite == 0 || self.watch.nonFinite < self.training.optimizer.maxSkippedSteps",
        "{self.watch.nonFinite} is not below spec.training.optimizer.maxSkippedSteps"
        " {self.training.optimizer.maxSkippedSteps}, beyond which the run fails; nearest valid:"
        " {self.training.optimizer.maxSkippedSteps > 0 ? self.training.optimizer.maxSkippedSteps - 1 : 0}",
    ),
    Cel(
        "spec.watch.staleness",
        "$imitates || !has(self.watch.staleness) || has(self.rollout.async)",
        f"{{self.watch.staleness}} {NO_ASYNC}",
    ),
    Cel(
        "spec.watch.staleness",
        "$imitates || !has(self.watch.staleness) || !has(self.rollout.async)"
        " || self.watch.staleness < double(self.rollout.async.maxStaleness)",
        "{self.watch.staleness} is not below spec.rollout.async.maxStaleness {self.rollout.async.maxStaleness}, which"
        " no token exceeds; nearest valid: below {self.rollout.async.maxStaleness}, or a larger maxStaleness",
    ),
)
def watching(spec: Spec) -> Iterator[Problem]:
    allowed, limit = spec.training.optimizer.max_skipped_steps, spec.watch.non_finite
    if limit and limit >= allowed:
        rule = f"is not below spec.training.optimizer.maxSkippedSteps {allowed}, beyond which the run fails"
        yield Problem("spec.watch.nonFinite", limit, rule, str(max(0, allowed - 1)))
    oldest, given = spec.rollout.asynchronous, spec.watch.staleness
    if given is None or spec.imitates:
        return
    if oldest is None:
        yield Problem("spec.watch.staleness", given, NO_ASYNC)
    elif given >= oldest.max_staleness:
        rule = f"is not below spec.rollout.async.maxStaleness {oldest.max_staleness}, which no token exceeds"
        near = f"below {oldest.max_staleness}, or a larger maxStaleness"
        yield Problem("spec.watch.staleness", given, rule, near)
