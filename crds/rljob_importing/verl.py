"""Settings of verl to the fields of an RLJob: what `verl_keys` cannot say because it takes several keys.

verl counts a mini-batch in prompts, an RLJob its `globalBatchSize` in samples.
"""

import re
from collections.abc import Sequence

from rljob_importing.draft import Arguments, Draft, NoteKind, by_family, carry_over, origin
from rljob_importing.settings import items
from rljob_importing.verl_keys import ACTOR, DEFAULTS, ESTIMATORS, FAMILIES, KEYS, KL_TYPES, OVERLONG, ROLLOUT
from rljob_importing.words import Given

DEFAULT = "verl's default"
MINI_BATCH, PROMPTS, SAMPLES, GPUS, CLIP, DUAL_CLIP, KL, RESPONSE, PROMPT, CRITIC_LR = (
    *(256, 1024, 1, 8, 0.2, 3.0, 0.001, 512, 512, 1e-5),
)
"""verl's defaults of what is computed here"""
SET_NAME = re.compile(r"[^A-Za-z0-9_-]+")


def draft(given: Sequence[Given]) -> Draft:
    """Return the RLJob's spec as far as the settings of `main_ppo` give it."""
    made, arguments = Draft(), Arguments(given)
    carry_over(made, arguments, KEYS, by_family(FAMILIES))
    _algorithm(made, arguments)
    _kl(made, arguments)
    _sampling(made, arguments)
    _data(made, arguments)
    _reward(made, arguments)
    _batches(made, arguments)
    _engines(made, arguments)
    _virtual_stages(made, arguments)
    _optimizer(made, arguments)
    _trainer(made, arguments)
    made.fill(DEFAULTS, DEFAULT)
    return made


def _on(arguments: Arguments, name: str) -> bool:
    return (arguments.text(name) or "").lower() in ("true", "1")


def _shown(arguments: Arguments, name: str) -> str:
    return origin(arguments[name]) if name in arguments else DEFAULT


def _algorithm(made: Draft, arguments: Arguments) -> None:
    name, mode = "algorithm.adv_estimator", arguments.text(f"{ACTOR}.policy_loss.loss_mode")
    estimator = arguments.text(name) or "gae"
    known = "gspo" if mode == "gspo" and estimator == "grpo" else ESTIMATORS.get(estimator)
    if known is None:
        made.note(NoteKind.LOST, arguments[name], f"has no counterpart; these have: {', '.join(ESTIMATORS)}")
    else:
        made.put("algorithm.name", known, _shown(arguments, name))
    if mode not in (None, "vanilla", "gspo"):
        made.note(NoteKind.LOST, arguments[f"{ACTOR}.policy_loss.loss_mode"], "objectives are those of algorithm.name")
    if (arguments.text("algorithm.norm_adv_by_std_in_grpo") or "").lower() == "false":
        made.put("algorithm.normalizeBy", "None", origin(arguments["algorithm.norm_adv_by_std_in_grpo"]))
    both = arguments.number(f"{ACTOR}.clip_ratio")
    for end, path in (("low", "clipLow"), ("high", "clipHigh")):
        source = f"{ACTOR}.clip_ratio_{end}"
        value = arguments.number(source)
        if value is None and both is not None:
            source, value = f"{ACTOR}.clip_ratio", both
        if value is not None:
            made.put(f"algorithm.{path}", value, origin(arguments[source]))
    dual = f"{ACTOR}.clip_ratio_c"
    made.put("algorithm.dualClip", arguments.number(dual) or DUAL_CLIP, _shown(arguments, dual))
    if known == "ppo":
        made.put(
            "algorithm.critic.learningRate",
            arguments.number("critic.optim.lr") or CRITIC_LR,
            _shown(arguments, "critic.optim.lr"),
        )
        for key, path in (("algorithm.gamma", "gamma"), ("algorithm.lam", "lambda")):
            if (value := arguments.number(key)) is not None:
                made.put(f"algorithm.critic.{path}", value, origin(arguments[key]))
        if warmup := arguments.whole("trainer.critic_warmup"):
            made.put("algorithm.critic.warmupSteps", warmup, origin(arguments["trainer.critic_warmup"]))


def _kl(made: Draft, arguments: Arguments) -> None:
    in_loss, in_reward = _on(arguments, f"{ACTOR}.use_kl_loss"), _on(arguments, "algorithm.use_kl_in_reward")
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
    made.put("algorithm.kl.coefficient", coefficient, _shown(arguments, weight))
    if in_loss and in_reward:
        made.note(
            NoteKind.LOST, arguments["algorithm.use_kl_in_reward"], "there is one penalty; that of the loss is kept"
        )
    elif in_reward:
        made.put("algorithm.kl.addedTo", "Reward", origin(arguments["algorithm.use_kl_in_reward"]))
    estimator = KL_TYPES.get(arguments.text(kind) or ("low_var_kl" if in_loss else "kl"))
    if estimator:
        made.put("algorithm.kl.estimator", estimator, _shown(arguments, kind))
    else:
        made.note(NoteKind.LOST, arguments[kind], f"estimators are {', '.join(KL_TYPES)}")


def _sampling(made: Draft, arguments: Arguments) -> None:
    """Dynamic sampling, and the penalty of responses that are too long."""
    if _on(arguments, "algorithm.filter_groups.enable"):
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
    if "enable" in overlong and _on(arguments, overlong["enable"]):
        for key, path in (("len", "buffer"), ("penalty_factor", "penalty")):
            name = overlong.get(key, "")
            value = arguments.whole(name) if key == "len" else arguments.number(name)
            if value is not None:
                made.put(f"algorithm.overlong.{path}", value, origin(arguments[name]))


def _data(made: Draft, arguments: Arguments) -> None:
    sources = {"data.train_files": "data.train", "data.val_files": "data.heldOut"}
    for name, path in sources.items():
        files = items(arguments[name]) if name in arguments else ()
        if not files:
            continue
        made.put(f"{path}.{_kind(files[0])}", files[0], origin(arguments[name]))
        limit = f"{name.removesuffix('_files')}_max_samples"
        if (arguments.whole(limit) or 0) > 0:
            made.put(f"{path}.limit", arguments.whole(limit), origin(arguments[limit]))
        if path == "data.train" and len(files) > 1:
            made.note(NoteKind.LOST, arguments[name], "spec.data.train is one file; join them")
        elif len(files) > 1:
            sets = [{"name": _set_name(file, index), _kind(file): file} for index, file in enumerate(files[1:])]
            made.put("data.evaluationSets", sets, origin(arguments[name]))


def _kind(path: str) -> str:
    return "jsonl" if path.endswith((".jsonl", ".json")) else "parquet"


def _set_name(path: str, index: int) -> str:
    """Return a name from the path, `math-test` of `data/math/test.parquet`, that is a letter first and short."""
    words = SET_NAME.sub("-", "-".join(path.rpartition(".")[0].split("/")[-2:])).strip("-")[:30]
    return words if words[:1].isalpha() else f"set-{index + 1}"


def _reward(made: Draft, arguments: Arguments) -> None:
    path, name = "custom_reward_function.path", "custom_reward_function.name"
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
    made.put("training.globalBatchSize", prompts * samples, f"{_shown(arguments, name)}: x {samples} samples")
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
    betas = f"{ACTOR}.optim.betas"
    values = items(arguments[betas]) if betas in arguments else ()
    for path, value in zip(("beta1", "beta2"), values, strict=False):
        made.put(f"training.optimizer.{path}", float(value), origin(arguments[betas]))


def _trainer(made: Draft, arguments: Arguments) -> None:
    for name, path in (("trainer.save_freq", "checkpoint.interval"), ("trainer.test_freq", "evaluation.interval")):
        value = arguments.whole(name)
        if value is not None and value > 0:
            made.put(path, value, origin(arguments[name]))
        elif value is not None:
            made.note(NoteKind.CHECK, arguments[name], f"spec.{path} has its default: rljob always saves and evaluates")
    if "trainer.total_epochs" in arguments and "trainer.total_training_steps" not in arguments:
        why = "the number of steps depends on the rows: set spec.training.steps to epochs x rows / promptsPerStep"
        made.note(NoteKind.UNKNOWN, arguments["trainer.total_epochs"], why)
    if "wandb" in (arguments.text("trainer.logger") or ""):
        made.put(
            "tracking.wandb.project",
            arguments.text("trainer.project_name") or "verl_examples",
            _shown(arguments, "trainer.project_name"),
        )
        if "trainer.experiment_name" in arguments:
            made.put(
                "tracking.wandb.group",
                arguments["trainer.experiment_name"].text,
                origin(arguments["trainer.experiment_name"]),
            )
