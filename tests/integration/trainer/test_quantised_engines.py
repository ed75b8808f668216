"""Real engines with quantised weights: they get the learner's by every transport, verified, and compute with them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from rljob_api.sections import Quantization
from rljob_trainer.assembly.engine_weights import quantised
from rljob_trainer.engines.client import Continuation
from rljob_trainer.sync.rank.quantised.encoding import encoding
from support.trainer.fleet import PROMPT, Fleet, cpu_job, start_ray
from support.trainer.quantised_values import dequantised
from support.trainer.tiny_models import tiny

pytestmark = pytest.mark.timeout(900)

NAME, TOKENS = "engine-0", 48
RESPONSES = 6
"""so many that the mean hardly depends on which tokens are drawn: of one response it reached 0.2 nats"""
DENSE: dict[str, Any] = {
    "hidden_size": 192,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
}
SQUARE = DENSE | {"hidden_size": 256}
"""with heads as wide as SGLang takes them to be for some families, and as inputs of INT4 must be"""
LATENT: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 256,
    "moe_intermediate_size": 128,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
}
MODELS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": DENSE,
    "Qwen2ForCausalLM": SQUARE,
    "Glm4ForCausalLM": DENSE,
    "Gemma3ForCausalLM": DENSE | {"sliding_window": 512},
    "Qwen3MoeForCausalLM": {**DENSE, "moe_intermediate_size": 128},
    "MixtralForCausalLM": SQUARE,
    "Glm4MoeForCausalLM": {**DENSE, "moe_intermediate_size": 128},
    "DeepseekV3ForCausalLM": LATENT | {"q_lora_rank": 24},
    "DeepseekV3ForCausalLM, like Moonlight": LATENT | {"q_lora_rank": None, "qk_nope_head_dim": 56},
}
"""architectures, with sizes that blocks of 128 divide where they must"""
CASES = [
    *((name, Quantization.FP8, sizes) for name, sizes in MODELS.items()),
    *((name, Quantization.INT4, sizes | {"hidden_size": 256}) for name, sizes in MODELS.items()),
]
MEAN_LIMIT = {Quantization.FP8: 0.2, Quantization.INT4: 1.0}
TIED = ("Gemma3ForCausalLM",)
IN_CI = ("LlamaForCausalLM", "Qwen3MoeForCausalLM")
"""a dense one, whose scales SGLang loses by itself, and one with experts; `make soak` has all"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    start_ray()
    yield
    ray.shutdown()


def started(architecture: str, directory: Path, kind: Quantization, sizes: dict[str, Any]) -> Fleet:
    model = tiny(
        architecture.partition(",")[0], directory / "model", tied=architecture in TIED, dtype="bfloat16", **sizes
    )
    fleet = Fleet(model, directory, (NAME,), precision="bf16", quantization=kind)
    try:
        fleet.start()
    except BaseException:
        fleet.stop()
        raise
    return fleet


def logprobs(directory: Path, answers: list[Continuation]) -> torch.Tensor:
    """Return the log-probabilities that transformers finds for responses, one after the other, in bf16."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16, attn_implementation="eager")
    found = []
    for answer in answers:
        tokens = torch.tensor([[*PROMPT, *answer.tokens_T]])
        with torch.no_grad():
            every = model(tokens).logits[0, len(PROMPT) - 1 : -1].float().log_softmax(-1)
        found.append(every.gather(1, tokens[0, len(PROMPT) :, None])[:, 0])
    return torch.cat(found)


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("architecture", "kind", "sizes"),
    [pytest.param(*case, marks=() if case[0] in IN_CI else pytest.mark.long) for case in CASES],
)
def test_an_engine_holds_the_quantised_weights_and_computes_with_them(
    tmp_path: Path, architecture: str, kind: Quantization, sizes: dict[str, Any]
) -> None:
    fleet, noise = started(architecture, tmp_path, kind, sizes), torch.Generator().manual_seed(0)
    try:
        publications = [fleet.publish(1)]
        for transport in (fleet.disk, fleet.delta, fleet.delta):
            for tensor in fleet.learner.tensors.values():
                tensor.add_(0.02 * torch.randn(tensor.shape, generator=noise).to(tensor.dtype) * tensor.std())
            fleet.publisher.transport = transport
            publications.append(fleet.publish(len(publications) + 1))
        answers = fleet.generate(TOKENS, RESPONSES)
        published = fleet.learner.tensors
    finally:
        fleet.stop()
    assert [(publication.engines, publication.failed) for publication in publications] == [((NAME,), {})] * 4
    assert list(tmp_path.glob("deltas/delta-*")), "the second of two offers was a delta"

    directory = tmp_path / "model"
    save_file(published, directory / "model.safetensors", {"format": "pt"})
    engine = torch.cat([torch.tensor(answer.logprobs_T) for answer in answers])
    learner = logprobs(directory, answers)
    made = encoding(quantised(cpu_job(directory, "bf16", kind).spec, directory)).tensors(published.items())
    save_file(dequantised(made), directory / "model.safetensors", {"format": "pt"})
    expanded = logprobs(directory, answers)
    against_expanded, against_learner = (engine - expanded).abs().mean(), (engine - learner).abs().mean()
    print(
        f"{architecture} {kind}: {against_expanded:.4f} against its own weights, {against_learner:.4f} against others"
    )
    assert against_expanded < against_learner < MEAN_LIMIT[kind]


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        (Quantization.FP8, ("weight_scale_inv", "weight")),
        pytest.param(Quantization.INT4, ("weight_scale", "weight_packed"), marks=pytest.mark.long),
    ],
)
def test_an_engine_with_another_scale_or_weight_is_refused_and_the_tensor_named(
    tmp_path: Path, kind: Quantization, parts: tuple[str, str]
) -> None:
    fleet = started("LlamaForCausalLM", tmp_path, kind, SQUARE)
    name = "model.layers.1.self_attn.k_proj.weight"
    try:
        # The scale changes and no weight does, then one weight and no scale.
        fleet.learner.damage = lambda tensors: {**tensors, name: tensors[name] * 2}
        scale = fleet.publish(1).failed[NAME]
        fleet.learner.damage = dict  # an engine that returns gets the weights of this version
        fleet.heal()
        fleet.learner.damage = lambda tensors: {**tensors, name: changed(tensors[name])}
        weight = fleet.publish(2).failed[NAME]
    finally:
        fleet.stop()
    for said, part in zip((scale, weight), parts, strict=True):
        assert said.endswith(f": 1 of 23 tensors differ from the learner's: model.layers.1.self_attn.qkv_proj.{part}")


def changed(weight: torch.Tensor) -> torch.Tensor:
    """Return a matrix with another number, which is not the largest of its group or block."""
    new, half = weight.clone(), 0.5 * weight[0, :32].abs().max()
    new[0, 0] = half if weight[0, 0] < 0 else -half
    return new
