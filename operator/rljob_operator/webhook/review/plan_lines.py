"""What a manifest needs, in a few lines: the answer to `kubectl apply --dry-run=server`. Pure."""

from collections.abc import Iterator
from itertools import groupby

from rljob_api.sections import Device
from rljob_api.sizing.batch import batch
from rljob_api.sizing.topology import Topology, topology
from rljob_operator.capacity.demand import Pods, demand
from rljob_operator.capacity.quantities import PODS, shown
from rljob_operator.job.admitted_job import AdmittedJob
from rljob_operator.job.job_defaults import lines


def plan_lines(job: AdmittedJob) -> Iterator[str]:
    """Yield the plan: processes, slots and nodes, pods with their requests, batch, tokens."""
    spec, where = job.spec, topology(job.spec)
    unit = "GPUs" if spec.runtime.device is Device.GPU else "processes"
    alike = groupby(where.shapes, key=lambda shape: shape.gpus)
    nodes = ", ".join(f"{sum(shape.count for shape in same)} × {size}" for size, same in alike)
    yield f"plan: {spec.placement}, {where.gpus} {unit} on {where.num_nodes} nodes ({nodes})"
    yield f"plan: {_processes(where)}"
    yield f"plan: pods: {'; '.join(_pods(each) for each in demand(job))}"
    for line in lines(job.resolved.defaults or {}):
        yield f"plan: the operator adds {line}"
    sizes = batch(spec)
    yield (
        f"plan: a step has {sizes.prompts} prompts × {sizes.samples_per_prompt} samples = {sizes.samples} samples, in "
        f"{sizes.steps_per_rollout} optimizer steps of {sizes.global_batch_size}; {spec.training.steps} steps"
    )
    yield f"plan: up to {spec.training.max_tokens_per_gpu} tokens in a micro-batch of a rank"


def _processes(where: Topology) -> str:
    parts = ["1 driver"]
    if where.ranks:
        layout = f"tensor {where.layout.tensor}, pipeline {where.layout.pipeline}, data {where.layout.data}"
        if where.layout.virtual > 1:
            layout += f", {where.layout.virtual} chunks in a pipeline stage"
        if where.layout.context > 1:
            layout += f", context {where.layout.context}"
        if where.layout.expert_ranks > 1:
            layout += f", experts over {where.layout.expert}, each over {where.layout.expert_tensor}"
        parts.append(f"{where.ranks} learner ranks ({layout})")
    if where.num_engines:
        parts.append(f"{where.num_engines} engines of {where.gpus_per_engine}")
    return ", ".join(parts)


def _pods(pods: Pods) -> str:
    requests = ", ".join(shown(name, amount) for name, amount in sorted(pods.requests.items()) if name != PODS)
    return f"{pods.count} {pods.group} ({requests or 'no requests'})"
