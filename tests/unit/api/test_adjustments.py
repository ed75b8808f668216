"""What an attempt does with less memory after an earlier one ran out of it."""

from pathlib import Path
from typing import Any

import pytest

from rljob_api import adjustments
from rljob_api.adjustments import OF_ENGINE, OF_LEARNER, adjusted, in_words, read, written
from rljob_api.reading.manifest import parse
from rljob_api.sections import Spec
from rljob_doctor.catalogue import catalogue
from support.trainer.whole_run import manifest


def spec(**sections: Any) -> Spec:
    return parse(manifest(Path("model"), Path("run"), **{"runtime": {"device": "Gpu"}, **sections})).spec


@pytest.mark.parametrize(
    ("failures", "expected"),
    [
        ([], {}),
        (["DiskFull", "LearnerLost"], {}),
        (["TrainOutOfMemory"], {"training.maxTokensPerGpu": 900}),
        (["TrainOutOfMemory", "DiskFull", "TrainOutOfMemory"], {"training.maxTokensPerGpu": 810}),
        (["EngineOutOfMemory"], {"rollout.memoryFraction": 0.72}),
        (["ColocatedOutOfMemory", "IllegalMemoryAccess"], {"rollout.memoryFraction": 0.648}),
        (["CudaGraphCapture"], {"rollout.memoryFraction": 0.72}),
        (
            ["CudaGraphCapture", "CudaGraphCapture"],
            {"rollout.memoryFraction": 0.648, "extraArgs.sglang.disable-cuda-graph": True},
        ),
        (
            ["TrainOutOfMemory", "EngineOutOfMemory"],
            {"training.maxTokensPerGpu": 900, "rollout.memoryFraction": 0.72},
        ),
    ],
)
def test_each_failure_takes_a_tenth(failures: list[str], expected: dict[str, object]):
    given = spec(training={"maxTokensPerGpu": 1000}, rollout={"memoryFraction": 0.8})
    assert adjustments.adjustments(given, failures) == expected


def test_a_fraction_that_sglang_chose_is_estimated():
    assert adjustments.adjustments(spec(), ["EngineOutOfMemory"]) == {"rollout.memoryFraction": 0.765}


def test_a_micro_batch_keeps_a_token():
    given = spec(training={"maxTokensPerGpu": 1})
    assert adjustments.adjustments(given, ["TrainOutOfMemory"] * 5) == {"training.maxTokensPerGpu": 1}


@pytest.mark.parametrize(
    "sections", [{"recovery": {"adjustMemory": False}}, {"runtime": {"device": "Cpu"}}], ids=["refused", "on a CPU"]
)
def test_nothing_is_changed_where_it_is_not_wanted_or_does_not_help(sections: dict[str, Any]):
    assert adjustments.adjustments(spec(**sections), ["TrainOutOfMemory", "EngineOutOfMemory"]) == {}


def test_a_run_without_engines_keeps_their_settings():
    given = spec()
    without = given.model_copy(update={"debug": given.debug.model_copy(update={"replay": "rollouts"})})
    assert not without.has_engines
    assert adjustments.adjustments(without, ["EngineOutOfMemory", "CudaGraphCapture"]) == {}


@pytest.mark.parametrize("rollout", [{}, {"memoryFraction": 0.5}], ids=["leaves", "stays"])
def test_a_smaller_fraction_does_not_decide_whether_the_learner_leaves(rollout: dict[str, Any]):
    given = spec(rollout=rollout)
    assert given.learner_leaves is not bool(rollout)
    assert adjusted(given, {"rollout.memoryFraction": 0.4}).learner_leaves is given.learner_leaves


def test_the_spec_gets_the_values_and_keeps_the_rest():
    given = spec(extraArgs={"sglang": {"log-requests": True}})
    values = {
        "training.maxTokensPerGpu": 900,
        "rollout.memoryFraction": 0.72,
        "extraArgs.sglang.disable-cuda-graph": True,
    }
    changed = adjusted(given, values)
    assert changed.training.max_tokens_per_gpu == 900
    assert changed.rollout.memory_fraction == 0.72
    assert changed.extra_args.sglang == {"log-requests": True, "disable-cuda-graph": True}
    assert changed.training.steps == given.training.steps
    assert changed.data == given.data
    assert adjusted(given, {}) == given


def test_a_field_that_is_not_adjusted_is_refused():
    with pytest.raises(KeyError, match=r"training\.steps"):
        adjusted(spec(), {"training.steps": 1})


def test_the_environment_carries_them():
    values = {"training.maxTokensPerGpu": 900, "extraArgs.sglang.disable-cuda-graph": True}
    assert read({adjustments.VARIABLE: written(values)}) == values
    assert read({}) == {}
    assert in_words(values) == "training.maxTokensPerGpu 900, extraArgs.sglang.disable-cuda-graph true"


def test_every_failure_that_is_acted_upon_is_in_the_catalogue():
    assert catalogue().keys() >= OF_LEARNER | OF_ENGINE
