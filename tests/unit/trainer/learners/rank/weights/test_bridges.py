"""What cannot be trained is refused with a message that says what can."""

import re
from pathlib import Path
from typing import Any

import pytest
from transformers import Gemma3TextConfig, Glm4MoeConfig, GPT2Config, LlamaConfig, PreTrainedConfig, Qwen3MoeConfig

from rljob_api.sizing.families import BY_MODEL_TYPE, FAMILIES
from rljob_trainer.learners.rank.weights.bridges import UnsupportedModelError, check, family
from rljob_trainer.learners.rank.weights.families import local_bridge
from support.trainer.learner_data import learner_config

EXPERTS = {"num_experts": 6, "moe_intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 4}
GLM = {
    "n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "intermediate_size": 18,
    "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip
ROPE = {"rope_type": "default", "rope_theta": 1e4}


def llama(**changes: Any) -> PreTrainedConfig:
    sizes = {"num_hidden_layers": 6, "num_attention_heads": 12, "num_key_value_heads": 6, "hidden_size": 48}
    return LlamaConfig(**({"rope_parameters": ROPE} | sizes | changes))


@pytest.mark.parametrize(
    ("hf_config", "settings", "message"),
    [
        (GPT2Config(), {}, f"model type 'gpt2' is not supported; supported are {', '.join(sorted(BY_MODEL_TYPE))}"),
        (
            llama(),
            {"tensor": 4},
            "does not divide 12 attention heads and 6 key-value heads; use one of 1, 2, 3, 6",
        ),
        (llama(), {"pipeline": 4}, "pipelineParallel=4 does not divide 6 layers; use one of 1, 2, 3, 6"),
        (
            llama(),
            {"pipeline": 2, "layers": (4, 3)},
            "pipelineLayers=[4, 3] does not give 6 layers to 2 pipeline stages",
        ),
        (
            llama(),
            {"pipeline": 2, "layers": (1, 2, 3)},
            "pipelineLayers=[1, 2, 3] does not give 6 layers to 2 pipeline stages",
        ),
        (
            llama(),
            {"pipeline": 2, "virtual": 2},
            "virtualPipeline=2 does not divide the 3 layers of a pipeline stage; use one of 1, 3",
        ),
        (
            llama(),
            {"pipeline": 2, "virtual": 2, "layers": (3, 3)},
            "pipelineLayers=[3, 3] does not give 6 layers to 2 pipeline stages with 2 chunks each",
        ),
        (
            Qwen3MoeConfig(**EXPERTS),
            {"expert": 4},
            "expertParallel=4 does not divide 6 experts; use one of 1, 2, 3, 6",
        ),
        (
            Qwen3MoeConfig(**EXPERTS),
            {"expert_tensor": 5},
            "expertTensorParallel=5 does not divide 12 columns of an expert; use one of 1, 2, 3, 4, 6, 12",
        ),
        (Qwen3MoeConfig(**EXPERTS, mlp_only_layers=[1]), {}, "mlp_only_layers [1] is not supported, only []"),
        (Qwen3MoeConfig(**EXPERTS, decoder_sparse_step=2), {}, "decoder_sparse_step 2 is not supported"),
        (
            Qwen3MoeConfig(**EXPERTS),
            {"pipeline": 2, "megatron_args": {"recompute_modules": ["core_attn", "moe"]}},
            "recompute_modules moe is not supported for experts in pipeline stages",
        ),
        (
            Glm4MoeConfig(**GLM, num_key_value_heads=4),
            {"tensor": 4},
            "tensorParallel=4 does not divide 4 attention heads and 4 key-value heads and 18 MLP columns of the first "
            "layers and 12 columns of the shared expert; use one of 1, 2",
        ),
        (
            Glm4MoeConfig(**GLM, num_key_value_heads=4, first_k_dense_replace=0, n_shared_experts=3),
            {"tensor": 3},
            "tensorParallel=3 does not divide 4 attention heads and 4 key-value heads and 36 columns of the shared "
            "expert; use one of 1, 2, 4",
        ),
        (Glm4MoeConfig(**GLM, norm_topk_prob=False), {}, "norm_topk_prob False is not supported, only True"),
        (Glm4MoeConfig(**GLM, n_group=4), {}, "n_group 4 does not divide n_routed_experts 6 into groups"),
        (
            Gemma3TextConfig(final_logit_softcapping=30.0),
            {},
            "final_logit_softcapping 30.0 is not supported, only None",
        ),
        (
            Gemma3TextConfig(rope_scaling={"rope_type": "yarn", "factor": 2.0}),
            {},
            "rope type 'yarn' is not supported; supported are default, linear",
        ),
        (llama(), {"expert": 2}, "expertParallel=2 does not divide 0 experts; use one of 1"),
        (llama(), {"expert_tensor": 2}, "expertTensorParallel=2: the model has no experts"),
        (llama(mlp_bias=True), {}, "mlp_bias True is not supported"),
        (llama(hidden_act="gelu"), {}, "hidden_act 'gelu' is not supported, only 'silu'"),
        (
            llama(rope_parameters=ROPE | {"rope_type": "dynamic", "factor": 2.0}),
            {},
            "rope type 'dynamic' is not supported",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused(hf_config: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=re.escape(message)):
        check(hf_config, learner_config(Path("model"), **settings))


def test_every_family_of_the_table_has_a_file_and_every_file_a_line_of_the_table() -> None:
    shared = {"__init__", "local_bridge", "expert_bridge"}
    files = {path.stem for path in Path(local_bridge.__file__).parent.glob("*.py")} - shared
    assert files == set(BY_MODEL_TYPE)


def test_the_page_of_models_has_a_line_for_every_family() -> None:
    page = (Path(__file__).parents[6] / "docs" / "models.md").read_text()
    lines = re.findall(r"^\| `(\w+)` \|.*\| (yes|no) \|$", page, re.MULTILINE)
    assert lines == [(name, "yes" if family.experts else "no") for name, family in FAMILIES.items()]


@pytest.mark.parametrize("model_type", BY_MODEL_TYPE)
def test_every_family_has_a_bridge(model_type: str) -> None:
    assert issubclass(family(model_type), local_bridge.LocalBridge)


@pytest.mark.parametrize("settings", [{}, {"tensor": 3}, {"pipeline": 2}])
def test_what_can_be_trained_is_not(settings: dict[str, Any]) -> None:
    check(llama(), learner_config(Path("model"), **settings))
