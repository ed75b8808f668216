"""The flags of slime's and Miles' `train.py` and `train_async.py`, and the fields of an RLJob that they are.

slime's flags include those of Megatron; `--sglang-NAME` flags are read by `slime.py`.
"""

from rljob_importing.mapping import (
    FUNCTION,
    LOGGING,
    MEBIBYTES,
    MEMORY,
    PACKED,
    PRESENT,
    TEXTS,
    Entry,
    Field,
    Joint,
    Lost,
    Needless,
    chosen,
    flag,
    means,
    of_facts,
    same,
)
from rljob_importing.megatron_flags import ARCHITECTURE, EXPERTS, RECOMPUTE

ESTIMATORS = {
    "grpo": "grpo",
    "gspo": "gspo",
    "cispo": "cispo",
    "reinforce_plus_plus": "reinforcePlusPlus",
    "reinforce_plus_plus_baseline": "reinforcePlusPlusBaseline",
    "ppo": "ppo",
    "rloo": "rloo",
    "on_policy_distillation": "distillation",
}
REWARDS = {
    "math": "Math",
    "deepscaler": "Math",
    "dapo": "Math",
    "f1": "F1",
    "remote_rm": "Remote",
}
OTHER_FUNCTION = "the function gets other arguments here; see docs/rewards.md and docs/generate.md"
OWN_HOOK = Lost("rljob has no such hook; algorithm.name, reward.function and rollout.generate take your own functions")
EVALUATION = Lost("an evaluation samples like the training, with rollout.sampling")
OTHER_FORMAT = Lost("the files have another format here; spec.debug.replay reads what spec.debug.dumpRollouts wrote")
ONE_NODE = "an engine stays on one node, and is parallel over tensors only"

BATCH: dict[str, Entry] = {
    "num-epoch": Joint("training.steps"),
    **same(
        PACKED,
        ("micro-batch-size", "use-dynamic-batch-size", "qkv-format", "balance-data", "variable-seq-lengths"),
    ),
    **same(
        Lost("there is one limit of a micro-batch, spec.training.maxTokensPerGpu"),
        ("log-probs-max-tokens-per-gpu", "log-probs-chunk-size", "ref-micro-batch-size"),
    ),
    "use-dynamic-global-batch-size": Lost("the batch of an optimizer step has a fixed size"),
    "balance-by-flops": Lost("micro-batches are packed by tokens"),
    "seed": Needless("weights come from the checkpoint, and spec.seed (slime: --rollout-seed) shuffles"),
    "start-rollout-id": Needless("a run resumes from its newest checkpoint"),
}
SAMPLING: dict[str, Entry] = {
    "rollout-max-prompt-len": Lost("only prompt and response together have a limit: spec.rollout.contextLength"),
    "rollout-skip-special-tokens": Needless("rewards see the text without special tokens"),
    "custom-generate-function-path": Field("rollout.generate", FUNCTION, OTHER_FUNCTION),
    "rollout-function-path": Joint("algorithm.name (sft), rollout.async"),
    "update-weights-interval": Joint("rollout.async.updateInterval"),
    "partial-rollout": Joint("rollout.async.partial"),
    "pause-generation-mode": Needless("rollout.async.partial decides what a publication does with running responses"),
    "max-weight-staleness": Joint("rollout.async.maxStaleness"),
    "fully-async": Joint("rollout.async"),
    "mask-offpolicy-in-partial-rollout": Lost("all tokens are trained on, with their own weights version"),
    "router-policy": Field(
        "rollout.routerPolicy",
        chosen({"cache_aware": "CacheAware", "round_robin": "RoundRobin", "random": "Random"}),
    ),
    **same(
        Needless("the run starts its own router"),
        (
            *("sglang-router-ip", "sglang-router-port", "sglang-router-policy", "sglang-router-request-timeout-secs"),
            *("use-slime-router", "use-miles-router", "use-distributed-post", "sglang-router-balance-abs-threshold"),
        ),
    ),
    "slime-router-middleware-paths": OWN_HOOK,
    "sglang-server-concurrency": Needless("engines queue requests themselves"),
    "rollout-external": Lost("engines belong to the run"),
    "rollout-external-engine-addrs": Lost("engines belong to the run"),
    "prefill-num-servers": Lost("prefill and decode stay together"),
    "sglang-config": Lost("all engines of a run are the same"),
}
DATA: dict[str, Entry] = {
    "prompt-data": Joint("data.train"),
    "eval-prompt-data": Joint("data.heldOut, data.evaluationSets"),
    "apply-chat-template-kwargs": Lost("the chat template gets no arguments"),
    "tool-key": Lost("spec.rollout.tools lists the tools of all questions"),
    "multimodal-keys": Lost("rljob has no vision models"),
    "dataset-path": Lost("the data is spec.data.train"),
    **same(Needless("the run reads the data once"), ("rollout-global-dataset", "disable-rollout-global-dataset")),
    **same(OWN_HOOK, ("data-source-path", "buffer-filter-path", "rollout-data-postprocess-path")),
    **same(
        EVALUATION,
        (
            *("eval-max-response-len", "eval-temperature", "eval-top-p", "eval-top-k", "eval-max-prompt-len"),
            *("eval-min-new-tokens", "eval-max-context-len"),
        ),
    ),
    **same(
        Lost("held-out questions have the columns and the reward of the training"),
        ("eval-input-key", "eval-label-key", "eval-tool-key", "eval-reward-key", "eval-metadata-key"),
    ),
    "eval-config": Lost("set its data sets in spec.data.heldOut and spec.data.evaluationSets"),
    "eval-function-path": OWN_HOOK,
    **same(
        Lost("the run's engines make the samples of evaluations, too"),
        ("eval-num-gpus", "eval-num-gpus-per-engine", "eval-hf-dir", "eval-keep-snapshots"),
    ),
    "skip-eval-before-train": Lost("rljob always evaluates before the first step"),
    "log-passrate": LOGGING,
}
REWARD: dict[str, Entry] = {
    "rm-type": Joint("reward.kind"),
    "custom-rm-path": Joint("reward.kind, reward.function"),
    "group-rm": Field("reward.judges", means("Group")),
    "reward-key": Joint("reward.remote.answerKey"),
    **same(OWN_HOOK, ("custom-reward-post-process-path", "custom-convert-samples-to-train-data-path")),
}
ALGORITHM: dict[str, Entry] = {
    "advantage-estimator": Joint("algorithm.name"),
    "loss-type": Joint("algorithm.name"),
    "eps-clip": Joint("algorithm.clipLow, algorithm.clipHigh"),
    "eps-clip-high": Joint("algorithm.clipHigh"),
    **same(Joint("algorithm.kl"), ("use-kl-loss", "kl-loss-coef", "kl-loss-type", "kl-coef")),
    "use-unbiased-kl": Lost("the estimator is k1, k2 or k3"),
    "calculate-per-token-loss": Field("algorithm.lossBy", means("Token")),
    "disable-grpo-std-normalization": Field("algorithm.normalizeBy", means("None")),
    "disable-rewards-normalization": Lost("the algorithm decides; algorithm.name can be your own function"),
    "normalize-advantages": Lost("the nearest is spec.algorithm.normalizeBy: Batch"),
    **same(
        Joint("algorithm.importanceSampling"),
        ("use-tis", "tis-clip", "tis-clip-low"),
    ),
    "custom-tis-function-path": OWN_HOOK,
    "custom-advantage-function-path": OWN_HOOK,
    "use-rollout-logprobs": Lost("only rollout.async takes the engines' probabilities as those of the old policy"),
    "get-mismatch-metrics": Needless("the difference of engines and learner is always measured"),
    **same(Joint("algorithm.dynamicSampling"), ("dynamic-sampling-filter-path", "over-sampling-batch-size")),
    "rollout-sample-filter-path": Joint("algorithm.maskTruncated"),
    "use-opd": Joint("algorithm.name (distillation)"),
    "opd-type": Needless("the learner's ranks hold the teacher"),
    "opd-kl-coef": Lost("weight 1; spec.algorithm.teacher.rewardCoefficient weighs the reward"),
    "opd-teacher-loads": Lost("one teacher; set spec.algorithm.teacher.checkpoint"),
    **same(
        Lost("the teacher's log-probabilities of the sampled tokens are used, not those of its most probable ones"),
        ("topk-level-opd", "opd-top-k"),
    ),
    "gamma": Joint("algorithm.critic.gamma"),
    "lambd": Joint("algorithm.critic.lambda"),
    "value-clip": Joint("algorithm.critic.valueClip"),
    "num-critic-only-steps": Joint("algorithm.critic.warmupSteps"),
    **same(
        Needless("the critic shares the policy's ranks and starts with its weights"),
        ("critic-num-nodes", "critic-num-gpus-per-node", "critic-load", "critic-save", "critic-lr-warmup-iters"),
    ),
    "disable-compute-advantages-and-returns": Needless("sft computes none"),
    **same(
        Lost("the nearest objective is algorithm.importanceSampling with clipping"),
        ("pg-loss-type", "use-score-centering", "score-centering-top-k"),
    ),
    "ref-update-interval": Lost("the reference stays the initial policy"),
    **same(OWN_HOOK, ("custom-loss-function-path", "custom-pg-loss-reducer-function-path")),
    **same(Lost("off-policy sequences are not masked"), ("use-opsm", "opsm-delta")),
    "keep-old-actor": Lost("the old policy is the policy at the step's start"),
    "reset-optimizer-states": Lost("the optimizer keeps its state"),
}
OPTIMIZER: dict[str, Entry] = {
    "lr-decay-style": Field(
        "training.optimizer.schedule", chosen({"constant": "Constant", "linear": "Linear", "cosine": "Cosine"})
    ),
    "lr-warmup-fraction": Joint("training.optimizer.warmupSteps"),
    "lr-decay-iters": Lost("the schedule ends with the last step"),
    "lr-warmup-init": Lost("the warm-up begins at 0", ("0", "0.0")),
    "lr-wsd-decay-style": Lost("schedules are Constant, Linear and Cosine"),
    "lr-wsd-decay-iters": Lost("schedules are Constant, Linear and Cosine"),
    "optimizer": Lost("the optimizer is Adam", ("adam",)),
    **same(
        MEMORY,
        (
            *("overlap-cpu-optimizer-d2h-h2d", "use-precision-aware-optimizer"),
            *("main-grads-dtype", "main-params-dtype", "exp-avg-dtype", "exp-avg-sq-dtype", "grad-reduce-in-bf16"),
            *("train-memory-margin-bytes", "disable-weights-backuper", "recompute-loss-function"),
            *("stream-optimizer-state-to-disk", "optimizer-offload-fraction"),
        ),
    ),
    "bf16": Needless("the precision is bf16; spec.training.precision can be fp32"),
    "fp16": Lost("precisions are bf16 and fp32"),
    **same(
        Needless("sums of gradients and the softmax are always in fp32"),
        ("accumulate-allreduce-grads-in-fp32", "attention-softmax-in-fp32"),
    ),
    **same(
        Lost("dropout would make learner and engines disagree; it is 0", ("0", "0.0")),
        ("attention-dropout", "hidden-dropout"),
    ),
}
LAYOUT: dict[str, Entry] = {
    **same(
        Joint("placement, rollout.engines, rollout.gpusPerEngine"),
        ("colocate", "rollout-num-gpus", "rollout-num-gpus-per-engine", "num-gpus-per-node"),
    ),
    **same(
        Needless("Colocated engines always give up their memory; spec.training.offload decides it for the learner"),
        ("offload", "offload-train", "offload-rollout", "no-offload-train", "no-offload-rollout", "release-train"),
    ),
    **same(Joint("training.pipelineLayers"), ("decoder-last-pipeline-num-layers", "decoder-first-pipeline-num-layers")),
    "pipeline-model-parallel-layout": Lost("set training.pipelineLayers: the number of layers of each stage"),
    "num-layers-per-virtual-pipeline-stage": Joint("training.virtualPipeline"),
    **RECOMPUTE,
    "recompute-modules": Field("extraArgs.megatron.recompute_modules", TEXTS),
    "deterministic-mode": Lost("Megatron has it for its own embedding and attention, and the learner has others"),
    **same(
        Needless("the learner has its own packed attention and its own overlap of communication"),
        (
            *("attention-backend", "use-flash-attn", "transformer-impl", "no-rope-fusion", "overlap-grad-reduce"),
            *("overlap-param-gather", "use-distributed-optimizer", "no-gradient-accumulation-fusion"),
            *("no-masked-softmax-fusion", "no-bias-swiglu-fusion", "no-bias-dropout-fusion", "apply-rope-fusion"),
            *("no-persist-layer-norm", "tp-comm-overlap", "cross-entropy-loss-fusion", "cross-entropy-fusion-impl"),
        ),
    ),
    "true-on-policy-mode": Lost("kernels differ; spec.watch.mismatch limits the difference"),
    "train-backend": Lost("the learner is Megatron-core", ("megatron",)),
    "qwen-gdn-backend": Lost("models are those of the families that rljob knows"),
    **same(Lost("settings of another learner than Megatron-core"), ("gradient-checkpointing", "attn-implementation")),
    "distributed-timeout-minutes": Lost("collectives have the limits of spec.recovery"),
    "distributed-backend": Needless("NCCL on Gpu, gloo on Cpu"),
    "train-env-vars": Lost("set them in spec.runtime.env"),
    "update-weight-transport": Field("weightSync.transport", chosen({"nccl": "Broadcast", "disk": "Disk"})),
    "update-weight-transfer-mode": Field("weightSync.transport", chosen({"broadcast": "Broadcast"})),
    "update-weight-buffer-size": Field("weightSync.bucketMib", MEBIBYTES),
    "update-weight-mode": Lost("every publication is complete", ("full",)),
    "check-weight-update-equal": Needless("every publication is verified tensor by tensor"),
    **same(
        Lost("every publication is complete, and its directory is removed"),
        (
            *("update-weight-encoding", "update-weight-delta-dir", "update-weight-delta-chunk-bytes"),
            *("update-weight-disk-keep-files", "update-weight-delta-encoding", "update-weight-delta-checksum"),
            *("custom-update-weight-post-write-path", "update-weight-local-checkpoint-dir"),
        ),
    ),
    "allgather-cp": Needless("contextParallel always gathers keys and values"),
    "megatron-config-path": Lost("the critic has the policy's layout; write its settings in algorithm.critic"),
}
CHECKPOINT: dict[str, Entry] = {
    "save-hf": Field("checkpoint.hfExport", PRESENT),
    "load": Needless("a run resumes from spec.checkpoint.directory by itself, and begins with spec.model.checkpoint"),
    **same(
        Needless("the reference is the initial policy, spec.model.checkpoint, in its Hugging Face form"),
        ("ref-load", "ref-ckpt-step"),
    ),
    **same(
        Needless("checkpoints are complete, and Hugging Face weights are read without conversion"),
        (
            *(
                "megatron-to-hf-mode",
                "async-save",
                "finetune",
                "ckpt-format",
                "dist-ckpt-strictness",
                "exit-on-missing",
            ),
            *("no-save-optim", "no-load-optim", "no-load-rng", "no-save-rng", "auto-detect-ckpt-format"),
            *("use-checkpoint-opt_param-scheduler", "override-opt_param-scheduler", "override-opt-param-scheduler"),
            *(
                "model-name",
                "use-hf-config-for-megatron",
                "hf-config-path",
                "use-dist-ckpt",
                "ckpt-fully-parallel-load",
            ),
        ),
    ),
    "save-debug-rollout-data": Field("debug.dumpRollouts", PRESENT),
    "load-debug-rollout-data": OTHER_FORMAT,
    "load-debug-rollout-data-subsample": OTHER_FORMAT,
    "debug-train-only": Joint("debug.replay; not needed with sft"),
    "use-fault-tolerance": Needless("engines are always watched; spec.recovery has the limits"),
}
TRACKING: dict[str, Entry] = {
    **same(
        Joint("tracking.wandb"),
        ("use-wandb", "wandb-project", "wandb-team", "wandb-group", "wandb-mode"),
    ),
    "wandb-key": Lost("a manifest holds no secret; set WANDB_API_KEY, or spec.tracking.wandb.apiKeyFile"),
    "wandb-host": Lost("set WANDB_BASE_URL in spec.runtime.env"),
    "wandb-dir": Needless("files are below spec.checkpoint.directory"),
    "wandb-run-id": Needless("all attempts of a run are one run there"),
    **same(
        LOGGING,
        (
            *("disable-wandb-random-suffix", "wandb-always-use-train-step", "wandb-random-suffix", "log-multi-turn"),
            *("log-reward-category", "log-correct-samples", "log-interval", "tb-project-name", "tb-experiment-name"),
            *("use-rollout-entropy", "dump-details", "use-metrics", "log-throughput"),
        ),
    ),
    "use-tensorboard": Needless("TensorBoard files are on by default, spec.runtime.tensorboard"),
    **same(
        Lost("rljob has no profiler and no memory recorder"),
        (
            *("use-pytorch-profiler", "profile-target", "profile-step-start", "profile-step-end", "memory-recorder"),
            *("record-memory-history", "memory-snapshot-path", "memory-snapshot-dir", "memory-snapshot-num-steps"),
            *("tensorboard-dir", "save-debug-train-data"),
        ),
    ),
    "custom-rollout-log-function-path": OWN_HOOK,
    "custom-eval-rollout-log-function-path": OWN_HOOK,
    "custom-config-path": Lost("reward and generate functions read their own settings"),
    **same(Needless("a test of slime itself"), ("ci-test", "ci-disable-kl-checker", "ci-metric-checker-key")),
}
FLAGS: dict[str, Entry] = {
    **of_facts("slime"),
    **of_facts("miles"),
    **of_facts("megatron", flag),
    **BATCH,
    **SAMPLING,
    **DATA,
    **REWARD,
    **ALGORITHM,
    **OPTIMIZER,
    **LAYOUT,
    **CHECKPOINT,
    **TRACKING,
    **EXPERTS,
    **ARCHITECTURE,
}

DEFAULTS: dict[str, object] = {
    "data.inputKey": "input",
    "data.chatTemplate": False,
    "data.shuffle": False,
    "algorithm.lossBy": "Sample",
    "training.gpusPerNode": 8,
    "training.optimizer.learningRate": 1e-6,
    "training.optimizer.schedule": "Linear",
    "training.optimizer.weightDecay": 0.01,
    "training.optimizer.beta2": 0.999,
}
"""what slime and Megatron do where a script says nothing, and an RLJob without the field does something else"""

RL_DEFAULTS: dict[str, object] = {"rollout.samplesPerPrompt": 1}
"""the same, unless the run is supervised"""
