"""What a quantiser must leave alone is known by names and shapes, and a list that lacks it is found."""

import pytest

from rljob_trainer.preflight.quantisation import is_ignored, pattern, quantisation

LAYER = "model.layers.3"
PLAIN = {
    "model.embed_tokens.weight": (1000, 64),
    f"{LAYER}.self_attn.q_proj.weight": (64, 64),
    f"{LAYER}.mlp.gate.weight": (8, 64),
    f"{LAYER}.mlp.experts.0.gate_proj.weight": (32, 64),
    f"{LAYER}.input_layernorm.weight": (64,),
    f"{LAYER}.conv1d.weight": (64, 1, 4),
    "lm_head.weight": (1000, 64),
}
PACKED = {name: axes for name, axes in PLAIN.items() if not name.endswith(("q_proj.weight", "gate_proj.weight"))} | {
    f"{LAYER}.mlp.experts.0.gate_proj.weight_packed": (32, 8),
    f"{LAYER}.self_attn.q_proj.weight_packed": (64, 8),
}
WHOLE = ["lm_head", "model.embed_tokens.weight", r"re:.*mlp\.gate\..*"]


def config(*ignore: str) -> dict[str, object]:
    return {"quantization_config": {"quant_method": "compressed-tensors", "ignore": list(ignore)}}


def test_of_a_checkpoint_that_is_not_quantised_the_matrices_that_are_no_linear_layers_are_listed():
    found = quantisation({}, PLAIN)
    assert found.plain == ("lm_head", "model.embed_tokens", f"{LAYER}.mlp.gate")
    assert (found.method, found.unlisted, found.wrong) == (None, (), ())


def test_a_list_that_lacks_the_router_or_another_matrix_is_named_with_the_entry_to_add():
    found = quantisation(config("lm_head"), PACKED)
    assert found.unlisted == ("model.embed_tokens", f"{LAYER}.mlp.gate")
    assert found.suggestion == ("model.embed_tokens", r"re:.*mlp\.gate(\.weight)?$")
    assert quantisation(config(*found.ignore, *found.suggestion), PACKED).unlisted == ()


def test_the_list_that_slime_recommends_is_complete():
    assert quantisation(config(*WHOLE), PACKED).unlisted == ()


def test_a_linear_layer_that_was_left_alone_must_be_on_the_list_too():
    kept = PACKED | {f"{LAYER}.self_attn.o_proj.weight": (64, 64)}
    assert quantisation(config(*WHOLE), kept).unlisted == (f"{LAYER}.self_attn.o_proj",)


@pytest.mark.parametrize("part", ["weight_packed", "qweight", "weight_scale_inv"])
def test_a_router_that_is_quantised_is_wrong(part: str):
    found = quantisation(config(*WHOLE), PACKED | {f"{LAYER}.mlp.gate.{part}": (8, 8)})
    assert found.wrong == (f"{LAYER}.mlp.gate",)


@pytest.mark.parametrize(
    ("entry", "is_on_it"),
    [
        ("mlp.gate", True),
        ("gate", True),
        ("model.layers.3.mlp.gate", True),
        ("model.layers.3.mlp.gate.weight", True),
        ("mlp.gate_proj", False),
        ("re:.*gate", True),
        ("re:gate", False),
        (r"re:.*mlp\.gate\..*", True),
        ("model.layers.4.mlp.gate", False),
    ],
)
def test_formats_name_a_module_in_different_ways(entry: str, is_on_it: bool):
    assert is_ignored(f"{LAYER}.mlp.gate", (entry,)) == is_on_it


def test_an_entry_covers_all_layers():
    assert pattern("model.layers.3.mlp.gate") == pattern("model.layers.40.mlp.gate") == r"re:.*mlp\.gate(\.weight)?$"
    assert pattern("lm_head") == "lm_head"
