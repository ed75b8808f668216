"""Rules of where learner and engines are, how far rollouts run ahead, and how weights get from one to the others."""

from collections.abc import Iterator

from rljob_api.errors import Problem
from rljob_api.rules.cel import near
from rljob_api.rules.claims import FREE_MAPPING, Search, only_in_python, requires, unused
from rljob_api.rules.rollout import on_cpu
from rljob_api.rules.terms import SPEC, as_term, default, has, named, when
from rljob_api.rules.training import closest_divisor
from rljob_api.sections import MOST_GPUS_PER_NODE, MOST_RANKS, Device, Placement, Spec

rollout, sync, gpus = SPEC.rollout, SPEC.weight_sync, SPEC.training.gpus_per_node
engine, ahead = rollout.gpus_per_engine, rollout.asynchronous
is_apart = SPEC.placement != Placement.COLOCATED
WHOLE_NODE = 8
"""GPUs of a machine: a learner that uses this number needs whole machines"""
engine_gpus = named(rollout.engines * engine)

ENGINES = (
    requires(
        rollout.engines,
        engine_gpus <= MOST_RANKS,
        f"x gpusPerEngine {engine} = {engine_gpus} is more than the {MOST_RANKS} GPUs that engines may have; nearest "
        f"valid: {as_term(MOST_RANKS) // engine}",
    ),
    requires(
        engine,
        (SPEC.runtime.device != Device.CPU) | (engine == 1),
        f"must be 1 on {Device.CPU}: SGLang has no tensor parallelism there; nearest valid: 1",
    ),
    requires(
        engine,
        ~is_apart | (gpus < WHOLE_NODE) | (engine <= gpus),
        f"is more than gpusPerNode {gpus}, and an engine is in one pod, on one node; nearest valid: {gpus}",
    ),
    requires(
        engine,
        on_cpu | is_apart | (engine < 1) | (gpus % engine == 0),
        f"does not divide gpusPerNode {gpus}, and a colocated engine stays on one of the learner's nodes",
        nearest=Search(
            lambda spec: str(closest_divisor(gpus.of(spec), engine.of(spec), 1)),
            cel=(near(engine.alias, engine.cel, f"{gpus.cel} % v == 0", 1, MOST_GPUS_PER_NODE),),
        ),
    ),
)

other_way = when(has(rollout.generate), "generate", "tools")
AHEAD = (
    requires(
        ahead,
        ~has(ahead) | is_apart,
        "needs separate GPUs for learner and engines: colocated ones work alternately"
        f"; nearest valid: spec.placement {Placement.DISAGGREGATED}",
    ),
    requires(
        ahead,
        ~has(ahead) | ~has(rollout.generate) & ~has(rollout.tools),
        f"cannot be combined with spec.rollout.{other_way}: weights would change between two answers of a sample"
        "; nearest valid: leave it out",
    ),
    requires(
        ahead.update_interval,
        ~has(ahead) | (ahead.update_interval <= ahead.max_staleness),
        f"is more than maxStaleness {ahead.max_staleness}: samples would be older before there are newer weights"
        f"; nearest valid: {ahead.max_staleness}",
    ),
    requires(
        ahead.max_staleness,
        ~has(ahead) | ahead.partial | has(rollout.agent) | (ahead.max_staleness <= ahead.update_interval),
        "would only make samples older: without partial a publication waits for all that has begun"
        f"; nearest valid: {ahead.update_interval}, or partial true",
    ),
)
SPECULATIVE = "speculative-algorithm"


@only_in_python(FREE_MAPPING)
def carried_over(spec: Spec) -> Iterator[Problem]:
    given = spec.rollout.asynchronous
    if given is not None and given.partial and SPECULATIVE in spec.extra_args.sglang:
        rule = (
            f"would miss the end of a response: spec.extraArgs.sglang.{SPECULATIVE} makes several tokens at once, and"
            " only the last of what was cut off is made again"
        )
        yield Problem("spec.rollout.async.partial", True, rule, "false")


ranks = SPEC.training.nodes * gpus
all_shared = named(rollout.engines * engine <= ranks)
broadcast = named(when(has(sync.transport), sync.transport == "Broadcast", is_apart))
in_memory = named(has(sync.transport) & (sync.transport == "Ipc"))
in_memory_by_default = (
    ~has(sync.transport) & (SPEC.runtime.device == Device.GPU) & ~is_apart & all_shared & ~has(sync.directory)
)
in_changes = named(has(sync.transport) & (sync.transport == "Delta"))
WEIGHT_SYNC = (
    unused(
        sync.directory,
        ~broadcast & ~in_memory,
        f"would not be used: the transport is {when(broadcast, 'Broadcast', 'Ipc')}"
        f"; nearest valid: {sync.transport.at} Disk",
    ),
    unused(
        sync.bucket_mib,
        broadcast | in_memory | in_memory_by_default,
        f"would not be used: the transport is {when(in_changes, 'Delta', 'Disk')}"
        f"; nearest valid: {default(sync.bucket_mib)}",
    ),
    requires(
        sync.transport,
        ~broadcast | (SPEC.runtime.device != Device.GPU) | is_apart,
        "needs spec.placement Disaggregated: NCCL refuses a learner and an engine on the same GPU; nearest valid: Disk",
        shows=as_term("Broadcast"),
    ),
    requires(
        sync.transport,
        ~in_memory | ~on_cpu,
        "needs spec.runtime.device Gpu: on a Cpu files in /dev/shm are memory, too; nearest valid: Disk",
        shows=as_term("Ipc"),
    ),
    requires(
        sync.transport,
        ~in_memory | ~is_apart,
        "needs spec.placement Colocated: engines map the memory of a learner on the same GPU; nearest valid: Broadcast",
        shows=as_term("Ipc"),
    ),
    requires(
        sync.transport,
        ~in_memory | is_apart | all_shared,
        f"needs a rank of the learner on each slot of an engine: engines x gpusPerEngine is {rollout.engines * engine},"
        f" nodes x gpusPerNode is {ranks}; nearest valid: Disk",
        shows=as_term("Ipc"),
    ),
)

offload = SPEC.training.offload
OFFLOAD = requires(
    offload,
    ~has(offload) | ~offload | (~on_cpu & ~is_apart),
    "needs Colocated on Gpu; nearest valid: false",
)

RULES = (*ENGINES, *AHEAD, carried_over, *WEIGHT_SYNC, OFFLOAD)
