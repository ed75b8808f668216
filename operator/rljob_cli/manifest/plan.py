"""`rljob plan`: the processes, batches, tokens, memory and stop tokens that a manifest needs.

The plan is a value made of the manifest and the model's files; `plan_view.py` shows it. Needs nothing of the trainer.
"""

from dataclasses import dataclass

from rljob_api import algorithms
from rljob_api.control import CORES
from rljob_api.rules.scope import left_out
from rljob_api.sections import Algorithm, Device, KlTarget, NormalizeBy, Placement, Quantization, RLJob, Spec
from rljob_api.sizing import batch, memory, model_shape
from rljob_api.sizing.batch import Batch
from rljob_api.sizing.memory import Estimate
from rljob_api.sizing.model_shape import Shape
from rljob_api.sizing.parallel_layout import ParallelLayout
from rljob_api.sizing.topology import LearnerRank, Node, Slot, Topology, topology
from rljob_cli.manifest.fit import Card, Fit, fit
from rljob_trainer.preflight import Findings
from rljob_trainer.preflight.model_files import ModelFiles, StopToken

MARLIN_START_SECONDS = 1800
"""enough for an engine's first start in INT4, which compiles kernels for over 6 minutes: docs/model-measurements.md"""
USUAL_CLIP_HIGH = Algorithm().clip_high


@dataclass(frozen=True, slots=True)
class Process:
    """One process, and where it sits."""

    name: str
    role: str
    """`tensor 0, data 1, pipeline 0`, or what it does"""
    slots: tuple[str, ...]
    """`NODE:GPU`; none for a process that needs no GPU"""


@dataclass(frozen=True, slots=True)
class Range:
    """From, and to; None: not known before the run."""

    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What a manifest needs."""

    name: str
    device: Device
    placement: Placement
    gpus: int
    nodes: tuple[Node, ...]
    processes: tuple[Process, ...]
    layout: ParallelLayout
    batch: Batch
    optimizer_steps: int
    """of the policy in the whole run"""
    critic_only: int
    """rollouts at the beginning that only the critic is trained on"""
    generated_tokens: Range
    """in one step"""
    trained_tokens: Range
    """in one step, prompts included"""
    memory: Estimate | None
    fit: Fit | None
    """whether it fits into GPUs of a given size; None: none was given, or nothing is known of the model"""
    stop_tokens: tuple[StopToken, ...]
    stop_strings: tuple[str, ...]
    warnings: tuple[str, ...]
    problems: tuple[str, ...]
    """what the files have shown that the manifest names: it cannot run with them"""


def plan(
    job: RLJob, files: ModelFiles | None, findings: Findings, teacher: Shape | None = None, card: Card | None = None
) -> Plan:
    """Return what a valid job needs; `files` and `teacher` are None when the models are not on this machine."""
    spec, where, batches = job.spec, topology(job.spec), batch.batch(job.spec)
    model = model_shape.shape(files.config) if files else None
    stops = stop_tokens(spec, files)
    return Plan(
        name=job.metadata.name,
        device=spec.runtime.device,
        placement=spec.placement,
        gpus=where.gpus,
        nodes=where.nodes,
        processes=processes(where),
        layout=where.layout,
        batch=batches,
        optimizer_steps=spec.policy_rollouts * batches.steps_per_rollout,
        critic_only=spec.training.steps - spec.policy_rollouts,
        generated_tokens=generated_tokens(spec, batches),
        trained_tokens=trained_tokens(spec, batches, model),
        memory=memory.estimate(model, spec, where, teacher) if model else None,
        fit=fit(job, model, card, teacher) if model and card and spec.runtime.device is Device.GPU else None,
        stop_tokens=stops,
        stop_strings=spec.rollout.sampling.stop,
        warnings=(*warnings(spec, where, model, stops), *map(str, findings.warnings), *findings.unseen),
        problems=tuple(map(str, findings.problems)),
    )


def processes(where: Topology) -> tuple[Process, ...]:
    router = (Process("router", "routes requests", ()),) if where.num_engines else ()
    learner = (
        Process(
            f"learner-{rank.rank}",
            role(where, rank),
            (place(where, rank.slot),),
        )
        for rank in where.learner
    )
    engines = (
        Process(engine.name, "SGLang server", tuple(place(where, slot) for slot in engine.slots))
        for engine in where.engines
    )
    return (Process("driver", "runs the loop", ()), *router, *learner, *engines)


def role(where: Topology, rank: LearnerRank) -> str:
    context = f"context {rank.context}, " if where.layout.context > 1 else ""
    return f"tensor {rank.tensor}, {context}data {rank.data}, pipeline {rank.pipeline}"


def place(where: Topology, slot: Slot) -> str:
    return f"{where.nodes[slot.node].name}:{slot.gpu}"


def generated_tokens(spec: Spec, batches: Batch) -> Range:
    """Return the bounds of what engines make: at least one token a response, at most the limit in every round."""
    dynamic, longest = spec.algorithm.dynamic_sampling, spec.rollout.sampling.max_new_tokens
    if spec.is_sft:
        return Range(0, 0)
    if dynamic is None:
        return Range(batches.samples, batches.samples * longest)
    prompts = dynamic.prompts(batches.prompts)
    return Range(
        prompts * batches.samples_per_prompt, dynamic.max_rounds * prompts * batches.samples_per_prompt * longest
    )


def trained_tokens(spec: Spec, batches: Batch, model: Shape | None) -> Range:
    """Return the bounds of prompts and responses together: at least one token each, at most the context."""
    longest = spec.rollout.context_length or (model.longest if model else None)
    return Range(2 * batches.samples, batches.samples * longest if longest else None)


def stop_tokens(spec: Spec, files: ModelFiles | None) -> tuple[StopToken, ...]:
    source = "spec.rollout.sampling.stopTokenIds"
    own = (StopToken(token, source) for token in spec.rollout.sampling.stop_token_ids)
    return (*(files.stop_tokens if files else ()), *own)


def warnings(spec: Spec, where: Topology, model: Shape | None, stops: tuple[StopToken, ...]) -> tuple[str, ...]:
    """Return what is allowed but probably not meant."""
    found = []
    rollout, sampling = spec.rollout, spec.rollout.sampling
    longest = rollout.context_length or (model.longest if model else 0)
    if model is None:
        found.append(f"{spec.model.checkpoint} is not on this machine: its memory, shape and stop tokens are unknown")
    elif not stops and not sampling.stop and not spec.is_sft:
        longest_response = f"every response runs to {sampling.max_new_tokens} tokens"
        found.append(f"no stop token: {longest_response}; set sampling.stop or stopTokenIds")
    if spec.data.held_out is None:
        found.append(f"no spec.data.heldOut: {'perplexity' if spec.is_sft else 'accuracy'} is not measured")
    most = spec.training.micro_batch_tokens
    if longest > most:
        ranks = f" x contextParallel {spec.training.context_parallel}" if spec.training.context_parallel > 1 else ""
        found.append(
            f"a sample may have {longest} tokens, more than maxTokensPerGpu {spec.training.max_tokens_per_gpu}{ranks}: "
            "it becomes a separate micro-batch and needs memory for that"
        )
    algorithm = spec.algorithm
    if algorithm.name == "gspo" and algorithm.clip_high >= USUAL_CLIP_HIGH:
        found.append(
            f"gspo with clipHigh {algorithm.clip_high:g} rarely clips, because the ratio of a whole response is close "
            "to 1; its paper has clipLow 3e-4 and clipHigh 4e-4"
        )
    divides = algorithm.name in algorithms.names(normalizes=True) and algorithm.normalize_by is NormalizeBy.GROUP
    if algorithm.kl is not None and algorithm.kl.added_to is KlTarget.REWARD and divides:
        found.append(
            "kl.addedTo Reward with normalizeBy Group: if all samples of a group have the same reward, only their "
            "divergences differ, and these are divided by their own standard deviation"
        )
    found.extend(f"{field} has no effect with {spec.debug.mode}" for field in left_out(spec))
    if spec.debug.cuda_launch_blocking:
        found.append(
            "debug.cudaLaunchBlocking runs one kernel after the other, without CUDA graphs and speculative decoding: "
            f"steps take much longer; core dumps go to {CORES}/ in the run's directory"
        )
    if rollout.quantization is not None and algorithm.importance_sampling is None and spec.debug.learner:
        found.append(
            f"rollout.quantization {rollout.quantization}: engines sample with other weights than the learner's; set "
            "algorithm.importanceSampling {kind: Truncate}, which weighs each token by the difference"
        )
    limit, has_marlin = spec.recovery.start_timeout_seconds, rollout.quantization is Quantization.INT4
    if has_marlin and spec.runtime.device is Device.GPU and limit < MARLIN_START_SECONDS:
        found.append(
            f"recovery.startTimeoutSeconds {limit} may be too short: the first start of an engine with Int4 "
            f"compiles kernels for 6 minutes and more; set it to {MARLIN_START_SECONDS}"
        )
    used = where.num_engines * where.gpus_per_engine
    if spec.placement is Placement.COLOCATED and used and where.ranks and used != where.ranks:
        idle, phase = abs(where.gpus - min(used, where.ranks)), "rollout" if used < where.gpus else "training"
        found.append(f"{idle} of {where.gpus} GPUs are idle during {phase}")
    return tuple(found)
