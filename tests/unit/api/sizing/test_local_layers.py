"""Sizes and rules of models whose layers differ in windows and rotary embeddings: Gemma 3."""

import pytest
import yaml

from rljob_api.errors import ManifestError
from rljob_api.reading.manifest import parse
from rljob_api.sizing.families import GLOBAL, LOCAL
from rljob_api.sizing.flops import pairs_of, training_flops
from rljob_api.sizing.known_models import ON_THE_HUB
from rljob_api.sizing.memory import estimate
from rljob_api.sizing.model_shape import problems, shape
from rljob_api.sizing.tensors import tensors_of
from rljob_api.sizing.topology import topology

GEMMA = ON_THE_HUB["google/gemma-3-270m"]
NESTED = {LOCAL: {"rope_type": "default", "rope_theta": 1e4}, GLOBAL: {"rope_type": "linear", "factor": 8.0}}


def test_every_sixth_layer_sees_all_tokens_where_the_file_does_not_say_which():
    model = shape(GEMMA)

    assert [number for number, local in enumerate(model.local) if not local] == [5, 11, 17]
    assert (model.local_window, model.window) == (512, None)


def test_layers_are_as_the_file_says():
    assert shape({**GEMMA, "sliding_window_pattern": 3}).local == (True, True, False) * 6
    assert shape({**GEMMA, "layer_types": [GLOBAL, LOCAL] * 9, "sliding_window_pattern": 3}).local == (False, True) * 9
    assert shape({**GEMMA, "layer_types": [GLOBAL] * 18}).local_window is None
    assert shape(ON_THE_HUB["mistralai/Mistral-7B-v0.1"]).local == ()


def test_settings_that_the_file_omits_are_those_of_transformers():
    given = {name: value for name, value in GEMMA.items() if name not in ("head_dim", "sliding_window")}
    model = shape(given)

    assert (model.tied, model.head_dim, model.local_window, model.qk_norm) == (True, 256, 4096, True)


def test_a_layer_has_four_norms_of_its_own_names():
    names = {name.removeprefix("model.layers.0.") for name in tensors_of(shape(GEMMA)) if "layers.0." in name}

    assert {name for name in names if "layernorm" in name} == {
        "input_layernorm.weight",
        "post_attention_layernorm.weight",
        "pre_feedforward_layernorm.weight",
        "post_feedforward_layernorm.weight",
    }
    assert "lm_head.weight" not in tensors_of(shape(GEMMA))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping 50.0 is not supported, only None"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping 30.0 is not supported, only None"),
        ({"hidden_activation": "gelu"}, "hidden_activation 'gelu' is not supported, only 'gelu_pytorch_tanh'"),
        ({"hidden_act": "silu"}, "hidden_act 'silu' is not supported, only 'gelu_pytorch_tanh'"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings False is not supported, only True"),
        ({"attention_bias": True}, "attention_bias True"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention True is not supported, only False"),
        ({"query_pre_attn_scalar": 0}, "query_pre_attn_scalar 0 is not supported, only more than 0"),
        ({"sliding_window": None}, "sliding_window None is not supported, only 2 or more"),
        ({"sliding_window": 1}, "sliding_window 1 is not supported, only 2 or more"),
        ({"layer_types": [LOCAL] * 17}, "layer_types has 17 entries, and num_hidden_layers is 18"),
        (
            {"layer_types": [LOCAL] * 17 + ["chunked_attention"]},
            "layer_types chunked_attention is not supported, only ",
        ),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 8.0}}, "rope_type yarn, and Gemma3ForCausalLM is trained"),
        ({"rope_parameters": {GLOBAL: {"rope_type": "yarn"}}}, "rope_type yarn, and Gemma3ForCausalLM is trained"),
        (
            {"rope_parameters": {LOCAL: {"rope_type": "linear", "factor": 8.0}}},
            "rope_type linear of sliding_attention is not supported, only default",
        ),
    ],
    ids=str,
)
def test_a_setting_that_learner_or_engine_does_not_know_is_refused(changes, message):
    with pytest.raises(ManifestError, match=message):
        shape({**GEMMA, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_scaling": {"type": "linear", "factor": 8.0}},
        {"rope_parameters": NESTED},
        {"rope_parameters": {GLOBAL: None}},
        {"use_bidirectional_attention": None, "sliding_window": 512},
        {"hidden_act": "gelu_pytorch_tanh", "attn_logit_softcapping": None},
    ],
    ids=str,
)
def test_what_they_know_is_not(changes):
    assert shape({**GEMMA, **changes}) == shape(GEMMA)


def test_the_least_window_is_two():
    assert shape({**GEMMA, "sliding_window": 2}).local_window == 2


@pytest.mark.parametrize(
    ("window", "pairs"), [(None, 15 + 3), (6, 15 + 3), (5, 15 + 3), (4, 14 + 3), (3, 12 + 3), (2, 9 + 3), (1, 5 + 2)]
)
def test_pairs_of_a_window_are_counted(window, pairs):
    seen = [(query, key) for length in (5, 2) for query in range(length) for key in range(query + 1)]
    assert pairs == sum(window is None or query - key < window for query, key in seen)

    assert pairs_of([5, 2], window) == pairs


def test_a_pair_takes_its_products_in_the_layers_that_see_it():
    model = shape(GEMMA)

    assert training_flops(model, 0, 0, 7, 2) == 3 * 2 * 2 * (3 * 7 + 15 * 2) * 4 * 256
    assert training_flops(model, 0, 0, 7) == training_flops(model, 0, 0, 7, 7)


def test_inputs_of_the_norms_of_outputs_are_kept(good):
    spec, model = parse(yaml.safe_load(good)).spec, shape(GEMMA)
    (kept,) = [item for item in estimate(model, spec, topology(spec)).learner if item.what == "activations"]
    of_layer = 6 * 640 + 2 * (1024 + 2 * 256) + 1024 + 3 * 2048

    assert kept.bytes == spec.training.max_tokens_per_gpu * 18 * of_layer * 2
    assert kept.formula == "maxTokensPerGpu x L x (6H + (2(Q + 2K) + Q + 3F) / TP) x 2, no recomputation"


def window_problems(good: str, context: int | None, device: str = "Gpu", **sglang: str) -> list[str]:
    content = yaml.safe_load(good)
    content["spec"]["rollout"] |= {"contextLength": context, "sampling": {"maxNewTokens": 100}}
    content["spec"]["runtime"] = {"device": device}
    content["spec"] |= {"extraArgs": {"sglang": {name.replace("_", "-"): value for name, value in sglang.items()}}}
    found = map(str, problems(shape(GEMMA), parse(content).spec))
    return [problem for problem in found if "sliding_window" in problem]


@pytest.mark.parametrize(
    ("context", "sglang", "said"),
    [
        (
            None,
            {},
            "attention backend triton drops a token of it; or set spec.extraArgs.sglang.attention-backend to fa3 ",
        ),
        (513, {}, "spec.rollout.contextLength: 513 allows more tokens than the model's sliding_window"),
        (513, {"attention_backend": "triton"}, "nearest valid: 512"),
        (513, {"attention_backend": "fa3", "decode_attention_backend": "triton"}, "triton drops a token"),
        (513, {"attention_backend": "flex_attention"}, "attention backend flex_attention drops"),
    ],
    ids=str,
)
def test_samples_that_engines_would_attend_to_wrongly_are_refused(good, context, sglang, said):
    (problem,) = window_problems(good, context, **sglang)
    assert said in problem


@pytest.mark.parametrize(
    ("context", "sglang"),
    [
        (512, {}),
        (513, {"attention_backend": "fa3"}),
        (513, {"attention_backend": "flashinfer"}),
        (513, {"attention_backend": "triton", "decode_attention_backend": "fa3"}),
        (513, {"device": "Cpu"}),
    ],
    ids=str,
)
def test_others_are_not(good, context, sglang):
    assert window_problems(good, context, **sglang) == []


def test_models_without_windows_may_have_long_samples(good):
    content = yaml.safe_load(good)
    content["spec"]["rollout"] |= {"contextLength": 8192}
    found = problems(shape(ON_THE_HUB["Qwen/Qwen3-0.6B"]), parse(content).spec)
    assert not any("sliding_window" in str(problem) for problem in found)


def test_each_rank_of_an_engine_has_the_whole_embedding(good):
    content = yaml.safe_load(good)
    content["spec"]["rollout"] |= {"gpusPerEngine": 2}
    spec, model = parse(content).spec, shape(GEMMA)
    (weights,) = [item.bytes for item in estimate(model, spec, topology(spec)).engine if item.what == "weights"]

    assert weights == 2 * (262144 * 640 + 18 * model.layer(2) + 640)


def test_runs_without_engines_may_have_samples_of_any_length(good):
    content = yaml.safe_load(good)
    content["spec"]["rollout"] |= {"contextLength": 4096}
    content["spec"] |= {"runtime": {"device": "Gpu"}, "debug": {"replay": "runs/other/rollouts"}}
    found = problems(shape(GEMMA), parse(content).spec)

    assert not any("sliding_window" in str(problem) for problem in found)
