"""Fields that only some runs read: in a cluster, with a learner, with engines. Elsewhere they have no effect."""

from rljob_api.rules.terms import SPEC, Field, default, fields_of
from rljob_api.sections import Spec

CLUSTER_ONLY = (
    *fields_of(SPEC, "suspend", "managed_by"),
    *fields_of(SPEC.runtime, "image", "image_pull_policy", "image_pull_secrets", "volumes", "volume_mounts"),
    *fields_of(SPEC.runtime, "head_resources", "worker_resources"),
    *fields_of(SPEC.scheduling),
    SPEC.pods,
    SPEC.checkpoint.ttl_seconds_after_deletion,
    *fields_of(SPEC.recovery, "infrastructure_restarts", "resumes"),
)
"""fields that mean something in a cluster only; `rljob run` says so of those that are set"""
LEARNER_ONLY = (
    *(field for field in fields_of(SPEC.algorithm) if field.alias not in ("dynamicSampling", "overlong")),
    SPEC.rollout.asynchronous,
    *fields_of(SPEC.training, "steps_per_rollout", "global_batch_size", "nodes", "tensor_parallel"),
    *fields_of(SPEC.training, "sequence_parallel", "pipeline_parallel", "virtual_pipeline", "pipeline_layers"),
    *fields_of(SPEC.training, "context_parallel", "expert_parallel", "expert_tensor_parallel"),
    *fields_of(SPEC.training, "max_tokens_per_gpu", "recompute", "offload"),
    *fields_of(SPEC.training.experts),
    *(field for field in fields_of(SPEC.training.optimizer) if field.alias != "learningRate"),
    *fields_of(SPEC.weight_sync, "transport", "directory", "bucket_mib"),
    *fields_of(SPEC.checkpoint, "interval", "keep"),
    *fields_of(SPEC.watch, "entropy_share", "gradient_spike", "non_finite", "mismatch", "staleness", "data_wait"),
    SPEC.extra_args.megatron,
)
"""fields that only a run with a learner reads; they may stay, so that one field turns debug.rolloutOnly on.
The learning rate has no default, so it is always there"""
ENGINES_ONLY = (
    *fields_of(SPEC.rollout, "engines", "gpus_per_engine", "memory_fraction", "router_policy"),
    *fields_of(SPEC.rollout, "request_timeout_seconds", "generate_timeout_seconds"),
    *fields_of(SPEC.weight_sync),
    *fields_of(SPEC.evaluation),
    SPEC.training.offload,
    SPEC.recovery.engine_restarts,
    SPEC.watch.data_wait,
    SPEC.extra_args.sglang,
)
"""fields that only a run with engines reads, and that say nothing about the samples that they made"""


def only_in_a_cluster(spec: Spec) -> tuple[str, ...]:
    """Return the fields that are set and that a run on one machine does not read."""
    return are_set(spec, CLUSTER_ONLY)


def left_out(spec: Spec) -> tuple[str, ...]:
    """Return the fields that are set and that `spec.debug` leaves without effect."""
    learner, engines = () if spec.debug.learner else LEARNER_ONLY, () if spec.debug.engines else ENGINES_ONLY
    return are_set(spec, (*learner, *engines))


def are_set(spec: Spec, fields: tuple[Field, ...]) -> tuple[str, ...]:
    return tuple(field.at for field in fields if field.of(spec) != default(field))
