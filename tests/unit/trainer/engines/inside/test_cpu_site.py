"""What engines on CPU compute in their own way is what PyTorch would."""

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import Glm4MoeConfig
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeMoE

from support.trainer.engine_plugins import imported

DRAWS = 200_000


@pytest.fixture
def matrices() -> Iterator[Any]:
    with imported("rljob_sglang_matrices") as plugin:
        yield plugin


@pytest.fixture
def experts() -> Iterator[Any]:
    with imported("rljob_sglang_experts") as plugin:
        yield plugin


@pytest.mark.parametrize("renormalize", [True, False])
def test_tokens_go_to_their_most_probable_experts(experts: Any, renormalize: bool) -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0, -1.0]], dtype=torch.bfloat16)
    weights, chosen = experts.chosen(torch.zeros(1, 8), logits, 2, renormalize)
    probable = torch.tensor([2.0, 1.0]).exp() / logits.float().exp().sum()
    assert chosen.tolist() == [[1, 2]] and chosen.dtype == torch.int32
    torch.testing.assert_close(weights[0], probable / probable.sum() if renormalize else probable)


@pytest.mark.parametrize("other", [{"scoring_func": "sigmoid"}, {"correction_bias": torch.zeros(4)}])
def test_another_way_of_choosing_experts_is_refused(experts: Any, other: dict[str, Any]) -> None:
    with pytest.raises(NotImplementedError, match="by softmax on CPU"):
        experts.chosen(torch.zeros(1, 8), torch.zeros(1, 4), 2, True, **other)


@pytest.mark.parametrize("renormalize", [True, False])
def test_experts_of_the_best_groups_are_chosen_with_a_bias_and_weighed_without(experts: Any, renormalize: bool) -> None:
    config = Glm4MoeConfig(
        hidden_size=8, n_routed_experts=16, n_group=4, topk_group=2, num_experts_per_tok=3, moe_intermediate_size=8,
        norm_topk_prob=renormalize,
    )  # fmt: skip
    theirs = Glm4MoeMoE(config)
    bias = theirs.gate.e_score_correction_bias.copy_(torch.randn(16))
    logits = torch.randn(40, 16)
    weights, chosen = experts.chosen_in_groups(torch.zeros(40, 8), logits, bias, 3, renormalize, 4, 2)
    wanted, parts = theirs.route_tokens_to_experts(logits)
    assert chosen.dtype == torch.int32
    torch.testing.assert_close(
        torch.zeros(40, 16).scatter(1, chosen.long(), weights), torch.zeros(40, 16).scatter(1, wanted, parts)
    )


@pytest.fixture
def routers() -> Iterator[Any]:
    with imported("rljob_sglang_routers") as plugin:
        yield plugin


def test_a_router_scores_with_the_weight_that_it_has_now(routers: Any) -> None:
    class Glm4MoeGate(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(4, 8, dtype=torch.bfloat16))

        def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
            raise AssertionError("SGLang's own keeps a copy")

    model = torch.nn.ModuleList([torch.nn.Identity(), Glm4MoeGate()])
    routers.without_copies(model, "config", load_config=None)
    hidden = torch.randn(3, 8, dtype=torch.bfloat16)
    for _ in range(2):
        with torch.no_grad():
            model[1].weight.normal_()
        logits = model[1](hidden)
        assert logits.dtype == torch.float32
        torch.testing.assert_close(logits, hidden.float() @ model[1].weight.float().T)
    assert torch.equal(model[0](hidden), hidden)


@pytest.mark.parametrize("of_queries", [True, False])
def test_norms_of_latents_have_their_own_epsilon_and_others_that_of_the_model(routers: Any, of_queries: bool) -> None:
    class Norm(torch.nn.Module):
        variance_epsilon = 1e-5

    class DeepseekV2AttentionMLA(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kv_a_layernorm = Norm()
            if of_queries:
                self.q_a_layernorm = Norm()

    layer = torch.nn.ModuleDict({"input_layernorm": Norm(), "self_attn": DeepseekV2AttentionMLA()})
    routers.with_own_epsilon(layer, "config", load_config=None)
    found = {name: module.variance_epsilon for name, module in layer.named_modules() if isinstance(module, Norm)}
    own = {f"self_attn.{name}": 1e-6 for name in ("kv_a_layernorm", "q_a_layernorm")[: 1 + of_queries]}
    assert found == {"input_layernorm": 1e-5, **own}


def test_sglang_still_has_what_the_plugin_changes_of_latent_attention(routers: Any) -> None:
    source = (sglang() / "srt" / "models" / "deepseek_v2.py").read_text()
    assert f"class {routers.LATENT}(" in source
    for name in routers.NORMS:
        assert re.search(rf"self\.{name} = RMSNorm\(self\.\w+, eps=config\.rms_norm_eps\)", source)
    norm = (sglang() / "srt" / "layers" / "layernorm.py").read_text()
    assert "self.variance_epsilon = eps" in norm


def test_an_update_of_weights_still_makes_the_copies_behind_the_latents_again() -> None:
    """Engines attend by `w_kc` and `w_vc`, which no check of weights sees."""
    loader = (sglang() / "srt" / "models" / "deepseek_common" / "deepseek_weight_loader.py").read_text()
    _, load = loader.split("def do_load_weights(")
    load, made = load.split("def post_load_weights(")
    assert "self.post_load_weights(is_nextn=is_nextn, weight_names=weight_names)" in load
    assert "cached_a_proj = {} if fuse_qkv_a_proj else None" in load, "joined within one call: see buckets()"
    assert "self_attn.w_vc = bind_or_assign(self_attn.w_vc, w_vc)" in made


@pytest.fixture
def latent() -> Iterator[Any]:
    with imported("rljob_sglang_latent") as plugin:
        yield plugin


def test_prompts_attend_to_latents_on_a_cpu(latent: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    handlers: dict[str, Any] = {}
    registry = SimpleNamespace(register=handlers.__setitem__)
    common = "sglang.srt.models.deepseek_common."
    handler = ModuleType(common + "attention_backend_handler")
    methods = ModuleType(common + "attention_forward_methods.forward_methods")
    handler.AttentionBackendRegistry, methods.AttnForwardMethod = registry, SimpleNamespace(MLA="latents")  # type: ignore[attr-defined]
    for module in (handler, methods):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    latent.prompts_attend_to_latents("model", "config", load_config=None)
    assert {name: handle("attention", "batch") for name, handle in handlers.items()} == {"torch_native": "latents"}


def test_angles_on_a_cpu_are_those_of_other_devices(latent: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    factory = ModuleType("sglang.srt.layers.rotary_embedding.factory")
    factory.get_rope = lambda *given: given  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, factory.__name__, factory)
    asked = (8, 8, 1024, 1e4, False, None, None, 1.0)
    assert latent.angles(*asked, "cpu") == asked


def test_sglang_still_has_what_the_cpu_plugin_changes_of_latent_attention() -> None:
    models = sglang() / "srt" / "models" / "deepseek_common"
    source = (models / "attention_backend_handler.py").read_text()
    assert 'cls._handlers.get(backend_name, cls._handlers.get("triton"))' in source
    assert 'register("torch_native"' not in source
    rope = (sglang() / "srt" / "layers" / "rotary_embedding" / "factory.py").read_text()
    assert "Only deepseek_yarn is supported for CPU for now" in rope
    assert re.search(r"return get_rope_cpu\(\s+head_size,[^)]+partial_rotary_factor,\s+device,\s+\)", rope)


def sglang() -> Path:
    """Return SGLang's directory; to import it takes seconds."""
    spec = importlib.util.find_spec("sglang")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def test_sglang_still_has_what_the_plugin_changes(routers: Any) -> None:
    models, made = sglang() / "srt" / "models", routers.MADE.removeprefix("sglang.").split(".")
    assert f"def {made[-1]}(" in (sglang().joinpath(*made[:-1]).with_suffix(".py")).read_text()
    assert f"class {routers.GATE}(" in (source := (models / "glm4_moe.py").read_text())
    assert "self._weight_fp32 = self.weight.data.to(torch.float32)" in source


def not_asked(*_: object, **__: object) -> torch.Tensor:
    raise AssertionError("SGLang's own is not needed")


@pytest.mark.parametrize("shape", [(1, 600), (7, 600), (2, 3, 600), (0, 600)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_linear_layers(matrices: Any, shape: tuple[int, ...], with_bias: bool) -> None:
    x, weight, bias = torch.randn(shape), torch.randn(500, 600), torch.randn(500) if with_bias else None
    made = matrices.linear(not_asked, None, SimpleNamespace(weight=weight), x, bias=bias)
    torch.testing.assert_close(made, torch.nn.functional.linear(x, weight, bias), rtol=1e-5, atol=1e-4)


def test_rows_that_are_part_of_a_wider_matrix(matrices: Any) -> None:
    x, weight = torch.randn(8, 48)[:, 24:], torch.randn(10, 24)
    torch.testing.assert_close(matrices.product(x, weight), x @ weight.T)


@pytest.mark.parametrize(("inner", "dtype"), [(3000, torch.bfloat16), (30, torch.float32)])
def test_other_precisions_and_small_matrices_are_left_to_sglang(matrices: Any, inner: int, dtype: torch.dtype) -> None:
    x, weight = torch.randn(2, 100, dtype=dtype), torch.randn(inner, 100, dtype=dtype)
    asked: list[object] = []
    layer = SimpleNamespace(weight=weight)
    matrices.linear(lambda *given: asked.append(given), None, layer, x, None)
    matrices.logits(lambda *given: asked.append(given), None, x, layer, None)
    assert len(asked) == 2


def test_logits(matrices: Any) -> None:
    hidden, weight = torch.randn(5, 100), torch.randn(3000, 100)
    made = matrices.logits(not_asked, None, hidden, SimpleNamespace(weight=weight), None)
    torch.testing.assert_close(made, hidden @ weight.T, rtol=1e-5, atol=1e-4)


def test_words_are_sampled_as_often_as_they_are_probable(matrices: Any) -> None:
    probs = torch.softmax(torch.randn(30, generator=torch.Generator().manual_seed(0)) * 2, -1)
    probs[[0, 7, 29]] = 0
    probs /= probs.sum()
    words = matrices.sample(not_asked, probs.expand(DRAWS, 30), sampling_seed=None, positions=torch.zeros(DRAWS))
    assert words.dtype == torch.int32
    shares = torch.bincount(words.long(), minlength=30) / DRAWS
    assert not shares[[0, 7, 29]].any()
    errors = (probs * (1 - probs) / DRAWS).sqrt()
    assert ((shares - probs).abs() <= 5 * errors).all()


def test_a_sequence_with_a_seed_is_left_to_sglang(matrices: Any) -> None:
    asked: list[object] = []
    seed = torch.tensor([1])
    matrices.sample(lambda *given: asked.append(given), torch.ones(1, 4) / 4, sampling_seed=seed, positions=None)
    assert len(asked) == 1


@pytest.fixture
def quantised() -> Iterator[Any]:
    with imported("rljob_sglang_quantised") as plugin:
        yield plugin


class Scale(torch.nn.Parameter):
    """A parameter of SGLang, which notes what is loaded into it."""

    loaded: list[tuple[Any, ...]]

    def weight_loader(self, parameter: torch.nn.Parameter, *given: Any) -> None:
        assert parameter is self
        self.loaded.append(given)


def test_what_is_derived_from_a_llama_loads_scales_by_itself_and_sglang_all_else(quantised: Any) -> None:
    class LlamaForCausalLM(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left: list[str] = []
            self.x = torch.nn.Module()
            self.x.o_proj = torch.nn.Module()
            self.x.o_proj.weight_scale_inv = Scale(torch.zeros(1))
            self.x.o_proj.weight_scale_inv.loaded = []

        def load_weights(self, weights: Any) -> None:
            self.left += [name for name, _ in weights]

    class MistralForCausalLM(LlamaForCausalLM):
        pass

    model = MistralForCausalLM()
    quantised.with_scales(model, "config", load_config=None)
    given = {"x.o_proj.weight": torch.ones(1), "x.o_proj.weight_scale_inv": torch.ones(1)}
    model.load_weights(given.items())
    assert model.left == ["x.o_proj.weight"]
    assert len(model.x.o_proj.weight_scale_inv.loaded) == 1


def test_scales_go_to_their_part_of_the_fused_layer(quantised: Any) -> None:
    layers = ("qkv_proj", "gate_up_proj", "o_proj")
    parameters = {f"x.{layer}.weight_scale_inv": Scale(torch.zeros(1)) for layer in layers}
    for parameter in parameters.values():
        parameter.loaded = []
    names = [f"x.{name}.weight_scale_inv" for name in ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "o_proj")]
    given = {name: torch.tensor(float(place)) for place, name in enumerate(names)}
    others = {"x.q_proj.weight": torch.ones(1), "x.unknown.weight_scale_inv": torch.ones(1)}
    left = quantised.without_scales(parameters, [*given.items(), *others.items()])
    assert [name for name, _ in left] == list(others)
    loaded = {name: [(float(each[0]), *each[1:]) for each in found.loaded] for name, found in parameters.items()}
    assert loaded == {
        "x.qkv_proj.weight_scale_inv": [(0.0, "q"), (1.0, "k"), (2.0, "v")],
        "x.gate_up_proj.weight_scale_inv": [(3.0, 0), (4.0, 1)],
        "x.o_proj.weight_scale_inv": [(5.0,)],
    }


def test_another_model_loads_as_sglang_does(quantised: Any) -> None:
    model = torch.nn.Linear(1, 1)
    quantised.with_scales(model)
    assert not hasattr(model, "load_weights")


def test_every_tensor_is_hashed_by_itself(quantised: Any) -> None:
    assert quantised.read_in_another_way(torch.nn.Linear(1, 1)) == {}


def test_sglang_still_needs_what_the_plugin_for_fp8_changes() -> None:
    spec = importlib.util.find_spec("sglang")
    assert spec is not None and spec.origin is not None
    srt = Path(spec.origin).parent / "srt"
    assert "def _build_quantized_set(model)" in (checker := (srt / "utils" / "weight_checker.py").read_text())
    assert "_hash_tensor(comparable.dequantize().data)" in checker
    assert 'name = name.replace(".weight_scale_inv", ".weight_scale")' in (srt / "models" / "llama.py").read_text()
    fp8 = (srt / "layers" / "quantization" / "fp8.py").read_text()
    assert fp8.count("def process_weights_after_loading_block_quant(self, layer: Module)") == 2
    assert "requires that CPU has AMX support" in fp8
