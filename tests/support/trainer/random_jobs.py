"""Small whole jobs drawn at random from what manifests allow: combinations that nobody thought of.

Sections are drawn as a user would set them who knows what he wants; what the rules refuse is drawn again.
"""

import copy
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rljob_api.errors import ManifestError
from rljob_api.reading.manifest import parse
from support.api.random_manifests import put
from support.trainer.tiny_models import FAMILIES, DType, tiny_llama
from support.trainer.whole_run import HELD_OUT, QUESTIONS, imitation, manifest, merged

Json = dict[str, Any]
Random = random.Random

STEPS = 4
LAYOUTS: tuple[Json, ...] = (
    {},
    {"gpusPerNode": 2},
    {"gpusPerNode": 2, "tensorParallel": 2},
    {"gpusPerNode": 2, "tensorParallel": 2, "sequenceParallel": True},
    {"gpusPerNode": 2, "pipelineParallel": 2},
    {"gpusPerNode": 4, "tensorParallel": 2, "pipelineParallel": 2},
    {"gpusPerNode": 4, "tensorParallel": 2},
    {"gpusPerNode": 4, "pipelineParallel": 2},
    {"nodes": 2},
)
RECOMPUTED = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
REWARDS: tuple[Json, ...] = (
    {"kind": "Python", "function": "tiny_reward:digits"},
    {"kind": "Python", "function": "tiny_reward:digits", "threshold": 0.3},
    {"kind": "Python", "function": "random_functions:ranks", "judges": "Group"},
    {"kind": "Python", "function": "random_functions:slow", "concurrency": 3},
    {"kind": "Python", "function": "random_functions:fails", "failureScore": -0.5},
    {"kind": "ExactMatch"},
    {"kind": "F1"},
    {"kind": "Math", "firstLine": True},
    {
        "parts": [
            {"name": "digits", "kind": "Python", "function": "tiny_reward:digits", "weight": 0.5},
            {"name": "right", "kind": "Math"},
            {"name": "ranks", "kind": "Python", "function": "random_functions:ranks", "judges": "Group", "weight": 0},
        ]
    },
)
ALGORITHMS: tuple[Json, ...] = (
    {"name": "grpo"},
    {"name": "grpo", "normalizeBy": "None", "lossBy": "Constant"},
    {"name": "grpo", "normalizeBy": "Batch"},
    {"name": "gspo", "clipLow": 3e-4, "clipHigh": 4e-4},
    {"name": "cispo", "clipLow": 1, "clipHigh": 0.28},
    {"name": "rloo"},
    {"name": "reinforcePlusPlus"},
    {"name": "reinforcePlusPlusBaseline"},
    {"name": "ppo", "critic": {"learningRate": 1e-3, "lambda": 0.9}},
    {"name": "ppo", "critic": {"learningRate": 1e-3, "gamma": 0.99, "warmupSteps": 1}},
    {"name": "tiny_algorithm:own"},
    {"name": "distillation"},
)
BESIDES: dict[str, tuple[Any, ...]] = {
    "algorithm.lossBy": ("Sample", "Constant"),
    "algorithm.clipHigh": (0.28,),
    "algorithm.dualClip": (3.0,),
    "algorithm.entropyCoefficient": (0.01,),
    "algorithm.kl": (
        {"coefficient": 0.01},
        {"coefficient": 0.1, "estimator": "k1", "addedTo": "Reward"},
        {"coefficient": 0.1, "estimator": "k2"},
    ),
    "algorithm.importanceSampling": (
        {"kind": "Truncate"},
        {"kind": "Mask", "low": 0.5, "high": 2},
        {"kind": "Mask", "level": "Sequence", "low": 0.5, "high": 2},
    ),
    "algorithm.overlong": ({"buffer": 3}, {"buffer": 8, "penalty": 0.5}),
    "algorithm.maskTruncated": (True,),
    "algorithm.dynamicSampling": ({}, {"maxRounds": 2, "overSample": 1.5}),
    "data.systemPrompt": ("Be brief.",),
    "data.promptTemplate": ("What is {question}?",),
    "data.assistantPrefill": ("{question}",),
    "data.chatTemplate": (False,),
    "data.shuffle": (False,),
    "data.metadataKey": ("info",),
    "data.evaluationSets": (
        [{"name": "more", "jsonl": "questions.jsonl", "limit": HELD_OUT}],
        [{"name": "other", "jsonl": "others.jsonl", "samplesPerPrompt": 3}],
    ),
    "rollout.sampling.temperature": (0.7, 1.5),
    "rollout.sampling.topP": (0.9,),
    "rollout.sampling.topK": (20,),
    "rollout.sampling.stop": (["7"], ["\n", "=="]),
    "rollout.sampling.stopTokenIds": ([5, 17],),
    "rollout.sampling.maxNewTokens": (1, 24),
    "rollout.engines": (2, 3),
    "rollout.gpusPerEngine": (2,),
    "rollout.routerPolicy": ("Random", "RoundRobin"),
    "rollout.maxTotalTokens": (1024,),
    "rollout.generate": ("random_functions:twice",),
    "rollout.overflow": ("Drop",),
    "rollout.tools": ({"functions": ["calculator"], "maxTurns": 2},),
    "rollout.promptsPerStep": (1, 3, 6),
    "rollout.samplesPerPrompt": (2, 5),
    "training.stepsPerRollout": (2, 4),
    "training.maxTokensPerGpu": (16, 200),
    "training.precision": ("bf16",),
    "training.optimizer.schedule": ("Linear", "Cosine"),
    "training.optimizer.warmupSteps": (2,),
    "training.optimizer.weightDecay": (0.1,),
    "training.optimizer.clipGrad": (0.1,),
    "placement": ("Disaggregated",),
    "rollout.async": ({}, {"partial": True}, {"maxStaleness": 2, "updateInterval": 2}),
    "weightSync.transport": ("Disk", "Delta", "Broadcast"),
    "weightSync.bucketMib": (1,),
    "evaluation.interval": (1, 2),
    "evaluation.greedy": (False,),
    "evaluation.samplesPerPrompt": (3,),
    "checkpoint.interval": (1, 3),
    "checkpoint.keep": (1,),
    "checkpoint.hfExport": (True,),
    "runtime.tensorboard": (True,),
    "extraArgs.sglang": ({"chunked-prefill-size": 64}, {"schedule-policy": "fcfs"}),
    "extraArgs.megatron": (RECOMPUTED,),
    "debug.dumpRollouts": (True,),
    "debug.rolloutOnly": (True,),
}
FUNCTIONS = '''\
"""Functions of a user's own."""

import asyncio


def ranks(question, responses, label, metadata):
    return [rank / len(responses) for rank, _ in enumerate(responses)]


async def slow(question, response, label, metadata):
    await asyncio.sleep(0.02)
    return len(set(response)) / max(1, len(response))


def fails(question, response, label, metadata):
    if "a" in response:
        raise ValueError("an a")
    return len(response)


async def twice(conversation):
    first = await conversation.model(max_tokens=4)
    conversation.give(f" {len(first.text)} ")
    await conversation.model()
'''


@dataclass(frozen=True, slots=True)
class Model:
    family: str
    tied: bool
    dtype: DType
    layers: int

    def written(self, directory: Path) -> Path:
        """Write the checkpoint."""
        return FAMILIES[self.family](directory, tied=self.tied, dtype=self.dtype, layers=self.layers)


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL for one process of a run."""

    after_step: int
    """0: after the start of the command"""
    seconds: float
    """later"""
    choice: float
    """which process, as a share of all"""


@dataclass(frozen=True, slots=True)
class RandomJob:
    """A model, a manifest, and what happens to the run."""

    model: Model
    manifest: Json
    again: Json | None
    """what it goes on with once it was stopped after a step; None: it is not stopped"""
    kill: Kill | None


def job(draw: Random, directory: Path) -> RandomJob:
    """Draw until the rules agree; the run's files are to be in the directory, see `write_files`."""
    while True:
        dtype: DType = "bfloat16" if draw.random() < 0.3 else "float32"
        model = Model(draw.choice(tuple(FAMILIES)), draw.random() < 0.5, dtype, draw.choice((2, 4)))
        content = manifest(directory / "model", directory, **drawn(draw, directory))
        if draw.random() < 0.5:
            content["spec"]["reward"] = copy.deepcopy(draw.choice(REWARDS))
        if draw.random() < 0.08:
            content = imitation(content)
        first, second = (merged(content, {"spec": {"training": draw.choice(LAYOUTS)}}) for _ in range(2))
        event, kill = draw.random(), Kill(0, draw.uniform(2, 30), draw.random())
        if draw.random() < 0.6:
            kill = Kill(draw.randint(1, STEPS - 1), draw.uniform(0, 1), draw.random())
        again = second if event < 0.25 else None
        if valid(first) and (again is None or valid(again)):
            return RandomJob(model, first, again, kill if event > 0.6 else None)


def write_files(directory: Path, model: Model) -> None:
    """Write what a job needs besides what `WholeRun` writes."""
    model.written(directory / "model")
    tiny_llama(directory / "teacher", seed=1)
    (directory / "random_functions.py").write_text(FUNCTIONS)
    for name, offset in (("questions", 0), ("others", 1)):
        rows = [
            {"question": f"{n} + {n + 1 + offset} =", "answer": str(2 * n + 1 + offset), "info": {"row": n}}
            for n in range(QUESTIONS if not offset else HELD_OUT)
        ]
        (directory / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def valid(content: Json) -> bool:
    try:
        parse(content)
    except ManifestError:
        return False
    return True


def drawn(draw: Random, directory: Path) -> Json:
    """Return sections for a manifest; the rules have not seen them yet."""
    spec: Json = {"seed": draw.randrange(100), "training": {"steps": STEPS}}
    put(spec, "algorithm", copy.deepcopy(draw.choice(ALGORITHMS)))
    if spec["algorithm"]["name"] == "distillation":
        put(spec, "algorithm.teacher", {"checkpoint": str(directory / "teacher")})
    for path in draw.sample(list(BESIDES), draw.randint(2, 9)):
        if path != "debug.rolloutOnly" or draw.random() < 0.3:
            put(spec, path, copy.deepcopy(draw.choice(BESIDES[path])))
    for each in spec.get("data", {}).get("evaluationSets", ()):
        each["jsonl"] = str(directory / each["jsonl"])
    if "async" in spec.get("rollout", {}):
        put(spec, "placement", "Disaggregated")
    if "tools" in spec.get("rollout", {}):
        put(spec, "data.systemPrompt", "Use your calculator.")  # the tiny template shows no tools
    return spec
