"""What must hold between the fields of a spec. Pure; each rule is a function from the spec to its problems.

A setting that would have no effect breaks a rule too: nothing is accepted and ignored. A rule compares with defaults
instead of asking which fields were given, because an API server fills the defaults in.
"""

import difflib
import math
import re
from collections.abc import Callable, Iterator

from rljob_api import arguments, batch
from rljob_api.errors import ABSENT, Problem
from rljob_api.sections import (
    MOST_GPUS_PER_NODE,
    Device,
    Evaluation,
    Placement,
    RewardKind,
    Source,
    Spec,
    WeightSync,
)
from rljob_api.shapes import KNOWN
from rljob_api.topology import Sizes, sizes

Rule = Callable[[Spec], Iterator[Problem]]

FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
GENERATED_COLUMNS = ("question", "answer", "metadata")
"""columns of the rows that reasoning-gym makes"""


def check(spec: Spec) -> tuple[Problem, ...]:
    """Return every problem between the fields of a spec."""
    return tuple(problem for rule in RULES for problem in rule(spec))


def checkpoint(spec: Spec) -> Iterator[Problem]:
    given = spec.model.checkpoint
    scheme, separator, _ = given.partition("://")
    if separator and given not in KNOWN:
        rule = f"is not a directory, and no package is known by this name (scheme {scheme})"
        close = difflib.get_close_matches(given, KNOWN, n=1, cutoff=0.4)
        yield Problem("spec.model.checkpoint", given, rule, close[0] if close else "a directory")


def sources(spec: Spec) -> Iterator[Problem]:
    yield from source("spec.data.train", spec.data.train)
    if spec.data.held_out is not None:
        yield from source("spec.data.heldOut", spec.data.held_out)


def source(path: str, given: Source) -> Iterator[Problem]:
    options = {"jsonl": given.jsonl, "parquet": given.parquet, "reasoningGym": given.reasoning_gym}
    chosen = [name for name, value in options.items() if value is not None]
    if not chosen:
        yield Problem(path, ABSENT, "names no questions; set one of jsonl, parquet and reasoningGym")
    if len(chosen) > 1:
        yield Problem(path, ABSENT, f"has {' and '.join(chosen)}; one source is expected", chosen[0])
    if given.reasoning_gym is not None:
        yield from generated(f"{path}.reasoningGym", given.reasoning_gym.task, tuple(given.reasoning_gym.config))


def generated(path: str, task: str, settings: tuple[str, ...]) -> Iterator[Problem]:
    known = arguments.tasks()
    if task not in known:
        yield Problem(f"{path}.task", task, "is no task of reasoning-gym", closest(task, tuple(known)))
        return
    for setting in settings:
        if setting in ("seed", "size"):
            yield Problem(f"{path}.config.{setting}", ABSENT, "belongs to a field of the manifest", f"{path}.{setting}")
        elif setting not in known[task]:
            near = closest(re.sub(r"(?=[A-Z])", "_", setting).lower(), known[task])
            yield Problem(f"{path}.config.{setting}", ABSENT, f"is no setting of {task}", near)


def closest(word: str, options: tuple[str, ...]) -> str | None:
    return next(iter(difflib.get_close_matches(word, options, n=1, cutoff=0.6)), None)


def held_out(spec: Spec) -> Iterator[Problem]:
    measured, trained = spec.data.held_out, spec.data.train
    if measured is None and spec.evaluation != Evaluation():
        yield Problem("spec.evaluation", ABSENT, "has nothing to measure on; set spec.data.heldOut")
    if measured is not None and measured.limit is None and measured == trained.model_copy(update={"limit": None}):
        rule = "holds every question of spec.data.train, and held-out questions are not trained on; set its limit"
        yield Problem("spec.data.heldOut", ABSENT, rule)


def columns(spec: Spec) -> Iterator[Problem]:
    data = spec.data
    if not any(given.reasoning_gym for given in (data.train, data.held_out) if given):
        return
    for name, column in (
        ("inputKey", data.input_key),
        ("labelKey", data.label_key),
        ("metadataKey", data.metadata_key),
    ):
        if column is not None and column.partition(".")[0] not in GENERATED_COLUMNS:
            rule = f"is no column of reasoning-gym's questions ({', '.join(GENERATED_COLUMNS)})"
            usual = {"inputKey": "question", "labelKey": "answer", "metadataKey": "metadata"}[name]
            yield Problem(f"spec.data.{name}", column, rule, usual)


def templates(spec: Spec) -> Iterator[Problem]:
    data = spec.data
    if "{question}" not in data.prompt_template:
        rule = "has no {question}: every prompt would be the same"
        yield Problem("spec.data.promptTemplate", data.prompt_template, rule, "{question}")
    if data.system_prompt is not None and not data.chat_template:
        yield Problem("spec.data.systemPrompt", ABSENT, "has no turn to stand in: spec.data.chatTemplate is false")


def reward(spec: Spec) -> Iterator[Problem]:
    kind, function = spec.reward.kind, spec.reward.function
    if kind is RewardKind.PYTHON:
        if function is None:
            yield Problem("spec.reward.function", ABSENT, "is missing: kind python needs `module:function`")
        elif not FUNCTION.fullmatch(function):
            yield Problem("spec.reward.function", function, "is not of the form module:function", with_colon(function))
    elif function is not None:
        rule = f"would not be called: spec.reward.kind is {kind}"
        yield Problem("spec.reward.function", function, rule, "spec.reward.kind python")


def exact_reward(spec: Spec) -> Iterator[Problem]:
    kind = spec.reward.kind
    if kind not in (RewardKind.MATH, RewardKind.EXACT_MATCH):
        return
    if spec.reward.threshold is not None:
        rule = f"would change nothing: spec.reward.kind {kind} gives 0 or 1; leave it out"
        yield Problem("spec.reward.threshold", spec.reward.threshold, rule)
    if spec.data.metadata_key is not None:
        rule = f"would not be read: spec.reward.kind {kind} judges by the label alone; leave it out"
        yield Problem("spec.data.metadataKey", spec.data.metadata_key, rule)


def with_colon(function: str) -> str | None:
    module, _, name = function.replace(":", ".").rpartition(".")
    return f"{module}:{name}" if FUNCTION.fullmatch(f"{module}:{name}") else None


def task_reward(spec: Spec) -> Iterator[Problem]:
    if spec.reward.kind is not RewardKind.TASK:
        return
    given = {"spec.data.train": spec.data.train, "spec.data.heldOut": spec.data.held_out}
    others = [path for path, questions in given.items() if questions and not questions.reasoning_gym]
    if others:
        rule = f"needs questions of reasoning-gym and their verifier, also in {' and '.join(others)}"
        yield Problem("spec.reward.kind", spec.reward.kind, rule, "math or exactMatch")
    if spec.data.metadata_key is not None:
        rule = "would hide from the verifier what spec.reward.kind task judges by; leave it out"
        yield Problem("spec.data.metadataKey", spec.data.metadata_key, rule)


def clipping(spec: Spec) -> Iterator[Problem]:
    low, high = spec.algorithm.clip_low, spec.algorithm.clip_high
    if low > high:
        yield Problem("spec.algorithm.clipLow", low, f"is more than clipHigh {high}", str(high))


def lengths(spec: Spec) -> Iterator[Problem]:
    rollout = spec.rollout
    new, context = rollout.sampling.max_new_tokens, rollout.context_length
    cache = rollout.kv_tokens(spec.runtime.device)
    if context is not None and context <= new:
        rule = f"leaves no room for a prompt beside sampling.maxNewTokens {new}"
        yield Problem("spec.rollout.contextLength", context, rule, f"{new + 1} or more")
    if rollout.memory_fraction is not None and spec.runtime.device is Device.CPU:
        rule = "would not be used: on Cpu the KV cache has spec.rollout.maxTotalTokens tokens; leave it out"
        yield Problem("spec.rollout.memoryFraction", rollout.memory_fraction, rule)
    needed = max(context or 0, new + 1)
    if cache is not None and cache < needed:
        given = ABSENT if rollout.max_total_tokens is None else cache
        rule = f"is a KV cache too small for one sample of {needed} tokens"
        told = f"by default {cache} on Cpu, {rule}" if given is ABSENT else rule
        yield Problem("spec.rollout.maxTotalTokens", given, told, f"{needed} or more")


def top_k(spec: Spec) -> Iterator[Problem]:
    given = spec.rollout.sampling.top_k
    if given == 0:
        yield Problem("spec.rollout.sampling.topK", given, "is neither -1 (all tokens) nor at least 1", "-1")


def schedule(spec: Spec) -> Iterator[Problem]:
    optimizer = spec.training.optimizer
    path = "spec.training.optimizer"
    if optimizer.min_learning_rate > optimizer.learning_rate:
        rule = f"is more than learningRate {optimizer.learning_rate}"
        yield Problem(f"{path}.minLearningRate", optimizer.min_learning_rate, rule, str(optimizer.learning_rate))
    elif optimizer.min_learning_rate and optimizer.schedule == "constant":
        rule = "is never reached: schedule is constant"
        yield Problem(f"{path}.minLearningRate", optimizer.min_learning_rate, rule, f"0, or {path}.schedule cosine")


def warmup(spec: Spec) -> Iterator[Problem]:
    derived = batch.derive(batch.request(spec))
    total = spec.training.steps * (derived.steps_per_rollout if derived else 1)
    given = spec.training.optimizer.warmup_steps
    if given >= total and derived:
        rule = f"is not less than the run's {total} optimizer steps"
        yield Problem("spec.training.optimizer.warmupSteps", given, rule, str(total - 1))


def parallelism(spec: Spec) -> Iterator[Problem]:
    wanted = sizes(spec)
    model, name = wanted.tensor_parallel * wanted.pipeline_parallel, "spec.training.tensorParallel"
    if wanted.ranks % model == 0:
        return
    pipeline = wanted.pipeline_parallel
    gpus = f"nodes {wanted.nodes} x gpusPerNode {wanted.gpus_per_node} = {wanted.ranks}"
    rule = f"x pipelineParallel {pipeline} = {model} does not divide {gpus}"
    yield Problem(name, wanted.tensor_parallel, rule, valid_parallelism(wanted))


def valid_parallelism(wanted: Sizes) -> str | None:
    """Return the closest tensor or pipeline size that divides the learner's GPUs, or the closest number of GPUs."""
    options = [
        f"{name} {near}"
        for name, size, other in (
            ("tensorParallel", wanted.tensor_parallel, wanted.pipeline_parallel),
            ("pipelineParallel", wanted.pipeline_parallel, wanted.tensor_parallel),
        )
        if (near := closest_divisor(wanted.ranks, size, other))
    ]
    model = wanted.tensor_parallel * wanted.pipeline_parallel
    period = model // math.gcd(model, wanted.nodes)
    gpus = max(1, round(wanted.gpus_per_node / period)) * period
    options += [f"gpusPerNode {gpus}"] if gpus <= MOST_GPUS_PER_NODE else []
    return ", or ".join(options) or None


def closest_divisor(ranks: int, size: int, other: int) -> int | None:
    valid = [near for near in batch.divisors(ranks) if ranks % (near * other) == 0]
    return min(valid, key=lambda near: (abs(near - size), near), default=None)


def batches(spec: Spec) -> Iterator[Problem]:
    wanted = batch.request(spec)
    if batch.derive(wanted) is None:
        yield batch.problem(wanted)


def engines(spec: Spec) -> Iterator[Problem]:
    size, node = spec.rollout.gpus_per_engine, spec.training.gpus_per_node
    path = "spec.rollout.gpusPerEngine"
    if spec.runtime.device is Device.CPU and size != 1:
        yield Problem(path, size, "must be 1 on Cpu: SGLang has no tensor parallelism there", "1")
    elif spec.placement is Placement.COLOCATED and node % size:
        near = closest_divisor(node, size, 1)
        rule = f"does not divide gpusPerNode {node}, and a colocated engine stays on one of the learner's nodes"
        yield Problem(path, size, rule, str(near))


def weight_sync(spec: Spec) -> Iterator[Problem]:
    given, usual = spec.weight_sync, WeightSync()
    if spec.transport == "Broadcast" and given.directory is not None:
        rule = "would not be used: the transport is Broadcast"
        yield Problem("spec.weightSync.directory", given.directory, rule, "spec.weightSync.transport Disk")
    if spec.transport == "Disk" and given.bucket_mib != usual.bucket_mib:
        rule = "would not be used: the transport is Disk"
        yield Problem("spec.weightSync.bucketMib", given.bucket_mib, rule, str(usual.bucket_mib))
    if spec.transport == "Broadcast" and spec.runtime.device is Device.GPU and spec.placement is Placement.COLOCATED:
        rule = "needs spec.placement Disaggregated: NCCL refuses a learner and an engine on the same GPU"
        yield Problem("spec.weightSync.transport", "Broadcast", rule, "Disk")


def extra_arguments(spec: Spec) -> Iterator[Problem]:
    yield from arguments.problems("sglang", spec.extra_args.sglang)
    yield from arguments.problems("megatron", spec.extra_args.megatron)


RULES: tuple[Rule, ...] = (
    checkpoint,
    sources,
    held_out,
    columns,
    templates,
    reward,
    exact_reward,
    task_reward,
    clipping,
    lengths,
    top_k,
    parallelism,
    batches,
    schedule,
    warmup,
    engines,
    weight_sync,
    extra_arguments,
)
