"""What `extraArgs` may hold: the arguments of the pinned SGLang and Megatron-core, and who sets which.

The names come from `arguments.json`, which `crds/generate_arguments.py` writes from the installed packages. An argument
is free, or owned by a field of the manifest, or set by rljob itself; only free ones may be passed through. Megatron's
free ones are listed, for many of its fields belong to other models and layers and would be ignored.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from rljob_api.errors import ABSENT, Problem
from rljob_api.facts import named
from rljob_api.rules.likeness import similar
from rljob_api.sections import Spec

System = Literal["sglang", "megatron"]
Arguments = Mapping[str, Any]

SGLANG_FIELDS = {
    **{name: f"spec.{path}" for name, path in named(Spec, "sglang").items()},
    "device": "spec.runtime.device",
    "dtype": "spec.training.precision",
    "tokenizer-path": "spec.model.checkpoint",
}
VERIFIED = "engines hold what the learner publishes, verified tensor by tensor; spec.rollout.quantization quantises it"
TENSORS_ONLY = "an engine is parallel over tensors only"
WHOLE_EXPERTS = "an engine shares each expert over its tensor ranks, and is verified so"
OVER_HTTP = "the run speaks plain HTTP with its engines, at the paths that SGLang has by itself"
PUBLISHED = "engines hold what the learner publishes, tensor by tensor under SGLang's own names"
SGLANG_OURS = {
    **dict.fromkeys(
        (
            *("cp-strategy", "dcp-comm-backend", "dcp-replicate-q-proj", "disable-attn-tp-gather"),
            *("dsa-prefill-cp-mode", "enable-attn-tp-input-scattered", "enable-cp-decode-attn-tp"),
            *("enable-dp-attention", "enable-dp-attention-local-control-broadcast", "enable-dp-lm-head"),
            *("enable-dsa-cache-layer-split", "enable-dsa-prefill-context-parallel", "enable-dynamic-chunking"),
            *("enable-nsa-prefill-context-parallel", "enable-prefill-context-parallel", "enable-prefill-cp"),
            *("load-balance-method", "moe-dense-tp-size", "nsa-prefill-cp-mode", "pp-async-batch-depth"),
            *("pp-max-micro-batch-size", "prefill-cp-mode", "speculative-skip-dp-mlp-sync"),
        ),
        TENSORS_ONLY,
    ),
    **dict.fromkeys(
        (
            *("deepep-config", "deepep-dispatcher-output-dtype", "deepep-mode", "elastic-ep-backend"),
            *("elastic-ep-initial-size", "elastic-ep-join-mode", "elastic-ep-join-rank-offset", "elastic-ep-rejoin"),
            *("elastic-ep-scale-timeout", "enable-elastic-expert-backup", "enable-eplb", "enable-single-batch-overlap"),
            *("enable-two-batch-overlap", "enable-waterfill", "ep-dispatch-algorithm", "ep-num-redundant-experts"),
            *("eplb-algorithm", "eplb-min-rebalancing-utilization-threshold", "eplb-rebalance-layers-per-chunk"),
            *("eplb-rebalance-num-iterations", "fuseep-mode", "init-expert-location", "max-ep-size", "moe-a2a-backend"),
            *("mooncake-ib-device", "speculative-moe-a2a-backend", "tbo-token-distribution-threshold"),
        ),
        WHOLE_EXPERTS,
    ),
    **dict.fromkeys(
        (
            *("decoupled-spec-bind-endpoint", "decoupled-spec-connect-endpoints", "decoupled-spec-rank"),
            *("decoupled-spec-role", "enable-adaptive-dispatch-to-encoder", "enable-http2", "enable-ssl-refresh"),
            *("encoder-bootstrap-port", "encoder-register-urls", "encoder-transfer-backend", "encoder-urls"),
            *("fastapi-root-path", "grpc-mode", "grpc-port", "sidecar", "sidecar-args", "smg-grpc-mode"),
            *("smg-http-sidecar-port", "ssl-ca-certs", "ssl-certfile", "ssl-keyfile", "ssl-keyfile-password"),
        ),
        OVER_HTTP,
    ),
    **dict.fromkeys(
        (
            *("checkpoint-engine-wait-weights-before-ready", "cpu-offload-gb", "custom-weight-loader"),
            *("decrypted-config-file", "delete-ckpt-after-loading", "dllm-algorithm", "dllm-algorithm-config"),
            *("dllm-fdfo", "enable-lora", "kt-cpuinfer", "kt-max-deferred-experts-per-token", "kt-method"),
            *("kt-num-gpu-experts", "kt-threadpool-count", "kt-weight-path", "lora-paths"),
            *("model-impl", "modelexpress-config", "modelopt-checkpoint-restore-path"),
            *("modelopt-checkpoint-save-path", "modelopt-export-path", "offload-group-size", "offload-mode"),
            *("offload-num-in-group", "offload-prefetch-step", "remote-instance-weight-loader-backend"),
            "remote-instance-weight-loader-seed-instance-ip",
            "remote-instance-weight-loader-start-seed-via-transfer-engine",
            *("remote-instance-weight-loader-seed-instance-service-port", "weight-cache-mode", "weight-cache-socket"),
            *("remote-instance-weight-loader-send-weights-group-ports", "revision", "weight-cache-timeout"),
        ),
        PUBLISHED,
    ),
    "admin-api-key": "engines answer only inside the run",
    "api-key": "engines answer only inside the run",
    "attn-cp-size": "an engine is parallel over tensors only",
    "base-gpu-id": "the placement decides",
    "config": "a file would hide its arguments from these checks; write them here",
    "dcp-size": "an engine is parallel over tensors only",
    "disable-shared-experts-fusion": "an engine keeps a shared expert apart from the others, and is verified so",
    "disaggregation-mode": "prefill and decode stay together",
    "dist-init-addr": "the placement decides",
    "dp-size": "an engine is parallel over tensors only; set spec.rollout.engines for more of them",
    "dwdp-size": "an engine is parallel over tensors only",
    "enable-memory-saver": "spec.placement decides",
    "enable-metrics": "metrics are always on",
    "enable-return-routed-experts": "spec.training.experts.replay Rollout needs it, and nothing else reads it",
    "encoder-only": "engines generate",
    "enforce-shared-experts-fusion": "an engine keeps a shared expert apart from the others, and is verified so",
    "ep-size": "an engine shares each expert over its tensor ranks",
    "gpu-id-step": "the placement decides",
    "host": "the placement decides",
    "is-embedding": "engines generate",
    "modelopt-quant": VERIFIED,
    "moe-dp-size": "an engine is parallel over tensors only",
    "nccl-port": "the placement decides",
    "nnodes": "an engine stays on one node",
    "node-rank": "an engine stays on one node",
    "port": "the placement decides",
    "pp-size": "an engine is parallel over tensors only",
    "quantization": VERIFIED,
    "quantize-and-serve": VERIFIED,
    "rl-quant-profile": VERIFIED,
    "skip-tokenizer-init": "stop strings need the tokenizer",
    "tokenizer-worker-num": "engines answer only the run's requests; several tokenizer processes answer all",
    "torchao-config": VERIFIED,
    "use-ray": "engines are placed by the run",
    "weight-version": "the learner's publications count it",
}
MEGATRON_FREE = (
    *("deallocate_pipeline_outputs", "disable_bf16_reduced_precision_matmul", "distribute_saved_activations"),
    *("recompute_granularity", "recompute_method", "recompute_modules", "recompute_num_layers"),
)
"""what a dense model of Megatron's own layers makes use of, and nothing else decides"""
MEGATRON_FIELDS = {
    **{
        name: f"spec.{path}"
        for flag, path in named(Spec, "megatron").items()
        if (name := flag.replace("-", "_")) not in MEGATRON_FREE
    },
    "calculate_per_token_loss": "spec.algorithm.lossBy",
    "fp16": "spec.training.precision",
    "params_dtype": "spec.training.precision",
    "pipeline_dtype": "spec.training.precision",
    "num_layers_in_first_pipeline_stage": "spec.training.pipelineLayers",
    "num_layers_in_last_pipeline_stage": "spec.training.pipelineLayers",
}
"""facts of the fields, and arguments that mean the same in other words"""
MEGATRON_OURS = {
    "the checkpoint's config.json decides": (
        *("activation_func", "add_bias_linear", "add_qkv_bias", "ffn_hidden_size", "gated_linear_unit", "hidden_size"),
        *("kv_channels", "layernorm_epsilon", "normalization", "num_attention_heads", "num_layers", "num_query_groups"),
        *("qk_layernorm", "rotary_interleaved"),
    ),
    "the learner has its own packed attention": (
        *("apply_query_key_layer_scaling", "apply_rope_fusion", "attention_backend", "attention_softmax_in_fp32"),
        *("masked_softmax_fusion", "softmax_scale", "softmax_type", "transformer_impl", "window_attn_skip_freq"),
        *("window_size",),
    ),
    "dropout would make the learner and the engines disagree": ("attention_dropout", "hidden_dropout"),
    "the learner is parallel over tensors, pipeline stages, contexts, experts and data only": (
        *("hierarchical_context_parallel_sizes", "hybrid_context_parallel"),
    ),
    "spec.training.pipelineLayers says how many layers each pipeline stage has": (
        *("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"),
    ),
    "the learner sets it so that packed batches train": (
        *("batch_p2p_comm", "gradient_accumulation_fusion", "persist_layer_norm", "use_cpu_initialization"),
        *("variable_seq_lengths",),
    ),
    "the learner has its own fused kernels, or takes Megatron's, by device and model": (
        *("bias_activation_fusion", "bias_dropout_fusion"),
    ),
    "only Megatron's embedding reads it, and the learner has its own": (
        "deterministic_mode",
        "fp32_residual_connection",
    ),
    "the learner treats all micro-batches alike; spec.training.recompute is for all of them": (
        *("num_microbatches_with_partial_activation_checkpoints",),
    ),
}
"""what rljob sets itself or has its own of, by the reason"""


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a system, as its pinned version declares it."""

    name: str
    kind: str
    """`integer`, `list of string`, `integer or list of integer`, `json`; `object`: YAML cannot write it"""
    default: str
    choices: tuple[str, ...]
    canonical: str
    """its first name, when this is another spelling of it"""
    off: str | None
    """the flag that turns it off, if it is on by default or undecided"""


@cache
def contents() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(files("rljob_api.rules").joinpath("arguments.json").read_text())
    return loaded


@cache
def known(system: System) -> Mapping[str, Argument]:
    """Return all arguments of a system by name."""
    entries = contents()["sglang" if system == "sglang" else "transformerConfig"]
    return {name: argument(name, entry) for name, entry in entries.items()}


def argument(name: str, entry: Mapping[str, Any]) -> Argument:
    choices, canonical = tuple(entry.get("choices", ())), entry.get("aliasOf", name)
    return Argument(name, entry["type"], entry["default"], choices, canonical, entry.get("off"))


def tasks() -> Mapping[str, tuple[str, ...]]:
    """Return the settings of each reasoning-gym task by the task's name."""
    return {name: tuple(settings) for name, settings in contents()["reasoningGym"].items()}


def passed_through(word: str) -> str | None:
    """Return the manifest path of the field that sets an argument in kebab-case, or its owner, or None."""
    if word in known("sglang"):
        return SGLANG_FIELDS.get(known("sglang")[word].canonical, f"spec.extraArgs.sglang.{word}")
    snake = word.replace("-", "_")
    if snake in MEGATRON_FIELDS:
        return MEGATRON_FIELDS[snake]
    return f"spec.extraArgs.megatron.{snake}" if snake in MEGATRON_FREE else None


def problems(system: System, given: Arguments) -> Iterator[Problem]:
    """Yield what is wrong with the arguments to pass through to a system."""
    return (found for name, value in given.items() if (found := problem(system, name, value)))


def problem(system: System, name: str, value: object) -> Problem | None:
    path = f"spec.extraArgs.{system}.{name}"
    found = known(system).get(name)
    if owner := owner_of(system, found.canonical if found else name):
        return Problem(path, ABSENT, "belongs to a field of the manifest", owner)
    if found is None:
        return unknown(system, path, name)
    if reason := reason_for(system, found.canonical):
        return Problem(path, ABSENT, f"cannot be set: {reason}")
    if not fits(value, found.kind):
        return Problem(path, value, f"must be of type {found.kind} (default {found.default})")
    wrong = [item for item in (value if isinstance(value, list) else [value]) if str(item) not in found.choices]
    if found.choices and wrong:
        near = similar(str(wrong[0]), found.choices, cutoff=0.0)
        return Problem(path, wrong[0], f"is none of {', '.join(found.choices)}", near)
    return None


def owner_of(system: System, name: str) -> str | None:
    """Return the field of the manifest that sets an argument."""
    return (SGLANG_FIELDS if system == "sglang" else MEGATRON_FIELDS).get(name)


def reason_for(system: System, name: str) -> str | None:
    """Return why an argument that no field sets cannot be passed through, or None if it can."""
    if system == "sglang":
        return SGLANG_OURS.get(name)
    if name in MEGATRON_FREE:
        return None
    reasons = (reason for reason, names in MEGATRON_OURS.items() if name in names)
    return next(reasons, "the learner's models would make no use of it")


def unknown(system: System, path: str, name: str) -> Problem:
    package, separator = ("sglang", "-") if system == "sglang" else ("megatron-core", "_")
    if system == "megatron" and name in contents()["optimizerConfig"]:
        rule = "is of Megatron's OptimizerConfig, of which spec.training.optimizer has all that can be set"
        return Problem(path, ABSENT, rule)
    word = name.lstrip("-").lower().replace("-", separator).replace("_", separator)
    options = known(system) if system == "sglang" else MEGATRON_FREE
    near = similar(word.removeprefix(f"sglang{separator}"), options, cutoff=0.7)
    version = contents()["versions"][package]
    rule = f"is not an argument of {package} {version}"
    return Problem(path, ABSENT, rule, f"spec.extraArgs.{system}.{near}" if near else None)


def fits(value: object, kind: str) -> bool:
    """Return whether a YAML value can stand for an argument of this kind."""
    options = kind.split(" or ")
    return any(fits_one(value, option) for option in options)


def fits_one(value: object, kind: str) -> bool:
    if kind.startswith("list of "):
        return isinstance(value, list) and all(fits_one(item, kind.removeprefix("list of ")) for item in value)
    match kind:
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "json":
            return isinstance(value, dict | list)
        case _:
            return isinstance(value, str)


def sglang_command_line(given: Arguments) -> tuple[str, ...]:
    """Return valid arguments as SGLang's command line takes them: `{"page-size": 16}` -> `("--page-size", "16")`."""
    return tuple(part for name, value in given.items() for part in command_line_parts(known("sglang")[name], value))


def command_line_parts(declared: Argument, value: object) -> tuple[str, ...]:
    match value:
        case True:
            return (f"--{declared.name}",)
        case False:
            return (f"--{declared.off}",) if declared.off else ()
        case list() if declared.kind != "json":
            return (f"--{declared.name}", *map(str, value))
        case dict() | list():
            return (f"--{declared.name}", json.dumps(value))
        case _:
            return (f"--{declared.name}", str(value))
