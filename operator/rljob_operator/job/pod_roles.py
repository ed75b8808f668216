"""What `spec.pods` says about the pods of a role: nodes, resources, network, and the patch of their template. Pure.

head       the pod with the driver
trainer    worker groups with ranks of the learner: `trainer`, or `workers` of a Colocated job
rollout    worker groups with engines alone
tools      pods that run the tools of the model, outside of the RayCluster
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rljob_api.rules.pods import CONTAINERS, MOUNTS
from rljob_api.rules.runtime import OPERATORS
from rljob_api.sections import PodRole, Pods, Spec
from rljob_operator.identity import RAY_CLUSTER_LABEL, RAY_GROUP_LABEL, RAY_NODE_TYPE_LABEL, TOOLS_LABEL, Manifest
from rljob_operator.job.template_patch import merged

Role = Literal["head", "trainer", "rollout", "tools"]
HEAD: Role = "head"
TOOLS: Role = "tools"
ROLES: tuple[Role, ...] = (HEAD, "trainer", "rollout", TOOLS)
WITHOUT_GPUS = (HEAD, TOOLS)
HEAD_GROUP = "headgroup"
"""KubeRay's name of the group of the head"""
GPU_NODE_LABELS = (
    "nvidia.com/gpu.present",  # NVIDIA's GPU feature discovery
    "amd.com/gpu.product-name",  # AMD's node labeller
    "feature.node.kubernetes.io/amd-gpu",
    "cloud.google.com/gke-accelerator",
    "k8s.amazonaws.com/accelerator",
    "kubernetes.azure.com/accelerator",
)
"""labels that nodes with GPUs have, and no others"""
NO_SETTINGS = PodRole()


def role_of(spec: Spec, role: Role) -> PodRole:
    """Return the settings of a role; empty if the manifest has none."""
    found: PodRole | None = getattr(spec.pods or Pods(), role)
    return found or NO_SETTINGS


def with_role(template: Manifest, spec: Spec, role: Role, cluster: str, group: str) -> Manifest:
    """Return a pod template with the settings of its role; the patch of the template comes last.

    `cluster` is the name of the RayCluster, `group` that of the pods' group. The first container is Ray's, or that of
    the tools.
    """
    given, domain = role_of(spec, role), spec.pods.same_domain if spec.pods and role not in WITHOUT_GPUS else None
    same_role = {RAY_CLUSTER_LABEL: cluster, RAY_GROUP_LABEL: HEAD_GROUP if role == HEAD else group}
    same_role = {TOOLS_LABEL: cluster} if role == TOOLS else same_role
    pod: Manifest = {**template["spec"], **_scalars(given)}
    selector = {**pod.get("nodeSelector", {}), **given.node_selector}
    affinity = _affinity(given, role, domain, cluster)
    lists = {
        "tolerations": [*pod.get("tolerations", []), *given.tolerations],
        "topologySpreadConstraints": [_spread(each, same_role) for each in given.topology_spread_constraints],
    }
    pod |= {name: each for name, each in lists.items() if each}
    pod |= {"nodeSelector": selector} if selector else {}
    pod |= {"affinity": affinity} if affinity else {}
    pod["containers"] = [_with_capabilities(pod["containers"][0], given.capabilities), *pod["containers"][1:]]
    shaped = {"metadata": _metadata(template["metadata"], given), "spec": pod}
    if given.template is None:
        return shaped
    patched: Manifest = merged(shaped, {"metadata": given.template.metadata, "spec": given.template.spec})
    return {**patched, "spec": _with_walls(patched["spec"], shaped["spec"])}


def _with_walls(pod: Manifest, before: Manifest) -> Manifest:
    """Return a patched pod with the operator's own containers, volumes and mounts as they were before.

    Admission refuses such a patch. A job that has begun continues with a manifest that is refused now, though.
    """
    kept = dict(pod)
    for kind in ("initContainers", "volumes"):
        own = [each for each in _entries(before, kind) if _is_own(each)]
        others = [each for each in _entries(pod, kind) if not _is_own(each)]
        if own or kind in pod:
            kept[kind] = [*own, *others]
    for kind in CONTAINERS:
        mounted = {each["name"]: each.get("volumeMounts", []) for each in _entries(before, kind)}
        if kind in kept:
            kept[kind] = [_with_mounts(each, mounted.get(str(each.get("name")), [])) for each in _entries(kept, kind)]
    return kept


def _entries(part: Manifest, kind: str) -> list[Manifest]:
    """Return the entries of a list; other values, in a refused manifest, are left out."""
    given = part.get(kind)
    return [each for each in given if isinstance(each, dict)] if isinstance(given, list) else []


def _with_mounts(container: Manifest, before: Sequence[Manifest]) -> Manifest:
    """Return a container without mounts of the operator's volumes that it did not have."""
    kept = {
        kind: [each for each in _entries(container, kind) if each in before or (not _is_own(each) and "name" in each)]
        for kind in MOUNTS
        if kind in container
    }
    return {**container, **kept}


def _is_own(part: Manifest) -> bool:
    """Return whether a container, a volume or what mounts one is the operator's."""
    return str(part.get("name")).startswith(OPERATORS)


def _scalars(given: PodRole) -> Manifest:
    named = {"runtimeClassName": given.runtime_class_name, "schedulerName": given.scheduler_name}
    # Without this policy a pod in the node's network would not find the job's Services.
    network = {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} if given.host_network else {}
    return {**{name: value for name, value in named.items() if value is not None}, **network}


def _metadata(metadata: Manifest, given: PodRole) -> Manifest:
    annotations = {**metadata.get("annotations", {}), **given.annotations}
    labels = {**given.labels, **metadata.get("labels", {})}
    return {**metadata, "labels": labels, **({"annotations": annotations} if annotations else {})}


def _affinity(given: PodRole, role: Role, domain: str | None, cluster: str) -> Manifest:
    """Return the affinity that a role names, or the head's own; with the term that keeps workers in one domain."""
    affinity: Manifest = dict(given.affinity)
    if role in WITHOUT_GPUS and not affinity:
        return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [_without_gpus()]}}
    if domain is None:
        return affinity
    workers = {RAY_CLUSTER_LABEL: cluster, RAY_NODE_TYPE_LABEL: "worker"}
    # The scheduler lets the first pod in although it finds none: the term selects the pod itself.
    term = {"labelSelector": {"matchLabels": workers}, "topologyKey": domain}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    near: Mapping[str, Any] = affinity.get("podAffinity", {})
    return {**affinity, "podAffinity": {**near, required: [*near.get(required, []), term]}}


def _without_gpus() -> Manifest:
    absent = [{"key": label, "operator": "DoesNotExist"} for label in GPU_NODE_LABELS]
    return {"weight": 100, "preference": {"matchExpressions": absent}}


def _spread(given: Mapping[str, Any], same_role: Mapping[str, str]) -> Manifest:
    return {"labelSelector": {"matchLabels": dict(same_role)}, **given}


def _with_capabilities(container: Manifest, names: Sequence[str]) -> Manifest:
    if not names:
        return container
    security = container["securityContext"]
    capabilities = {**security["capabilities"], "add": list(names)}
    return {**container, "securityContext": {**security, "capabilities": capabilities}}
