"""A real engine of every family holds the learner's weights, and says the log-probabilities of Hugging Face's model."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from transformers import AutoModelForCausalLM

from rljob_api.sizing.model_shape import FAMILIES
from support.trainer.fleet import PROMPT, Fleet
from support.trainer.tiny_models import VARIANTS, tiny

pytestmark = pytest.mark.timeout(600)

NAME, TOKENS = "engine-0", 48
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    **{architecture: (architecture, {}) for architecture in FAMILIES},
    **{name: VARIANTS[name] for name in ("llama, rope llama3", "glm4, no bias")},
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:  # Ray's workers do not know pytest's `pythonpath`
        patch.setenv("PYTHONPATH", os.pathsep.join(entry for entry in sys.path if entry))
        ray.init("local", num_cpus=2, include_dashboard=False, object_store_memory=80 * 2**20, log_to_driver=False)
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

    tokens = torch.tensor([[*PROMPT, *answer.tokens_T]])
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        logprobs = model(tokens).logits[0, len(PROMPT) - 1 : -1].log_softmax(-1)
    theirs = logprobs.gather(1, tokens[0, len(PROMPT) :, None])[:, 0]
    torch.testing.assert_close(torch.tensor(answer.logprobs_T), theirs, rtol=0, atol=1e-5)
