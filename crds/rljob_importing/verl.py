"""Settings of verl to the fields of an RLJob: what `verl_keys` cannot say because it takes several keys.

verl counts a mini-batch in prompts, an RLJob its `globalBatchSize` in samples.
"""

import re
from collections.abc import Sequence

from rljob_api import algorithms
from rljob_importing.draft import Arguments, Draft, NoteKind, by_family, carry_over, origin
from rljob_importing.entries import Training
from rljob_importing.mapping import EPOCHS, number_or_text
from rljob_importing.objectives import foreign, note_critic, note_longest_scored, put_lower_clip
from rljob_importing.verl_apart import ahead, apart
from rljob_importing.verl_distillation import distillation
from rljob_importing.verl_given import DEFAULT, kind_of, listed, on, put_betas, put_source, shown
from rljob_importing.verl_keys import (
    ACTOR,
    CORRECTION,
    DEFAULTS,
    DISTILLATION,
    ESTIMATORS,
    FAMILIES,
    KEYS,
    KL_TYPES,
    LONGEST_SCORED,
    NOTHING,
    OBJECTIVES,
    OVERLONG,
    OVERRIDES,
    REPLAY,
    REPLAYS,
    ROLLOUT,
)
from rljob_importing.words import Given

MINI_BATCH, PROMPTS, SAMPLES, GPUS, CLIP, DUAL_CLIP, KL, RESPONSE, PROMPT, CRITIC_LR = (
    *(256, 1024, 1, 8, 0.2, 3.0, 0.001, 512, 512, 1e-5),
)
"""verl's defaults of what is computed here"""
VALUE_CLIP, IS_BOUND, LEARNING_RATE = 0.5, 2.0, 1e-6
OTHER_OBJECTIVE = (
    f"has no counterpart; these have, with advantages of GRPO: vanilla, {', '.join(OBJECTIVES)}. Another one is a"
    " your own function: spec.algorithm.name module:object"
)
SET_NAME = re.compile(r"[^A-Za-z0-9_-]+")


def draft(given: Sequence[Given], training: Training = Training.ALTERNATING) -> Draft:
    """Return the RLJob's spec as far as the settings of a program with the keys of `main_ppo` give it."""
    made, arguments = Draft(), Arguments(given)
    carry_over(made, arguments, KEYS, by_family(FAMILIES))
    if not distillation(made, arguments):
        _algorithm(made, arguments)
    _clipping(made, arguments)
    _critic(made, arguments)
    _kl(made, arguments)
    _correction(made, arguments, training)
    _sampling(made, arguments)
    _data(made, arguments)
    _reward(made, arguments)
    _batches(made, arguments)
    if training is Training.ALTERNATING:
        _engines(made, arguments)
    else:
        apart(made, arguments)
        ahead(made, arguments, training)
    _quantization(made, arguments)
    _virtual_stages(made, arguments)
    _experts(made, arguments)
    _optimizer(made, arguments)
    _trainer(made, arguments)
    made.fill(DEFAULTS, DEFAULT)
    return made


def _algorithm(made: Draft, arguments: Arguments) -> None:
    """An advantage or objective that is not ours stands in the manifest by its name, which is refused there."""
    name, loss = "algorithm.adv_estimator", f"{ACTOR}.policy_loss.loss_mode"
    estimator, mode = arguments.text(name) or "gae", arguments.text(loss) or "vanilla"
    advantages = ESTIMATORS.get(estimator)
    if advantages is None and not arguments[name].unknown:
        made.note(NoteKind.LOST, arguments[name], f"has no counterpart; these have: {', '.join(ESTIMATORS)}")
    if mode == "vanilla":
        made.put("algorithm.name", advantages or foreign("verl", estimator), shown(arguments, name))
    elif mode in OBJECTIVES and advantages == "grpo":
        made.put("algorithm.name", mode, origin(arguments[loss]))
    else:
        if not arguments[loss].unknown:
            made.note(NoteKind.LOST, arguments[loss], OTHER_OBJECTIVE)
        both = mode if advantages == "grpo" else f"{estimator}+{mode}"
        made.put("algorithm.name", foreign("verl", both), origin(arguments[loss]))
    if (arguments.text("algorithm.norm_adv_by_std_in_grpo") or "").lower() == "false":
        made.put("algorithm.normalizeBy", "None", origin(arguments["algorithm.norm_adv_by_std_in_grpo"]))


def _clipping(made: Draft, arguments: Arguments) -> None:
    """A ratio is above 0, so that a lower range of 1 and more clips nothing."""
    prefix = DISTILLATION if made.spec["algorithm"].get("name") == algorithms.DISTILLATION else ACTOR
    both = arguments.number(f"{prefix}.clip_ratio")
    for end, path in (("low", "clipLow"), ("high", "clipHigh")):
        source = f"{prefix}.clip_ratio_{end}"
        value = arguments.number(source)
        if value is None and both is not None:
            source, value = f"{prefix}.clip_ratio", both
        if value is not None and end == "low":
            put_lower_clip(made, value, arguments[source])
        elif value is not None:
            made.put(f"algorithm.{path}", value, origin(arguments[source]))
    dual = f"{ACTOR}.clip_ratio_c"
    made.put("algorithm.dualClip", arguments.number(dual) or DUAL_CLIP, shown(arguments, dual))


def _critic(made: Draft, arguments: Arguments) -> None:
    if made.spec["algorithm"]["name"] != "ppo":
        return
    for key, path, default in (
        ("critic.optim.lr", "learningRate", CRITIC_LR),
        ("critic.cliprange_value", "valueClip", VALUE_CLIP),
    ):
        made.put(f"algorithm.critic.{path}", arguments.number(key) or default, shown(arguments, key))
    for key, path in (
        ("critic.grad_clip", "clipGrad"),
        ("critic.optim.clip_grad", "clipGrad"),
        ("algorithm.gamma", "gamma"),
        ("algorithm.lam", "lambda"),
    ):
        if (value := arguments.number(key)) is not None:
            made.put(f"algorithm.critic.{path}", value, origin(arguments[key]))
    if warmup := arguments.whole("trainer.critic_warmup"):
        made.put("algorithm.critic.warmupSteps", warmup, origin(arguments["trainer.critic_warmup"]))
    note_critic(made, arguments.get("critic.model.path"), arguments.text("actor_rollout_ref.model.path"))


def _kl(made: Draft, arguments: Arguments) -> None:
    in_loss, in_reward = on(arguments, f"{ACTOR}.use_kl_loss"), on(arguments, "algorithm.use_kl_in_reward")
    if not (in_loss or in_reward):
        return
    weight, kind = (
        (f"{ACTOR}.kl_loss_coef", f"{ACTOR}.kl_loss_type")
        if in_loss
        else ("algorithm.kl_ctrl.kl_coef", "algorithm.kl_penalty")
    )
    coefficient = arguments.number(weight)
    coefficient = KL if coefficient is None else coefficient
    if not coefficient:
        made.note(NoteKind.NEEDLESS, arguments[weight], "the coefficient is 0: no penalty, no reference model")
        return
    made.put("algorithm.kl.coefficient", coefficient, shown(arguments, weight))
    if in_loss and in_reward:
        made.note(
            NoteKind.LOST,
            arguments["algorithm.use_kl_in_reward"],
            "only one KL penalty is possible; the one in the loss is kept",
        )
    elif in_reward:
        made.put("algorithm.kl.addedTo", "Reward", origin(arguments["algorithm.use_kl_in_reward"]))
    written = arguments.text(kind) or ("low_var_kl" if in_loss else "kl")
    made.put("algorithm.kl.estimator", KL_TYPES.get(written, written), shown(arguments, kind))
    if written not in KL_TYPES:
        made.note(NoteKind.LOST, arguments[kind], f"estimators are {', '.join(KL_TYPES)}")


def _correction(made: Draft, arguments: Arguments, training: Training) -> None:
    """Weights between engines and learner: `rollout_is` is a level, in older versions a switch beside one.

    A bound such as `0.5_2.0` is that of IcePop, which masks.
    """
    prefix = f"{CORRECTION}." if f"{CORRECTION}.rollout_is" in arguments else "algorithm."
    weighs, bound, cap = f"{prefix}rollout_is", f"{prefix}rollout_is_threshold", f"{ACTOR}.tis_imp_ratio_cap"
    level, bypass = (arguments.text(weighs) or "").lower(), f"{CORRECTION}.bypass_mode"
    if on(arguments, bypass) and training is Training.ALTERNATING:
        why = "the probability ratio is to the learner's own probabilities; only rollout.async has those of the engines"
        made.note(NoteKind.CHECK, arguments[bypass], why)
    if level in ("", *NOTHING):
        if (arguments.number(cap) or 0) > 0:
            made.put("algorithm.importanceSampling.kind", "Truncate", origin(arguments[cap]))
            made.put("algorithm.importanceSampling.high", arguments.number(cap), origin(arguments[cap]))
        return
    level = (arguments.text("algorithm.rollout_is_level") or "token") if level == "true" else level
    low, _, high = (arguments.text(bound) or str(IS_BOUND)).rpartition("_")
    masks = bool(low) or arguments.text("algorithm.rollout_is_mode") in ("mask", "icepop")
    made.put("algorithm.importanceSampling.kind", "Mask" if masks else "Truncate", origin(arguments[weighs]))
    levels = {"token": "Token", "sequence": "Sequence"}
    made.put("algorithm.importanceSampling.level", levels.get(level, level), origin(arguments[weighs]))
    for path, text in (("low", low), ("high", high)):
        if text and not (bound in arguments and arguments[bound].unknown):
            made.put(f"algorithm.importanceSampling.{path}", number_or_text(text), shown(arguments, bound))


def _sampling(made: Draft, arguments: Arguments) -> None:
    """Dynamic sampling, and the penalty of responses that are too long."""
    if on(arguments, "algorithm.filter_groups.enable"):
        made.put("algorithm.dynamicSampling.overSample", 1.0, origin(arguments["algorithm.filter_groups.enable"]))
        more, prompts = arguments.whole("data.gen_batch_size"), arguments.whole("data.train_batch_size") or PROMPTS
        if more:
            made.put(
                "algorithm.dynamicSampling.overSample",
                round(more / prompts, 4),
                origin(arguments["data.gen_batch_size"]),
            )
        rounds = "algorithm.filter_groups.max_num_gen_batches"
        if arguments.whole(rounds):
            made.put("algorithm.dynamicSampling.maxRounds", arguments.whole(rounds), origin(arguments[rounds]))
    overlong = {found[3]: name for name in arguments if (found := OVERLONG.fullmatch(name))}
    if "enable" in overlong and on(arguments, overlong["enable"]):
        _longest_scored(made, arguments)
        for key, path in (("len", "buffer"), ("penalty_factor", "penalty")):
            name = overlong.get(key, "")
            value = arguments.whole(name) if key == "len" else arguments.number(name)
            if value is not None:
                made.put(f"algorithm.overlong.{path}", value, origin(arguments[name]))


def _longest_scored(made: Draft, arguments: Arguments) -> None:
    given = next((each for name, each in arguments.items() if LONGEST_SCORED.fullmatch(name)), None)
    longest = arguments.whole("data.max_response_length") or RESPONSE
    if given is not None and arguments.whole(given.name) not in (None, longest):
        note_longest_scored(made, given, longest)


def _data(made: Draft, arguments: Arguments) -> None:
    sources = {"data.train_files": "data.train", "data.val_files": "data.heldOut"}
    for name, path in sources.items():
        files = listed(arguments, name)
        if not files:
            continue
        put_source(made, arguments, name, path, files[0])
        if path == "data.train" and len(files) > 1:
            made.note(NoteKind.LOST, arguments[name], "spec.data.train is one file; join them")
        elif len(files) > 1:
            sets = [{"name": _set_name(file, index), kind_of(file): file} for index, file in enumerate(files[1:])]
            made.put("data.evaluationSets", sets, origin(arguments[name]))


def _set_name(path: str, index: int) -> str:
    """Return a name from the path, `math-test` of `data/math/test.parquet`, that is a letter first and short."""
    words = SET_NAME.sub("-", "-".join(path.rpartition(".")[0].split("/")[-2:])).strip("-")[:30]
    return words if words[:1].isalpha() else f"set-{index + 1}"


def _reward(made: Draft, arguments: Arguments) -> None:
    prefix = "reward." if "reward.custom_reward_function.path" in arguments else ""
    path, name = f"{prefix}custom_reward_function.path", f"{prefix}custom_reward_function.name"
    if path in arguments:
        module = arguments[path].text.rpartition("/")[2].removesuffix(".py")
        made.put("reward.kind", "Python", origin(arguments[path]))
        made.put("reward.function", f"{module}:{arguments.text(name) or 'compute_score'}", origin(arguments[path]))
        made.note(NoteKind.CHECK, arguments[path], "the function gets other arguments here; see docs/rewards.md")
    else:
        made.put("reward.kind", "Math", DEFAULT)
        why = "verl chooses the reward by each row's data_source; here spec.reward judges all rows, now math-verify"
        made.note(NoteKind.CHECK, None, why)


def _batches(made: Draft, arguments: Arguments) -> None:
    samples = arguments.whole(f"{ROLLOUT}.n") or SAMPLES
    name = f"{ACTOR}.ppo_mini_batch_size"
    prompts = arguments.whole(name) or MINI_BATCH
    made.put("training.globalBatchSize", prompts * samples, f"{shown(arguments, name)}: x {samples} samples")
    longest = (arguments.whole("data.max_prompt_length") or PROMPT) + (
        arguments.whole("data.max_response_length") or RESPONSE
    )
    if "rollout.contextLength" not in made.origins and "data.max_prompt_length" in arguments:
        made.put("rollout.contextLength", longest, f"{origin(arguments['data.max_prompt_length'])}: plus the response")


def _engines(made: Draft, arguments: Arguments) -> None:
    gpus = arguments.whole("trainer.n_gpus_per_node") or GPUS
    name = f"{ROLLOUT}.tensor_model_parallel_size"
    wanted = arguments.whole(name) or 1
    engine = min(wanted, gpus)
    if engine < wanted:
        made.note(NoteKind.CHECK, arguments[name], f"an engine stays on one node: {engine} GPUs here")
    made.put("placement", "Colocated", DEFAULT)
    made.put(
        "rollout.engines",
        max(1, (arguments.whole("trainer.nnodes") or 1) * gpus // engine),
        "GPUs by GPUs of an engine",
    )
    if engine > 1:
        made.put("rollout.gpusPerEngine", engine, origin(arguments[name]))


def _quantization(made: Draft, arguments: Arguments) -> None:
    name = f"{ROLLOUT}.quantization"
    if name not in arguments or arguments[name].text.lower() in NOTHING:
        return
    if arguments[name].text.lower() == "fp8":
        made.put("rollout.quantization", "Fp8", origin(arguments[name]))
    elif not arguments[name].unknown:
        made.note(NoteKind.LOST, arguments[name], "has no counterpart; spec.rollout.quantization is Fp8 or Int4")


def _experts(made: Draft, arguments: Arguments) -> None:
    """The replay is a setting of each back end; a coefficient of 0 turns the balance loss off."""
    for given in (each for name, each in arguments.items() if REPLAY.fullmatch(name)):
        mode = given.text.lower()
        if mode in REPLAYS:
            made.put("training.experts.replay", REPLAYS[mode], origin(given))
        elif mode in ("disabled", *NOTHING):
            made.note(NoteKind.NEEDLESS, given, "the learner chooses experts anew without spec.training.experts.replay")
        elif not given.unknown:
            made.note(NoteKind.LOST, given, f"has no counterpart; these have: {', '.join(map(str.upper, REPLAYS))}")
    loss, kind = f"{OVERRIDES}.moe_aux_loss_coeff", arguments.text(f"{OVERRIDES}.moe_router_load_balancing_type")
    if (coefficient := arguments.number(loss)) and kind != "none":
        made.put("training.experts.balanceLoss", coefficient, origin(arguments[loss]))
        made.put(
            "training.experts.balanceOver", "Sequence" if kind == "seq_aux_loss" else "Step", origin(arguments[loss])
        )


def _virtual_stages(made: Draft, arguments: Arguments) -> None:
    """Many scripts write `null`, verl's default."""
    name = f"{ACTOR}.megatron.virtual_pipeline_model_parallel_size"
    if (chunks := arguments.whole(name)) is not None:
        made.put("training.virtualPipeline", chunks, origin(arguments[name]))


def _optimizer(made: Draft, arguments: Arguments) -> None:
    steps, share = f"{ACTOR}.optim.lr_warmup_steps", f"{ACTOR}.optim.lr_warmup_steps_ratio"
    if (arguments.whole(steps) or -1) > 0:
        made.put("training.optimizer.warmupSteps", arguments.whole(steps), origin(arguments[steps]))
    elif arguments.number(share):
        why = "the number of optimizer steps is not known; set spec.training.optimizer.warmupSteps"
        made.note(NoteKind.UNKNOWN, arguments[share], why)
    least = f"{ACTOR}.optim.min_lr_ratio"
    if (ratio := arguments.number(least)) is not None:
        rate = arguments.number(f"{ACTOR}.optim.lr") or LEARNING_RATE
        made.put("training.optimizer.minLearningRate", ratio * rate, f"{origin(arguments[least])}: x the learning rate")
    put_betas(made, arguments, f"{ACTOR}.optim.betas")


def _trainer(made: Draft, arguments: Arguments) -> None:
    for name, path in (("trainer.save_freq", "checkpoint.interval"), ("trainer.test_freq", "evaluation.interval")):
        value = arguments.whole(name)
        if value is not None and value > 0:
            made.put(path, value, origin(arguments[name]))
        elif value is not None:
            made.note(NoteKind.CHECK, arguments[name], f"spec.{path} has its default: rljob always saves and evaluates")
    if "trainer.total_epochs" in arguments and "trainer.total_training_steps" not in arguments:
        made.note(NoteKind.UNKNOWN, arguments["trainer.total_epochs"], EPOCHS)
    if "wandb" in (arguments.text("trainer.logger") or ""):
        made.put(
            "tracking.wandb.project",
            arguments.text("trainer.project_name") or "verl_examples",
            shown(arguments, "trainer.project_name"),
        )
        if "trainer.experiment_name" in arguments:
            made.put(
                "tracking.wandb.group",
                arguments["trainer.experiment_name"].text,
                origin(arguments["trainer.experiment_name"]),
            )
