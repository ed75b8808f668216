"""Rules of `spec.debug` and `spec.checkpoint`: what a run leaves out, what it saves, and what it resumes from."""

from collections.abc import Iterator

from rljob_api import objects
from rljob_api.errors import Problem
from rljob_api.rules.batches import training
from rljob_api.rules.claims import only_in_python, requires, unused
from rljob_api.rules.terms import SPEC, as_term, has, or_else
from rljob_api.sections import Resume, Spec

debug, checkpoint = SPEC.debug, SPEC.checkpoint
DEBUG = (
    requires(
        debug.rollout_only,
        ~debug.rollout_only | ~has(debug.replay),
        "leaves nothing to do: spec.debug.replay starts no engine; nearest valid: false",
        shows=as_term(True),
    ),
    requires(
        debug.dump_rollouts,
        ~debug.dump_rollouts | ~has(debug.replay),
        "would write again what spec.debug.replay reads; nearest valid: false",
        shows=as_term(True),
    ),
    requires(
        checkpoint.hf_export,
        ~debug.rollout_only | ~checkpoint.hf_export,
        "would export the weights that the run began with: spec.debug.rolloutOnly trains nothing; nearest valid: false",
        shows=as_term(True),
    ),
)
FOR_NOTHING = "asks for a checkpoint, but spec.debug.rolloutOnly starts no learner to load it"
RESUMING = (
    requires(
        checkpoint.resume_step,
        ~has(checkpoint.resume_step) | (checkpoint.resume != Resume.FRESH),
        f"would not be used: spec.checkpoint.resume {Resume.FRESH} starts at step 0"
        f"; nearest valid: spec.checkpoint.resume {Resume.AUTO}",
    ),
    requires(
        checkpoint.resume_step,
        (checkpoint.resume == Resume.FRESH)
        | debug.rollout_only
        | (or_else(checkpoint.resume_step, 0) < training.steps),
        f"is not less than spec.training.steps {training.steps}: nothing would be left to do"
        f"; nearest valid: spec.training.steps {checkpoint.resume_step + 1} or more",
    ),
    unused(checkpoint.resume_step, ~debug.rollout_only, FOR_NOTHING),
    requires(
        checkpoint.resume,
        ~debug.rollout_only | (checkpoint.resume != Resume.MUST),
        f"{FOR_NOTHING}; nearest valid: {Resume.AUTO}",
    ),
)


@only_in_python("the CRD is almost as long as kubectl lets it be")
def remote_place(spec: Spec) -> Iterator[Problem]:
    place = spec.checkpoint.remote
    if place is None:
        return
    if objects.PREFIX.fullmatch(place) is None:
        meant = objects.form_of(place, "RUN/") if place.startswith(("s3", "gs")) else "s3://BUCKET/RUN/"
        yield Problem(
            "spec.checkpoint.remote", place, "is not a place in an object store that can be written to", meant
        )
    if spec.debug.rollout_only:
        rule = "would not be used: spec.debug.rolloutOnly starts no learner; leave it out"
        yield Problem("spec.checkpoint.remote", place, rule)


RULES = (*DEBUG, *RESUMING, remote_place)
