"""verl's asynchronous programs: learner and engines have separate GPUs, and rollouts run ahead.

`fully_async_policy` counts what it samples in prompts, `total_rollout_steps`, and what it trains on in mini-batches.
One step of an RLJob is what its learner takes at once, `require_batches` mini-batches.
"""

from math import ceil

from rljob_importing.draft import Arguments, Draft, NoteKind, origin
from rljob_importing.entries import Training
from rljob_importing.verl_given import on, shown
from rljob_importing.verl_keys import ACTOR, ROLLOUT

GPUS, NODES, MINI_BATCH = 8, 1, 256
SYNC, BATCHES, STALE, TOTAL = 4, 1, 0.1, 100
"""verl's defaults: trigger_parameter_sync_step, require_batches, staleness_threshold, total_rollout_steps"""


def apart(made: Draft, arguments: Arguments) -> None:
    """Carry over the GPUs: the learner's are `trainer.…`, and those of the engines `rollout.…`."""
    nodes, gpus = (
        next((name for name in (f"rollout.{key}", f"{ROLLOUT}.{key}") if name in arguments), f"rollout.{key}")
        for key in ("nnodes", "n_gpus_per_node")
    )
    on_node = arguments.whole(gpus) or GPUS
    all_gpus = (arguments.whole(nodes) or NODES) * on_node
    name = f"{ROLLOUT}.tensor_model_parallel_size"
    wanted = arguments.whole(name) or 1
    engine = min(wanted, on_node)
    if engine < wanted:
        made.note(NoteKind.CHECK, arguments[name], f"an engine stays on one node: {engine} GPUs here")
    made.put("placement", "Disaggregated", f"{shown(arguments, gpus)}: separate GPUs for engines")
    made.put("rollout.engines", max(1, all_gpus // engine), f"{shown(arguments, gpus)}: {all_gpus} GPUs, {engine} each")
    if engine > 1:
        made.put("rollout.gpusPerEngine", engine, origin(arguments[name]))


def ahead(made: Draft, arguments: Arguments, training: Training) -> None:
    """Carry over how far rollouts run ahead."""
    if training is Training.FULLY_ASYNC:
        _stream(made, arguments)
    else:
        made.put("rollout.async.maxStaleness", 1, "one_step_off_policy")


def _stream(made: Draft, arguments: Arguments) -> None:
    mini, batches = f"{ACTOR}.ppo_mini_batch_size", "async_training.require_batches"
    prompts = (arguments.whole(mini) or MINI_BATCH) * (arguments.whole(batches) or BATCHES)
    made.put("rollout.promptsPerStep", prompts, f"{shown(arguments, mini)}: x require_batches")
    sync, stale = "async_training.trigger_parameter_sync_step", "async_training.staleness_threshold"
    partly = "async_training.partial_rollout"
    interval, share = arguments.whole(sync) or SYNC, arguments.number(stale)
    partial = partly not in arguments or on(arguments, partly)
    older = ceil(interval * (STALE if share is None else share)) if partial else 0
    made.put("rollout.async.maxStaleness", interval + older, shown(arguments, stale))
    made.put("rollout.async.updateInterval", interval, shown(arguments, sync))
    if partial:
        made.put("rollout.async.partial", True, shown(arguments, partly))
    why = "verl bounds the share of old samples, rljob the age of each token: spec.rollout.async.maxStaleness"
    made.note(NoteKind.CHECK, arguments.get(stale), why)
    total = "rollout.total_rollout_steps"
    if total in arguments and arguments.whole(total) is not None:
        steps = max(1, (arguments.whole(total) or TOTAL) // prompts)
        made.put("training.steps", steps, f"{origin(arguments[total])}: by {prompts} prompts")
    if tests := arguments.whole("rollout.test_freq"):
        where = origin(arguments["rollout.test_freq"])
        made.put("evaluation.interval", max(1, tests * interval), f"{where}: x trigger_parameter_sync_step")
