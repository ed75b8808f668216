"""The keys of NeMo-RL's GRPO configuration, and the fields of an RLJob that they are."""

import re
from dataclasses import replace

from rljob_importing.mapping import (
    DIRECTORY,
    LOGGING,
    MEMORY,
    ON,
    PACKED,
    REAL,
    TEXT,
    TEXTS,
    WHOLE,
    WHOLES,
    Entry,
    Field,
    Joint,
    Lost,
    Needless,
    chosen,
    same,
)
from rljob_importing.megatron_flags import LORA, MIXTURE, PREDICTION

GENERATION = "policy.generation"
LAYOUT = Lost("the learner's layout has no such setting: see spec.training", ("1", "false"))

KEYS: dict[str, Entry] = {
    "grpo.num_prompts_per_step": Field("rollout.promptsPerStep", WHOLE),
    "grpo.num_generations_per_prompt": Field("rollout.samplesPerPrompt", WHOLE),
    "grpo.max_num_steps": Field("training.steps", WHOLE),
    "grpo.max_num_epochs": Needless("spec.training.steps ends a run; the questions are shuffled again each epoch"),
    "grpo.seed": Field("seed", WHOLE),
    "grpo.val_period": Joint("evaluation.interval"),
    "grpo.val_at_start": Lost("rljob always evaluates before the first step", ("true",)),
    "grpo.val_batch_size": Needless("held-out questions are sampled all at once"),
    "grpo.max_val_samples": Joint("data.heldOut.limit"),
    "grpo.normalize_rewards": Joint("algorithm.name, algorithm.normalizeBy"),
    "grpo.use_leave_one_out_baseline": Joint("algorithm.name"),
    "grpo.max_rollout_turns": Lost("rollout.tools and rollout.generate make samples of several turns", ("1",)),
    "grpo.overlong_filtering": Lost("truncated samples are trained on", ("false",)),
    "grpo.use_dynamic_sampling": Joint("algorithm.dynamicSampling"),
    "grpo.dynamic_sampling_max_gen_batches": Joint("algorithm.dynamicSampling.maxRounds"),
    "grpo.batch_multiplier": Joint("algorithm.dynamicSampling.overSample"),
    "grpo.async_grpo.enabled": Joint("rollout.async"),
    "grpo.async_grpo.max_trajectory_age_steps": Joint("rollout.async.maxStaleness"),
    "grpo.async_grpo.in_flight_weight_updates": Joint("rollout.async.partial"),
    "loss_fn.reference_policy_kl_penalty": Joint("algorithm.kl"),
    "loss_fn.reference_policy_kl_type": Joint("algorithm.kl.estimator"),
    "loss_fn.ratio_clip_min": Field("algorithm.clipLow", REAL),
    "loss_fn.ratio_clip_max": Field("algorithm.clipHigh", REAL),
    "loss_fn.ratio_clip_c": Field("algorithm.dualClip", REAL),
    "loss_fn.token_level_loss": Field("algorithm.lossBy", chosen({"true": "Token", "false": "Sample"})),
    "loss_fn.sequence_level_importance_ratios": Joint("algorithm.name"),
    "loss_fn.use_importance_sampling_correction": Joint("algorithm.importanceSampling"),
    "loss_fn.truncated_importance_sampling_ratio": Joint("algorithm.importanceSampling.high"),
    "policy.model_name": Field("model.checkpoint", DIRECTORY),
    "policy.tokenizer.name": Needless("the tokenizer is that of the checkpoint"),
    "policy.train_global_batch_size": Field("training.globalBatchSize", WHOLE),
    "policy.max_total_sequence_length": Field("rollout.contextLength", WHOLE),
    "policy.precision": Field("training.precision", chosen({"bfloat16": "bf16", "float32": "fp32"})),
    "policy.max_grad_norm": Field("training.optimizer.clipGrad", REAL),
    "policy.dtensor_cfg.tensor_parallel_size": Joint("training.tensorParallel"),
    "policy.megatron_cfg.enabled": Needless("the learner is Megatron-core"),
    "policy.dtensor_cfg.enabled": Lost("the learner is Megatron-core, not DTensor", ("false",)),
    "policy.sequence_packing.train_mb_tokens": Joint("training.maxTokensPerGpu"),
    f"{GENERATION}.max_new_tokens": Field("rollout.sampling.maxNewTokens", WHOLE),
    f"{GENERATION}.temperature": Field("rollout.sampling.temperature", REAL),
    f"{GENERATION}.top_p": Field("rollout.sampling.topP", REAL),
    f"{GENERATION}.top_k": Field("rollout.sampling.topK", WHOLE),
    f"{GENERATION}.stop_strings": Field("rollout.sampling.stop", TEXTS),
    f"{GENERATION}.stop_token_ids": Field("rollout.sampling.stopTokenIds", WHOLES),
    f"{GENERATION}.backend": Lost("engines are SGLang servers", ("sglang",)),
    **same(
        Joint("placement, rollout.engines, rollout.gpusPerEngine"),
        (
            *(f"{GENERATION}.vllm_cfg.tensor_parallel_size", f"{GENERATION}.colocated.enabled"),
            *(f"{GENERATION}.colocated.resources.gpus_per_node", f"{GENERATION}.colocated.resources.num_nodes"),
        ),
    ),
    f"{GENERATION}.vllm_cfg.gpu_memory_utilization": Field("rollout.memoryFraction", REAL),
    "data.train_data_path": Joint("data.train"),
    "data.val_data_path": Joint("data.heldOut"),
    "data.input_key": Field("data.inputKey", TEXT),
    "data.output_key": Field("data.labelKey", TEXT),
    "data.shuffle": Field("data.shuffle", ON),
    "data.dataset_name": Lost("data sets have no names here: set spec.data.train to a file", ("responsedataset",)),
    "data.max_input_seq_length": Needless("spec.rollout.contextLength limits prompt and response"),
    "data.prompt_file": Lost("write its text in spec.data.promptTemplate"),
    "data.system_prompt_file": Lost("write its text in spec.data.systemPrompt"),
    "cluster.gpus_per_node": Joint("training.gpusPerNode"),
    "cluster.num_nodes": Joint("training.nodes"),
    "checkpointing.enabled": Lost("rljob always saves", ("true",)),
    "checkpointing.checkpoint_dir": Field("checkpoint.directory", DIRECTORY),
    "checkpointing.save_period": Field("checkpoint.interval", WHOLE),
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
        "lr": "learningRate",
        "min_lr": "minLearningRate",
        "weight_decay": "weightDecay",
        "adam_beta1": "beta1",
        "adam_beta2": "beta2",
        "adam_eps": "epsilon",
        "clip_grad": "clipGrad",
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
        re.compile(r"policy\.(megatron_cfg|dtensor_cfg|hf_config_overrides|tokenizer)\..*"),
        Needless("the learner decides"),
    ),
    (
        re.compile(rf"{re.escape(GENERATION)}\..*"),
        Lost("engines are SGLang servers; see extraArgs.sglang", ("false", "1")),
    ),
    (re.compile(r"logger\..*|checkpointing\..*"), LOGGING),
    (re.compile(r"env\..*"), Joint("reward")),
    (re.compile(r"(grpo|loss_fn)\..*"), Lost("the algorithm has no such setting", ("false", "0", "0.0"))),
    (re.compile(r"(data|policy|cluster|defaults|reward_model)(\..*)?"), Lost("rljob has no such setting", ("false",))),
)
"""keys that are treated alike, the first that fits; asked only for keys that are not in the table"""

DEFAULTS: dict[str, object] = {"data.inputKey": "input", "data.labelKey": "output"}
"""what NeMo-RL does where nothing is set, and an RLJob without the field does something else"""
