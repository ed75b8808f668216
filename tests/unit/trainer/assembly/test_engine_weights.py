"""What engines and learners are told of quantised weights agrees, and without the field they are told nothing."""

from pathlib import Path

import pytest

from rljob_api.sections import Quantization, Replay
from rljob_trainer.assembly.engine_weights import choices, quantised, quantization_config
from rljob_trainer.assembly.settings import chosen_algorithm, learner_config, made_by
from rljob_trainer.engines.command import engine_command
from support.trainer.fleet import cpu_job
from support.trainer.tiny_models import NUM_LAYERS, tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny("Qwen3MoeForCausalLM", tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize(
    ("kind", "name"), [(Quantization.FP8, "modules_to_not_convert"), (Quantization.INT4, "ignore")]
)
def test_engines_and_learner_get_the_same_list(model: Path, kind: Quantization, name: str) -> None:
    spec = cpu_job(model, "bf16", kind).spec
    config, how = quantization_config(spec, model), quantised(spec, model)
    assert config is not None and how is not None
    assert (config[name], how.kind) == (list(how.left_alone), kind)
    assert "model.layers.1.mlp.gate" in how.left_alone


def test_without_the_field_nothing_is_quantised(model: Path) -> None:
    spec = cpu_job(model, "bf16").spec
    assert quantization_config(spec, model) is quantised(spec, model) is None


def test_samples_of_quantised_engines_are_others(model: Path) -> None:
    plain, changed = (made_by(cpu_job(model, "bf16", kind).spec, "m", "q") for kind in (None, Quantization.FP8))
    assert {name for name in plain if plain[name] != changed[name]} == {"spec.rollout.quantization"}
    assert plain["spec.rollout.quantization"] is None, "as good as absent: dumps of before"


@pytest.mark.parametrize(("replay", "number"), [(None, 0), (Replay.LEARNER, 0), (Replay.ROLLOUT, NUM_LAYERS * 2)])
def test_engines_and_learner_agree_on_the_experts_of_a_rollout(model: Path, replay: Replay | None, number: int) -> None:
    spec = cpu_job(model, replay=replay).spec
    assert choices(spec, model) == number
    command = engine_command(spec, model, threads=1)
    assert command.arguments.get("enable-return-routed-experts", False) is bool(number)
    config = learner_config(spec, chosen_algorithm(spec), model, 1, model)
    assert (config.experts.replay is Replay.ROLLOUT) is bool(number)
