"""Rules of `spec.runtime`, `spec.tracking`, `spec.extraArgs` and `debug.cudaLaunchBlocking`, which fills some of them.

They are mostly about free mappings, for Python alone.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from rljob_api.credentials import secret_names
from rljob_api.errors import ABSENT, Problem
from rljob_api.rules import arguments
from rljob_api.rules.claims import FREE_MAPPING, Search, only_in_python, requires, unused
from rljob_api.rules.names import closest
from rljob_api.rules.quantity import is_quantity, thousandths
from rljob_api.rules.terms import SPEC, all_of, fields_of, has, or_else
from rljob_api.sections import Device, PodRole, Spec, WandbMode
from rljob_api.sizing.topology import gpu_resource

OPERATORS = "rljob-"
"""begins the names of containers and volumes that the operator adds to pods"""
LEAST_MEMORY = 4 * 2**20
"""of a container [bytes]: container runtimes refuse less"""
MOST_GIB = 65536
"""up to which a number without a suffix may have been meant as GiB"""
REQUESTED = fields_of(SPEC.runtime, "head_resources", "worker_resources")
wandb = SPEC.tracking.wandb
TRACKING = requires(
    wandb.api_key_file,
    (or_else(wandb.mode, WandbMode.ONLINE) == WandbMode.ONLINE) | ~has(wandb.api_key_file),
    f"would not be read: spec.tracking.wandb.mode is {WandbMode.OFFLINE}; leave it out",
)

SOURCES = {
    "secretKeyRef": (("name", "key"), ("name", "key", "optional")),
    "configMapKeyRef": (("name", "key"), ("name", "key", "optional")),
    "fieldRef": (("fieldPath",), ("fieldPath", "apiVersion")),
}
"""of a variable's value: what each needs, and all that it takes"""
POD_FIELD = re.compile(
    r"metadata\.(name|namespace|uid|(labels|annotations)\['[^']+'\])|spec\.(nodeName|serviceAccountName)"
    r"|status\.(hostIPs?|podIPs?)"
)

RESERVED = (6379, 8080, 8265, 8643, 44217, 44227, 52365)
"""ports that others open on a head pod: Ray's GCS, metrics, dashboard, autoscaler and agent, and the driver's control
protocol"""
WORKERS = range(10001, 20000)
"""ports of Ray's client server, and of its workers"""


def nearest_port(spec: Spec) -> str:
    """Return the free port that is closest to the wanted one."""
    wanted = spec.runtime.metrics_port
    free = (port for port in range(1024, 2**16) if port not in RESERVED and port not in WORKERS)
    return str(min(free, key=lambda port: abs(port - wanted)))


metrics_port = SPEC.runtime.metrics_port
METRICS_PORT = requires(
    metrics_port,
    all_of(
        *(metrics_port != port for port in RESERVED),
        (metrics_port < WORKERS.start) | (metrics_port >= WORKERS.stop),
    ),
    "is a port of Ray or of the driver's control protocol in a head pod",
    nearest=Search(nearest_port, says="0, for a free port"),
)


@only_in_python(FREE_MAPPING)
def environment(spec: Spec) -> Iterator[Problem]:
    for name, value in spec.runtime.env.items():
        path = f"spec.runtime.env.{name}"
        if isinstance(value, Mapping):
            yield from value_from(path, value)
        elif not isinstance(value, str):
            near = json.dumps(str(value).lower() if isinstance(value, bool) else str(value))
            yield Problem(path, value, "is neither a text nor {valueFrom: …}", near if is_scalar(value) else None)


def is_scalar(value: object) -> bool:
    return isinstance(value, int | float)


def value_from(path: str, given: Mapping[str, object]) -> Iterator[Problem]:
    """Yield the problems of a variable whose value is elsewhere."""
    source = given.get("valueFrom")
    if set(given) != {"valueFrom"} or not isinstance(source, Mapping) or len(source) != 1:
        yield Problem(path, ABSENT, f"needs valueFrom with one of {', '.join(SOURCES)}, and nothing else")
        return
    ((kind, reference),) = source.items()
    if kind not in SOURCES:
        rule = f"is none of {', '.join(SOURCES)}"
        yield Problem(f"{path}.valueFrom", kind, rule, closest(str(kind), tuple(SOURCES)))
        return
    needed, known = SOURCES[kind]
    there = reference if isinstance(reference, Mapping) else {}
    missing = [each for each in needed if not isinstance(there.get(each), str) or not there[each]]
    strange = [each for each in there if each not in known]
    if missing or strange:
        yield Problem(f"{path}.valueFrom.{kind}", ABSENT, f"needs {' and '.join(needed)}; it takes {', '.join(known)}")
    elif kind == "fieldRef" and not POD_FIELD.fullmatch(str(there["fieldPath"])):
        rule = "is not a field that a pod's environment can have"
        yield Problem(f"{path}.valueFrom.fieldRef.fieldPath", there["fieldPath"], rule, "metadata.name")


TRACKERS_KEY = "WANDB_API_KEY"
FROM_SECRET = "{valueFrom: {secretKeyRef: {name: …, key: …}}}"
OPEN_SECRET = "is a secret that all readers of the manifest see; on one machine it comes from the shell"


@only_in_python(FREE_MAPPING)
def secrets(spec: Spec) -> Iterator[Problem]:
    for name in secret_names(spec.runtime.env):
        nearest = "spec.tracking.wandb.apiKeyFile" if name == TRACKERS_KEY else FROM_SECRET
        yield Problem(f"spec.runtime.env.{name}", ABSENT, OPEN_SECRET, nearest)


@only_in_python(FREE_MAPPING)
def secrets_in_templates(spec: Spec) -> Iterator[Problem]:
    for role, pods in spec.pods or ():
        template = pods.template.spec if isinstance(pods, PodRole) and pods.template else {}
        for kind in ("initContainers", "containers"):
            for index, variables in enumerate(map(_variables, _mappings(template.get(kind)))):
                for name in secret_names(variables):
                    path = f"spec.pods.{role}.template.spec.{kind}[{index}].env"
                    yield Problem(path, name, OPEN_SECRET, FROM_SECRET)


def _variables(container: Mapping[str, Any]) -> dict[str, object]:
    return {str(each.get("name")): each.get("value") for each in _mappings(container.get("env"))}


def _mappings(given: object) -> list[Mapping[str, Any]]:
    return [each for each in given if isinstance(each, Mapping)] if isinstance(given, list | tuple) else []


@only_in_python(FREE_MAPPING)
def volume_mounts(spec: Spec) -> Iterator[Problem]:
    known = [volume.get("name") for volume in spec.runtime.volumes]
    for index, name in enumerate(known):
        if name in known[:index]:
            yield Problem(f"spec.runtime.volumes[{index}].name", name, "is the name of two volumes")
        if isinstance(name, str) and name.startswith(OPERATORS):
            yield Problem(f"spec.runtime.volumes[{index}].name", name, "belongs to the operator; take another name")
    for index, mount in enumerate(spec.runtime.volume_mounts):
        name = mount.get("name")
        if isinstance(name, str) and name not in known:
            near = closest(name, [str(each) for each in known])
            yield Problem(
                f"spec.runtime.volumeMounts[{index}].name", name, "is not a volume of spec.runtime.volumes", near
            )


@only_in_python("counts the fields of a mapping")
def volume_sources(spec: Spec) -> Iterator[Problem]:
    for index, volume in enumerate(spec.runtime.volumes):
        sources = [name for name, source in volume.items() if name != "name" and source is not None]
        if len(sources) > 1:
            yield Problem(f"spec.runtime.volumes[{index}]", ABSENT, f"has {len(sources)} sources: {', '.join(sources)}")


@only_in_python(FREE_MAPPING)
def resources(spec: Spec) -> Iterator[Problem]:
    for field in REQUESTED:
        yield from counted(field.at, field.of(spec), gpu_resource(spec))
        yield from amounts(field.at, field.of(spec))
    for role, pods in spec.pods or ():
        if isinstance(pods, PodRole):
            yield from amounts(f"spec.pods.{role}.resources", pods.resources)


def counted(path: str, given: Mapping[str, object], gpu: str) -> Iterator[Problem]:
    """Yield the problem of a container's resources that contain GPUs, which are counted elsewhere."""
    rule = "is counted from the placement: training.gpusPerNode and rollout.gpusPerEngine"
    for kind, amounts in given.items():
        if isinstance(amounts, Mapping) and gpu in amounts:
            yield Problem(f"{path}.{kind}[{gpu}]", amounts[gpu], rule)


def amounts(path: str, given: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the problems of amounts that no pod can have; what is not a quantity is reported elsewhere."""
    requests, limits = quantities(given.get("requests")), quantities(given.get("limits"))
    for kind, listed in (("requests", requests), ("limits", limits)):
        memory = listed.get("memory")
        if memory is not None and 0 < thousandths(memory) < 1000 * LEAST_MEMORY:
            rule = f"is less than {LEAST_MEMORY // 2**20} MiB, in which no container starts; a number alone means bytes"
            yield Problem(f"{path}.{kind}.memory", memory, rule, with_suffix(memory))
    for name in requests:
        if name in limits and thousandths(requests[name]) > thousandths(limits[name]):
            rule = f"is more than limits.{name} {limits[name]}, and a pod may not request more than its limit"
            yield Problem(f"{path}.requests.{name}", requests[name], rule, str(limits[name]))


def quantities(listed: object) -> Mapping[str, object]:
    return {name: each for name, each in listed.items() if is_quantity(each)} if isinstance(listed, Mapping) else {}


def with_suffix(memory: object) -> str | None:
    """Return the memory that a small number was meant to be."""
    return f"{memory}Gi" if str(memory).isdecimal() and int(str(memory)) <= MOST_GIB else None


@only_in_python("arguments are those of the installed SGLang and Megatron-core, and CEL cannot see into a free mapping")
def extra_arguments(spec: Spec) -> Iterator[Problem]:
    yield from arguments.problems("sglang", spec.extra_args.sglang)
    yield from arguments.problems("megatron", spec.extra_args.megatron)


blocking = SPEC.debug.cuda_launch_blocking
BLOCKING = unused(
    blocking, SPEC.runtime.device == Device.GPU, f"would not be used: spec.runtime.device is {Device.CPU}"
)
OF_BLOCKING = ("CUDA_LAUNCH_BLOCKING", "CUDA_ENABLE_COREDUMP_ON_EXCEPTION", "CUDA_COREDUMP_FILE")
"""variables that spec.debug.cudaLaunchBlocking sets in ranks and engines"""


@only_in_python(FREE_MAPPING)
def one_kernel_at_a_time(spec: Spec) -> Iterator[Problem]:
    if not blocking.of(spec):
        return
    for name in OF_BLOCKING:
        if name in spec.runtime.env:
            yield Problem(f"spec.runtime.env.{name}", ABSENT, f"would not be used: {blocking.at} sets it; leave it out")
    for name, value in spec.extra_args.sglang.items():
        if hides_kernels(name, value):
            rule = f"contradicts {blocking.at}, which runs without CUDA graphs and speculative decoding; leave it out"
            yield Problem(f"spec.extraArgs.sglang.{name}", ABSENT, rule)


def hides_kernels(name: str, value: object) -> bool:
    """Return whether an argument of SGLang is about graphs or speculation, and does not turn graphs off."""
    is_off = name.startswith("disable-") and value is True
    return name.startswith("speculative-") or ("cuda-graph" in name and not is_off)


RULES = (
    *(TRACKING, METRICS_PORT, BLOCKING),
    *(
        environment,
        secrets,
        secrets_in_templates,
        volume_mounts,
        volume_sources,
        resources,
        extra_arguments,
        one_kernel_at_a_time,
    ),
)
