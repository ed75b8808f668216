"""The keys of NeMo-RL's GRPO configuration, and the fields of an RLJob that they are."""

import re
from dataclasses import replace

from rljob_importing.mapping import (
    LOGGING,
    MEMORY,
    PACKED,
    REAL,
    TEXT,
    WHOLE,
    Entry,
    Field,
    Joint,
    Lost,
    Needless,
    chosen,
    of_facts,
    same,
)
from rljob_importing.megatron_flags import LORA, MIXTURE, PREDICTION

GENERATION = "policy.generation"
SHAPING, ESTIMATOR = "grpo.reward_shaping", "grpo.adv_estimator"
NOTHING = ("false", "null", "none", "0", "0.0", "{}", "[]", "")
DESCRIBED = "config.json of spec.model.checkpoint describes the model"
LAYOUT = Lost("the learner's layout has no such setting: see spec.training", ("1", "false"))

KEYS: dict[str, Entry] = {
    **of_facts("nemo_rl"),
    "grpo.max_num_epochs": Needless("spec.training.steps ends a run; the questions are shuffled again each epoch"),
    "grpo.val_period": Joint("evaluation.interval"),
    "grpo.val_at_start": Lost("rljob always evaluates before the first step", ("true",)),
    "grpo.val_batch_size": Needless("held-out questions are sampled all at once"),
    "grpo.max_val_samples": Joint("data.heldOut.limit"),
    "grpo.normalize_rewards": Joint("algorithm.name, algorithm.normalizeBy"),
    "grpo.use_leave_one_out_baseline": Joint("algorithm.name"),
    "grpo.max_rollout_turns": Lost("rollout.tools and rollout.generate make samples of several turns", ("1",)),
    "grpo.use_dynamic_sampling": Joint("algorithm.dynamicSampling"),
    "grpo.dynamic_sampling_max_gen_batches": Joint("algorithm.dynamicSampling.maxRounds"),
    "grpo.batch_multiplier": Joint("algorithm.dynamicSampling.overSample"),
    **same(
        Joint("algorithm.overlong"),
        (
            *(f"{SHAPING}.enabled", f"{SHAPING}.overlong_buffer_length", f"{SHAPING}.overlong_buffer_penalty"),
            f"{SHAPING}.max_response_length",
        ),
    ),
    f"{SHAPING}.stop_properly_penalty_coef": Lost("a truncated response has no other reward", NOTHING),
    f"{ESTIMATOR}.name": Joint("algorithm.name"),
    f"{ESTIMATOR}.normalize_rewards": Joint("algorithm.name, algorithm.normalizeBy"),
    f"{ESTIMATOR}.use_leave_one_out_baseline": Joint("algorithm.name"),
    f"{ESTIMATOR}.minus_baseline": Joint("algorithm.name"),
    f"{ESTIMATOR}.gae_lambda": Joint("algorithm.critic.lambda"),
    f"{ESTIMATOR}.gae_gamma": Joint("algorithm.critic.gamma"),
    f"{ESTIMATOR}.normalize_advantages": Lost("advantages of ppo are always whitened", ("true",)),
    "grpo.policy_training_start_step": Joint("algorithm.critic.warmupSteps"),
    **same(Lost("each sample is trained on once", ("1",)), ("grpo.ppo_epochs", "grpo.critic_ppo_epochs")),
    "grpo.skip_reference_policy_logprobs_calculation": Needless("there is a reference model only with algorithm.kl"),
    "grpo.val_at_end": Needless("rljob always evaluates after the last step"),
    **same(
        Needless("held-out rows are measured all at once"),
        ("grpo.val_batches", "grpo.val_global_batch_size", "grpo.val_micro_batch_size"),
    ),
    "grpo.topk_logits_k": Needless("the divergence is that of the sampled tokens"),
    "teacher.model_name": Joint("algorithm.teacher.checkpoint"),
    "loss_fn.kl_type": Joint("algorithm.name"),
    **same(
        Needless("they belong to a divergence over several tokens of the vocabulary"),
        ("loss_fn.mixed_kl_weight", "loss_fn.zero_outside_topk"),
    ),
    "value.model_name": Joint("model.checkpoint"),
    **same(Joint("algorithm.critic.learningRate"), ("value.optimizer.kwargs.lr", "value.megatron_cfg.optimizer.lr")),
    "value.max_grad_norm": Joint("algorithm.critic.clipGrad"),
    "value_loss_fn.cliprange": Joint("algorithm.critic.valueClip"),
    "value_loss_fn.scale": Needless("Adam's update does not depend on the scale of a separate loss"),
    "grpo.async_grpo.enabled": Joint("rollout.async"),
    "grpo.async_grpo.max_trajectory_age_steps": Joint("rollout.async.maxStaleness"),
    "grpo.async_grpo.in_flight_weight_updates": Joint("rollout.async.partial"),
    "loss_fn.reference_policy_kl_penalty": Joint("algorithm.kl"),
    "loss_fn.reference_policy_kl_type": Joint("algorithm.kl.estimator"),
    "loss_fn.ratio_clip_min": Joint("algorithm.clipLow"),
    "loss_fn.token_level_loss": Field("algorithm.lossBy", chosen({"true": "Token", "false": "Sample"})),
    "loss_fn.sequence_level_importance_ratios": Joint("algorithm.name"),
    "loss_fn.use_cispo": Joint("algorithm.name"),
    "loss_fn.use_kl_in_reward": Joint("algorithm.kl.addedTo"),
    "loss_fn.kl_output_clamp_value": Joint("algorithm.kl.clamp"),
    "loss_fn.kl_input_clamp_value": Needless("algorithm.kl.clamp limits the estimate of a token"),
    "loss_fn.truncated_importance_sampling_type": Joint("algorithm.importanceSampling.kind"),
    "loss_fn.truncated_importance_sampling_ratio_min": Joint("algorithm.importanceSampling.low"),
    "loss_fn.disable_ppo_ratio": Joint("algorithm.name"),
    "loss_fn.use_importance_sampling_correction": Joint("algorithm.importanceSampling"),
    "loss_fn.truncated_importance_sampling_ratio": Joint("algorithm.importanceSampling.high"),
    "policy.tokenizer.name": Joint("model.checkpoint"),
    "policy.tokenizer.chat_template": Lost(
        "the template is that of the checkpoint; spec.data.chatTemplate turns it off", ("default",)
    ),
    "policy.max_total_sequence_length": Joint("rollout.contextLength"),
    "policy.megatron_cfg.optimizer.optimizer_cpu_offload": Joint("training.optimizer.offload"),
    "policy.precision": Field("training.precision", chosen({"bfloat16": "bf16", "float32": "fp32"})),
    "policy.dtensor_cfg.tensor_parallel_size": Joint("training.tensorParallel"),
    "policy.megatron_cfg.enabled": Needless("the learner is Megatron-core"),
    "policy.dtensor_cfg.enabled": Lost("the learner is Megatron-core, not DTensor", ("false",)),
    "policy.sequence_packing.train_mb_tokens": Joint("training.maxTokensPerGpu"),
    f"{GENERATION}.max_new_tokens": Joint("rollout.sampling.maxNewTokens"),
    **same(
        Lost("an evaluation samples like the training, with rollout.sampling"),
        (f"{GENERATION}.val_temperature", f"{GENERATION}.val_top_p", f"{GENERATION}.val_top_k"),
    ),
    f"{GENERATION}.vllm_cfg.max_model_len": Joint("rollout.contextLength"),
    f"{GENERATION}.backend": Lost("engines are SGLang servers", ("sglang",)),
    **same(
        Joint("placement, rollout.engines, rollout.gpusPerEngine"),
        (
            *(f"{GENERATION}.vllm_cfg.tensor_parallel_size", f"{GENERATION}.colocated.enabled"),
            *(f"{GENERATION}.colocated.resources.gpus_per_node", f"{GENERATION}.colocated.resources.num_nodes"),
        ),
    ),
    **same(Joint("data.train"), ("data.train_data_path", "data.train.data_path")),
    **same(Joint("data.heldOut"), ("data.val_data_path", "data.validation.data_path")),
    **same(
        Field("data.inputKey", TEXT),
        ("data.default.input_key", "data.input_key", "data.train.input_key", "data.chat_key", "data.train.chat_key"),
    ),
    **same(Field("data.labelKey", TEXT), ("data.default.output_key", "data.output_key", "data.train.output_key")),
    **same(
        Lost("data sets have no names here: set spec.data.train and spec.data.heldOut to a file", ("responsedataset",)),
        ("data.dataset_name", *(f"data.{part}.dataset_name" for part in ("train", "validation", "default"))),
    ),
    "data.max_input_seq_length": Joint("rollout.contextLength, rollout.sampling.maxNewTokens"),
    **same(
        Lost("write its text in spec.data.promptTemplate"),
        ("data.prompt_file", *(f"data.{part}.prompt_file" for part in ("train", "validation", "default"))),
    ),
    **same(
        Lost("write its text in spec.data.systemPrompt"),
        (
            "data.system_prompt_file",
            *(f"data.{part}.system_prompt_file" for part in ("train", "validation", "default")),
        ),
    ),
    "data.num_workers": Needless("rows are read ahead by themselves"),
    "cluster.gpus_per_node": Joint("training.gpusPerNode"),
    "cluster.num_nodes": Joint("training.nodes"),
    "checkpointing.enabled": Lost("rljob always saves", ("true",)),
    "checkpointing.keep_top_k": Field("checkpoint.keep", WHOLE, "the newest checkpoints are kept, not the best"),
    **same(Joint("tracking.wandb"), ("logger.wandb_enabled", "logger.wandb.project", "logger.wandb.name")),
}
OPTIMIZERS = {
    "policy.optimizer.kwargs": {
        "lr": "learningRate",
        "weight_decay": "weightDecay",
        "eps": "epsilon",
        "betas": "",
    },
    "policy.megatron_cfg.optimizer": {
        name.replace("-", "_"): entry.path.rpartition(".")[2]
        for name, entry in of_facts("megatron").items()
        if isinstance(entry, Field) and entry.path.startswith("training.optimizer.") and entry.conversion is REAL
    },
}
"""settings of the optimizer by the back end that reads them"""
SCHEDULES = {"constant": "Constant", "linear": "Linear", "cosine": "Cosine"}
FAMILIES: tuple[tuple[re.Pattern[str], Entry], ...] = (
    (re.compile(r"policy\.(optimizer|megatron_cfg\.(optimizer|scheduler))\..*"), Joint("training.optimizer")),
    (
        re.compile(r"policy\.megatron_cfg\.(tensor|(virtual_)?pipeline)_model_parallel_size"),
        Joint("training.tensorParallel"),
    ),
    (
        re.compile(
            r"policy\.(megatron|dtensor)_cfg\.context_parallel_size"
            r"|policy\.megatron_cfg\.expert_(model|tensor)_parallel_size"
        ),
        Joint("training.contextParallel, training.expertParallel, training.expertTensorParallel"),
    ),
    (re.compile(r"policy\.megatron_cfg\.moe_router_bias_update_rate"), Joint("training.experts.biasUpdateRate")),
    (
        re.compile(r"policy\.hf_config_overrides\.(max_position_embeddings|.*rope.*)"),
        Lost(
            f"{DESCRIBED}: write it there in a copy of the checkpoint (max_position_embeddings, rope_scaling) if"
            " spec.rollout.contextLength is more than the checkpoint was made for, or that is refused"
        ),
    ),
    (re.compile(r"policy\.hf_config_overrides(\..*)?"), Lost(f"{DESCRIBED}: set it there", NOTHING)),
    (re.compile(r"policy\.tokenizer\..*"), Lost("the tokenizer and its template are those of the checkpoint", NOTHING)),
    (
        re.compile(r"policy\.megatron_cfg\.num_layers_in_(first|last)_pipeline_stage"),
        Lost("all stages have the same number of layers; spec.training.pipelineLayers sets them one by one"),
    ),
    (re.compile(r"teacher\..*"), Needless("the learner's ranks hold the teacher, in the student's layout")),
    (re.compile(r"value\..*"), Needless("the critic shares the policy's ranks, layout, batches and optimizer")),
    (re.compile(r"value_loss_fn\..*"), Lost("the critic has no such setting", NOTHING)),
    (
        re.compile(r"policy\.megatron_cfg\.moe_router_load_balancing_type"),
        Lost("the loss has a field: set spec.training.experts.balanceLoss", ("none",)),
    ),
    (re.compile(r"policy\.megatron_cfg\.freeze_moe_router"), Lost("the learner trains routers, too", ("false",))),
    (re.compile(r"policy\.scheduler.*"), Lost("see training.optimizer.schedule and warmupSteps")),
    (re.compile(r"policy\.(dynamic_batching|sequence_packing)\..*|policy\..*batch_size|.*logprob_chunk_size"), PACKED),
    (re.compile(r"policy\.(megatron|dtensor)_cfg\.sequence_parallel"), Joint("training.sequenceParallel")),
    (re.compile(r"policy\.(megatron|dtensor)_cfg\.activation_checkpointing"), Joint("training.recompute")),
    (re.compile(r".*(empty_unused|offload|sequence_parallel).*"), replace(MEMORY, harmless=("false", "0"))),
    (
        re.compile(r".*(parallel|in_first_pipeline|in_last_pipeline|fsdp|distributed_data|sequence_length_div).*"),
        LAYOUT,
    ),
    (re.compile(r".*(lora|peft).*"), replace(LORA, harmless=("false",))),
    (
        re.compile(r".*fp8.*"),
        Lost("the learner trains in bf16 or fp32; of engines see spec.rollout.quantization", ("false",)),
    ),
    (re.compile(r".*mtp.*"), replace(PREDICTION, harmless=("false",))),
    (re.compile(r".*(moe|expert|router).*"), replace(MIXTURE, harmless=("false",))),
    (
        re.compile(r"policy\.(megatron_cfg|dtensor_cfg|automodel_cfg)\..*"),
        Needless("the learner decides"),
    ),
    (
        re.compile(rf"{re.escape(GENERATION)}\..*"),
        Lost("engines are SGLang servers; see extraArgs.sglang", ("false", "1")),
    ),
    (re.compile(r"logger\..*|checkpointing\..*"), LOGGING),
    (re.compile(r"env\..*"), Joint("reward")),
    (re.compile(r"(grpo|loss_fn)\..*"), Lost("the algorithm has no such setting", NOTHING)),
    (re.compile(r"(data|policy|cluster|defaults|reward_model)(\..*)?"), Lost("rljob has no such setting", ("false",))),
)
"""keys that are treated alike, the first that fits; asked only for keys that are not in the table"""

DEFAULTS: dict[str, object] = {"data.inputKey": "input", "data.labelKey": "output"}
"""what NeMo-RL does where nothing is set, and an RLJob without the field does something else"""
