"""Whole runs with quantised engines: real Ray, Megatron-core in bf16, SGLang and router, on a tiny model."""

from pathlib import Path
from typing import Any

import pytest

from support.trainer.tiny_models import tiny
from support.trainer.whole_run import Finish, WholeRun

pytestmark = pytest.mark.timeout(900)

MEAN = "engine against learner, mean |difference| [nats]"
QUANTISED: dict[str, Any] = {
    "training": {"steps": 2, "precision": "bf16"},
    "algorithm": {"importanceSampling": {"kind": "Truncate"}},
}
ENOUGH_PROMPTS = 16
"""that some sample has another reward than the others of its prompt, so that the first step is measured"""
LIMITS = {"Fp8": 0.2, "Int4": 1.0}
SAID = {"Fp8": "quant=fp8", "Int4": "quant=compressed-tensors"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2}
    return tiny("Qwen3ForCausalLM", tmp_path_factory.mktemp("quantised"), dtype="bfloat16", head_dim=64, **sizes)


def engine_log(run: WholeRun) -> str:
    return (run.run_directory / "logs" / "engine-0.log").read_text()


@pytest.mark.parametrize(
    ("kind", "transport"),
    [
        pytest.param(kind, transport, marks=() if transport == "Disk" else pytest.mark.long)
        for kind in LIMITS
        for transport in ("Disk", "Broadcast", "Delta")
    ],
)
def test_a_run_trains_in_bf16_with_quantised_engines(finish: Finish, model: Path, kind: str, transport: str) -> None:
    rollout = {"quantization": kind, "promptsPerStep": ENOUGH_PROMPTS}
    sections = {**QUANTISED, "rollout": rollout, "placement": "Disaggregated"}
    run = finish("run", model, **sections, weightSync={"transport": transport})
    (first,) = run.records("first_step")
    (check,) = [each for each in first["checks"] if each["name"] == MEAN]
    print(f"{kind}: mean |difference| {check['value']:.3f}")
    assert 0.005 < check["value"] < check["limit"] == LIMITS[kind]
    assert SAID[kind] in engine_log(run)
    assert "action=publish version=2 engines=1" in run.log()


@pytest.mark.long
@pytest.mark.parametrize("kind", LIMITS)
def test_samples_alone_are_made_with_quantised_weights(finish: Finish, model: Path, kind: str) -> None:
    rollout, training = {"quantization": kind}, QUANTISED["training"]
    run = finish("run", model, rollout=rollout, training=training, debug={"rolloutOnly": True})
    assert SAID[kind] in engine_log(run)
    assert len(run.records("step")) == 2
