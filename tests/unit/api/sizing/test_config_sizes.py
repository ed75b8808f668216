"""A `config.json` of a stranger: sizes beyond any model, and values of other types, are one problem with a reason."""

from typing import Any

import pytest

from rljob_api.errors import ManifestError
from rljob_api.sizing.families import FAMILIES
from rljob_api.sizing.known_models import KNOWN, ON_THE_HUB
from rljob_api.sizing.model_shape import quantised, shape
from rljob_api.sizing.tensors import tensors_of
from support.tables import each_of

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 100,
    "max_position_embeddings": 100, "rms_norm_eps": 1e-5, "rope_theta": 1e4, "hidden_act": "silu",
    "tie_word_embeddings": True, "torch_dtype": "float32",
}  # fmt: skip
EXPERTS = {"architectures": ["Qwen3MoeForCausalLM"], "num_experts": 60_000, "num_hidden_layers": 900}
STRANGE = (None, "x", 1.5, True, [], {}, float("inf"), float("nan"), 10**400, 0, -1, [[1]], "9" * 10_000)


def refused(**changes: Any) -> str:
    with pytest.raises(ManifestError) as caught:
        shape(CONFIG | changes)
    return str(caught.value)


@each_of([*KNOWN.values(), *ON_THE_HUB.values(), CONFIG])
def test_real_models_are_within_the_bounds(config: dict[str, Any]) -> None:
    assert tensors_of(shape(config))


def test_layers_beyond_any_model_are_refused_before_they_are_laid_out() -> None:
    said = refused(num_hidden_layers=2_000_000)
    problem = "num_hidden_layers 2000000, which is not a whole number from 1 to 1000"
    assert said == f'spec.model.checkpoint: "config.json" says {problem}'
    assert "have 60000 experts each; at most 200000 in all" in refused(**EXPERTS)


@pytest.mark.parametrize("value", STRANGE, ids=lambda value: repr(value)[:12])
@pytest.mark.parametrize("name", ["num_hidden_layers", "num_attention_heads", "hidden_size", "vocab_size"])
def test_a_size_that_is_no_size_is_named(name: str, value: Any) -> None:
    said = refused(**{name: value})
    assert said.startswith('spec.model.checkpoint: "config.json" ')
    assert len(said) < 300


@pytest.mark.parametrize("architecture", FAMILIES)
def test_a_value_of_another_type_is_a_problem_or_nothing(architecture: str) -> None:
    names = [*CONFIG, "rope_scaling", "rope_parameters", "layer_types", "sliding_window"]
    values = [*STRANGE, {"rope_type": [1]}, {"rope_type": "yarn", "factor": "x"}, ["a", 1]]
    configs = [CONFIG | {"architectures": [architecture], name: value} for name in names for value in values]
    for config in (*configs, {"architectures": [architecture]}):
        try:
            shape(config)
        except ManifestError as error:
            assert error.problems, config


@pytest.mark.parametrize("value", ["x" * 10**6, {"quant_method": "x" * 10**6}, {"quant_method": ["\x1b[2J"]}])
def test_a_method_of_quantisation_is_shown_short_and_printable(value: Any) -> None:
    said = str(quantised(CONFIG | {"quantization_config": value}))
    assert len(said) < 400
    assert "\x1b" not in said
