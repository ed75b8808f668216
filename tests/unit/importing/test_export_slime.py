"""An RLJob as flags of slime, and back: the same fields."""

import copy

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from rljob_api.errors import ManifestError
from rljob_api.reading import manifest
from rljob_importing.export_slime import exported, text
from rljob_importing.script import imported

SMALL = {
    "model": {"checkpoint": "/models/m"},
    "data": {"train": {"jsonl": "t.jsonl"}},
    "reward": {"kind": "Math"},
    "rollout": {"promptsPerStep": 8, "samplesPerPrompt": 4, "sampling": {"maxNewTokens": 64}},
    "training": {"steps": 10, "stepsPerRollout": 2, "gpusPerNode": 4, "optimizer": {"learningRate": 1e-6}},
    "placement": "Colocated",
}


def job(**fields):
    """Return a job with fields by their path, `rollout__engines`."""
    spec = copy.deepcopy(SMALL)
    for path, value in fields.items():
        put(spec, path.split("__"), value)
    return manifest.parse(
        {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "j"}, "spec": spec}
    )


def put(here, path, value):
    for section in path[:-1]:
        here = here.setdefault(section, {})
    here[path[-1]] = value


def there_and_back(one):
    found = imported(text(one, "job.yaml"), "run.sh", lambda path: None, {})
    assert found.problems == ()
    return manifest.parse(found.content).spec


def flags(**fields):
    return {name: list(values) for name, *values in exported(job(**fields)).flags}


share, rate = st.floats(0.01, 0.99), st.floats(1e-8, 1.0)
FIELDS = {
    "seed": st.integers(0, 2**31),
    "data__inputKey": st.sampled_from(["prompt", "a b", "meta.question", "$x"]),
    "data__labelKey": st.sampled_from(["label", "answer"]),
    "data__metadataKey": st.sampled_from(["meta"]),
    "data__chatTemplate": st.booleans(),
    "data__shuffle": st.booleans(),
    "data__train__limit": st.integers(1, 1000),
    "data__heldOut": st.sampled_from([{"jsonl": "h.jsonl"}, {"parquet": "h.parquet", "limit": 5}]),
    "reward": st.sampled_from(
        [
            {"kind": "F1"},
            {"kind": "Python", "function": "a.b:score", "judges": "Group"},
            {"kind": "Remote", "remote": {"url": "http://judge/score", "answerKey": "reward"}},
        ]
    ),
    "algorithm__name": st.sampled_from(["grpo", "gspo", "cispo", "rloo", "reinforcePlusPlus"]),
    "training__experts": st.fixed_dictionaries(
        {},
        optional={
            "balanceLoss": share,
            "zLoss": share,
            "biasUpdateRate": share,
            "replay": st.sampled_from(["Learner", "Rollout"]),
        },
    ),
    "algorithm__clipLow": st.floats(0.01, 0.2),
    "algorithm__clipHigh": st.floats(0.2, 3.0),
    "algorithm__dualClip": st.floats(1.5, 9.0),
    "algorithm__lossBy": st.sampled_from(["Token", "Sample"]),
    "algorithm__normalizeBy": st.sampled_from(["Group", "None"]),
    "algorithm__entropyCoefficient": share,
    "algorithm__kl": st.fixed_dictionaries(
        {
            "coefficient": share,
            "estimator": st.sampled_from(["k1", "k2", "k3"]),
            "addedTo": st.sampled_from(["Loss", "Reward"]),
        }
    ),
    "algorithm__importanceSampling": st.fixed_dictionaries(
        {"kind": st.just("Truncate"), "low": share, "high": st.floats(1.0, 9.0)}
    ),
    "algorithm__dynamicSampling": st.sampled_from([{}, {"overSample": 1.5}, {"overSample": 3.0}]),
    "rollout__engines": st.sampled_from([1, 2, 4]),
    "rollout__contextLength": st.integers(128, 4096),
    "rollout__memoryFraction": share,
    "rollout__maxTotalTokens": st.integers(1000, 9999),
    "rollout__routerPolicy": st.sampled_from(["Random", "RoundRobin"]),
    "rollout__sampling__temperature": share,
    "rollout__sampling__topP": share,
    "rollout__sampling__topK": st.integers(1, 100),
    "rollout__sampling__stop": st.sampled_from([["</a>"], ["# b", "'", '"c d"']]),
    "rollout__sampling__stopTokenIds": st.lists(st.integers(0, 9), min_size=1, max_size=3),
    "training__maxTokensPerGpu": st.integers(1, 99999),
    "training__tensorParallel": st.sampled_from([1, 2, 4]),
    "training__sequenceParallel": st.booleans(),
    "training__virtualPipeline": st.integers(1, 4),
    "training__optimizer__schedule": st.sampled_from(["Constant", "Linear", "Cosine"]),
    "training__optimizer__warmupSteps": st.integers(0, 9),
    "training__optimizer__weightDecay": share,
    "training__optimizer__beta1": share,
    "training__optimizer__beta2": share,
    "training__optimizer__epsilon": rate,
    "training__optimizer__clipGrad": rate,
    "checkpoint__directory": st.sampled_from(["/runs/j", "a b"]),
    "checkpoint__interval": st.integers(1, 99),
    "recovery__healthIntervalSeconds": st.integers(1, 99),
    "extraArgs__sglang": st.sampled_from([{"chunked-prefill-size": 4096}, {"disable-radix-cache": True}]),
    "extraArgs__megatron": st.sampled_from([{"recompute_num_layers": 2, "recompute_method": "block"}]),
    "training__recompute": st.just("Full"),
    "tracking__wandb": st.sampled_from([{"project": "p"}, {"project": "p q", "entity": "e", "mode": "Offline"}]),
}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(
    st.sets(st.sampled_from(sorted(FIELDS)), max_size=12).flatmap(
        lambda n: st.fixed_dictionaries({k: FIELDS[k] for k in n})
    )
)
def test_export_and_import_give_the_same_fields(fields):
    try:
        one = job(**fields)
    except ManifestError:
        reject()  # a combination that the rules refuse

    assert exported(one).without_flag == {}
    assert there_and_back(one) == one.spec


@pytest.mark.parametrize(
    "fields",
    [
        {"placement": "Disaggregated", "rollout__async": {"maxStaleness": 1}},
        {"placement": "Disaggregated", "rollout__async": {"maxStaleness": 2, "updateInterval": 2}},
        {"placement": "Disaggregated", "rollout__async": {"maxStaleness": 4, "partial": True}},
        {"placement": "Disaggregated", "rollout__gpusPerEngine": 4, "rollout__engines": 3},
        {"placement": "Disaggregated", "weightSync": {"transport": "Disk", "directory": "/shared"}},
        {"algorithm": {"name": "ppo", "critic": {"learningRate": 1e-5, "lambda": 0.9, "warmupSteps": 2}}},
        {"algorithm": {"name": "distillation", "teacher": {"checkpoint": "/models/t"}}},
        {"data__heldOut": {"jsonl": "h"}, "data__evaluationSets": [{"name": "a", "parquet": "a.parquet", "limit": 3}]},
    ],
    ids=str,
)
def test_settings_of_several_flags_come_back(fields):
    assert there_and_back(job(**fields)) == job(**fields).spec


def supervised():
    spec = {name: value for name, value in SMALL.items() if name not in ("reward", "placement")}
    spec["algorithm"] = {"name": "sft"}
    spec["rollout"] = {"promptsPerStep": 8, "sampling": {"maxNewTokens": 64}}
    spec["training"] = {"steps": 10, "gpusPerNode": 4, "optimizer": {"learningRate": 1e-6}}
    return manifest.parse(
        {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "j"}, "spec": spec}
    )


def test_a_supervised_run_comes_back():
    assert there_and_back(supervised()) == supervised().spec


def test_a_supervised_run_of_slime_has_its_loss_its_rollout_and_no_engines():
    found = {name: list(values) for name, *values in exported(supervised()).flags}

    assert found["loss-type"] == ["sft_loss"]
    assert found["rollout-function-path"] == ["slime.rollout.sft_rollout.generate_rollout"]
    assert found["disable-compute-advantages-and-returns"] == found["debug-train-only"] == []
    assert not {"colocate", "rollout-num-gpus", "eps-clip", "advantage-estimator"} & set(found)


def test_defaults_that_slime_does_not_share_are_written():
    found = flags()

    assert found["adam-beta2"] == ["0.95"]
    assert found["lr-decay-style"] == ["constant"]
    assert found["label-key"] == ["answer"]


def test_engines_of_several_gpus_come_with_the_size_of_a_node():
    assert flags(rollout__gpusPerEngine=2)["num-gpus-per-node"] == ["4"]
    assert flags(placement="Disaggregated", rollout__gpusPerEngine=8)["num-gpus-per-node"] == ["8"]
    assert "num-gpus-per-node" not in flags()


def test_what_has_no_flag_is_listed_with_its_value():
    written = text(job(watch__window=20, runtime__image="x:1", training__precision="fp32"), "job.yaml")

    assert "#   spec.watch.window: 20\n" in written
    assert '#   spec.runtime.image: "x:1"\n' in written
    assert '#   spec.training.precision: "fp32"\n' in written


def test_a_false_value_without_a_flag_is_not_listed_but_done():
    assert exported(job(data__shuffle=False)).without_flag == {}
    assert "rollout-shuffle" not in flags(data__shuffle=False)


def test_no_text_of_a_manifest_becomes_a_line_of_the_script():
    one = job(
        data__promptTemplate="{question}\ntouch /tmp/x", data__inputKey="a\ntouch /tmp/x", runtime__env={"A\nB": "c\nd"}
    )
    found = imported(text(one, "a\ntouch /tmp/x"), "run.sh", lambda path: None, {})

    assert found.content["spec"]["data"]["inputKey"] == "a\ntouch /tmp/x"
    assert [line for line in text(one, "a\ntouch /tmp/x").splitlines() if line.startswith("touch")] == [
        "touch /tmp/x' \\"
    ]
