"""Chooses the bridge of a checkpoint's family, and refuses what the learner cannot train."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from rljob_api.sizing.families import BY_MODEL_TYPE, faults, rope_type
from rljob_api.sizing.model_shape import Shape, read, tensor_splits
from rljob_trainer import user_code
from rljob_trainer.learners.config import LearnerConfig
from rljob_trainer.learners.errors import UnsupportedModelError
from rljob_trainer.learners.rank.weights import families
from rljob_trainer.learners.rank.weights.families.local_bridge import LocalBridge
from rljob_trainer.rundir.node_copy import node_copy
from rljob_trainer.rundir.retries import patiently


def bridge(config: LearnerConfig) -> LocalBridge:
    """Return the bridge of the checkpoint. Raises UnsupportedModelError; needs Megatron's process groups."""
    folder = node_copy(Path(config.checkpoint_dir) / "config.json")
    hf_config = patiently(lambda: AutoConfig.from_pretrained(folder))
    check(hf_config, config)
    shared = {"sequence_parallel": config.layout.sequence}
    overrides = {**_device_settings(config), **_stages(config), **shared, **config.megatron_args}
    dtype = torch.bfloat16 if config.precision == "bf16" else torch.float32
    return family(hf_config.model_type)(hf_config, dtype, config.layout.tensor, overrides)


def family(model_type: str) -> type[LocalBridge]:
    """Return the bridge of a supported family: the `Bridge` of the file of the same name."""
    found: type[LocalBridge] = user_code.load(f"{families.__name__}.{model_type}:Bridge")
    return found


def check(hf_config: Any, config: LearnerConfig) -> None:
    """Raise UnsupportedModelError if the model or the layout is not one that we can train."""
    if hf_config.model_type not in BY_MODEL_TYPE:
        raise UnsupportedModelError(
            f"{config.checkpoint_dir}: model type {hf_config.model_type!r} is not supported; "
            f"supported are {', '.join(sorted(BY_MODEL_TYPE))}"
        )
    for problem in _problems(hf_config):
        raise UnsupportedModelError(f"{config.checkpoint_dir}: {problem}")
    model = read(hf_config.to_dict(), BY_MODEL_TYPE[hf_config.model_type])
    for problem in _expert_problems(model, config):
        raise UnsupportedModelError(f"{config.checkpoint_dir}: {problem}")
    layers = model.layers
    split = tensor_splits(model)
    sizes = [size for size in range(1, model.heads + 1) if not any(number % size for number in split.values())]
    if config.layout.tensor not in sizes:
        raise UnsupportedModelError(
            f"tensorParallel={config.layout.tensor} does not divide "
            f"{' and '.join(f'{number} {what}' for what, number in split.items())}; "
            f"use one of {', '.join(map(str, sizes))}"
        )
    if config.layout.layers:
        _check_stages(config, layers)
    else:
        _check_division(config, layers)


def _expert_problems(model: Shape, config: LearnerConfig) -> Iterator[str]:
    """Yield what is wrong with how the experts are spread out."""
    experts = model.experts
    splits = {"expertParallel": (config.layout.expert, experts, "experts")}
    if experts:
        splits["expertTensorParallel"] = config.layout.expert_tensor, model.ffn, "columns of an expert"
    elif config.layout.expert_tensor > 1:
        yield f"expertTensorParallel={config.layout.expert_tensor}: the model has no experts"
    again = sorted({"mlp", "moe"} & set(config.megatron_args.get("recompute_modules") or ()))
    if experts and again and config.layout.pipeline > 1:
        # the router would see another micro-batch's tokens when only it is computed again
        yield f"recompute_modules {', '.join(again)} is not supported for experts in pipeline stages; recompute all"
    for name, (size, number, what) in splits.items():
        if size > 1 and (number == 0 or number % size):
            valid = ", ".join(str(other) for other in range(1, max(number, 1) + 1) if number % other == 0)
            yield f"{name}={size} does not divide {number} {what}; use one of {valid if number else 1}"


def _problems(hf_config: Any) -> Iterator[str]:
    settings, family = hf_config.to_dict(), BY_MODEL_TYPE[hf_config.model_type]
    yield from faults(settings, family)
    if rope_type(settings) not in family.ropes:
        yield f"rope type {rope_type(settings)!r} is not supported; supported are {', '.join(family.ropes)}"


def _check_division(config: LearnerConfig, layers: int) -> None:
    """Raise UnsupportedModelError unless all chunks of all stages can have equally many layers."""
    stages, chunks = config.layout.pipeline, config.layout.virtual
    if layers % stages:
        valid = [size for size in range(1, layers + 1) if layers % size == 0]
        raise UnsupportedModelError(
            f"pipelineParallel={stages} does not divide {layers} layers; use one of {', '.join(map(str, valid))}"
        )
    if (own := layers // stages) % chunks:
        valid = [size for size in range(1, own + 1) if own % size == 0]
        raise UnsupportedModelError(
            f"virtualPipeline={chunks} does not divide the {own} layers of a pipeline stage; "
            f"use one of {', '.join(map(str, valid))}"
        )


def _check_stages(config: LearnerConfig, layers: int) -> None:
    """Raise UnsupportedModelError unless the stages have all layers between them."""
    given, chunks = list(config.layout.layers), config.layout.virtual
    if len(given) != config.layout.pipeline * chunks or sum(given) != layers:
        of_chunks = f" with {chunks} chunks each" if chunks > 1 else ""
        raise UnsupportedModelError(
            f"pipelineLayers={given} does not give {layers} layers to {config.layout.pipeline} pipeline "
            f"stages{of_chunks}"
        )


def _stages(config: LearnerConfig) -> dict[str, Any]:
    """Return how many layers each pipeline stage has, or each chunk in the model's order, where they are not equally
    many."""
    if not config.layout.layers:
        return {}
    stages = [["decoder"] * layers for layers in config.layout.layers]
    stages[0].insert(0, "embedding")
    stages[-1].append("loss")
    return {"pipeline_model_parallel_layout": stages}


def _device_settings(config: LearnerConfig) -> dict[str, Any]:
    """Fuse by torch.compile where it pays; on a CPU it would need a C++ compiler, and cpu.py puts ours in its place."""
    return {"bias_activation_fusion": True, "bias_dropout_fusion": config.device == "cuda"}
