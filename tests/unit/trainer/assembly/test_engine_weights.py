"""What engines and learners are told of quantised weights agrees, and without the field they are told nothing."""

from pathlib import Path

import pytest

from rljob_api.sections import Quantization
from rljob_trainer.assembly.engine_weights import left_alone, quantization_config
from rljob_trainer.assembly.settings import made_by
from support.trainer.fleet import cpu_job
from support.trainer.tiny_models import tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny("Qwen3MoeForCausalLM", tmp_path_factory.mktemp("model"))


def test_engines_and_learner_get_the_same_list(model: Path) -> None:
    spec = cpu_job(model, "bf16", Quantization.FP8).spec
    config, kept = quantization_config(spec, model), left_alone(spec, model)
    assert config is not None and kept is not None
    assert config["modules_to_not_convert"] == list(kept)
    assert "model.layers.1.mlp.gate" in kept


def test_without_the_field_nothing_is_quantised(model: Path) -> None:
    spec = cpu_job(model, "bf16").spec
    assert quantization_config(spec, model) is left_alone(spec, model) is None


def test_samples_of_quantised_engines_are_others(model: Path) -> None:
    plain, quantised = (made_by(cpu_job(model, "bf16", kind).spec, "m", "q") for kind in (None, Quantization.FP8))
    assert {name for name in plain if plain[name] != quantised[name]} == {"spec.rollout.quantization"}
    assert plain["spec.rollout.quantization"] is None, "as good as absent: dumps of before"
