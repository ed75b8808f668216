"""Rules of `spec.training`: parallel sizes and the optimizer's schedule. `batches.py` has those of the batches."""

import math

from rljob_api.rules import batches, megatron
from rljob_api.rules.algorithm import critic_only
from rljob_api.rules.batches import batches_fit, context, model, one_step, ranks, replicas, steps, training
from rljob_api.rules.cel import near
from rljob_api.rules.claims import Search, requires, unused
from rljob_api.rules.terms import SPEC, as_term, has, is_default, named, size
from rljob_api.sections import INT32, MOST_GPUS_PER_NODE, MOST_RANKS, MOST_STAGES, Device, Replay, Schedule, Spec
from rljob_api.sizing.batch import divisors
from rljob_api.sizing.topology import sizes

optimizer = training.optimizer
expert, expert_tensor = training.expert_parallel, training.expert_tensor_parallel
tensor, pipeline, gpus = training.tensor_parallel, training.pipeline_parallel, training.gpus_per_node


RANKS = requires(
    training.nodes,
    ranks <= MOST_RANKS,
    f"x gpusPerNode {gpus} = {ranks} is more than the {MOST_RANKS} ranks that a learner may have; nearest valid: "
    f"{as_term(MOST_RANKS) // gpus}",
)


def valid_parallelism(spec: Spec) -> str | None:
    """Return the closest tensor or pipeline size that divides the learner's GPUs, or the closest number of GPUs."""
    wanted = sizes(spec)
    layout = wanted.layout
    options = [
        f"{name} {near}"
        for name, size, other in (
            ("tensorParallel", layout.tensor, layout.pipeline),
            ("pipelineParallel", layout.pipeline, layout.tensor),
        )
        if (near := closest_divisor(wanted.ranks, size, other))
    ]
    model = layout.tensor * layout.pipeline
    period = model // math.gcd(model, wanted.nodes)
    gpus = max(1, round(wanted.gpus_per_node / period)) * period
    options += [f"gpusPerNode {gpus}"] if gpus <= MOST_GPUS_PER_NODE else []
    return ", or ".join(options) or None


def closest_divisor(ranks: int, size: int, other: int) -> int | None:
    valid = [near for near in divisors(ranks) if ranks % (near * other) == 0]
    return min(valid, key=lambda near: (abs(near - size), near), default=None)


PARALLELISM = requires(
    tensor,
    (model < 1) | (ranks % model == 0),
    f"x pipelineParallel {pipeline} = {model} does not divide nodes {training.nodes} x gpusPerNode {gpus} = {ranks}",
    nearest=Search(
        valid_parallelism,
        cel=(
            near(tensor.alias, tensor.cel, f"{ranks.cel} % (v * {pipeline.cel}) == 0", 1, INT32),
            near(pipeline.alias, pipeline.cel, f"{ranks.cel} % ({tensor.cel} * v) == 0", 1, INT32),
            near(gpus.alias, gpus.cel, f"{training.nodes.cel} * v % {model.cel} == 0", 1, MOST_GPUS_PER_NODE),
        ),
    ),
)


def valid_context_parallelism(spec: Spec) -> str | None:
    """Return the closest size that divides the ranks which hold the same part of the model."""
    wanted = sizes(spec)
    layout = wanted.layout
    model = layout.tensor * layout.pipeline
    near = closest_divisor(wanted.ranks // model, layout.context, 1)
    return f"{context.alias} {near}" if near else None


CONTEXT = requires(
    context,
    (model < 1) | (ranks % model != 0) | (context < 1) | (replicas % context == 0),
    f"does not divide the {replicas} ranks that hold the same part of the model",
    nearest=Search(
        valid_context_parallelism, cel=(near(context.alias, context.cel, f"{replicas.cel} % v == 0", 1, INT32),)
    ),
)

SHARES = unused(
    training.sequence_parallel,
    tensor > 1,
    f"would not be used: tensorParallel is {tensor}, and one rank has all tokens; nearest valid: false",
)

virtual = training.virtual_pipeline
VIRTUAL = unused(
    virtual,
    pipeline > 1,
    f"would not be used: pipelineParallel is {pipeline}, and the chunks of one rank would follow each other; nearest "
    f"valid: 1",
)

stages = size(training.pipeline_layers)
of_all = named(pipeline * virtual)
STAGES = requires(
    training.pipeline_layers,
    (stages == 0) | (stages == of_all),
    f"has {stages} numbers, and pipelineParallel {pipeline} x virtualPipeline {virtual} is {of_all}; nearest valid: "
    f"one number for each chunk of each stage",
)

CHUNKS = requires(
    pipeline,
    of_all <= MOST_STAGES,
    f"x virtualPipeline {virtual} = {of_all} is more than {MOST_STAGES} parts of a model's layers; nearest valid: "
    f"pipelineParallel and virtualPipeline whose product is at most {MOST_STAGES}",
)

stage = named(ranks // pipeline)
experts = named(expert * expert_tensor)


def valid_expert_parallelism(spec: Spec) -> str | None:
    """Return the closest sizes that divide the ranks of a pipeline stage."""
    chosen = spec.training
    ranks = chosen.nodes * chosen.gpus_per_node // chosen.pipeline_parallel
    options = [
        f"{name} {near}"
        for name, size, other in (
            (expert.alias, chosen.expert_parallel, chosen.expert_tensor_parallel),
            (expert_tensor.alias, chosen.expert_tensor_parallel, chosen.expert_parallel),
        )
        if (near := closest_divisor(ranks, size, other))
    ]
    return ", or ".join(options) or None


EXPERTS = requires(
    expert,
    (pipeline < 1) | (experts < 1) | (ranks % model != 0) | (stage % experts == 0),
    f"x expertTensorParallel {expert_tensor} = {experts} does not divide the {stage} ranks of a pipeline stage",
    nearest=Search(
        valid_expert_parallelism,
        cel=(
            near(expert.alias, expert.cel, f"{stage.cel} % (v * {expert_tensor.cel}) == 0", 1, INT32),
            near(expert_tensor.alias, expert_tensor.cel, f"{stage.cel} % ({expert.cel} * v) == 0", 1, INT32),
        ),
    ),
)

routers = training.experts
anew = "would not be used"
ROUTERS = (
    unused(routers.balance_over, routers.balance_loss > 0, f"{anew}: balanceLoss is 0; leave it out"),
    requires(
        routers.replay,
        ~has(routers.replay) | (routers.replay != Replay.LEARNER) | ~one_step,
        f"{anew}: each rollout is one optimizer step, which chooses experts once; nearest valid: {Replay.ROLLOUT}",
    ),
    requires(
        routers.replay,
        ~has(routers.replay) | (routers.replay != Replay.ROLLOUT) | ~has(SPEC.debug.replay),
        "cannot be used with spec.debug.replay: kept samples are without their experts; leave it out",
    ),
)

floor, rate = optimizer.min_learning_rate, optimizer.learning_rate
policy_rollouts = named(training.steps - critic_only)
total_steps = policy_rollouts * steps
SCHEDULE = (
    requires(floor, floor <= rate, f"is more than learningRate {rate}; nearest valid: {rate}"),
    requires(
        floor,
        is_default(floor) | (optimizer.schedule != Schedule.CONSTANT) | (floor > rate),
        f"is never reached: schedule is {Schedule.CONSTANT}"
        f"; nearest valid: 0, or {optimizer.schedule.at} {Schedule.COSINE}",
    ),
    requires(
        optimizer.warmup_steps,
        (optimizer.warmup_steps < policy_rollouts)
        | (policy_rollouts < 1)
        | ~batches_fit
        | (optimizer.warmup_steps < total_steps),
        f"is not less than the policy's {total_steps} optimizer steps; nearest valid: {total_steps - 1}",
    ),
)

OFFLOAD = requires(
    optimizer.offload,
    ~optimizer.offload | (SPEC.runtime.device != Device.CPU),
    "needs runtime.device Gpu; nearest valid: false",
)

RULES = (
    *(
        RANKS,
        PARALLELISM,
        SHARES,
        VIRTUAL,
        STAGES,
        CHUNKS,
        CONTEXT,
        EXPERTS,
        *ROUTERS,
        *batches.RULES,
        *SCHEDULE,
        OFFLOAD,
    ),
    *megatron.RULES,
)
