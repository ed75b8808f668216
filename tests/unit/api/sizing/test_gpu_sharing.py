"""Memory of a GPU that learner and engines use alternately."""

import pytest
import yaml

from rljob_api.reading.manifest import parse
from rljob_api.sections import Spec
from rljob_api.sizing.memory import MIB, estimate
from rljob_api.sizing.model_shape import shape
from rljob_api.sizing.topology import topology
from support.api.sized_jobs import QWEN3_600M

CPU = {"runtime": {"device": "Cpu"}}
APART = {"placement": "Disaggregated"}
LIMITED = {"rollout": {"memoryFraction": 0.4}}
TOKENS = {"rollout": {"maxTotalTokens": 100_000}}
OFF, ON = {"training": {"offload": False}}, {"training": {"offload": True}}
REPLAY, ROLLOUT_ONLY = {"debug": {"replay": "runs/x"}}, {"debug": {"rolloutOnly": True}}


def spec_with(good: str, *changes: dict[str, dict[str, object]] | dict[str, str]) -> Spec:
    content = yaml.safe_load(good)
    for change in changes:
        for section, fields in change.items():
            known = content["spec"].get(section, {})
            content["spec"][section] = known | fields if isinstance(fields, dict) else fields
    return parse(content).spec


@pytest.mark.parametrize(
    ("changes", "leaves"),
    [
        ((), True),
        ((OFF,), False),
        ((LIMITED,), False),
        ((TOKENS,), False),
        ((LIMITED, ON), True),
        ((CPU,), False),
        ((APART,), False),
        ((REPLAY,), False),
        ((ROLLOUT_ONLY,), False),
        ((REPLAY, ON), False),
    ],
)
def test_a_learner_leaves_where_nothing_limits_the_engines_beside_it(good, changes, leaves):
    assert spec_with(good, *changes).learner_leaves is leaves


def found(good, *changes):
    spec = spec_with(good, *changes)
    return estimate(shape(QWEN3_600M), spec, topology(spec))


def test_no_turn_has_the_memory_of_both(good):
    turns = found(good, TOKENS, ON)
    learner = {item.what: item.bytes for item in turns.learner}
    engine = {item.what: item.bytes for item in turns.engine}
    buckets = 2 * 512 * MIB
    assert [(turn.when, turn.bytes) for turn in turns.turns] == [
        ("rollout", buckets + engine["weights"] + engine["KV cache"]),
        ("training", sum(learner.values())),
        ("publication", buckets + engine["weights"] + learner["weights"]),
    ]
    assert turns.gpu_bytes == max(turn.bytes for turn in turns.turns)
    stays = found(good, TOKENS)
    assert stays.gpu_bytes == stays.learner_bytes + stays.engine_bytes
    assert stays.gpu_bytes > turns.gpu_bytes


def test_a_critic_is_there_while_weights_are_published(good):
    critic = {"algorithm": {"name": "ppo", "critic": {"learningRate": 1e-5}}}
    alone, both = (found(good, *changes).turns[2].bytes for changes in ((), (critic,)))
    assert both - alone == next(item.bytes for item in found(good, critic).learner if item.what == "critic weights")


OPTIMIZER = {"training": {"optimizer": {"learningRate": 1e-6, "offload": True}}}
FP32 = {"training": {"precision": "fp32"}}
SMALL = {"training": {"tensorParallel": 8}}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [((), 151_936 * 1024 * 12), ((FP32,), 151_936 * 1024 * 8), ((SMALL,), 256 * MIB)],
    ids=["bf16", "fp32", "tensor parallel"],
)
def test_an_optimizer_on_the_host_has_one_part_on_the_gpu(good, changes, expected):
    one = {"training": {"gpusPerNode": 1}, "rollout": {"engines": 1}} if SMALL not in changes else {}
    items = {item.what: item for item in found(good, OPTIMIZER, one, *changes).learner}
    assert items["optimizer state"].bytes == expected
    assert items.keys().isdisjoint({"Adam moments", "master weights"})


def test_a_critic_s_optimizer_is_on_the_host_too(good):
    critic = {"algorithm": {"name": "ppo", "critic": {"learningRate": 1e-5}}}
    assert "critic optimizer" in {item.what for item in found(good, critic).learner}
    assert "critic optimizer" not in {item.what for item in found(good, critic, OPTIMIZER).learner}
