"""NeMo-RL's GRPO configuration to an RLJob: what `nemo_rl_keys` cannot say because it takes several keys."""

from collections.abc import Sequence

from rljob_importing.draft import Arguments, Draft, NoteKind, by_family, carry_over, into_field, origin
from rljob_importing.mapping import REAL, WHOLE, Field, chosen
from rljob_importing.nemo_rl_keys import DEFAULTS, FAMILIES, GENERATION, KEYS, OPTIMIZERS, SCHEDULES
from rljob_importing.settings import items
from rljob_importing.words import Given

DEFAULT = "NeMo-RL's default"
MEGATRON, DTENSOR = "policy.megatron_cfg", "policy.dtensor_cfg"


def draft(given: Sequence[Given]) -> Draft:
    """Return the RLJob's spec as far as a GRPO configuration gives it."""
    made, arguments = Draft(), Arguments(given)
    carry_over(made, arguments, KEYS, by_family(FAMILIES))
    _algorithm(made, arguments)
    _corrections(made, arguments)
    _asynchronous(made, arguments)
    _data(made, arguments)
    _placement(made, arguments)
    _optimizer(made, arguments)
    _tracking(made, arguments)
    made.fill(DEFAULTS, DEFAULT)
    return made


def _on(arguments: Arguments, name: str) -> bool:
    return (arguments.text(name) or "").lower() == "true"


def _algorithm(made: Draft, arguments: Arguments) -> None:
    """Without division by the deviation, a baseline that leaves the sample out is RLOO."""
    normalized, left_out = "grpo.normalize_rewards", "grpo.use_leave_one_out_baseline"
    if _on(arguments, "loss_fn.sequence_level_importance_ratios"):
        made.put("algorithm.name", "gspo", origin(arguments["loss_fn.sequence_level_importance_ratios"]))
    elif _on(arguments, left_out) and normalized in arguments and not _on(arguments, normalized):
        made.put("algorithm.name", "rloo", origin(arguments[left_out]))
        return
    if _on(arguments, left_out):
        made.note(NoteKind.CHECK, arguments[left_out], "the baseline is the group's mean, with the sample itself")
    if normalized in arguments and not _on(arguments, normalized):
        made.put("algorithm.normalizeBy", "None", origin(arguments[normalized]))


def _corrections(made: Draft, arguments: Arguments) -> None:
    penalty, kind = "loss_fn.reference_policy_kl_penalty", "loss_fn.reference_policy_kl_type"
    if coefficient := arguments.number(penalty):
        made.put("algorithm.kl.coefficient", coefficient, origin(arguments[penalty]))
        if (arguments.text(kind) or "k3") in ("k1", "k2"):
            made.put("algorithm.kl.estimator", arguments.text(kind), origin(arguments[kind]))
    weighs, bound = "loss_fn.use_importance_sampling_correction", "loss_fn.truncated_importance_sampling_ratio"
    if _on(arguments, weighs):
        made.put("algorithm.importanceSampling.kind", "Truncate", origin(arguments[weighs]))
        if (high := arguments.number(bound)) is not None:
            made.put("algorithm.importanceSampling.high", high, origin(arguments[bound]))
        else:
            made.note(NoteKind.CHECK, arguments[weighs], "weights have a bound, algorithm.importanceSampling.high")
    if _on(arguments, "grpo.use_dynamic_sampling"):
        more, rounds = "grpo.batch_multiplier", "grpo.dynamic_sampling_max_gen_batches"
        source = arguments[more if arguments.number(more) else "grpo.use_dynamic_sampling"]
        made.put("algorithm.dynamicSampling.overSample", arguments.number(more) or 1.0, origin(source))
        if arguments.whole(rounds):
            made.put("algorithm.dynamicSampling.maxRounds", arguments.whole(rounds), origin(arguments[rounds]))


def _asynchronous(made: Draft, arguments: Arguments) -> None:
    """NeMo-RL publishes after each step; a response goes over a publication only with in-flight updates."""
    name, age = "grpo.async_grpo.enabled", "grpo.async_grpo.max_trajectory_age_steps"
    if not _on(arguments, name):
        return
    partial = "grpo.async_grpo.in_flight_weight_updates"
    staleness = arguments.whole(age) or 1
    made.put("rollout.async.maxStaleness", staleness, origin(arguments[age if age in arguments else name]))
    if _on(arguments, partial):
        made.put("rollout.async.partial", True, origin(arguments[partial]))
    elif staleness > 1:
        made.put("rollout.async.updateInterval", staleness, origin(arguments[age]))
        made.note(NoteKind.CHECK, arguments[age], "without partial, older samples need rarer publications")


def _data(made: Draft, arguments: Arguments) -> None:
    for name, path in (("data.train_data_path", "data.train"), ("data.val_data_path", "data.heldOut")):
        if name in arguments:
            text = arguments[name].text
            made.put(f"{path}.{'parquet' if text.endswith('.parquet') else 'jsonl'}", text, origin(arguments[name]))
    if "data.val_data_path" in arguments:
        if limit := arguments.whole("grpo.max_val_samples"):
            made.put("data.heldOut.limit", limit, origin(arguments["grpo.max_val_samples"]))
        if interval := arguments.whole("grpo.val_period"):
            made.put("evaluation.interval", interval, origin(arguments["grpo.val_period"]))
    elif "grpo.val_period" in arguments:
        made.note(NoteKind.CHECK, arguments["grpo.val_period"], "set spec.data.heldOut, and spec.evaluation.interval")
    environment = next((given for name, given in arguments.items() if name.startswith("env.math.")), None)
    if environment:
        made.put("reward.kind", "Math", f"env.math, {environment.place}")
    else:
        made.note(NoteKind.CHECK, None, "set spec.reward: environments of NeMo-RL other than math have no counterpart")


def _placement(made: Draft, arguments: Arguments) -> None:
    """NeMo-RL counts the GPUs of dedicated engines in the cluster, an RLJob besides the learner's."""
    nodes, gpus = arguments.whole("cluster.num_nodes") or 1, arguments.whole("cluster.gpus_per_node") or 1
    name = f"{GENERATION}.vllm_cfg.tensor_parallel_size"
    engine = arguments.whole(name) or 1
    where = f"{GENERATION}.colocated.enabled"
    apart = where in arguments and not _on(arguments, where)
    for_engines = nodes * gpus
    if apart:
        own_gpus = arguments.whole(f"{GENERATION}.colocated.resources.gpus_per_node") or gpus
        own_nodes = arguments.whole(f"{GENERATION}.colocated.resources.num_nodes") or (0 if nodes > 1 else 1)
        for_engines = own_gpus * max(1, own_nodes)
        nodes, gpus = (nodes - own_nodes, gpus) if nodes > 1 else (1, gpus - own_gpus)
    made.put("placement", "Disaggregated" if apart else "Colocated", origin(arguments[where]) if apart else DEFAULT)
    for path, value, source in (("nodes", nodes, "cluster.num_nodes"), ("gpusPerNode", gpus, "cluster.gpus_per_node")):
        if source in arguments:
            made.put(f"training.{path}", max(1, value), origin(arguments[source]))
    made.put("rollout.engines", max(1, for_engines // engine), f"{for_engines} GPUs, {engine} for each")
    if engine > 1:
        made.put("rollout.gpusPerEngine", engine, origin(arguments[name]))
    _parallelism(made, arguments)
    tokens = arguments.whole("policy.sequence_packing.train_mb_tokens")
    if tokens is not None and _on(arguments, "policy.sequence_packing.enabled"):
        made.put("training.maxTokensPerGpu", tokens, origin(arguments["policy.sequence_packing.train_mb_tokens"]))


def _parallelism(made: Draft, arguments: Arguments) -> None:
    """Only the settings of the back end that is on count."""
    back_end, prefix = DTENSOR, f"{DTENSOR}.tensor_parallel_size"
    if _megatron(arguments):
        back_end, prefix = MEGATRON, f"{MEGATRON}.tensor_model_parallel_size"
    stages, shares = f"{MEGATRON}.pipeline_model_parallel_size", f"{back_end}.sequence_parallel"
    chunks = f"{MEGATRON}.virtual_pipeline_model_parallel_size"
    if (tensor := arguments.whole(prefix)) is not None:
        made.put("training.tensorParallel", tensor, origin(arguments[prefix]))
    for name, field in ((stages, "pipelineParallel"), (chunks, "virtualPipeline")):
        if _megatron(arguments) and (number := arguments.whole(name)) is not None:
            made.put(f"training.{field}", number, origin(arguments[name]))
    if _on(arguments, shares):
        made.put("training.sequenceParallel", True, origin(arguments[shares]))
    if _on(arguments, saves := f"{back_end}.activation_checkpointing"):
        made.put("training.recompute", "Full", origin(arguments[saves]))
    sizes = {f"{back_end}.context_parallel_size": "contextParallel"}
    if _megatron(arguments):
        sizes[f"{MEGATRON}.expert_model_parallel_size"] = "expertParallel"
        sizes[f"{MEGATRON}.expert_tensor_parallel_size"] = "expertTensorParallel"
        rate = f"{MEGATRON}.moe_router_bias_update_rate"
        if change := arguments.number(rate):
            made.put("training.experts.biasUpdateRate", change, origin(arguments[rate]))
    for name, field in sizes.items():
        if (number := arguments.whole(name) or 1) > 1:
            made.put(f"training.{field}", number, origin(arguments[name]))


def _megatron(arguments: Arguments) -> bool:
    return _on(arguments, f"{MEGATRON}.enabled")


def _optimizer(made: Draft, arguments: Arguments) -> None:
    """Only the settings of the back end that is on count."""
    prefix = f"{MEGATRON}.optimizer" if _megatron(arguments) else "policy.optimizer.kwargs"
    for key, field in OPTIMIZERS[prefix].items():
        given = arguments.get(f"{prefix}.{key}")
        if given is not None and field:
            into_field(made, given, Field(f"training.optimizer.{field}", REAL))
        elif given is not None:
            for path, value in zip(("beta1", "beta2"), items(given), strict=False):
                made.put(f"training.optimizer.{path}", float(value), origin(given))
    if not _megatron(arguments):
        return
    style, warmup = (arguments.get(f"{MEGATRON}.scheduler.{key}") for key in ("lr_decay_style", "lr_warmup_iters"))
    if style is not None:
        into_field(made, style, Field("training.optimizer.schedule", chosen(SCHEDULES)))
    if warmup is not None:
        into_field(made, warmup, Field("training.optimizer.warmupSteps", WHOLE))


def _tracking(made: Draft, arguments: Arguments) -> None:
    if not _on(arguments, "logger.wandb_enabled"):
        return
    for key, path in (("project", "project"), ("name", "group")):
        if given := arguments.get(f"logger.wandb.{key}"):
            made.put(f"tracking.wandb.{path}", given.text, origin(given))
