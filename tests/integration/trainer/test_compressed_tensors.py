"""The list of what a quantiser leaves alone means to compressed-tensors what it means to us."""

import pytest
import torch
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config, preset_name_to_scheme
from torch import nn

from rljob_trainer.preflight.quantisation import Quantisation, quantisation

WIDTH = 128
ROUTERS = tuple(f"model.layers.{layer}.mlp.gate" for layer in range(2))


class Mixture(nn.Module):
    """The modules of a mixture of experts, with a router that is a linear layer, as in many models."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(256, WIDTH)
        self.model.layers = nn.ModuleList(self._layer() for _ in range(2))
        self.lm_head = nn.Linear(WIDTH, 256, bias=False)

    @staticmethod
    def _layer() -> nn.Module:
        layer = nn.Module()
        layer.self_attn, layer.mlp, expert = nn.Module(), nn.Module(), nn.Module()
        layer.self_attn.q_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        layer.mlp.gate = nn.Linear(WIDTH, 4, bias=False)
        expert.gate_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        layer.mlp.experts = nn.ModuleList([expert])
        layer.norm = nn.LayerNorm(WIDTH)
        return layer


def shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def quantised(preset: str, ignore: list[str]) -> Quantisation:
    """Return what we say of a checkpoint that compressed-tensors has made with this list."""
    model = Mixture().to(torch.bfloat16)
    config = QuantizationConfig(config_groups={"group_0": preset_name_to_scheme(preset, ["Linear"])}, ignore=ignore)
    apply_quantization_config(model, config)
    compressor = ModelCompressor.from_pretrained_model(model)
    assert compressor is not None
    compressor.compress_model(model)
    return quantisation({"quantization_config": config.model_dump(mode="json")}, shapes(model))


each_preset = pytest.mark.parametrize("preset", ["W4A16", "FP8_DYNAMIC", "W8A8"])


@each_preset
def test_what_we_suggest_keeps_routers_and_embeddings_as_they_are(preset: str):
    plain = quantisation({}, shapes(Mixture()))
    assert plain.plain == ("lm_head", "model.embed_tokens", *ROUTERS)
    suggested = [*plain.plain[:2], r"re:.*mlp\.gate(\.weight)?$"]
    found = quantised(preset, suggested)
    assert (found.method, found.plain, found.unlisted, found.wrong) == ("compressed-tensors", plain.plain, (), ())


@each_preset
def test_a_list_without_the_routers_quantises_them_and_we_name_them(preset: str):
    found = quantised(preset, ["lm_head"])
    assert (found.wrong, found.unlisted) == (ROUTERS, ("model.embed_tokens",))
    assert r"re:.*mlp\.gate(\.weight)?$" in found.suggestion
    assert quantised(preset, [*found.ignore, *found.suggestion]).wrong == ()
