"""Flags of Megatron that describe a model. An RLJob has none of them, because the checkpoint describes its model."""

from rljob_importing.mapping import TEXT, WHOLE, Entry, Field, Joint, Lost, Needless, chosen, means, same

FROM_CHECKPOINT = Needless("the architecture is read from the checkpoint")
OTHER_FAMILY = Lost("rljob does not train such layers: docs/models.md has the families that it trains")
MIXTURE = Lost("the learner's mixture of experts has no such setting")
PREDICTION = Lost("the learner has no multi-token prediction")
LORA = Lost("rljob has no LoRA, and trains all parameters")

EXPERTS: dict[str, Entry] = {
    **same(
        FROM_CHECKPOINT,
        (
            *("num-experts", "moe-layer-freq", "moe-ffn-hidden-size", "moe-router-topk", "moe-router-score-function"),
            *("moe-shared-expert-intermediate-size", "moe-shared-expert-gate", "moe-router-pre-softmax"),
            *("moe-router-topk-scaling-factor", "moe-router-num-groups", "moe-router-group-topk"),
            "moe-router-enable-expert-bias",
        ),
    ),
    **same(
        MIXTURE,
        (
            "moe-router-dtype",
            *("moe-token-dispatcher-type", "moe-enable-deepep"),
            *("moe-grouped-gemm", "moe-permute-fusion", "moe-token-drop-policy", "moe-shared-expert-overlap"),
            *("moe-router-fusion", "moe-use-upcycling", "moe-deepep-num-sms", "moe-router-padding-for-fp8"),
            "router-aux-loss-coef",
        ),
    ),
    "moe-router-bias-update-rate": Joint("training.experts.biasUpdateRate"),
    "moe-aux-loss-coeff": Joint("training.experts.balanceLoss"),
    "moe-router-load-balancing-type": Joint("training.experts.balanceOver"),
    "use-routing-replay": Field("training.experts.replay", means("Learner")),
    "use-rollout-routing-replay": Field("training.experts.replay", means("Rollout")),
    **same(
        PREDICTION,
        ("enable-mtp-training", "mtp-num-layers", "mtp-loss-scaling-factor"),
    ),
    **same(
        Lost("weights are bf16 or fp32"),
        (
            "force-fp8-ue8m0-scale",
            "fp8-format",
            "fp8-recipe",
            "fp8-param-gather",
            "fp8",
            "transformer-engine-fp8",
            "fp8-param",
        ),
    ),
    **same(
        LORA,
        (
            *(
                "lora-rank",
                "lora-alpha",
                "lora-dropout",
                "target-modules",
                "lora-adapter-path",
                "lora-sync-from-tensor",
            ),
            *("use-lora", "lora-target-preset", "save-lora", "lora-load", "lora-save-merged-hf"),
            *("lora-weight-decay", "lora-learning-rate"),
            *("only-train-params-name-list", "freeze-params-name-list", "exclude-modules"),
        ),
    ),
    "custom-model-provider-path": Lost("rljob supports fixed families of models"),
}
ARCHITECTURE: dict[str, Entry] = {
    **same(
        FROM_CHECKPOINT,
        (
            *("num-layers", "hidden-size", "ffn-hidden-size", "num-attention-heads", "num-query-groups", "kv-channels"),
            *("group-query-attention", "swiglu", "normalization", "norm-epsilon", "layernorm-epsilon", "rotary-base"),
            *("rotary-percent", "use-rotary-position-embeddings", "position-embedding-type", "disable-bias-linear"),
            *("add-qkv-bias", "qk-layernorm", "vocab-size", "untie-embeddings-and-output-weights", "seq-length"),
            *("max-position-embeddings", "make-vocab-size-divisible-by", "tokenizer-type", "tokenizer-model"),
            *("apply-layernorm-1p", "rotary-scaling-factor", "use-rope-scaling", "rope-type", "multi-latent-attention"),
            *("q-lora-rank", "kv-lora-rank", "qk-head-dim", "qk-pos-emb-head-dim", "v-head-dim", "mscale"),
            *("mscale-all-dim", "beta-fast", "beta-slow", "rope-scaling-factor", "original-max-position-embeddings"),
            *("rotary-interleaved", "window-size", "window-attn-skip-freq", "softmax-type", "padded-vocab-size"),
            *("post-self-attn-layernorm", "post-mlp-layernorm", "enable-experimental", "add-bias-linear", "model-type"),
            "init-method-std",
        ),
    ),
    **same(
        OTHER_FAMILY,
        (
            *("attention-output-gate", "use-gated-attention", "experimental-attention-variant", "no-rope-freq"),
            *("full-attention-interval", "linear-attention-freq", "linear-conv-kernel-dim", "linear-key-head-dim"),
            *("linear-value-head-dim", "linear-num-key-heads", "linear-num-value-heads", "squared-relu", "quick-geglu"),
            *("glu-linear-offset", "activation-func-clamp-value", "hybrid-override-pattern", "is-hybrid-model"),
            "mamba-num-heads",
        ),
    ),
    "spec": Joint("none: the layers of a model are its family's"),
}
RECOMPUTE: dict[str, Entry] = {
    "recompute-granularity": Field("training.recompute", chosen({"full": "Full"})),
    "recompute-method": Field("extraArgs.megatron.recompute_method", TEXT),
    "recompute-num-layers": Field("extraArgs.megatron.recompute_num_layers", WHOLE),
}
