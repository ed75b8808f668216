"""Every family of models in a colocated run on a GPU, for `docs/models.md`.

    python3 benchmarks/gpu_families.py --rows llama deepseek_v3
    python3 benchmarks/gpu_families.py --device cpu --tiny

A row is an `rljob run` with random weights in bf16 of a middle size: learner and engine in turns, and 64 responses in
each of eight steps. Each publication is verified tensor by tensor, or the run ends. `first step` has the mean and the
largest |engine - learner| of the log-probabilities, `mismatch` the mean of each step. `-R2` and `-R3` are with
`training.experts.replay`, `-Fp8` and `-Int4` with quantised engines, `gemma3-long` has samples of two windows. A row
that has a file in OUT is not repeated. Several processes, each with an OUT and a GPU of its own, may run at once.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gpu_runs
from learner_gpu import write_random
from transformers import AutoConfig

Json = dict[str, Any]

STEPS = 8
BASE: Json = {
    "vocab_size": 32_000,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": None,  # transformers makes its embedding zero, and the gradient of a prompt of it is not finite
    "initializer_range": 0.05,
}
"""of all families; larger weights than usual make clear which token comes next"""
SMALL: Json = {"vocab_size": 512, "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2}
"""to try the benchmark on a CPU"""
EXPERTS: Json = {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 512, "norm_topk_prob": True}
GROUPS: Json = {
    "n_routed_experts": 16,
    "n_shared_experts": 1,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 512,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
}
LATENT: Json = {
    "num_key_value_heads": 16,
    "q_lora_rank": 768,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "head_dim": 64,
    "v_head_dim": 128,
    "rope_interleave": True,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "moe_layer_freq": 1,
}
"""DeepSeek-V3's own sizes"""
WINDOW = 512
LAYERS = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
GEMMA: Json = {
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "sliding_window": WINDOW,
    "tie_word_embeddings": True,
    "num_hidden_layers": 8,
    "layer_types": 2 * LAYERS,
    "initializer_range": 0.02,
}
BIAS: Json = {"experts": {"biasUpdateRate": 0.001}}


@dataclass(frozen=True)
class Row:
    """A run."""

    model: str
    """model_type of the architecture"""
    shape: Mapping[str, Any]
    """beside BASE"""
    training: Mapping[str, Any] = field(default_factory=dict)
    rollout: Mapping[str, Any] = field(default_factory=dict)
    tokens: int = 64
    """of a response"""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """of SGLang"""


QWEN3_MOE, GLM4_MOE = ("qwen3_moe", EXPERTS), ("glm4_moe", GROUPS | {"partial_rotary_factor": 0.5, "use_qk_norm": True})
DEEPSEEK = ("deepseek_v3", GROUPS | LATENT)
MOONLIGHT = (
    "deepseek_v3",
    GROUPS | LATENT | {"q_lora_rank": None, "n_group": 1, "topk_group": 1, "n_shared_experts": 2},
)
ROWS: dict[str, Row] = {
    "llama": Row("llama", {}),
    "qwen2": Row("qwen2", {}),
    "qwen3": Row("qwen3", {}),
    "mistral": Row("mistral", {"sliding_window": None}),
    "glm4": Row("glm4", {"attention_bias": True, "partial_rotary_factor": 0.5}),
    "gemma3": Row("gemma3_text", GEMMA),
    "gemma3-long": Row("gemma3_text", GEMMA, tokens=2 * WINDOW, arguments={"attention-backend": "fa3"}),
    "mixtral": Row("mixtral", {"num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 1024}),
    "qwen3_moe": Row(*QWEN3_MOE),
    "qwen3_moe-R2": Row(*QWEN3_MOE, {"stepsPerRollout": 2, "experts": {"replay": "Learner"}}),
    "qwen3_moe-R3": Row(*QWEN3_MOE, {"experts": {"replay": "Rollout"}}),
    "glm4_moe": Row(*GLM4_MOE, BIAS),
    "glm4_moe-R3": Row(*GLM4_MOE, {"experts": {"replay": "Rollout", "biasUpdateRate": 0.001}}),
    "deepseek_v3": Row(*DEEPSEEK, BIAS),
    "moonlight": Row(*MOONLIGHT, BIAS),
    **{
        f"{name}-{kind}": Row(*model, rollout={"quantization": kind})
        for kind in ("Fp8", "Int4")
        for name, model in (
            ("qwen3", ("qwen3", {})),
            ("qwen3_moe", QWEN3_MOE),
            ("glm4_moe", GLM4_MOE),
            ("deepseek_v3", DEEPSEEK),
            ("moonlight", MOONLIGHT),
        )
    },
}


def write_model(bench: gpu_runs.Bench, row: Row) -> Path:
    """Return a checkpoint of random weights whose tokens are numbers."""
    shape = BASE | dict(row.shape) | (SMALL if bench.tiny else {})
    if bench.tiny and "layer_types" in shape:
        shape["layer_types"] = shape["layer_types"][1:3]
    directory = bench.out / f"model-{row.model}{'' if shape.get('q_lora_rank', 0) is not None else '-moonlight'}"
    if not (directory / "tokenizer.json").exists():
        config = AutoConfig.for_model(row.model, **shape)
        write_random(directory, config, "cuda" if bench.on_gpu else "cpu")
        gpu_runs.write_tokenizer(directory, shape["vocab_size"])
    return directory


def measure(bench: gpu_runs.Bench, name: str) -> Json:
    """Run a row; return what came of it."""
    row = ROWS[name]
    tokens = min(row.tokens, 16) if bench.tiny else row.tokens
    rollout: Json = {"promptsPerStep": 8, "contextLength": 64 + tokens, "sampling": {"maxNewTokens": tokens}}
    changes: Json = {"rollout": rollout | dict(row.rollout), "training": dict(row.training)}
    if row.rollout:
        changes["algorithm"] = {"importanceSampling": {"kind": "Truncate"}}
    job = bench.job(f"family-{name.replace('_', '-')}", write_model(bench, row), **changes)
    job["spec"]["training"]["precision"] = "bf16"
    if row.arguments and bench.on_gpu:
        job["spec"]["extraArgs"] = {"sglang": dict(row.arguments)}
    found = gpu_runs.figures(bench.run(job, STEPS))
    return {key: found[key] for key in ("first step", "mismatch", "reward", "publish", "phases", "start", "timed")}


def main() -> None:
    """Measure what is missing, and print all rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/bench-families"))
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="two small layers, to try the benchmark")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in arguments.rows:
        result = arguments.out / f"{name}.json"
        try:
            if not result.exists():
                result.write_text(json.dumps(measure(gpu_runs.Bench(arguments), name)))
            print(name, result.read_text(), flush=True)
        except subprocess.CalledProcessError as error:  # the other rows are still worth having
            print(f"{name}: {error}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
