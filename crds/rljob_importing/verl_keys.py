"""The keys of verl's `main_ppo`, and the fields of an RLJob that they are."""

import re
from dataclasses import replace

from rljob_importing.mapping import (
    LOGGING,
    MEMORY,
    ON,
    PACKED,
    REAL,
    Entry,
    Field,
    Joint,
    Lost,
    Needless,
    chosen,
    of_facts,
    same,
    transformer_field,
)
from rljob_importing.megatron_flags import ARCHITECTURE, EXPERTS, LORA, RECOMPUTE

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
OVERRIDES = f"{ACTOR}.megatron.override_transformer_config"
CORRECTION, DISTILLATION = "algorithm.rollout_correction", "distillation.distillation_loss"
ESTIMATORS = {
    "gae": "ppo",
    "grpo": "grpo",
    "grpo_vectorized": "grpo",
    "rloo": "rloo",
    "rloo_vectorized": "rloo",
    "reinforce_plus_plus": "reinforcePlusPlus",
    "reinforce_plus_plus_baseline": "reinforcePlusPlusBaseline",
}
KL_TYPES = {"kl": "k1", "k1": "k1", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}
EVALUATION = Lost("an evaluation samples like the training, with rollout.sampling")
REPLAYS = {"r2": "Learner", "r3": "Rollout"}
OBJECTIVES = ("gspo", "cispo")
"""values of `policy_loss.loss_mode` that are an algorithm here, over advantages of GRPO"""
SAMPLED = ("k1", "kl", "k2", "mse", "k3", "low_var_kl")
"""losses of a distillation that estimate the divergence from the sampled tokens"""
NOTHING = ("false", "null", "none", "0", "0.0", "0.", "{}", "[]", "")
LAYOUT = Lost("the learner is Megatron-core: see spec.training for its layout", ("1", "-1", "false"))

DESCRIBED = "config.json of spec.model.checkpoint describes the model"
POSITIONS = Lost(
    f"{DESCRIBED}: write it there in a copy of the checkpoint (max_position_embeddings, rope_scaling) if"
    " spec.rollout.contextLength is more than the checkpoint was made for, or that is refused"
)


def megatron_key(name: str) -> str:
    """Return the key of one of Megatron's names: parallel sizes have a separate place."""
    field = transformer_field(name)
    return field and (f"{ACTOR}.megatron.{field}" if "parallel" in field else f"{OVERRIDES}.{field}")


KEYS: dict[str, Entry] = {
    **of_facts("verl"),
    "data.train_files": Joint("data.train"),
    "data.val_files": Joint("data.heldOut, data.evaluationSets"),
    "data.gen_batch_size": Joint("algorithm.dynamicSampling.overSample"),
    "data.max_prompt_length": Joint("rollout.contextLength"),
    "data.train_max_samples": Joint("data.train.limit"),
    "data.val_max_samples": Joint("data.heldOut.limit"),
    **same(
        Needless("questions are rendered and checked before the start; a prompt that is too long is refused"),
        (
            *("data.filter_overlong_prompts", "data.truncation", "data.return_raw_chat", "data.val_batch_size"),
            *("data.filter_overlong_prompts_workers", "data.dataloader_num_workers", "data.return_raw_input_ids"),
        ),
    ),
    "algorithm.adv_estimator": Joint("algorithm.name"),
    "algorithm.gamma": Joint("algorithm.critic.gamma"),
    "algorithm.lam": Joint("algorithm.critic.lambda"),
    "algorithm.norm_adv_by_std_in_grpo": Joint("algorithm.normalizeBy"),
    **same(
        Joint("algorithm.kl"),
        (
            *("algorithm.use_kl_in_reward", "algorithm.kl_ctrl.kl_coef", "algorithm.kl_penalty"),
            *(f"{ACTOR}.use_kl_loss", f"{ACTOR}.kl_loss_coef", f"{ACTOR}.kl_loss_type"),
        ),
    ),
    "algorithm.kl_ctrl.type": Lost("the weight of the penalty is fixed", ("fixed",)),
    "algorithm.filter_groups.enable": Joint("algorithm.dynamicSampling"),
    "algorithm.filter_groups.max_num_gen_batches": Joint("algorithm.dynamicSampling.maxRounds"),
    "algorithm.filter_groups.metric": Needless("groups with different rewards are kept"),
    # Of rLLM, which trains with verl's keys.
    **same(Field("algorithm.maskTruncated", ON), ("algorithm.mask_truncated_samples", "rllm.mask_truncated_samples")),
    f"{ACTOR}.policy_loss.loss_mode": Joint("algorithm.name"),
    f"{ACTOR}.ppo_mini_batch_size": Joint("training.globalBatchSize"),
    f"{ACTOR}.ppo_epochs": Lost("each sample is trained on once", ("1",)),
    f"{ACTOR}.clip_ratio": Joint("algorithm.clipLow, algorithm.clipHigh"),
    f"{ACTOR}.clip_ratio_low": Joint("algorithm.clipLow"),
    f"{ACTOR}.clip_ratio_high": Joint("algorithm.clipHigh"),
    f"{ACTOR}.clip_ratio_c": Joint("algorithm.dualClip"),
    f"{ACTOR}.loss_agg_mode": Field(
        "algorithm.lossBy",
        chosen({"token-mean": "Token", "seq-mean-token-mean": "Sample", "seq-mean-token-sum-norm": "Constant"}),
    ),
    f"{ACTOR}.use_token_level_loss": Needless("the mean over tokens is the default, spec.algorithm.lossBy"),
    f"{ACTOR}.grad_clip": Field("training.optimizer.clipGrad", REAL),
    f"{ACTOR}.optim.min_lr_ratio": Joint("training.optimizer.minLearningRate"),
    f"{ACTOR}.optim.betas": Joint("training.optimizer.beta1, training.optimizer.beta2"),
    **same(
        Joint("training.optimizer.warmupSteps"),
        (f"{ACTOR}.optim.lr_warmup_steps", f"{ACTOR}.optim.lr_warmup_steps_ratio"),
    ),
    **same(
        Field("training.optimizer.schedule", chosen({"constant": "Constant", "cosine": "Cosine", "linear": "Linear"})),
        (f"{ACTOR}.optim.warmup_style", f"{ACTOR}.optim.lr_scheduler_type", f"{ACTOR}.optim.lr_decay_style"),
    ),
    **{f"{OVERRIDES}.{flag.replace('-', '_')}": entry for flag, entry in RECOMPUTE.items()},
    "actor_rollout_ref.model.enable_gradient_checkpointing": Field(
        "training.recompute", chosen({"true": "Full", "false": "None"})
    ),
    **{f"{OVERRIDES}.{flag.replace('-', '_')}": entry for flag, entry in ARCHITECTURE.items()},
    **{f"{OVERRIDES}.{flag.replace('-', '_')}": entry for flag, entry in EXPERTS.items()},
    **of_facts("megatron", megatron_key),
    f"{ACTOR}.megatron.virtual_pipeline_model_parallel_size": Joint("training.virtualPipeline"),
    f"{ACTOR}.megatron.pipeline_model_parallel_layout": LAYOUT,
    **same(POSITIONS, (f"{OVERRIDES}.max_position_embeddings", f"{OVERRIDES}.rotary_scaling_factor")),
    **same(
        Joint("training.experts.balanceLoss, training.experts.balanceOver"),
        (f"{OVERRIDES}.moe_aux_loss_coeff", f"{OVERRIDES}.moe_router_load_balancing_type"),
    ),
    **same(
        Lost("all stages have the same number of layers; spec.training.pipelineLayers sets them one by one"),
        (
            f"{OVERRIDES}.num_layers_in_first_pipeline_stage",
            f"{OVERRIDES}.num_layers_in_last_pipeline_stage",
            f"{OVERRIDES}.pipeline_model_parallel_layout",
            f"{OVERRIDES}.account_for_embedding_in_pipeline_split",
            f"{OVERRIDES}.account_for_loss_in_pipeline_split",
        ),
    ),
    f"{ACTOR}.router_replay.mode": Joint("training.experts.replay"),
    f"{ROLLOUT}.tensor_model_parallel_size": Joint("rollout.gpusPerEngine, rollout.engines"),
    f"{ROLLOUT}.quantization": Joint("rollout.quantization"),
    **same(
        Needless("rljob always compares probabilities of engines and learner, and chooses how weights are published"),
        (
            *(f"{ROLLOUT}.calculate_log_probs", f"{ROLLOUT}.load_format", f"{ROLLOUT}.layered_summon"),
            *(f"{ROLLOUT}.free_cache_engine", "actor_rollout_ref.hybrid_engine", f"{ACTOR}.use_rollout_log_probs"),
        ),
    ),
    f"{ROLLOUT}.enable_rollout_routing_replay": Needless("spec.training.experts.replay Rollout has it"),
    **same(
        Joint("training.nodes, rollout.engines"),
        (
            *("rollout.nnodes", "rollout.n_gpus_per_node", f"{ROLLOUT}.nnodes", f"{ROLLOUT}.n_gpus_per_node"),
            *("rollout.n", "rollout.total_epochs"),
        ),
    ),
    "rollout.total_rollout_steps": Joint("training.steps"),
    "rollout.test_freq": Joint("evaluation.interval"),
    **same(
        Joint("rollout.async"),
        (
            *("async_training.staleness_threshold", "async_training.trigger_parameter_sync_step"),
            *("async_training.require_batches", "async_training.partial_rollout"),
        ),
    ),
    f"{ROLLOUT}.name": Lost("engines are SGLang servers", ("sglang",)),
    f"{ROLLOUT}.mode": Needless("requests to the engines are always concurrent"),
    "trainer.total_epochs": Joint("training.steps"),
    "trainer.save_freq": Joint("checkpoint.interval"),
    "trainer.test_freq": Joint("evaluation.interval"),
    "trainer.resume_mode": Field("checkpoint.resume", chosen({"auto": "Auto", "disable": "Fresh"})),
    "trainer.critic_warmup": Joint("algorithm.critic.warmupSteps"),
    **same(Joint("tracking.wandb"), ("trainer.logger", "trainer.project_name", "trainer.experiment_name")),
    "trainer.val_before_train": Lost("rljob always evaluates before the first step", ("true",)),
    "trainer.balance_batch": PACKED,
    "trainer.device": Needless("spec.runtime.device"),
    "trainer.rollout_data_dir": Lost("samples are kept in the run directory with spec.debug.dumpRollouts", NOTHING),
    **same(
        Lost("rljob has no such setting", NOTHING),
        ("trainer.val_only", "trainer.resume_from_path", "trainer.default_hdfs_dir", "trainer.esi_redundant_time"),
    ),
    **same(
        Needless("rljob starts and ends processes by itself"),
        (
            *("trainer.use_legacy_worker_impl", "trainer.ray_wait_register_center_timeout", "model_engine"),
            *("trainer.del_local_ckpt_after_load", "trainer.use_v1"),
        ),
    ),
    "critic.optim.lr": Joint("algorithm.critic.learningRate"),
    "critic.cliprange_value": Joint("algorithm.critic.valueClip"),
    **same(Joint("algorithm.critic.clipGrad"), ("critic.grad_clip", "critic.optim.clip_grad")),
    "critic.model.path": Joint("model.checkpoint"),
    **same(
        Joint("reward.function"),
        (
            *("custom_reward_function.path", "custom_reward_function.name"),
            *("reward.custom_reward_function.path", "reward.custom_reward_function.name"),
        ),
    ),
    **same(
        Lost("a reward model is a service here: reward.kind Remote", ("false",)),
        ("reward_model.enable", "reward.reward_model.enable"),
    ),
    **same(
        Lost("reward.kind decides", ("naive", "dapo")), ("reward_model.reward_manager", "reward.reward_manager.name")
    ),
    "reward.num_workers": Needless("responses are scored while others are sampled; see spec.reward.concurrency"),
    "reward_model.launch_reward_fn_async": Needless("responses are scored while others are sampled"),
}
OVERLONG = re.compile(r"(.*\.)?overlong_buffer(_cfg)?\.(enable|len|penalty_factor|log)")
LONGEST_SCORED = re.compile(r"reward(_model)?\.reward_kwargs\.max_resp_len")
REPLAY = re.compile(rf"{re.escape(ACTOR)}\.(\w+\.)?router_replay\.mode")
TEACHER = re.compile(r"distillation\.teacher_models?\.(\w+\.)?model_path")
CORRECTIONS = re.compile(
    rf"{re.escape(CORRECTION)}\.(rollout_is|rollout_is_threshold|bypass_mode)"
    rf"|algorithm\.rollout_is(_threshold|_level|_mode)?|{re.escape(ACTOR)}\.tis_imp_ratio_cap"
)
FAMILIES: tuple[tuple[re.Pattern[str], Entry], ...] = (
    (OVERLONG, Joint("algorithm.overlong")),
    (LONGEST_SCORED, Joint("algorithm.overlong")),
    (REPLAY, Joint("training.experts.replay")),
    (
        re.compile(r".*router_replay\..*"),
        Lost("routes are kept in memory, and not in files", NOTHING),
    ),
    (TEACHER, Joint("algorithm.teacher.checkpoint")),
    (
        re.compile(
            rf"distillation\.enabled|{re.escape(DISTILLATION)}\.(loss_mode|use_task_rewards|use_policy_(loss|gradient)"
            r"|distillation_loss_coef|clip_ratio(_low|_high)?)"
        ),
        Joint("algorithm.name, algorithm.teacher.rewardCoefficient"),
    ),
    (
        re.compile(rf"{re.escape(DISTILLATION)}\.(loss_max_clamp|log_prob_min_clamp)"),
        Lost("differences between student and teacher have no limit", NOTHING),
    ),
    (
        re.compile(rf"{re.escape(DISTILLATION)}\.policy_loss_mode"),
        Lost("the differences are the advantages of the clipped objective", ("vanilla",)),
    ),
    (re.compile(rf"{re.escape(DISTILLATION)}\.topk"), Needless("the divergence is that of the sampled tokens")),
    (re.compile(rf"{re.escape(DISTILLATION)}\..*"), Lost("the distillation has no such setting", NOTHING)),
    (re.compile(r"distillation\..*"), Needless("the learner's ranks hold the teacher, in the student's layout")),
    (CORRECTIONS, Joint("algorithm.importanceSampling")),
    (re.compile(rf"{re.escape(ACTOR)}\..*optimizer_cpu_offload"), Field("training.optimizer.offload", ON)),
    (
        re.compile(rf"{re.escape(ACTOR)}\..*(optimizer_offload_fraction|overlap_cpu_optimizer_d2h_h2d)"),
        Needless("spec.training.optimizer.offload decides"),
    ),
    (
        re.compile(r".*micro_batch_size(_per_gpu)?|.*use_dynamic_bsz|.*use_remove_padding|.*max_token_len_per_gpu"),
        PACKED,
    ),
    (re.compile(r".*\.val_kwargs\..*"), EVALUATION),
    (
        re.compile(r"actor_rollout_ref\.actor\..*(param|grad|optimizer)_offload"),
        Needless("spec.training.offload decides whether a Colocated learner leaves the GPU during rollouts"),
    ),
    (
        re.compile(r".*offload.*|.*enable_gradient_checkpointing|.*recompute.*"),
        replace(MEMORY, harmless=("false",)),
    ),
    (
        re.compile(rf"{re.escape(ACTOR)}\.megatron\.(use_mbridge|vanilla_mbridge|(use_)?dist_(checkpointing|ckpt).*)"),
        Needless("the learner reads the checkpoint by itself"),
    ),
    (re.compile(r"actor_rollout_ref\.nccl_timeout"), Needless("see spec.weightSync.timeoutSeconds and spec.recovery")),
    (
        re.compile(rf"{re.escape(OVERRIDES)}\..*"),
        Lost("spec.extraArgs.megatron has further fields of Megatron's TransformerConfig", NOTHING),
    ),
    (re.compile(r".*(fsdp|ulysses|context_parallel|expert_.*parallel|virtual_pipeline|strategy|megatron\.).*"), LAYOUT),
    (
        re.compile(r"actor_rollout_ref\.ref\..*"),
        Needless("the reference is the initial policy, in the learner's layout"),
    ),
    (re.compile(r".*lora.*|.*target_modules"), replace(LORA, harmless=("0",))),
    (
        re.compile(r".*(multi_turn|agent|tool).*"),
        Lost("rollout.tools and rollout.generate make samples of several turns"),
    ),
    (
        re.compile(r".*rollout_(correction|is|rs).*|.*(imp_ratio|tis_).*"),
        Lost("samples are weighted, and none is rejected; see spec.algorithm.importanceSampling", NOTHING),
    ),
    (
        re.compile(rf"{re.escape(ROLLOUT)}\..*"),
        Lost("engines are SGLang servers; extraArgs.sglang has their arguments"),
    ),
    (
        re.compile(r"async_training\..*"),
        Lost("spec.rollout.async limits the age of samples; it has no such setting", NOTHING),
    ),
    (re.compile(r"critic\..*"), Needless("the critic shares the policy's ranks, layout and batches")),
    (re.compile(r"trainer\..*(log|profile|ckpt|experiment).*|.*\.checkpoint\..*"), LOGGING),
    (re.compile(r"(ray_init|ray_kwargs|global_profiler|transfer_queue)\..*"), Needless("the run starts its own Ray")),
    (re.compile(r"data\.(image|video|custom_cls|sampler|apply_chat_template).*"), Lost("questions are text columns")),
    (re.compile(r"reward(_model)?\..*"), Lost("see docs/rewards.md")),
    (re.compile(r".*override_config\.(max_position_embeddings|rope_\w+|rope_parameters|.*rope.*)"), POSITIONS),
    (re.compile(r".*override_config\..*"), Lost(f"{DESCRIBED}: set it there", NOTHING)),
    (
        re.compile(r"actor_rollout_ref\.model\.(trust_remote_code|use_shm|use_liger|\w*fused_kernel\w*.*|use_fsdp.*)"),
        Needless("it changes how verl loads or computes the model, and rljob does that by itself"),
    ),
    (re.compile(r"actor_rollout_ref\.model\..*"), Lost(f"{DESCRIBED}, its tokenizer and its template", NOTHING)),
    (
        re.compile(rf"{re.escape(ACTOR)}\.optim\.(override_optimizer_config\.)?.*"),
        Lost("spec.training.optimizer has no such setting", NOTHING),
    ),
    (
        re.compile(rf"{re.escape(ACTOR)}\.(calculate_\w+|use_torch_compile|shuffle|data_loader_seed|profiler\..*)"),
        Needless("it does not change what is learned"),
    ),
    (re.compile(rf"{re.escape(ACTOR)}\.qat\..*"), Lost("see spec.rollout.quantization", NOTHING)),
    (
        re.compile(rf"{re.escape(ACTOR)}\..*|algorithm\..*"),
        Lost("the algorithm has no such setting", NOTHING),
    ),
)
"""keys that are treated alike, the first that fits; asked only for keys that are not in the table"""

DEFAULTS: dict[str, object] = {
    "data.inputKey": "prompt",
    "data.labelKey": "reward_model.ground_truth",
    "rollout.promptsPerStep": 1024,
    "rollout.samplesPerPrompt": 1,
    "rollout.sampling.maxNewTokens": 512,
    "training.gpusPerNode": 8,
    "training.sequenceParallel": True,
    "training.optimizer.learningRate": 1e-6,
    "training.optimizer.weightDecay": 0.01,
    "training.optimizer.beta2": 0.999,
}
"""what verl does where nothing is set, and an RLJob without the field does something else"""
