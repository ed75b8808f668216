"""What of a model's layers `extraArgs.megatron` has computed again, and whether this model has it. Pure.

`rules/megatron.py` judges the arguments by themselves; here they meet the number and the kind of the layers.
"""

from collections.abc import Iterator

from rljob_api.errors import Problem
from rljob_api.sections import Spec

PATH = "spec.extraArgs.megatron."


def absent_parts(spec: Spec, experts: int, dense_layers: int, shared: int) -> Iterator[Problem]:
    """Yield the parts that the model does not have.

    `experts` of a layer, 0 without; `dense_layers` have none all the same; `shared`: width of the shared expert, or 0.
    """
    modules = spec.extra_args.megatron.get("recompute_modules")
    lacks = {
        "mlp": bool(experts and not dense_layers) and "layer without experts",
        "moe": not experts and "experts",
        "shared_experts": not shared and "shared expert",
    }
    for module in modules if isinstance(modules, list) else ():
        if part := lacks.get(str(module)):
            yield Problem(f"{PATH}recompute_modules", module, f"is of no use: the model has no {part}")


def uneven_groups(spec: Spec, layers: int, whose: str = "model's") -> Problem | None:
    """Return the problem of groups of layers that do not fill what a pipeline stage has: Megatron reads beyond it."""
    given = spec.extra_args.megatron
    number = given.get("recompute_num_layers")
    if number is None or given.get("recompute_method", "uniform") != "uniform":
        return None
    chunks = chunks_of(spec, layers)
    left = [own for own in chunks if own % number]
    if not left:
        return None
    possible = [size for size in range(1, min(chunks) + 1) if not any(own % size for own in chunks)]
    near = min(possible, key=lambda size: (abs(size - number), size))
    of_stage = " of a pipeline stage's chunk" if len(chunks) > 1 else ""
    rule = f"does not divide the {whose} {left[0]} layers{of_stage}"
    return Problem(f"{PATH}recompute_num_layers", number, rule, str(near))


def chunks_of(spec: Spec, layers: int) -> tuple[int, ...]:
    """Return how many layers each chunk of a pipeline stage has; what does not divide is another rule's problem."""
    if spec.training.pipeline_layers:
        return spec.training.pipeline_layers
    number = spec.training.pipeline_parallel * spec.training.virtual_pipeline
    return (layers // number,) * number if layers % number == 0 else ()
