"""Matrices in INT4 between loads: in the order of Marlin's kernels, loaded again in parts, and read as published."""

import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rljob_trainer.sync.rank.quantised import int4
from support.trainer.engine_plugins import imported
from support.trainer.quantised_values import unpacked

INPUTS, OUTPUTS, EXPERTS = 256, 128, 3
LAYERS = 2
Tensors = dict[str, torch.Tensor]


@pytest.fixture
def packed() -> Iterator[Any]:
    with imported("rljob_sglang_packed") as plugin:
        yield plugin


class Loaded(torch.nn.Parameter):
    """A parameter with the loader that SGLang's have, and lose when they are replaced."""

    def weight_loader(self, tensor: torch.Tensor, *place: Any) -> None:
        self.data[place or ...].copy_(tensor)


def parameter(*shape: int, dtype: torch.dtype) -> Loaded:
    return Loaded(torch.zeros(shape, dtype=dtype), requires_grad=False)


class Linear(torch.nn.Module):
    """A linear layer with words and scales as SGLang makes them, and a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.weight_packed = parameter(OUTPUTS, INPUTS // 8, dtype=torch.int32)
        self.weight_scale = parameter(OUTPUTS, INPUTS // 32, dtype=torch.bfloat16)
        self.weight_shape = parameter(2, dtype=torch.int64)
        self.bias = parameter(OUTPUTS, dtype=torch.bfloat16)


class Experts(torch.nn.Module):
    """Experts as SGLang makes them: inputs before outputs."""

    def __init__(self) -> None:
        super().__init__()
        for beginning in ("w13", "w2"):
            words = parameter(EXPERTS, INPUTS // 8, OUTPUTS, dtype=torch.int32)
            self.register_parameter(f"{beginning}_weight_packed", words)
            scale = parameter(EXPERTS, INPUTS // 32, OUTPUTS, dtype=torch.bfloat16)
            self.register_parameter(f"{beginning}_weight_scale", scale)
            self.register_parameter(f"{beginning}_weight_shape", parameter(EXPERTS, 2, dtype=torch.float32))


class Model(torch.nn.Module):
    """A model that loads as SGLang's do: parameters are found by their names before the first tensor comes."""

    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Module()
        self.model.layers = torch.nn.ModuleList(
            torch.nn.ModuleDict({"o_proj": Linear(), "experts": Experts()}) for _ in range(LAYERS)
        )
        self.schemes = {id(layer): SimpleNamespace() for layer in self.model.layers}

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        parameters = dict(self.named_parameters())
        for name, tensor in weights:
            expert = re.fullmatch(r"(.*\.experts)\.(\d+)\.(\w+)\.(\w+)", name)
            if expert:
                found = parameters[f"{expert[1]}.{expert[3]}_{expert[4]}"]
                found.weight_loader(tensor.t(), int(expert[2]))  # type: ignore[attr-defined]
            else:
                parameters[name].weight_loader(tensor)  # type: ignore[attr-defined]


def started(packed: Any) -> Model:
    """Return a model as an engine has it after its start."""
    model = Model()
    packed.can_be_loaded_again(model, "config", load_config=None)
    process(packed, model)
    return model


def process(packed: Any, model: Model) -> None:
    """Do what SGLang does after each load of files."""
    for layer in model.model.layers:
        packed.linear_loaded(model.schemes[id(layer)], layer["o_proj"])
        packed.experts_loaded(model.schemes[id(layer)], layer["experts"])


def published(seed: int) -> Tensors:
    """Return what a learner publishes."""
    generator, found = torch.Generator().manual_seed(seed), dict[str, torch.Tensor]()
    modules = ["o_proj", *(f"experts.{expert}.{name}" for expert in range(EXPERTS) for name in ("w13", "w2"))]
    for module in (f"model.layers.{layer}.{each}" for layer in range(LAYERS) for each in modules):
        weight = torch.randn(OUTPUTS, INPUTS, generator=generator).bfloat16()
        parts = zip(("packed", "scale", "shape"), int4.parts(module, weight), strict=True)
        found |= {f"{module}.weight_{name}": part for name, part in parts}
    return found


def held(packed: Any, model: Model) -> Tensors:
    """Return what a check of weights sees, by SGLang's way to ask for it."""
    raw, other = dict(model.named_parameters()), dict(packed.as_published(model))
    unread = {read.scale_name for read in other.values()} | {
        name for name, tensor in raw.items() if getattr(tensor, "_skip_weight_check", False)
    }
    return {
        name: other[name].comparable_cls(tensor, raw[other[name].scale_name]).dequantize().data
        if name in other
        else tensor
        for name, tensor in raw.items()
        if name not in unread
    }


def wanted(given: Tensors) -> Tensors:
    """Return what it must see: matrices of experts joined, and no shapes."""
    found = dict[str, torch.Tensor]()
    for layer in range(LAYERS):
        for part in ("packed", "scale"):
            name = f"model.layers.{layer}"
            found[f"{name}.o_proj.weight_{part}"] = given[f"{name}.o_proj.weight_{part}"]
            for own in ("w13", "w2"):
                of_experts = [given[f"{name}.experts.{expert}.{own}.weight_{part}"] for expert in range(EXPERTS)]
                found[f"{name}.experts.{own}_weight_{part}"] = torch.stack(of_experts)
        found[f"{name}.o_proj.bias"] = torch.zeros(OUTPUTS, dtype=torch.bfloat16)
    return found


def unequal(held: Tensors, wanted: Tensors) -> list[str]:
    assert held.keys() == wanted.keys()
    return [name for name, tensor in held.items() if not torch.equal(tensor, wanted[name])]


def addresses(model: Model) -> dict[str, int]:
    return {name: tensor.data_ptr() for name, tensor in model.named_parameters()}


def as_list(given: Tensors) -> list[tuple[str, torch.Tensor]]:
    return list(given.items())


def as_they_come(given: Tensors) -> Iterator[tuple[str, torch.Tensor]]:
    yield from given.items()


@pytest.mark.parametrize("way", [as_list, as_they_come])
def test_a_model_is_loaded_again_and_again_at_the_same_addresses(
    packed: Any, way: Callable[[Tensors], Iterable[tuple[str, torch.Tensor]]]
) -> None:
    model = started(packed)
    before = addresses(model)
    for version in range(3):
        model.load_weights(way(published(version)))
        process(packed, model)
        assert unequal(held(packed, model), wanted(published(version))) == []
    assert addresses(model) == before


def test_buckets_may_cut_layers_anywhere(packed: Any) -> None:
    model = started(packed)
    for version in range(2):
        tensors = as_list(published(version))
        for first in range(0, len(tensors), 7):
            model.load_weights(tensors[first : first + 7])
        assert unequal(held(packed, model), wanted(published(version))) == []


def test_only_the_layers_of_a_bucket_are_opened(packed: Any) -> None:
    model = started(packed)
    tensors = [each for each in as_list(published(0)) if each[0].startswith("model.layers.1.")]
    first, second = ([each["o_proj"].rljob_matrices, each["experts"].rljob_matrices] for each in model.model.layers)
    assert packed.of_these(model, tensors) == second
    assert packed.of_these(model, iter(tensors)) == [*first, *second]
    assert packed.of_these(model, [("model.embed_tokens.weight", torch.ones(1))]) == []


def test_a_tensor_that_does_not_come_is_stale_and_is_named(packed: Any) -> None:
    model = started(packed)
    model.load_weights(as_list(published(0)))
    lost = ["model.layers.1.o_proj.weight_scale", "model.layers.0.experts.2.w2.weight_packed"]
    model.load_weights([each for each in as_list(published(1)) if each[0] not in lost])
    assert unequal(held(packed, model), wanted(published(1))) == [
        *("model.layers.0.experts.w2_weight_packed", "model.layers.1.o_proj.weight_scale")
    ]


def test_damage_of_what_kernels_read_is_seen(packed: Any) -> None:
    model = started(packed)
    model.load_weights(as_list(published(0)))
    model.model.layers[0]["o_proj"].weight_packed.data[0, 0] ^= 1 << 20
    model.model.layers[1]["experts"].w13_weight_scale.data[2, 0, 0] *= 2
    assert unequal(held(packed, model), wanted(published(0))) == [
        *("model.layers.0.o_proj.weight_packed", "model.layers.1.experts.w13_weight_scale")
    ]


def test_to_open_a_layer_twice_is_to_open_it_once(packed: Any) -> None:
    model = started(packed)
    model.load_weights(as_list(published(0)))
    matrices = model.model.layers[0]["o_proj"].rljob_matrices
    for step in (matrices.open, matrices.open, matrices.close, matrices.close):
        step()
    assert unequal(held(packed, model), wanted(published(0))) == []


def test_shapes_are_not_loaded(packed: Any) -> None:
    model = started(packed)
    model.load_weights(as_list(published(0)))
    assert not model.model.layers[0]["o_proj"].weight_shape.any()


def test_layers_are_closed_again_when_a_load_fails(packed: Any) -> None:
    model = started(packed)
    model.load_weights(as_list(published(0)))
    with pytest.raises(KeyError, match="unknown"):
        model.load_weights([*as_list(published(1))[:1], ("model.layers.0.unknown.weight", torch.ones(1))])
    assert model.model.layers[0]["o_proj"].rljob_matrices.closed
    assert unequal(held(packed, model), wanted(published(0))) == ["model.layers.0.o_proj.weight_packed"]


def test_between_loads_kernels_find_plain_parameters_of_their_shapes_and_locks_of_zeros(packed: Any) -> None:
    model = started(packed)
    layer = model.model.layers[0]
    scheme, linear, experts = model.schemes[id(layer)], layer["o_proj"], layer["experts"]
    assert (scheme.w_q_name, scheme.w_s_name, scheme.is_k_full) == ("weight_packed", "weight_scale", True)
    names = (scheme.w_zp_name, scheme.w_gidx_name, "g_idx_sort_indices")
    assert [getattr(linear, name).numel() for name in names] == [0, 0, 0]
    assert {type(each) for each in linear.parameters()} == {torch.nn.Parameter, Loaded}
    assert type(linear.weight_packed) is type(experts.w2_weight_scale) is torch.nn.Parameter
    assert linear.weight_packed.shape == (INPUTS // 16, OUTPUTS * 2)
    assert linear.weight_scale.shape == (INPUTS // 32, OUTPUTS)
    assert experts.w13_weight_packed.shape == (EXPERTS, INPUTS // 16, OUTPUTS * 2)
    assert experts.w13_weight_scale.shape == (EXPERTS, INPUTS // 32, OUTPUTS)
    assert experts.w13_weight_g_idx.shape == (EXPERTS, 0) and experts.is_marlin_converted

    linear.rljob_matrices._locks = locks = torch.ones(4)
    model.load_weights(as_list(published(0)))
    assert not locks.any(), "memory that an engine has given back comes back with other numbers"


def test_a_linear_layer_has_a_weight_of_words_while_its_model_is_made(packed: Any) -> None:
    model = Model()
    linear = model.model.layers[0]["o_proj"]
    packed.with_a_weight(None, SimpleNamespace(), layer=linear, output_size=OUTPUTS)
    assert linear.weight.dtype == torch.int32
    assert "model.layers.0.o_proj.weight" not in dict(model.named_parameters())
    packed.can_be_loaded_again(model)
    assert not hasattr(linear, "weight")


def test_a_model_without_such_layers_loads_as_sglang_does(packed: Any) -> None:
    model = torch.nn.Linear(1, 1)
    packed.can_be_loaded_again(model)
    assert not hasattr(model, "load_weights")


def test_many_experts_are_laid_out_a_few_at_a_time(packed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    words = torch.randint(-(2**31), 2**31 - 1, (5, 32, 64), dtype=torch.int32)
    whole = packed.marlin(words)
    seen: list[int] = []

    def counted(some: torch.Tensor) -> torch.Tensor:
        seen.append(len(some))
        return packed.marlin(some)

    monkeypatch.setattr(packed, "EXPERTS_AT_ONCE", 2)
    assert torch.equal(packed.chunked(counted, words), whole) and seen == [2, 2, 1]


@pytest.fixture
def on_cpu(packed: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    native = SimpleNamespace(moe_forward_native=lambda plain, x, topk, settings: (plain, x, topk, settings))
    for name, module in {
        "sglang.srt.layers.moe.fused_moe_native": native,
        "sglang.srt.layers.moe.token_dispatcher": SimpleNamespace(StandardCombineInput=SimpleNamespace),
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    with imported("rljob_sglang_int4") as plugin:
        yield plugin


def test_a_cpu_multiplies_by_the_weights_that_the_words_stand_for(packed: Any, on_cpu: Any) -> None:
    model, given = started(packed), published(0)
    model.load_weights(as_list(given))

    def stands_for(module: str) -> torch.Tensor:
        return unpacked(*(given[f"{module}.weight_{part}"] for part in ("packed", "scale", "shape")))

    layer, x, bias = model.model.layers[1], torch.randn(5, INPUTS), torch.randn(OUTPUTS)
    done = on_cpu.linear(None, layer["o_proj"], x, bias)
    torch.testing.assert_close(done, x @ stands_for("model.layers.1.o_proj").T + bias)

    layer["experts"].num_experts = EXPERTS
    dispatched = SimpleNamespace(hidden_states=x, topk_output="chosen")
    made = on_cpu.experts(SimpleNamespace(moe_runner_config="settings"), layer["experts"], dispatched)
    plain, *others = made.hidden_states
    assert others == [x, "chosen", "settings"] and plain.num_experts == EXPERTS
    for expert in range(EXPERTS):
        for name in ("w13", "w2"):
            found = getattr(plain, f"{name}_weight")[expert]
            assert torch.equal(found, stands_for(f"model.layers.1.experts.{expert}.{name}"))
    assert on_cpu.is_supported(None, 80) is True


def test_sglang_still_has_what_the_plugin_changes(packed: Any) -> None:
    spec = importlib.util.find_spec("sglang")
    assert spec is not None and spec.origin is not None
    srt = Path(spec.origin).parent / "srt"
    for place in (packed.LINEAR, packed.EXPERTS):
        module, _, kind = place.removeprefix("sglang.srt.").rpartition(".")
        source = (srt / f"{module.replace('.', '/')}.py").read_text()
        _, found = source.split(f"class {kind}(")
        assert "def process_weights_after_loading(self, layer: torch.nn.Module) -> None:" in found
        assert "restore_weights_before_loading" in found or kind == "CompressedTensorsWNA16"
    glm = (srt / "models" / "glm4_moe.py").read_text()
    assert "self.shared_experts.gate_up_proj.weight.dtype == torch.int8" in glm
    linear = (srt / "layers" / "quantization" / "compressed_tensors" / "compressed_tensors.py").read_text()
    assert "layer.scheme.create_weights(\n            layer=layer,\n" in linear
    assert all(f"{name}" in found for name in packed.INDICES)
    for room in ("model_executor", "model_loader", "managers"):
        callers = [path for path in (srt / room).rglob("*.py") if "restore_weights_before" in path.read_text()]
        assert callers == [], "nobody asks for it"
    checker = (srt / "utils" / "weight_checker.py").read_text()
    assert "yield CheckEntry(name, True, qw.comparable_cls(tensor, raw[qw.scale_name]))" in checker
    assert 'if getattr(param, "_skip_weight_check", False)' in checker
