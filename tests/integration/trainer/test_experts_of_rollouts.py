"""Real engines behind a real router say which experts each token was sent to."""

from collections.abc import Iterator
from pathlib import Path
from statistics import mean

import numpy as np
import pytest
import ray
import torch
from transformers import AutoModelForCausalLM

from rljob_api.exits import Exit
from rljob_api.sections import Replay
from rljob_trainer.batches.batches import experts_of
from rljob_trainer.engines.client import Continuation
from rljob_trainer.engines.generation import sample
from support.trainer.fleet import PROMPT, Fleet, start_ray
from support.trainer.tiny_models import NUM_LAYERS, tiny
from support.trainer.whole_run import WholeRun

pytestmark = pytest.mark.timeout(900)

NAME, TOKENS, CHOICES, STEPS = "engine-0", 24, NUM_LAYERS * 2, 4


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    start_ray()
    yield
    ray.shutdown()


def of_transformers(directory: Path, answer: Continuation) -> torch.Tensor:
    """Return the experts [T, L x K] that transformers chooses for all tokens but the last, sorted."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    tokens = torch.tensor([[*PROMPT, *answer.tokens_T[:-1]]])
    with torch.no_grad():
        logits = model(tokens, output_router_logits=True).router_logits
    return torch.cat([layer.topk(2).indices.sort().values for layer in logits], dim=1)


@pytest.mark.usefixtures("cluster")
def test_engines_return_the_experts_that_transformers_would_choose(tmp_path: Path) -> None:
    model = tiny("Qwen3MoeForCausalLM", tmp_path / "model")
    fleet = Fleet(model, tmp_path, (NAME,), replay=Replay.ROLLOUT)
    try:
        fleet.start()
        assert fleet.publish(1).failed == {}
        answers = [*fleet.generate(TOKENS, 3), *fleet.generate(TOKENS)]  # the last one finds its prompt in the cache
    finally:
        fleet.stop()
    for answer in answers:
        found = experts_of(sample(answer), CHOICES)
        assert found.shape == (len(PROMPT) + len(answer.tokens_T) - 1, CHOICES)
        in_order = np.sort(found.reshape(-1, NUM_LAYERS, 2), axis=2).reshape(-1, CHOICES)
        assert torch.equal(torch.from_numpy(in_order).long(), of_transformers(model, answer))


@pytest.mark.long
def test_engine_and_learner_differ_less_with_the_same_experts(tmp_path: Path) -> None:
    model = tiny("Qwen3MoeForCausalLM", tmp_path / "model", dtype="bfloat16")
    found: dict[Replay | None, float] = {}
    for replay in (None, Replay.ROLLOUT):
        directory = tmp_path / str(replay)
        directory.mkdir()
        training = {
            "steps": STEPS,
            "precision": "bf16",
            "experts": {"replay": replay and replay.value},
            "optimizer": {"learningRate": 1e-5},
        }
        run = WholeRun(model, directory, training=training)
        try:
            run.start()
            assert run.end() == Exit.OK, run.output
        finally:
            run.stop()
        records = run.records("step")
        assert len(records) == STEPS
        found[replay] = mean(record["logprob_mismatch"] for record in records)
    print(found)
    assert found[Replay.ROLLOUT] < found[None]
