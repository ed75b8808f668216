"""A real engine of every family holds the learner's weights, and says the log-probabilities of Hugging Face's model."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from rljob_api.sizing.families import FAMILIES
from rljob_api.sizing.tensors import ROUTER_BIAS
from support.trainer.fleet import PROMPT, Fleet, start_ray
from support.trainer.tiny_models import VARIANTS, tiny

pytestmark = pytest.mark.timeout(900)

NAME, TOKENS = "engine-0", 48
ENOUGH = ("llama, rope llama3", "glm4, no bias", "glm4_moe, one group", "gemma3, linear")
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    **{architecture: (architecture, {}) for architecture in FAMILIES},
    **{name: VARIANTS[name] for name in ENOUGH},
    **{name: variant for name, variant in VARIANTS.items() if name.startswith("deepseek_v3")},
    "deepseek_v3, with a layer that is not trained": ("DeepseekV3ForCausalLM", {"num_nextn_predict_layers": 1}),
    "glm4_moe, with a layer that is not trained": ("Glm4MoeForCausalLM", {"num_nextn_predict_layers": 1}),
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    start_ray()
    yield
    ray.shutdown()


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("name", MODELS)
def test_an_engine_holds_the_learners_weights_and_agrees_with_hugging_face(tmp_path: Path, name: str) -> None:
    architecture, changes = MODELS[name]
    directory = tiny(architecture, tmp_path / "model", tied=False, **changes)
    fleet = Fleet(directory, tmp_path, (NAME,))
    try:
        fleet.start()
        publication = fleet.publish(1)
        (answer,) = fleet.generate(TOKENS)
    finally:
        fleet.stop()
    assert (set(publication.engines), publication.failed) == ({NAME}, {})

    ours, theirs = torch.tensor(answer.logprobs_T), hugging_face(directory, answer.tokens_T)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.usefixtures("cluster")
def test_an_engine_chooses_experts_by_the_weights_that_were_published_last(tmp_path: Path) -> None:
    directory = tiny("Glm4MoeForCausalLM", tmp_path / "model", dtype="bfloat16")
    fleet = Fleet(directory, tmp_path, (NAME,), precision="bf16")
    try:
        fleet.start()
        fleet.generate(1)  # SGLang copies the weights of its routers now
        for name, tensor in fleet.learner.tensors.items():
            tensor.mul_(-1 if name.endswith("mlp.gate.weight") else 1)
        fleet.publish(1)
        (answer,) = fleet.generate(TOKENS)
        published = fleet.learner.tensors
    finally:
        fleet.stop()
    ours, before = torch.tensor(answer.logprobs_T), hugging_face(directory, answer.tokens_T)
    save_file(published, directory / "model.safetensors", {"format": "pt"})
    after = hugging_face(directory, answer.tokens_T)
    assert (ours - after).abs().mean() < 0.05 < 0.2 < (ours - before).abs().mean()


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("architecture", ["Glm4MoeForCausalLM", "DeepseekV3ForCausalLM"])
def test_an_engine_chooses_experts_by_the_bias_that_was_published_last(tmp_path: Path, architecture: str) -> None:
    """With `training.experts.biasUpdateRate` it changes in each step."""
    directory = tiny(architecture, tmp_path / "model")
    fleet = Fleet(directory, tmp_path, (NAME,))
    try:
        fleet.start()
        fleet.generate(1)
        for name, tensor in fleet.learner.tensors.items():
            tensor.add_(torch.linspace(-1, 1, len(tensor)) if name.endswith(ROUTER_BIAS) else 0)
        publication = fleet.publish(1)
        (answer,) = fleet.generate(TOKENS)
        published = fleet.learner.tensors
    finally:
        fleet.stop()
    assert publication.failed == {}
    ours, before = torch.tensor(answer.logprobs_T), hugging_face(directory, answer.tokens_T)
    save_file(published, directory / "model.safetensors", {"format": "pt"})
    torch.testing.assert_close(ours, hugging_face(directory, answer.tokens_T), rtol=0, atol=1e-5)
    assert (ours - before).abs().max() > 0.01


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("transport", ["broadcast", "disk", "delta"])
def test_an_engine_attends_by_the_weights_that_were_published_last(tmp_path: Path, transport: str) -> None:
    """SGLang keeps copies of the matrix behind the latents, which its own check of weights leaves out."""
    directory = tiny("DeepseekV3ForCausalLM", tmp_path / "model")
    fleet = Fleet(directory, tmp_path, (NAME,))
    fleet.publisher.transport = getattr(fleet, transport)
    try:
        fleet.start()
        (answer,) = fleet.generate(TOKENS)
        before = hugging_face(directory, answer.tokens_T)
        torch.testing.assert_close(torch.tensor(answer.logprobs_T), before, rtol=0, atol=1e-5)
        for name, tensor in fleet.learner.tensors.items():
            tensor.mul_(-1 if name.endswith("kv_b_proj.weight") else 1)
        publication = fleet.publish(1)
        (answer,) = fleet.generate(TOKENS)
        published = fleet.learner.tensors
    finally:
        fleet.stop()
    assert (set(publication.engines), publication.failed) == ({NAME}, {})
    before = hugging_face(directory, answer.tokens_T)
    save_file(published, directory / "model.safetensors", {"format": "pt"})
    ours, after = torch.tensor(answer.logprobs_T), hugging_face(directory, answer.tokens_T)
    torch.testing.assert_close(ours, after, rtol=0, atol=1e-5)
    assert (before - after).abs().max() > 0.1


def hugging_face(directory: Path, response: Sequence[int]) -> torch.Tensor:
    """Return the log-probabilities that transformers finds for a response, in fp32."""
    tokens = torch.tensor([[*PROMPT, *response]])
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        logprobs = model(tokens).logits[0, len(PROMPT) - 1 : -1].log_softmax(-1)
    return logprobs.gather(1, tokens[0, len(PROMPT) :, None])[:, 0]
