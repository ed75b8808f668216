"""Whole runs with engines in FP8: real Ray, Megatron-core in bf16, SGLang and router, on a tiny model."""

from pathlib import Path
from typing import Any

import pytest

from support.trainer.tiny_models import tiny
from support.trainer.whole_run import Finish, WholeRun

pytestmark = pytest.mark.timeout(900)

MEAN = "engine against learner, mean |difference| [nats]"
IN_FP8: dict[str, Any] = {
    "training": {"steps": 2, "precision": "bf16"},
    "rollout": {"quantization": "Fp8"},
    "algorithm": {"importanceSampling": {"kind": "Truncate"}},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {"hidden_size": 192, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2}
    return tiny("Qwen3ForCausalLM", tmp_path_factory.mktemp("fp8"), dtype="bfloat16", head_dim=64, **sizes)


def engine_log(run: WholeRun) -> str:
    return (run.run_directory / "logs" / "engine-0.log").read_text()


@pytest.mark.parametrize(
    "transport",
    ["Disk", pytest.param("Broadcast", marks=pytest.mark.long), pytest.param("Delta", marks=pytest.mark.long)],
)
def test_a_run_trains_in_bf16_with_engines_in_fp8(finish: Finish, model: Path, transport: str) -> None:
    sections = {**IN_FP8, "placement": "Disaggregated", "weightSync": {"transport": transport}}
    run = finish("run", model, **sections)
    (first,) = run.records("first_step")
    (check,) = [each for each in first["checks"] if each["name"] == MEAN]
    assert 0.005 < check["value"] < check["limit"] == 0.2
    assert "quant=fp8" in engine_log(run)
    assert "action=publish version=2 engines=1" in run.log()


@pytest.mark.long
def test_samples_alone_are_made_with_quantised_weights(finish: Finish, model: Path) -> None:
    run = finish("run", model, rollout=IN_FP8["rollout"], training=IN_FP8["training"], debug={"rolloutOnly": True})
    assert "quant=fp8" in engine_log(run)
    assert len(run.records("step")) == 2
