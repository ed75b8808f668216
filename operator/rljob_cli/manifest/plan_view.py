"""Shows a plan: as tables on a terminal, as aligned text in a pipe, as JSON for programs."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rljob_api.sections import Device
from rljob_api.sizing.memory import Estimate, Item
from rljob_api.sizing.parallel_layout import ParallelLayout
from rljob_cli.manifest.plan import Plan, Range

GIB = 2**30
MIB = 2**20
Row = Sequence[str]


def as_json(plan: Plan) -> str:
    """Return the plan as a JSON object; keys are the names of its fields, memory also has its sums."""
    content = asdict(plan) | sizes(plan.layout)
    del content["layout"]
    if plan.fit is not None:
        content["fit"]["sentence"] = plan.fit.sentence()
    if plan.memory is not None:
        estimate = plan.memory
        content["memory"] |= {
            "learner_bytes": estimate.learner_bytes,
            "engine_bytes": estimate.engine_bytes,
            "gpu_bytes": estimate.gpu_bytes,
            "turns": [asdict(turn) for turn in estimate.turns] if estimate.leaves else [],
        }
    return json.dumps(content, indent=2)


def sizes(layout: ParallelLayout) -> dict[str, int]:
    """Return the parallel sizes as fields of the plan, and the number of ranks that hold the same experts."""
    axes = ("tensor", "pipeline", "context", "data", "expert", "expert_tensor", "expert_data")
    return {f"{axis}_parallel": getattr(layout, axis) for axis in axes}


def as_tables(plan: Plan, *, boxes: bool) -> RenderableType:
    """Return the plan for people; `boxes` draws lines around the tables."""
    parts: list[RenderableType] = [
        *((Text(plan.fit.sentence(), style="bold green" if plan.fit.fits else "bold red"),) if plan.fit else ()),
        Text(headline(plan), style="bold"),
        table("Processes", ("process", "role", "on"), process_rows(plan), boxes),
        table("Batch", ("", "", ""), batch_rows(plan), boxes),
    ]
    if plan.memory is not None:
        parts.append(table(memory_title(plan), ("on each", "what", "size", "formula"), memory_rows(plan.memory), boxes))
    parts.append(table("Stops", ("a response ends at", "source"), stop_rows(plan), boxes))
    parts.extend(Text(f"problem: {problem}", style="red") for problem in plan.problems)
    parts.extend(Text(f"warning: {warning}", style="yellow") for warning in plan.warnings)
    return Group(*parts)


def headline(plan: Plan) -> str:
    unit = "GPU" if plan.device is Device.GPU else "slot"
    slots = f"{unit}{'s' * (plan.gpus != 1)}{' (processes on CPU cores)' * (plan.device is Device.CPU)}"
    nodes = ", ".join(f"{node.name} ({node.gpus})" for node in plan.nodes)
    return f"{plan.name}: {plan.placement}, {plan.gpus} {slots} on {len(plan.nodes)} node(s): {nodes}"


def table(title: str, columns: Row, rows: Iterable[Row], boxes: bool) -> Table:
    built = Table(
        *columns,
        title=title,
        title_justify="left",
        box=box.ROUNDED if boxes else None,
        show_header=any(columns),
        pad_edge=boxes,
    )
    for row in rows:
        built.add_row(*row)
    return built


def process_rows(plan: Plan) -> list[Row]:
    return [(process.name, process.role, ", ".join(process.slots) or "head") for process in plan.processes]


def batch_rows(plan: Plan) -> list[Row]:
    batch = plan.batch
    made = f"promptsPerStep {batch.prompts} x samplesPerPrompt {batch.samples_per_prompt}"
    rollouts = f"(steps - critic.warmupSteps {plan.critic_only})" if plan.critic_only else "steps"
    context = f" x context {plan.layout.context}" if plan.layout.context > 1 else ""
    replicas = f"ranks / (tensor {plan.layout.tensor} x pipeline {plan.layout.pipeline}{context})"
    return [
        ("samples of a step", str(batch.samples), made),
        ("globalBatchSize", str(batch.global_batch_size), f"samples / stepsPerRollout {batch.steps_per_rollout}"),
        ("optimizer steps", str(plan.optimizer_steps), f"{rollouts} x stepsPerRollout {batch.steps_per_rollout}"),
        ("data parallel", str(plan.layout.data), replicas),
        *expert_rows(plan),
        ("tokens generated in a step", between(plan.generated_tokens), "1 to maxNewTokens a sample"),
        ("tokens trained on in a step", between(plan.trained_tokens), "prompts included, up to the context length"),
    ]


def expert_rows(plan: Plan) -> list[Row]:
    """Return how often each expert is there, where they are spread over ranks."""
    if plan.layout.expert_ranks == 1:
        return []
    spread = f"expertParallel {plan.layout.expert} x expertTensorParallel {plan.layout.expert_tensor}"
    return [("copies of an expert", str(plan.layout.expert_data), f"ranks of a stage / ({spread})")]


def between(bounds: Range) -> str:
    return f"{bounds.least:,} to {bounds.most:,}" if bounds.most is not None else f"{bounds.least:,} or more"


def memory_title(plan: Plan) -> str:
    assert plan.memory is not None
    where = "GPU" if plan.device is Device.GPU else "process"
    return f"Memory of each {where}; {plan.memory.parameters:,} parameters"


def memory_rows(estimate: Estimate) -> list[Row]:
    tokens = f"{estimate.kv_tokens:,} tokens" if estimate.kv_tokens else "as many as fit into the memory fraction"
    cache = f"{estimate.kv_bytes_per_token:,} bytes a token, {tokens}"
    rows: list[Row] = []
    if estimate.learner:
        rows += [item_row("learner", item) for item in estimate.learner]
        rows.append(("learner", "sum", size(estimate.learner_bytes), ""))
    if estimate.engine:
        rows += [item_row("engine", item) for item in estimate.engine]
        rows.append(("engine", "sum", size(estimate.engine_bytes), f"KV cache: {cache}"))
    if estimate.leaves:
        rows += [("slot", turn.when, size(turn.bytes), turn.formula) for turn in estimate.turns]
    elif estimate.colocated and estimate.learner and estimate.engine:
        rows.append(("slot", "sum", size(estimate.gpu_bytes), "learner + engine, if both are in memory at once"))
    return rows


def item_row(owner: str, item: Item) -> Row:
    return (owner, item.what, size(item.bytes) if item.exact else f"~{size(item.bytes)}", item.formula)


def size(number: int) -> str:
    return f"{number / GIB:.2f} GiB" if number >= GIB else f"{number / MIB:.1f} MiB"


def stop_rows(plan: Plan) -> list[Row]:
    tokens: list[Row] = [(f"token {token.id}", token.source) for token in plan.stop_tokens]
    texts: list[Row] = [(json.dumps(text), "spec.rollout.sampling.stop") for text in plan.stop_strings]
    return [*tokens, *texts, ("the token limit", "spec.rollout.sampling.maxNewTokens")]
