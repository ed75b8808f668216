"""Rules between arguments that pass through to Megatron: each must be one that this run's learner uses.

What stands here is what megatron-core 0.16.1 reads of them (`TransformerConfig.__post_init__`, `TransformerBlock`,
`TransformerLayer`, the pipeline schedules) under the learner's own layers. An argument that no run uses is not free,
see `arguments.MEGATRON_OURS`.
"""

from collections.abc import Iterator
from typing import Any

from rljob_api.errors import ABSENT, Problem
from rljob_api.rules.claims import FREE_MAPPING, only_in_python
from rljob_api.rules.likeness import similar
from rljob_api.sections import Device, Precision, Recompute, Spec

PATH = "spec.extraArgs.megatron."
RECOMPUTE = "spec.training.recompute"
GRANULARITY, METHOD = "recompute_granularity", "recompute_method"
LAYERS, MODULES = "recompute_num_layers", "recompute_modules"
WITHIN = ("core_attn", "mlp", "moe", "shared_experts")
"""what of a layer the learner can compute again"""
NOT_WITHIN = {
    "layernorm": "needs Transformer Engine",
    "mla_up_proj": "is of Megatron's latent attention, and the learner has its own",
    "moe_act": "is of the experts of Transformer Engine, and the learner has its own",
}
"""Megatron's further names, and why the learner has no use for them"""


@only_in_python(FREE_MAPPING)
def recomputation(spec: Spec) -> Iterator[Problem]:
    """Yield what contradicts itself, is missing, or would not be used."""
    given = spec.extra_args.megatron
    whole = spec.training.recompute is Recompute.FULL
    match given.get(GRANULARITY, "full" if whole else None):
        case None:
            yield from unused(given, (METHOD, LAYERS), "nothing is computed again", f"{RECOMPUTE} Full as well")
            yield from unused(given, (MODULES,), "nothing is computed again", f"{GRANULARITY} selective as well")
        case "full":
            yield from unused(given, (MODULES,), f"{GRANULARITY} full computes whole layers again")
            if not whole and (missing := [name for name in (METHOD, LAYERS) if name not in given]):
                rule = f"needs {' and '.join(missing)}"
                yield Problem(PATH + GRANULARITY, given[GRANULARITY], rule, f"{RECOMPUTE} Full in its place")
        case "selective":
            yield from selective(given, whole)
    number = given.get(LAYERS)
    if isinstance(number, int) and number < 1:
        yield Problem(PATH + LAYERS, number, "is less than 1", "1")


def selective(given: dict[str, Any], whole: bool) -> Iterator[Problem]:
    if whole:
        yield Problem(PATH + GRANULARITY, "selective", f"contradicts {RECOMPUTE} Full", f"{RECOMPUTE} None as well")
    yield from unused(given, (METHOD, LAYERS), f"{GRANULARITY} selective is about parts of a layer")
    modules = given.get(MODULES)
    if not isinstance(modules, list):  # absent: core_attn
        return
    if not modules:
        yield Problem(PATH + MODULES, modules, "is empty, so nothing is computed again", "[core_attn]")
    for module in modules:
        if module in NOT_WITHIN:
            yield Problem(PATH + MODULES, module, f"cannot be used: it {NOT_WITHIN[module]}", ", ".join(WITHIN))
        elif module not in WITHIN:
            close = similar(str(module), WITHIN, cutoff=0.0)
            yield Problem(PATH + MODULES, module, f"is none of {', '.join(WITHIN)}", close)


def unused(given: dict[str, Any], names: tuple[str, ...], why: str, nearest: str | None = None) -> Iterator[Problem]:
    for name in names:
        if name in given:
            yield Problem(PATH + name, ABSENT, f"would not be used: {why}", nearest or "leave it out")


@only_in_python(FREE_MAPPING)
def switched_on(spec: Spec) -> Iterator[Problem]:
    """Yield the arguments that are on, and that this run would ignore."""
    given, training = spec.extra_args.megatron, spec.training
    whole = given.get(GRANULARITY, "full" if training.recompute is Recompute.FULL else None) == "full"
    without_use = {
        "deallocate_pipeline_outputs": {
            "spec.training.pipelineParallel is 1": training.pipeline_parallel == 1,
        },
        "disable_bf16_reduced_precision_matmul": {
            f"spec.training.precision is {training.precision}": training.precision is not Precision.BF16,
            f"spec.runtime.device is {spec.runtime.device}": spec.runtime.device is Device.CPU,
        },
        "distribute_saved_activations": {
            "spec.training.tensorParallel is 1": training.tensor_parallel == 1,
            f"without {RECOMPUTE} Full nothing is saved for whole layers": not whole,
        },
    }
    for name, reasons in without_use.items():
        if given.get(name) is True and (why := [reason for reason, holds in reasons.items() if holds]):
            yield Problem(PATH + name, True, f"would not be used: {why[0]}", "false")


@only_in_python(FREE_MAPPING)
def saved_activations(spec: Spec) -> Iterator[Problem]:
    name = "distribute_saved_activations"
    if spec.training.sequence_parallel and spec.extra_args.megatron.get(name) is True:
        rule = "divides what spec.training.sequenceParallel has divided already"
        yield Problem(PATH + name, True, rule, "false")


RULES = (recomputation, switched_on, saved_activations)
