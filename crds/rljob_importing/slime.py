"""Flags of slime and Miles to the fields of an RLJob: what `slime_flags` cannot say because it takes several flags."""

import re
from collections.abc import Sequence

from rljob_api.rules import arguments as passing
from rljob_api.sections import Evaluation
from rljob_importing.draft import Arguments, Draft, NoteKind, carry_over, origin
from rljob_importing.mapping import EPOCHS, function
from rljob_importing.megatron_flags import FROM_CHECKPOINT, OTHER_FAMILY
from rljob_importing.slime_flags import DEFAULTS, ESTIMATORS, FLAGS, ONE_NODE, OTHER_FUNCTION, REWARDS, RL_DEFAULTS
from rljob_importing.words import Given, Word

SLICE = re.compile(r"(.*)@\[(\d*):(\d*)\]")
DEFAULT = "slime's default"
EPS_CLIP = 0.2
GPUS_PER_NODE = 8
MEGATRON_BIAS_RATE = 0.001
EVERY = Evaluation().interval
KL_TYPES = {"k1": "k1", "k2": "k2", "k3": "k3", "low_var_kl": "k3"}
SFT_ROLLOUT = "sft_rollout"
FULLY_ASYNC = "fully_async_rollout"
TRUNCATED = "mask_truncated"
QUANTISED = re.compile(r"[-_](fp8|int4)$", re.IGNORECASE)
"""end of the name of a quantised checkpoint, in slime's scripts and on the hub"""
FP8_BLOCK = 128
FORMATS = {"fp8": "Fp8", "int4": "Int4"}
WITHOUT_QAT = (
    "; experts and all other linear layers are quantised, in groups of 32, and the learner does not train with weights"
    " that are rounded like theirs (slime: OPEN_TRAINING_INT4_FAKE_QAT_FLAG, OPEN_TRAINING_INT4_GROUP_SIZE)"
)
OUR_WORDS = {
    "training.precision": {"bfloat16": "bf16", "float32": "fp32", "float": "fp32"},
    "runtime.device": {"cuda": "Gpu", "cpu": "Cpu"},
}
"""fields with other words than the arguments of SGLang that they stand for"""
OUR_LAYERS = re.compile(
    r"glm4(_?moe|_5)?|llama\w*|qwen[23](_?moe)?|mistral|mixtral|deepseek_?v3|moonlight|kimi_?k2|gemma3?"
)
"""modules with the layers of families that rljob trains"""
SET_NAME = re.compile(r"[^A-Za-z0-9_-]+")


def draft(given: Sequence[Given], program: Word) -> Draft:
    """Return the RLJob's spec as far as the arguments of `train.py` or `train_async.py` give it."""
    made, arguments = Draft(), Arguments(given)
    carry_over(made, arguments, FLAGS, _sglang)
    _algorithm(made, arguments)
    _clipping(made, arguments)
    _kl(made, arguments)
    _corrections(made, arguments)
    _critic(made, arguments)
    _data(made, arguments)
    _reward(made, arguments)
    _asynchronous(made, arguments, program)
    _placement(made, arguments)
    _virtual_stages(made, arguments)
    _stages(made, arguments)
    _layers(made, arguments)
    _warmup(made, arguments)
    _balance(made, arguments)
    _biases(made, arguments)
    _quantization(made, arguments)
    _tracking(made, arguments)
    _absent(made, arguments)
    return made


def _sglang(made: Draft, given: Given) -> bool:
    """Carry over `--sglang-NAME`, an argument of SGLang's server."""
    name = given.name.removeprefix("sglang-").replace("_", "-")
    if name == given.name:
        return False
    declared = passing.known("sglang").get(name)
    if declared is None:
        made.note(NoteKind.LOST, given, f"is not an argument of SGLang {passing.contents()['versions']['sglang']}")
        return True
    if given.unknown:
        made.note(NoteKind.UNKNOWN, given, f"{given.unknown[0]}; set spec.extraArgs.sglang.{name}")
        return True
    value = _typed(given, declared.kind)
    if path := passing.owner_of("sglang", declared.canonical):
        _owned(made, given, path.removeprefix("spec."), value)
    elif problem := passing.problem("sglang", name, value):
        made.note(NoteKind.LOST, given, problem.rule)
    else:
        made.put(f"extraArgs.sglang.{name}", value, origin(given))
    return True


def _owned(made: Draft, given: Given, path: str, value: object) -> None:
    """Set the field that stands for an argument of SGLang, in the field's own words."""
    words = OUR_WORDS.get(path)
    if words is None:
        made.put(path, value, origin(given))
    elif value == "auto":
        made.note(NoteKind.NEEDLESS, given, f"spec.{path} decides it")
    elif str(value) not in words:
        made.note(NoteKind.LOST, given, f"spec.{path} has {', '.join(sorted({*words.values()}))}")
    else:
        made.put(path, words[str(value)], origin(given))
        if words[str(value)] == "fp32":
            made.note(NoteKind.CHECK, given, "learner and engines use the same precision")


def _typed(given: Given, kind: str) -> object:
    """Return the words as the type that an argument of SGLang has; as text where they do not fit."""
    texts = [word.text for word in given.words]
    options = kind.split(" or ")
    if not texts:
        return True
    candidates: list[object] = [_number(text) for text in texts] if any("list" in option for option in options) else []
    if candidates:
        return candidates
    return _number(texts[0]) if any(option in ("integer", "number") for option in options) else " ".join(texts)


def _number(text: str) -> object:
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text


def _quantization(made: Draft, arguments: Arguments) -> None:
    """slime reads from --hf-checkpoint how engines quantise, and all other weights from --ref-load or --load."""
    path = (arguments.text("hf-checkpoint") or "").rstrip("/")
    if (found := QUANTISED.search(path)) is None:
        return
    given, kind = arguments["hf-checkpoint"], FORMATS[found[1].lower()]
    made.put("model.checkpoint", QUANTISED.sub("", path), origin(given))
    begins = f"the learner begins with the checkpoint in bf16, whose name has no {found[1]} at its end"
    made.note(NoteKind.CHECK, given, begins + (WITHOUT_QAT if kind == "Int4" else ""))
    made.put("rollout.quantization", kind, origin(given))
    if kind == "Fp8":
        _cut_experts(made, arguments)


def _cut_experts(made: Draft, arguments: Arguments) -> None:
    """FP8 has a scale for each block of 128 x 128, which the ranks of an engine may not cut."""
    width, ranks = arguments.whole("moe-ffn-hidden-size"), arguments.whole("rollout-num-gpus-per-engine") or 1
    if not width or width % (ranks * FP8_BLOCK) == 0:
        return
    nearest = max((each for each in range(1, ranks) if width % (each * FP8_BLOCK) == 0), default=None)
    why = f"{ranks} GPUs of an engine cut experts of {width} into pieces that are no multiple of {FP8_BLOCK}"
    fits = f"; nearest valid: spec.rollout.gpusPerEngine {nearest}" if nearest else ""
    made.note(NoteKind.LOST, arguments.get("rollout-num-gpus-per-engine"), f"{why}, a block of FP8{fits}")


def _algorithm(made: Draft, arguments: Arguments) -> None:
    estimator, loss = arguments.text("advantage-estimator"), arguments.text("loss-type")
    if loss == "sft_loss" or SFT_ROLLOUT in (arguments.text("rollout-function-path") or ""):
        chosen = arguments.get("loss-type") or arguments["rollout-function-path"]
        made.put("algorithm.name", "sft", origin(chosen))
        if SFT_ROLLOUT in (arguments.text("rollout-function-path") or ""):
            made.put("data.chatTemplate", True, f"{SFT_ROLLOUT} always renders with the chat template")
        return
    if loss not in (None, "policy_loss"):
        made.note(NoteKind.LOST, arguments["loss-type"], "algorithm.name can be your own function")
    if "use-opd" in arguments:
        made.put("algorithm.name", "distillation", origin(arguments["use-opd"]))
    elif estimator and estimator in ESTIMATORS:
        made.put("algorithm.name", ESTIMATORS[estimator], origin(arguments["advantage-estimator"]))
    elif estimator is not None:
        why = f"has no counterpart; these have: {', '.join(ESTIMATORS)}"
        made.note(NoteKind.LOST, arguments["advantage-estimator"], why)


def _clipping(made: Draft, arguments: Arguments) -> None:
    """slime's upper bound is the lower one where it is not given."""
    low, high = arguments.number("eps-clip"), arguments.number("eps-clip-high")
    if low is not None:
        made.put("algorithm.clipLow", low, origin(arguments["eps-clip"]))
    if high is not None:
        made.put("algorithm.clipHigh", high, origin(arguments["eps-clip-high"]))
    elif low is not None and low != EPS_CLIP:
        made.put("algorithm.clipHigh", low, f"{origin(arguments['eps-clip'])}: both bounds")


def _kl(made: Draft, arguments: Arguments) -> None:
    in_loss, in_reward = arguments.number("kl-loss-coef") or 0.0, arguments.number("kl-coef") or 0.0
    if "use-kl-loss" not in arguments:
        if in_loss:
            made.note(NoteKind.NEEDLESS, arguments["kl-loss-coef"], "has no effect without --use-kl-loss")
        in_loss = 0.0
    elif not in_loss:
        made.note(NoteKind.NEEDLESS, arguments["use-kl-loss"], "its coefficient is 0: no penalty, no reference model")
    if in_loss and in_reward:
        made.note(NoteKind.LOST, arguments["kl-coef"], "only one KL penalty is possible; the one in the loss is kept")
    if not (in_loss or in_reward):
        return
    name = "kl-loss-coef" if in_loss else "kl-coef"
    made.put("algorithm.kl.coefficient", in_loss or in_reward, origin(arguments[name]))
    if not in_loss:
        made.put("algorithm.kl.addedTo", "Reward", origin(arguments[name]))
    kind = arguments.text("kl-loss-type")
    estimator = KL_TYPES.get(kind or "k1")
    if estimator is None:
        made.note(NoteKind.LOST, arguments["kl-loss-type"], f"estimators are {', '.join(KL_TYPES)}")
        return
    made.put("algorithm.kl.estimator", estimator, origin(arguments["kl-loss-type"]) if kind else DEFAULT)
    if kind == "k3":
        made.put("algorithm.kl.clamp", False, f"{origin(arguments['kl-loss-type'])}: only low_var_kl has a limit")


def _corrections(made: Draft, arguments: Arguments) -> None:
    """Importance sampling, dynamic sampling and filters of samples."""
    if "use-tis" in arguments:
        made.put("algorithm.importanceSampling.kind", "Truncate", origin(arguments["use-tis"]))
        for name, path in (("tis-clip-low", "low"), ("tis-clip", "high")):
            if (bound := arguments.number(name)) is not None:
                made.put(f"algorithm.importanceSampling.{path}", bound, origin(arguments[name]))
    _dynamic_sampling(made, arguments)
    _filter_of_samples(made, arguments)


def _dynamic_sampling(made: Draft, arguments: Arguments) -> None:
    kept, prompts = arguments.get("dynamic-sampling-filter-path"), arguments.whole("rollout-batch-size")
    more = arguments.whole("over-sampling-batch-size")
    if kept is None:
        if more and more != prompts:
            why = "has no effect here without dynamic sampling"
            made.note(NoteKind.LOST, arguments["over-sampling-batch-size"], why)
        return
    if kept.text.rpartition(".")[2] != "check_reward_nonzero_std":
        why = "your own filter has no counterpart: rljob keeps the groups with mixed rewards"
        made.note(NoteKind.CHECK, kept, why)
    share = round(more / prompts, 4) if more and prompts else 1.0
    source = arguments["over-sampling-batch-size"] if more else kept
    made.put("algorithm.dynamicSampling.overSample", share, origin(source))


def _filter_of_samples(made: Draft, arguments: Arguments) -> None:
    """Miles has filters that keep samples out of the loss, first of all the truncated ones."""
    given = arguments.get("rollout-sample-filter-path")
    if given is None:
        return
    name = given.text.rpartition(".")[2]
    if name.startswith(TRUNCATED):
        made.put("algorithm.maskTruncated", True, origin(given))
    if name != TRUNCATED:
        why = (
            "no other filter of samples has a counterpart; algorithm.maskTruncated keeps truncated ones out of the loss"
        )
        made.note(NoteKind.LOST, given, why)


def _critic(made: Draft, arguments: Arguments) -> None:
    """Only `ppo` has a critic; slime's learning rate of the critic is that of the policy where it is not given."""
    if made.spec.get("algorithm", {}).get("name") != "ppo":
        return
    source = arguments.get("critic-lr") or arguments.get("lr")
    rate = arguments.number(source.name) if source else None
    if source and rate is not None:
        made.put("algorithm.critic.learningRate", rate, origin(source))
    for name, path in (("gamma", "gamma"), ("lambd", "lambda"), ("value-clip", "valueClip")):
        if (value := arguments.number(name)) is not None:
            made.put(f"algorithm.critic.{path}", value, origin(arguments[name]))
    if (steps := arguments.whole("num-critic-only-steps")) is not None:
        made.put("algorithm.critic.warmupSteps", steps, origin(arguments["num-critic-only-steps"]))


def _data(made: Draft, arguments: Arguments) -> None:
    if "prompt-data" in arguments:
        given = arguments["prompt-data"]
        _source(made, given, "data.train", given.words[-1].text if given.words else "")
    if "eval-prompt-data" not in arguments:
        return
    given = arguments["eval-prompt-data"]
    texts = [word.text for word in given.words]
    if not texts:
        return
    pairs = list(zip(texts[::2], texts[1::2], strict=False)) or [("heldOut", texts[0])]
    if "eval-interval" not in arguments:
        why = f"slime measures it only with --eval-interval; rljob every {EVERY} steps"
        made.note(NoteKind.CHECK, given, why)
    _source(made, given, "data.heldOut", pairs[0][1])
    if len(pairs) > 1:
        sets = [{"name": SET_NAME.sub("-", name), **_read_source(path)} for name, path in pairs[1:]]
        made.put("data.evaluationSets", sets, origin(given))


def _source(made: Draft, given: Given, path: str, text: str) -> None:
    for name, value in _read_source(text).items():
        made.put(f"{path}.{name}", value, origin(given))
    found = SLICE.fullmatch(text)
    if found and found[2] not in ("", "0"):
        made.note(NoteKind.LOST, given, "rljob can only limit the number of questions, from the first one on")


def _read_source(text: str) -> dict[str, object]:
    """Return the fields of a source: `x.jsonl@[0:100]` has a limit."""
    found = SLICE.fullmatch(text)
    path = found[1] if found else text
    kind = "parquet" if path.endswith(".parquet") else "jsonl"
    return {kind: path, **({"limit": int(found[3])} if found and found[3] else {})}


def _reward(made: Draft, arguments: Arguments) -> None:
    if "custom-rm-path" in arguments:
        given = arguments["custom-rm-path"]
        try:
            made.put("reward.function", function(given.text), origin(given))
        except ValueError as error:
            made.note(NoteKind.UNKNOWN, given, str(error))
        made.put("reward.kind", "Python", origin(given))
        made.note(NoteKind.CHECK, given, OTHER_FUNCTION)
        if "rm-type" in arguments:
            made.note(NoteKind.NEEDLESS, arguments["rm-type"], "--custom-rm-path comes first")
        return
    kind = arguments.text("rm-type")
    if kind is None:
        return
    known = REWARDS.get(kind.removeprefix("boxed_"))
    if known is None:
        why = f"has no counterpart; write it as reward.kind Python, or use {', '.join(REWARDS)}"
        made.note(NoteKind.LOST, arguments["rm-type"], why)
        return
    made.put("reward.kind", known, origin(arguments["rm-type"]))
    if known == "Math" and kind != "math":
        made.note(NoteKind.CHECK, arguments["rm-type"], "math-verify judges here; a reward may differ in rare cases")
    if "reward-key" in arguments and known == "Remote":
        made.put("reward.remote.answerKey", arguments["reward-key"].text, origin(arguments["reward-key"]))


def _asynchronous(made: Draft, arguments: Arguments, program: Word) -> None:
    fully = FULLY_ASYNC in (arguments.text("rollout-function-path") or "") or "fully-async" in arguments
    other = arguments.get("rollout-function-path")
    if other and not fully and SFT_ROLLOUT not in other.text:
        made.note(NoteKind.LOST, other, "a rollout function has no counterpart; rollout.generate makes one sample")
    if "debug-train-only" in arguments and made.spec.get("algorithm", {}).get("name") != "sft":
        made.note(NoteKind.LOST, arguments["debug-train-only"], "spec.debug.replay trains on kept samples")
    if not program.text.endswith("train_async.py") or made.spec.get("algorithm", {}).get("name") == "sft":
        if "partial-rollout" in arguments:
            made.note(NoteKind.LOST, arguments["partial-rollout"], "only with rollout.async")
        return
    shown = f"{program.text}, line {program.line}"
    interval = arguments.whole("update-weights-interval") or 1
    partial = fully or "partial-rollout" in arguments
    staleness = arguments.whole("max-weight-staleness") if partial else None
    made.put("rollout.async.maxStaleness", max(staleness or interval, interval), shown)
    if interval > 1:
        made.put("rollout.async.updateInterval", interval, origin(arguments["update-weights-interval"]))
    if partial:
        source = arguments.get("partial-rollout") or arguments.get("fully-async") or other
        made.put("rollout.async.partial", True, origin(source) if source else shown)
        if fully and source:
            made.note(NoteKind.CHECK, source, "rljob bounds the staleness: spec.rollout.async.maxStaleness")


def _placement(made: Draft, arguments: Arguments) -> None:
    """Derive the engines from GPUs. A colocated run that sets no number uses all GPUs of the learner."""
    if made.spec.get("algorithm", {}).get("name") == "sft":
        return
    colocated = "colocate" in arguments
    gpus_per_node = arguments.whole("actor-num-gpus-per-node") or GPUS_PER_NODE
    learner = (arguments.whole("actor-num-nodes") or 1) * gpus_per_node
    made.put("placement", "Colocated" if colocated else "Disaggregated", _placed_by(arguments, colocated))
    engine = arguments.whole("rollout-num-gpus-per-engine") or 1
    largest = gpus_per_node if colocated else arguments.whole("num-gpus-per-node") or GPUS_PER_NODE
    shown = origin(arguments["rollout-num-gpus-per-engine"]) if "rollout-num-gpus-per-engine" in arguments else DEFAULT
    if engine > largest:
        made.note(NoteKind.CHECK, arguments["rollout-num-gpus-per-engine"], f"{ONE_NODE}: {largest} GPUs here")
        engine = largest
    if engine > 1:
        made.put("rollout.gpusPerEngine", engine, shown)
    gpus = arguments.whole("rollout-num-gpus") or (learner if colocated else None)
    if gpus is None:
        return
    if colocated and gpus > learner:
        made.note(NoteKind.LOST, arguments["rollout-num-gpus"], "colocated engines have the learner's GPUs only")
        gpus = learner
    if gpus % engine:
        rule = f"{gpus} GPUs are no multiple of {engine}, the GPUs of an engine; the rest is left over"
        made.note(NoteKind.CHECK, arguments.get("rollout-num-gpus"), rule)
    source = arguments.get("rollout-num-gpus")
    named = "" if "actor-num-gpus-per-node" in arguments else f"; {DEFAULT}: the script names no GPUs"
    shares = f"{gpus} GPUs, {engine} for each{named}"
    made.put("rollout.engines", max(1, gpus // engine), origin(source) if source else shares)


def _placed_by(arguments: Arguments, colocated: bool) -> str:
    return origin(arguments["colocate"]) if colocated else "no --colocate"


def _virtual_stages(made: Draft, arguments: Arguments) -> None:
    """How many chunks a stage has follows from the layers of a chunk and those of the model."""
    source = arguments.get("num-layers-per-virtual-pipeline-stage")
    if source is None:
        return
    layers, stages = arguments.whole("num-layers"), arguments.whole("pipeline-model-parallel-size") or 1
    own = arguments.whole(source.name)
    if layers and own and layers % (stages * own) == 0:
        made.put("training.virtualPipeline", layers // (stages * own), origin(source))
    else:
        why = "set spec.training.virtualPipeline to the layers of a pipeline stage, divided by this number"
        made.note(NoteKind.UNKNOWN, source, why)


def _layers(made: Draft, arguments: Arguments) -> None:
    """`--spec MODULE FUNCTION` builds the layers of a model that Megatron does not have itself."""
    if (given := arguments.get("spec")) is None:
        return
    module = (given.words[0].text if given.words else "").rpartition(".")[2]
    if OUR_LAYERS.fullmatch(module):
        made.note(NoteKind.NEEDLESS, given, FROM_CHECKPOINT.why)
    else:
        made.note(NoteKind.LOST, given, OTHER_FAMILY.why)


def _stages(made: Draft, arguments: Arguments) -> None:
    """Megatron gives the first or last stage its own number of layers, and shares the rest equally."""
    first, last = (arguments.get(f"decoder-{which}-pipeline-num-layers") for which in ("first", "last"))
    given = first or last
    if given is None:
        return
    layers, stages = arguments.whole("num-layers"), arguments.whole("pipeline-model-parallel-size") or 1
    ends = [arguments.whole(each.name) for each in (first, last) if each]
    if not layers or None in ends or "training.virtualPipeline" in made.origins or stages <= len(ends):
        why = "set spec.training.pipelineLayers: the number of layers of each stage, in order"
        made.note(NoteKind.UNKNOWN, given, why)
        return
    between, rest = divmod(layers - sum(filter(None, ends)), stages - len(ends))
    if rest or between < 1:
        why = f"the other {stages - len(ends)} stages cannot share the layers that are left of {layers} equally"
        made.note(NoteKind.UNKNOWN, given, f"{why}; set spec.training.pipelineLayers")
        return
    middle = [between] * (stages - len(ends))
    numbers = [*(ends[:1] if first else []), *middle, *(ends[-1:] if last else [])]
    made.put("training.pipelineLayers", numbers, origin(given))


def _warmup(made: Draft, arguments: Arguments) -> None:
    """A fraction of the optimizer steps needs their number."""
    if "num-epoch" in arguments and "num-rollout" not in arguments:
        made.note(NoteKind.UNKNOWN, arguments["num-epoch"], EPOCHS)
    share = arguments.number("lr-warmup-fraction")
    if share is None:
        return
    prompts, samples = arguments.whole("rollout-batch-size"), arguments.whole("n-samples-per-prompt") or 1
    steps, batch = arguments.whole("num-rollout"), arguments.whole("global-batch-size")
    updates = arguments.whole("num-steps-per-rollout") or (prompts * samples // batch if prompts and batch else None)
    source = arguments["lr-warmup-fraction"]
    if steps and updates:
        made.put("training.optimizer.warmupSteps", round(share * steps * updates), origin(source))
    else:
        why = "the number of optimizer steps is not known; set spec.training.optimizer.warmupSteps"
        made.note(NoteKind.UNKNOWN, source, why)


def _balance(made: Draft, arguments: Arguments) -> None:
    """A coefficient of 0, as most scripts have it, turns the loss off, and its kind is of no use then."""
    coefficient, kind = arguments.number("moe-aux-loss-coeff"), arguments.text("moe-router-load-balancing-type")
    if not coefficient or kind == "none":
        return
    source = arguments["moe-aux-loss-coeff"]
    made.put("training.experts.balanceLoss", coefficient, origin(source))
    made.put("training.experts.balanceOver", "Sequence" if kind == "seq_aux_loss" else "Step", origin(source))
    if kind not in ("seq_aux_loss", "global_aux_loss"):
        why = "aux_loss compares the tokens of a micro-batch, here the loss compares those of the optimizer step"
        made.note(NoteKind.CHECK, source, why)


def _biases(made: Draft, arguments: Arguments) -> None:
    """Without a rate, Megatron changes biases by its default. Without biases, the rate has no use."""
    if "moe-router-enable-expert-bias" not in arguments:
        return
    given = "moe-router-bias-update-rate"
    rate = arguments.number(given)
    if rate is None:
        given, rate = "moe-router-enable-expert-bias", MEGATRON_BIAS_RATE
        made.note(NoteKind.CHECK, arguments[given], f"Megatron's default rate is {rate}")
    if rate:
        made.put("training.experts.biasUpdateRate", rate, origin(arguments[given]))


def _tracking(made: Draft, arguments: Arguments) -> None:
    if "use-wandb" not in arguments and "wandb-project" not in arguments:
        return
    for name, path in (("wandb-project", "project"), ("wandb-team", "entity"), ("wandb-group", "group")):
        if name in arguments:
            made.put(f"tracking.wandb.{path}", arguments[name].text, origin(arguments[name]))
    if "wandb-project" not in arguments:
        made.put("tracking.wandb.project", "slime", DEFAULT)
    mode = {"online": "Online", "offline": "Offline"}.get(arguments.text("wandb-mode") or "")
    if mode:
        made.put("tracking.wandb.mode", mode, origin(arguments["wandb-mode"]))


def _absent(made: Draft, arguments: Arguments) -> None:
    """Write down what slime does where the script says nothing and rljob would do something else."""
    is_sft = made.spec.get("algorithm", {}).get("name") == "sft"
    for path, value in {**DEFAULTS, **({} if is_sft else RL_DEFAULTS)}.items():
        if path not in made.origins and not any(given.unknown for given in arguments.values() if _is(given, path)):
            made.put(path, value, DEFAULT)


def _is(given: Given, path: str) -> bool:
    return getattr(FLAGS.get(given.name), "path", None) == path
