"""NeMo-RL's configurations to an RLJob: what `nemo_rl_keys` cannot say because it takes several keys.

The sections `ppo`, `distillation` and `sft` have the keys of `grpo`, and are read under that name.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rljob_api import algorithms
from rljob_importing import lengths
from rljob_importing.draft import Arguments, Draft, NoteKind, by_family, carry_over, into_field, origin
from rljob_importing.mapping import REAL, WHOLE, Field, Joint, chosen
from rljob_importing.nemo_rl_keys import (
    DEFAULTS,
    ESTIMATOR,
    FAMILIES,
    GENERATION,
    KEYS,
    OPTIMIZERS,
    SCHEDULES,
    SHAPING,
)
from rljob_importing.objectives import foreign, note_critic, note_longest_scored, put_lower_clip
from rljob_importing.settings import items
from rljob_importing.words import Given

DEFAULT = "NeMo-RL's default"
MEGATRON, DTENSOR = "policy.megatron_cfg", "policy.dtensor_cfg"
SECTIONS = ("ppo", "distillation", "sft", "grpo")
"""sections that stand for a training; a configuration that builds on another one may have its section, too"""
LACKING = ("dpo", "rm")
PROGRAM = re.compile(r"(?:.*/)?run_(?:\w+_)?(grpo|ppo|sft|distillation)(?:_\w+)?\.py")
BOTH, NEW, INPUT = "policy.max_total_sequence_length", f"{GENERATION}.max_new_tokens", "data.max_input_seq_length"
KL_LIMIT = 10.0
TRAIN, HELD_OUT = ("data.train.data_path", "data.train_data_path"), ("data.validation.data_path", "data.val_data_path")
SIGNAL = "the divergence is the reverse one, estimated from the sampled tokens by k1, and put into the policy gradient"


def section_of(given: Sequence[Given], program: str = "") -> str:
    """Return the section of the training, `grpo` where there is none; it may be one of LACKING."""
    sections = {each.name.partition(".")[0] for each in given}
    found = PROGRAM.fullmatch(program)
    if found and (found[1] in sections or not sections.intersection(SECTIONS)):
        return found[1]
    return next((name for name in (*SECTIONS, *LACKING) if name in sections), "grpo")


def draft(given: Sequence[Given], program: str = "") -> Draft:
    """Return the RLJob's spec as far as a configuration of a training in SECTIONS gives it."""
    section = section_of(given, program)
    made, arguments = Draft(), Arguments(tuple(_renamed(given, section)))
    _of_other_sections(made, given, section)
    carry_over(made, arguments, KEYS, by_family(FAMILIES))
    match section:
        case "ppo":
            made.put("algorithm.name", "ppo", _place(given, section))
            _critic(made, arguments)
        case "distillation":
            made.put("algorithm.name", algorithms.DISTILLATION, _place(given, section))
            _teacher(made, arguments)
        case "sft":
            made.put("algorithm.name", algorithms.SFT, _place(given, section))
        case _:
            _algorithm(made, arguments)
    _clipping(made, arguments)
    _corrections(made, arguments)
    _asynchronous(made, arguments)
    _lengths(made, arguments, is_sft=section == "sft")
    _overlong(made, arguments)
    _model(made, arguments)
    _data(made, arguments)
    if section == "sft":
        _rows(made, arguments)
    else:
        _reward(made, arguments)
    _placement(made, arguments)
    _optimizer(made, arguments)
    _tracking(made, arguments)
    made.fill(DEFAULTS, DEFAULT)
    return made


def _place(given: Sequence[Given], section: str) -> str:
    """Return where a section begins, `section ppo, line 4`."""
    first = next((each for each in given if each.name.startswith(f"{section}.")), None)
    return f"section {section}, {first.place}" if first else f"run_{section}.py"


def _renamed(given: Sequence[Given], section: str) -> Iterator[Given]:
    """Yield the settings with the section's keys as keys of `grpo`, and without those of other trainings."""
    for each in given:
        head, _, rest = each.name.partition(".")
        if head == section:
            yield replace(each, name=f"grpo.{rest.replace('async_ppo.', 'async_grpo.')}")
        elif head not in SECTIONS:
            yield replace(each, name=each.name.replace("policy.automodel_cfg.", f"{DTENSOR}.", 1))


def _of_other_sections(made: Draft, given: Sequence[Given], section: str) -> None:
    for each in given:
        head = each.name.partition(".")[0]
        if head in SECTIONS and head != section:
            made.note(NoteKind.NEEDLESS, each, f"the section {section} decides the training")


def _on(arguments: Arguments, name: str) -> bool:
    return (arguments.text(name) or "").lower() == "true"


def _algorithm(made: Draft, arguments: Arguments) -> None:
    """Without division by the deviation, a baseline that leaves the sample out is RLOO."""
    normalized, left_out = (
        next((name for name in (f"{ESTIMATOR}.{key}", f"grpo.{key}") if name in arguments), f"grpo.{key}")
        for key in ("normalize_rewards", "use_leave_one_out_baseline")
    )
    if _on(arguments, ratio := "loss_fn.disable_ppo_ratio"):
        made.leave_open("algorithm.name", arguments[ratio], "the objective always has a probability ratio")
    if (arguments.text(f"{ESTIMATOR}.name") or "grpo") != "grpo":
        _estimator(made, arguments)
        return
    if _on(arguments, "loss_fn.use_cispo"):
        made.put("algorithm.name", "cispo", origin(arguments["loss_fn.use_cispo"]))
    elif _on(arguments, "loss_fn.sequence_level_importance_ratios"):
        made.put("algorithm.name", "gspo", origin(arguments["loss_fn.sequence_level_importance_ratios"]))
    elif _on(arguments, left_out) and normalized in arguments and not _on(arguments, normalized):
        made.put("algorithm.name", "rloo", origin(arguments[left_out]))
        return
    if _on(arguments, left_out):
        made.note(NoteKind.CHECK, arguments[left_out], "the baseline is the group's mean, with the sample itself")
    if normalized in arguments and not _on(arguments, normalized):
        made.put("algorithm.normalizeBy", "None", origin(arguments[normalized]))


def _estimator(made: Draft, arguments: Arguments) -> None:
    """An estimator that is not ours stands in the manifest by its name, which is refused there."""
    given, name = arguments[f"{ESTIMATOR}.name"], arguments.text(f"{ESTIMATOR}.name") or ""
    baseline = f"{ESTIMATOR}.minus_baseline"
    objective = next(
        (key for key in ("use_cispo", "sequence_level_importance_ratios") if _on(arguments, f"loss_fn.{key}")), ""
    )
    if name == "reinforce_plus_plus" and not objective:
        alone = baseline in arguments and not _on(arguments, baseline)
        made.put("algorithm.name", "reinforcePlusPlus" if alone else "reinforcePlusPlusBaseline", origin(given))
        return
    if not given.unknown:
        made.note(NoteKind.LOST, given, "has no counterpart; these have: grpo, reinforce_plus_plus")
    made.put("algorithm.name", f"{name}+{objective}" if objective else foreign("NeMo-RL", name), origin(given))


def _clipping(made: Draft, arguments: Arguments) -> None:
    name = "loss_fn.ratio_clip_min"
    if (low := arguments.number(name)) is not None:
        put_lower_clip(made, low, arguments[name])


def _critic(made: Draft, arguments: Arguments) -> None:
    """The learning rate is that of the value model's back end, or of the policy where it has none."""
    back_end = "megatron_cfg.optimizer" if _on(arguments, "value.megatron_cfg.enabled") else "optimizer.kwargs"
    policy = f"{MEGATRON}.optimizer.lr" if _megatron(arguments) else "policy.optimizer.kwargs.lr"
    name = f"value.{back_end}.lr"
    if name not in arguments and policy in arguments:
        why = "is the critic's learning rate, too: the section value has none"
        made.note(NoteKind.CHECK, arguments[policy], why)
        name = policy
    for key, path in (
        (name, "learningRate"),
        (f"{ESTIMATOR}.gae_gamma", "gamma"),
        (f"{ESTIMATOR}.gae_lambda", "lambda"),
        ("value_loss_fn.cliprange", "valueClip"),
        ("value.max_grad_norm", "clipGrad"),
    ):
        if (value := arguments.number(key)) is not None:
            made.put(f"algorithm.critic.{path}", value, origin(arguments[key]))
    if warmup := arguments.whole("grpo.policy_training_start_step"):
        made.put("algorithm.critic.warmupSteps", warmup, origin(arguments["grpo.policy_training_start_step"]))
    note_critic(made, arguments.get("value.model_name"), arguments.text("policy.model_name"))


def _teacher(made: Draft, arguments: Arguments) -> None:
    if (given := arguments.get("teacher.model_name")) is not None:
        made.put("algorithm.teacher.checkpoint", given.text.rstrip("/"), origin(given))
    kind = arguments.get("loss_fn.kl_type")
    if kind is None or kind.text == "reverse":
        made.note(NoteKind.CHECK, kind, SIGNAL)
    elif not kind.unknown:
        made.leave_open("algorithm.name", kind, f"this divergence has no counterpart: {SIGNAL}")


def _lengths(made: Draft, arguments: Arguments, *, is_sft: bool) -> None:
    """NeMo-RL bounds prompt and response together, mostly with `max_new_tokens` as large as the bound."""
    bounds = {name: arguments.whole(name) for name in (BOTH, f"{GENERATION}.vllm_cfg.max_model_len")}
    known = {name: bound for name, bound in bounds.items() if bound is not None}
    new = arguments.whole(NEW)
    if not known:
        if new is not None:
            made.put("rollout.sampling.maxNewTokens", new, origin(arguments[NEW]))
        return
    name = min(known, key=lambda each: known[each])
    both, given = known[name], arguments[name]
    if not is_sft and (new is None or new < both):
        made.put("rollout.contextLength", both, origin(given))
        if new is not None:
            made.put("rollout.sampling.maxNewTokens", new, origin(arguments[NEW]))
        return
    scored = f"{SHAPING}.max_response_length"
    response, prompt = arguments.whole(scored), arguments.whole(INPUT)
    if _on(arguments, f"{SHAPING}.enabled") and response is not None and response < both:
        lengths.share(made, both, (response, arguments[scored]), given, DEFAULT)
    elif prompt is not None and 0 < prompt < both:
        lengths.share(made, both, (both - prompt, arguments[INPUT]), given, DEFAULT)
    else:
        lengths.share(made, both, None, given, DEFAULT)


def _overlong(made: Draft, arguments: Arguments) -> None:
    names = [name for name in arguments if name.startswith(f"{SHAPING}.") and isinstance(KEYS.get(name), Joint)]
    if not _on(arguments, f"{SHAPING}.enabled"):
        for name in names:
            made.note(NoteKind.NEEDLESS, arguments[name], "reward_shaping is off: no penalty of long responses")
        return
    buffer, penalty = f"{SHAPING}.overlong_buffer_length", f"{SHAPING}.overlong_buffer_penalty"
    if arguments.number(penalty) == 0:
        made.note(NoteKind.NEEDLESS, arguments[penalty], "a penalty of 0 has no effect")
        return
    if (length := arguments.whole(buffer)) is not None:
        made.put("algorithm.overlong.buffer", length, origin(arguments[buffer]))
    if (largest := arguments.number(penalty)) is not None:
        made.put("algorithm.overlong.penalty", largest, origin(arguments[penalty]))
    scored = f"{SHAPING}.max_response_length"
    ours = made.spec.get("rollout", {}).get("sampling", {}).get("maxNewTokens")
    if arguments.whole(scored) not in (None, ours) and ours is not None:
        note_longest_scored(made, arguments[scored], ours)


def _model(made: Draft, arguments: Arguments) -> None:
    tokenizer = arguments.get("policy.tokenizer.name")
    if tokenizer is not None:
        is_own = tokenizer.text == arguments.text("policy.model_name")
        kind = NoteKind.NEEDLESS if is_own else NoteKind.LOST
        made.note(kind, tokenizer, "the tokenizer is that of the checkpoint")


def _corrections(made: Draft, arguments: Arguments) -> None:
    penalty, kind = "loss_fn.reference_policy_kl_penalty", "loss_fn.reference_policy_kl_type"
    if coefficient := arguments.number(penalty):
        made.put("algorithm.kl.coefficient", coefficient, origin(arguments[penalty]))
        if (arguments.text(kind) or "k3") != "k3":
            made.put("algorithm.kl.estimator", arguments.text(kind), origin(arguments[kind]))
        if _on(arguments, rewarded := "loss_fn.use_kl_in_reward"):
            made.put("algorithm.kl.addedTo", "Reward", origin(arguments[rewarded]))
        limit = "loss_fn.kl_output_clamp_value"
        if limit in arguments and arguments[limit].text.lower() in ("null", "none"):
            made.put("algorithm.kl.clamp", False, origin(arguments[limit]))
        elif arguments.number(limit) not in (None, KL_LIMIT):
            made.note(NoteKind.CHECK, arguments[limit], f"the limit of algorithm.kl.clamp is {KL_LIMIT}")
    weighs, bound = "loss_fn.use_importance_sampling_correction", "loss_fn.truncated_importance_sampling_ratio"
    if _on(arguments, weighs):
        manner = arguments.get("loss_fn.truncated_importance_sampling_type")
        kinds = {"tis": "Truncate", "icepop": "Mask"}
        chosen_kind = kinds.get(manner.text, manner.text) if manner else "Truncate"
        made.put("algorithm.importanceSampling.kind", chosen_kind, origin(manner or arguments[weighs]))
        lowest = "loss_fn.truncated_importance_sampling_ratio_min"
        if (low := arguments.number(lowest)) is not None:
            made.put("algorithm.importanceSampling.low", low, origin(arguments[lowest]))
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
    held_out = next((name for name in HELD_OUT if name in arguments), "")
    for name, path in (
        (next((each for each in TRAIN if each in arguments), ""), "data.train"),
        (held_out, "data.heldOut"),
    ):
        if name:
            text = arguments[name].text
            made.put(f"{path}.{'parquet' if text.endswith('.parquet') else 'jsonl'}", text, origin(arguments[name]))
    if held_out:
        if limit := arguments.whole("grpo.max_val_samples"):
            made.put("data.heldOut.limit", limit, origin(arguments["grpo.max_val_samples"]))
        if interval := arguments.whole("grpo.val_period"):
            made.put("evaluation.interval", interval, origin(arguments["grpo.val_period"]))
    elif "grpo.val_period" in arguments:
        made.note(NoteKind.CHECK, arguments["grpo.val_period"], "set spec.data.heldOut, and spec.evaluation.interval")


def _rows(made: Draft, arguments: Arguments) -> None:
    """A step of a supervised training is one batch of rows."""
    batch = "policy.train_global_batch_size"
    made.remove("training.globalBatchSize")
    if (rows := arguments.whole(batch)) is not None:
        made.put("rollout.promptsPerStep", rows, origin(arguments[batch]))


def _reward(made: Draft, arguments: Arguments) -> None:
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
    if _on(arguments, offloads := f"{MEGATRON}.optimizer.optimizer_cpu_offload"):
        made.put("training.optimizer.offload", True, origin(arguments[offloads]))
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
