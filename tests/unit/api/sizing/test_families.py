"""Sizes and rules of what families of models have of their own."""

import math

import pytest
import yaml

from rljob_api.errors import ManifestError
from rljob_api.reading.manifest import parse
from rljob_api.sections import RLJob
from rljob_api.sizing.known_models import ON_THE_HUB
from rljob_api.sizing.model_shape import problems, shape, teacher_problems
from rljob_api.sizing.tensors import is_trained, tensors_of
from support.tables import each_of

LLAMA = ON_THE_HUB["meta-llama/Llama-3.2-1B-Instruct"]
GLM4 = {
    "architectures": ["Glm4ForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "attention_bias": True,
    "tie_word_embeddings": False,
}
MISTRAL_7B = ON_THE_HUB["mistralai/Mistral-7B-v0.1"]
QWEN2_7B = ON_THE_HUB["Qwen/Qwen2.5-7B-Instruct"]
MIXTRAL = ON_THE_HUB["mistralai/Mixtral-8x7B-v0.1"]


def with_context(good: str, length: int | None) -> RLJob:
    """The good job with samples of so many tokens."""
    content = yaml.safe_load(good)
    content["spec"]["rollout"] |= {"contextLength": length}
    return parse(content)


def further_and_biases(hidden: int, experts: int, routers: int, layer: int) -> int:
    """Parameters that the Hub counts and no learner trains.

    Biases of the routers, and a layer for multi-token prediction with three norms, a projection and two embeddings.
    """
    return routers * experts + layer + experts + 2 * hidden * hidden + 3 * hidden + 2 * 151552 * hidden


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("Qwen/Qwen2.5-0.5B", 494_032_768),
        ("Qwen/Qwen2.5-1.5B-Instruct", 1_543_714_304),
        ("Qwen/Qwen2.5-3B-Instruct", 3_085_938_688),
        ("Qwen/Qwen2.5-7B-Instruct", 7_615_616_512),
        ("Qwen/Qwen2.5-14B-Instruct", 14_770_033_664),
        ("Qwen/Qwen2.5-32B-Instruct", 32_763_876_352),
        ("Qwen/Qwen2.5-72B-Instruct", 72_706_203_648),
        ("Qwen/Qwen2.5-Math-1.5B", 1_543_714_304),
        ("Qwen/Qwen2.5-Coder-7B-Instruct", 7_615_616_512),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", 1_777_088_000),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", 7_615_616_512),
        ("Qwen/Qwen3-0.6B", 596_049_920),
        ("Qwen/Qwen3-1.7B", 1_720_574_976),
        ("Qwen/Qwen3-4B", 4_022_468_096),
        ("Qwen/Qwen3-8B", 8_190_735_360),
        ("Qwen/Qwen3-14B", 14_768_307_200),
        ("Qwen/Qwen3-32B", 32_762_123_264),
        ("Qwen/Qwen3-30B-A3B", 30_532_122_624),
        ("Qwen/Qwen3-235B-A22B", 235_093_634_560),
        ("meta-llama/Llama-3.2-1B-Instruct", 1_235_814_400),
        ("meta-llama/Llama-3.2-3B-Instruct", 3_212_749_824),
        ("meta-llama/Llama-3.1-8B-Instruct", 8_030_261_248),
        ("meta-llama/Llama-3.3-70B-Instruct", 70_553_706_496),
        ("mistralai/Mistral-7B-Instruct-v0.3", 7_248_023_552),
        ("mistralai/Mistral-Nemo-Instruct-2407", 12_247_782_400),
        ("mistralai/Mistral-Small-24B-Instruct-2501", 23_572_403_200),
        ("mistralai/Mixtral-8x7B-v0.1", 46_702_792_704),
        ("mistralai/Mixtral-8x22B-Instruct-v0.1", 140_630_071_296),
        ("zai-org/GLM-4.5-Air", 110_468_824_832 - further_and_biases(4096, 128, 45, 17_301_504 * 129 + 109_598_720)),
        ("unsloth/DeepSeek-V3-bf16", 671_026_419_200 - 58 * 256),  # less biases of the routers
        ("zai-org/GLM-4.5", 358_337_791_296 - further_and_biases(5120, 160, 89, 23_592_960 * 161 + 137_158_912)),
        ("google/gemma-3-270m", 268_098_176),
        ("google/gemma-3-1b-it", 999_885_952),
    ],
)
def test_parameters_are_those_that_are_published(name, parameters):
    assert shape(ON_THE_HUB[name]).parameters == parameters


@each_of(ON_THE_HUB)
def test_parameters_are_those_of_the_tensors_in_the_files(name):
    model = shape(ON_THE_HUB[name])

    trained = [math.prod(axes) for name, axes in tensors_of(model).items() if is_trained(name)]
    assert sum(trained) == model.parameters


def test_tensors_have_the_names_and_shapes_of_the_hub():
    layer = {
        "input_layernorm.weight": (64,),
        "self_attn.q_proj.weight": (128, 64),
        "self_attn.k_proj.weight": (32, 64),
        "self_attn.v_proj.weight": (32, 64),
        "self_attn.q_proj.bias": (128,),
        "self_attn.k_proj.bias": (32,),
        "self_attn.v_proj.bias": (32,),
        "self_attn.o_proj.weight": (64, 128),
        "post_self_attn_layernorm.weight": (64,),
        "post_attention_layernorm.weight": (64,),
        "post_mlp_layernorm.weight": (64,),
        "mlp.gate_up_proj.weight": (192, 64),
        "mlp.down_proj.weight": (64, 96),
    }

    assert tensors_of(shape(GLM4)) == {
        "model.embed_tokens.weight": (1000, 64),
        **{f"model.layers.{index}.{name}": axes for index in range(4) for name, axes in layer.items()},
        "model.norm.weight": (64,),
        "lm_head.weight": (1000, 64),
    }


def test_tensors_of_experts_have_the_names_and_shapes_of_the_hub():
    few = {"num_experts": 2, "num_experts_per_tok": 1, "num_hidden_layers": 1}
    layer = {
        "input_layernorm.weight": (2048,),
        "self_attn.q_proj.weight": (4096, 2048),
        "self_attn.k_proj.weight": (512, 2048),
        "self_attn.v_proj.weight": (512, 2048),
        "self_attn.q_norm.weight": (128,),
        "self_attn.k_norm.weight": (128,),
        "self_attn.o_proj.weight": (2048, 4096),
        "post_attention_layernorm.weight": (2048,),
        "mlp.gate.weight": (2, 2048),
        "mlp.experts.0.gate_proj.weight": (768, 2048),
        "mlp.experts.0.up_proj.weight": (768, 2048),
        "mlp.experts.0.down_proj.weight": (2048, 768),
        "mlp.experts.1.gate_proj.weight": (768, 2048),
        "mlp.experts.1.up_proj.weight": (768, 2048),
        "mlp.experts.1.down_proj.weight": (2048, 768),
    }

    assert tensors_of(shape({**ON_THE_HUB["Qwen/Qwen3-30B-A3B"], **few})) == {
        "model.embed_tokens.weight": (151936, 2048),
        **{f"model.layers.0.{name}": axes for name, axes in layer.items()},
        "model.norm.weight": (2048,),
        "lm_head.weight": (151936, 2048),
    }


def test_an_output_layer_that_sglang_keeps_apart_may_not_be_the_embedding():
    config = {**ON_THE_HUB["Qwen/Qwen3-30B-A3B"], "tie_word_embeddings": True}
    with pytest.raises(ManifestError, match="tie_word_embeddings True is not supported, only False"):
        shape(config)


def test_a_bias_of_queries_keys_and_values_is_counted_and_split():
    plain, biased = (shape({**GLM4, "attention_bias": bias}) for bias in (False, True))
    queries, keys = 8 * 16, 2 * 16

    assert biased.parameters - plain.parameters == 4 * (queries + 2 * keys)
    assert biased.layer(2) - plain.layer(2) == (queries + 2 * keys) // 2
    assert shape({name: value for name, value in GLM4.items() if name != "attention_bias"}) == biased


def test_four_norms_of_a_layer_are_counted():
    matrices = 2 * 64 * (8 * 16) + 2 * 64 * (2 * 16) + 3 * 64 * 96

    assert shape({**GLM4, "attention_bias": False}).layer() == matrices + 4 * 64


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**QWEN2_7B, "attention_bias": False}, "attention_bias False"),
        ({**MIXTRAL, "tie_word_embeddings": True}, "tie_word_embeddings True"),
        ({**MIXTRAL, "router_jitter_noise": 0.1}, "router_jitter_noise 0.1"),
        (
            {**LLAMA, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
            "rope_type dynamic, and LlamaForCausalLM is trained with default or llama3 or linear or yarn",
        ),
        (
            {**MIXTRAL, "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6}},
            "rope_type yarn, and MixtralForCausalLM is trained with default",
        ),
        ({**GLM4, "rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_type linear"),
    ],
)
def test_a_setting_that_learner_or_engine_does_not_know_is_refused(config, message):
    with pytest.raises(ManifestError, match=message):
        shape(config)


@pytest.mark.parametrize("rope", [None, {"rope_type": "llama3"}, {"type": "yarn"}, {"rope_type": "default"}])
def test_ropes_that_both_know_are_not(rope):
    assert shape({**LLAMA, "rope_scaling": rope}) == shape(LLAMA)


@pytest.mark.parametrize(
    ("config", "context", "refused"),
    [
        (MISTRAL_7B, None, "contextLength: allows more tokens than the model's sliding_window"),
        (MISTRAL_7B, 4097, "contextLength: 4097 allows more tokens than the model's sliding_window"),
        (MISTRAL_7B, 4096, None),
        ({**MISTRAL_7B, "sliding_window": 32768}, 4097, None),
        ({**MISTRAL_7B, "sliding_window": None}, 4097, None),
        ({**MIXTRAL, "sliding_window": 4096}, 4097, "sliding_window"),
        (
            {name: MISTRAL_7B[name] for name in MISTRAL_7B if name != "sliding_window"},
            None,
            "nearest valid: 4096",
        ),
        ({name: MIXTRAL[name] for name in MIXTRAL if name != "sliding_window"}, None, None),
        ({**LLAMA, "sliding_window": 4096}, 4097, None),
    ],
)
def test_samples_are_not_longer_than_a_sliding_window(good, config, context, refused):
    model = shape({**config, "num_key_value_heads": 32})
    found = [str(problem) for problem in problems(model, with_context(good, context).spec)]

    assert [refused in text for text in found] == ([True] if refused else [])


def test_a_teacher_with_a_sliding_window_limits_the_samples_too(good):
    student = shape({**MISTRAL_7B, "sliding_window": None})
    spec = with_context(good, 4097).spec
    found = [str(problem) for problem in teacher_problems(shape(MISTRAL_7B), student, spec)]

    assert any("more tokens than the teacher's sliding_window" in text for text in found)


def test_gemma_3_with_images_is_refused_with_the_reason():
    with pytest.raises(ManifestError) as refused:
        shape({"architectures": ["Gemma3ForConditionalGeneration"]})
    assert "Gemma3ForConditionalGeneration" in str(refused.value) and "it sees images" in str(refused.value)
