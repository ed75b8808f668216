"""Rules of `spec.pods`: how the pods of each role look. Mostly free mappings, for Python alone."""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rljob_api.errors import ABSENT, Problem
from rljob_api.rules.claims import FREE_MAPPING, only_in_python, requires
from rljob_api.rules.names import closest
from rljob_api.rules.pod_types import wrong_types
from rljob_api.rules.runtime import OPERATORS, counted
from rljob_api.rules.terms import SPEC, Field, fields_of, has, matches, or_else, size
from rljob_api.sections import Device, OfPod, Placement, PodRole, Pods, Spec, ToolSandbox
from rljob_api.sizing.topology import gpu_resource

pods = SPEC.pods
ROLES = ("head", "trainer", "rollout", "tools")
RESOURCE = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
"""an extended resource: a domain and a name"""
LABEL = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
USED = (
    requires(
        pods.gpu_resource,
        ~has(pods) | ~has(pods.gpu_resource) | (SPEC.runtime.device != Device.CPU),
        f"would not be used: spec.runtime.device is {Device.CPU}; leave it out",
    ),
    requires(
        pods.rollout,
        ~has(pods) | ~has(pods.rollout) | (SPEC.placement != Placement.COLOCATED),
        f"would not be used: engines of a {Placement.COLOCATED} job are in the pods of spec.pods.trainer; leave it out",
    ),
    requires(
        pods.gpu_resource,
        ~has(pods) | ~has(pods.gpu_resource) | matches(pods.gpu_resource, RESOURCE),
        "is not a resource of a device plugin; nearest valid: nvidia.com/gpu",
    ),
    requires(
        pods.same_domain,
        ~has(pods) | ~has(pods.same_domain) | matches(pods.same_domain, LABEL),
        "is not a name of a node's label; nearest valid: topology.kubernetes.io/rack",
    ),
)

in_pods = has(SPEC.rollout.tools) & (or_else(SPEC.rollout.tools.sandbox, ToolSandbox.PODS) == ToolSandbox.PODS)
OF_TOOLS = (
    requires(
        pods.tools,
        ~has(pods) | ~has(pods.tools) | in_pods,
        f"would not be used: spec.rollout.tools is absent, or its sandbox is not {ToolSandbox.PODS}; leave it out",
    ),
    requires(
        pods.tools.host_network,
        ~has(pods) | ~has(pods.tools) | ~pods.tools.host_network,
        "would let the code of a model reach the node's network; leave it out",
    ),
    requires(
        pods.tools.capabilities,
        ~has(pods) | ~has(pods.tools) | (size(pods.tools.capabilities) == 0),
        "would give the code of a model rights of the node; leave it out",
    ),
)
"""what pods of tools may have"""

LETS_OUT = "would let the code of a model out of its pod; leave it out"
HELD = (
    *("$patch", "automountServiceAccountToken", "hostIPC", "hostNetwork", "hostPID", "hostUsers", "securityContext"),
    *("serviceAccount", "serviceAccountName"),
)
"""fields of a pod's spec that hold the code of a model"""

LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
CAPABILITY = re.compile(r"[A-Z][A-Z0-9_]*")
OURS = ("rljob.dev/", "ray.io/", "app.kubernetes.io/managed-by")
"""beginnings of labels and annotations by which the operator and KubeRay find pods"""
RAY_CONTAINERS = {"head": "ray-head", "trainer": "ray-worker", "rollout": "ray-worker", "tools": "tools"}
"""the container of each role whose program is ours"""
FIRST_BEFORE = "run-directory"
"""an init container that older operators added"""
CONTAINERS = ("containers", "initContainers", "ephemeralContainers")
LISTS = {**dict.fromkeys(CONTAINERS, "name"), "volumes": "name"}
"""lists of a pod's spec whose entries merge by this field"""
MOUNTS = {"volumeMounts": "mountPath", "volumeDevices": "devicePath"}
"""lists of a container that name volumes; their entries merge by this field"""


def roles(given: Pods) -> Iterator[tuple[str, PodRole]]:
    """Yield the roles that have settings, with their names."""
    for name in ROLES:
        role = getattr(given, name)
        if role is not None:
            yield name, role


def of_roles(judge: Callable[[Spec, str, str, PodRole], Iterator[Problem]]) -> Callable[[Spec], Iterator[Problem]]:
    """Return the function that judges each role: called with the spec, the role's path, its name and its settings."""

    def judge_all(spec: Spec) -> Iterator[Problem]:
        for name, role in roles(spec.pods) if spec.pods else ():
            yield from judge(spec, f"spec.pods.{name}", name, role)

    judge_all.__name__ = judge.__name__
    return judge_all


def parts_of_pods(section: Field) -> Iterator[tuple[Field, OfPod]]:
    """Yield the fields that hold a part of a pod, with its type."""
    for field in fields_of(section):
        _, declared = field.route[-1]
        yield from ((field, mark) for mark in declared.metadata if isinstance(mark, OfPod))
        yield from parts_of_pods(field) if field.section else ()


PARTS = tuple(parts_of_pods(SPEC))


@only_in_python("the API server judges the scalars in the entries of lists, by their schemas")
def types_of_kubernetes(spec: Spec) -> Iterator[Problem]:
    for field, mark in PARTS:
        with contextlib.suppress(LookupError, AttributeError):  # its section is absent; it is wrong as a whole
            yield from wrong_types(field.at, field.of(spec), mark.kind, mark.is_patch)


@only_in_python(FREE_MAPPING)
@of_roles
def role_metadata(_: Spec, path: str, __: str, role: PodRole) -> Iterator[Problem]:
    yield from labels_of(f"{path}.labels", role.labels)
    yield from keys_of(f"{path}.annotations", role.annotations)
    for name, value in role.node_selector.items():
        yield from label_of(f"{path}.nodeSelector", name, value)


def labels_of(path: str, given: Mapping[str, str]) -> Iterator[Problem]:
    yield from keys_of(path, given)
    for name, value in given.items():
        yield from label_of(path, name, value)


def keys_of(path: str, given: Mapping[str, str]) -> Iterator[Problem]:
    for name in given:
        if name.startswith(OURS):
            yield Problem(f"{path}[{name}]", ABSENT, "belongs to the operator and KubeRay; leave it out")


def label_of(path: str, name: str, value: str) -> Iterator[Problem]:
    if not LABEL.fullmatch(name):
        yield Problem(f"{path}[{name}]", ABSENT, "is not a name of a label")
    if not LABEL_VALUE.fullmatch(value):
        yield Problem(f"{path}[{name}]", value, "is not a valid label value: at most 63 of A-Z, a-z, 0-9, -, _ and .")


@only_in_python(FREE_MAPPING)
@of_roles
def role_resources(spec: Spec, path: str, _: str, role: PodRole) -> Iterator[Problem]:
    yield from counted(f"{path}.resources", role.resources, gpu_resource(spec))


@only_in_python("loops over a list")
@of_roles
def role_capabilities(_: Spec, path: str, __: str, role: PodRole) -> Iterator[Problem]:
    for index, name in enumerate(role.capabilities):
        plain = name.upper().removeprefix("CAP_")
        if plain != name or not CAPABILITY.fullmatch(name):
            near = plain if CAPABILITY.fullmatch(plain) else None
            yield Problem(f"{path}.capabilities[{index}]", name, "is not a Linux capability without CAP_", near)


@only_in_python(FREE_MAPPING)
@of_roles
def role_template(spec: Spec, path: str, name: str, role: PodRole) -> Iterator[Problem]:
    if role.template is None:
        return
    metadata, patch, path = role.template.metadata, role.template.spec, f"{path}.template"
    for key, given in metadata.items():
        if key not in ("labels", "annotations"):
            yield Problem(f"{path}.metadata.{key}", ABSENT, "unknown field", closest(key, ("labels", "annotations")))
            continue
        yield from wrong_types(f"{path}.metadata.{key}", given, "{string}")
        yield from keys_of(f"{path}.metadata.{key}", given if isinstance(given, Mapping) else {})
    for key, merged_by in LISTS.items():
        yield from entries_of(f"{path}.spec.{key}", patch.get(key), merged_by)
        if key in patch and patch[key] is None:
            yield Problem(f"{path}.spec.{key}", ABSENT, "would remove what the operator needs; leave it out")
    for key in CONTAINERS:
        yield from mounts_of(f"{path}.spec.{key}", patch.get(key))
    yield from ray_container(f"{path}.spec.containers", patch.get("containers"), RAY_CONTAINERS[name], spec)


@only_in_python(FREE_MAPPING)
def tools_template(spec: Spec) -> Iterator[Problem]:
    """What OF_TOOLS refuses, and all else that would let the code of a model out, is refused in the template, too."""
    tools = spec.pods.tools if spec.pods else None
    if tools is None or tools.template is None:
        return
    path, patch = "spec.pods.tools.template.spec", tools.template.spec
    for key in (key for key in HELD if key in patch and patch[key] is not False):
        yield Problem(f"{path}.{key}", ABSENT, LETS_OUT)
    for key in CONTAINERS:
        for index, container in mappings_of(patch.get(key)):
            place = f"{path}.{key}[{index}]"
            if "securityContext" in container:
                yield Problem(f"{place}.securityContext", ABSENT, LETS_OUT)
            for number, port in mappings_of(container.get("ports")):
                if port.get("hostPort"):
                    yield Problem(f"{place}.ports[{number}].hostPort", port["hostPort"], LETS_OUT)
    for index, volume in mappings_of(patch.get("volumes")):
        if "hostPath" in volume:
            yield Problem(f"{path}.volumes[{index}].hostPath", ABSENT, LETS_OUT)


def mappings_of(given: object) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for index, entry in enumerate(given if isinstance(given, list) else ()):
        if isinstance(entry, Mapping):
            yield index, entry


def entries_of(path: str, given: object, merged_by: str) -> Iterator[Problem]:
    for index, entry in enumerate(given if isinstance(given, list) else ()):
        if not isinstance(entry, Mapping) or not isinstance(entry.get(merged_by), str):
            yield Problem(f"{path}[{index}].{merged_by}", ABSENT, "is missing: entries merge by it")
        elif entry[merged_by].startswith(OPERATORS) or entry[merged_by] == FIRST_BEFORE:
            yield Problem(
                f"{path}[{index}].{merged_by}", entry[merged_by], "belongs to the operator; take another name"
            )


def mounts_of(path: str, given: object) -> Iterator[Problem]:
    """Yield problems of what the patches of containers mount: no volume of the operator.

    A job sees one directory of the operator's volume. A mount without a name would keep that of the mount which it
    merges into, and could take its `subPath` away.
    """
    for index, container in enumerate(given if isinstance(given, list) else ()):
        for key, merged_by in MOUNTS.items() if isinstance(container, Mapping) else ():
            mounts = container.get(key)
            for number, mount in enumerate(mounts if isinstance(mounts, list) else ()):
                yield from mount_of(f"{path}[{index}].{key}[{number}]", mount, merged_by)


def mount_of(path: str, mount: object, merged_by: str) -> Iterator[Problem]:
    if not isinstance(mount, Mapping) or not isinstance(mount.get(merged_by), str):
        yield Problem(f"{path}.{merged_by}", ABSENT, "is missing: entries merge by it")
    elif mount.get("$patch") == "delete":
        return
    elif not isinstance(name := mount.get("name"), str):
        yield Problem(f"{path}.name", ABSENT, "is missing: name the volume")
    elif name.startswith(OPERATORS):
        yield Problem(f"{path}.name", name, "is a volume of the operator; mount one of the job's own")


def ray_container(path: str, given: object, name: str, spec: Spec) -> Iterator[Problem]:
    """Yield problems of the patch of Ray's own container, whose image and GPUs other fields decide."""
    entries = [entry for entry in given if isinstance(entry, Mapping)] if isinstance(given, list) else []
    for index, entry in enumerate(entries):
        if entry.get("name") != name:
            continue
        if "$patch" in entry:
            yield Problem(f"{path}[{index}].$patch", entry["$patch"], "would remove the container of Ray")
        for field, instead in (("image", "spec.runtime.image"), ("command", None), ("args", None)):
            if field in entry:
                rule = "is decided by the operator" if instead is None else "is that of all pods of the job"
                yield Problem(f"{path}[{index}].{field}", ABSENT, rule, instead)
        if isinstance(entry.get("resources"), Mapping):
            yield from counted(f"{path}[{index}].resources", entry["resources"], gpu_resource(spec))


RULES = (
    types_of_kubernetes,
    *USED,
    *OF_TOOLS,
    role_metadata,
    role_resources,
    role_capabilities,
    role_template,
    tools_template,
)
