"""The security contexts, scratch volumes, preStop hooks and probes of a job's pods. Pure.

The pods pass the Pod Security Standard `restricted`: no root, no privilege escalation, a read-only root file system.
So programs need writable directories, which are defined here. KubeRay gives its init container the security context
and the mounts of the Ray container.
"""

from collections.abc import Mapping, Sequence
from posixpath import normpath
from typing import Any

from rljob_api import kernels
from rljob_api.control import EVICTION_TOKEN_VARIABLE
from rljob_api.errors import UNREADABLE
from rljob_api.sections import Spec
from rljob_operator.identity import CONTROL_PORT, Manifest

USER = 10001
"""uid and gid in all pods, regardless of the image: files on shared volumes have one owner"""
HOME = "/home/rljob"
SCRATCH: Mapping[str, tuple[str, Manifest]] = {
    "/tmp": ("rljob-tmp", {}),
    HOME: ("rljob-home", {}),
    # Ray's object store and gloo. No size limit: a node's own is what the pod, or else the node, has of memory.
    "/dev/shm": ("rljob-shm", {"medium": "Memory"}),
}
"""by path: name and kind of the emptyDir that is mounted there; it is deleted with the pod"""
ENVIRONMENT: Mapping[str, str] = {
    "HOME": HOME,
    "USER": "rljob",  # an image need not know the uid, and torch asks for the name that its cache is called by
    "RAY_TMPDIR": "/tmp",  # regardless of TMPDIR: paths of unix sockets must be short
    **kernels.ENVIRONMENT,
}
"""what all pods have unless `runtime.env` says otherwise"""

RAY_MODE_VARIABLE = "RAY_AUTH_MODE"
RAY_TOKEN_VARIABLE = "RAY_AUTH_TOKEN"

HOOK_MARGIN_S = 10
"""the hook ends this long before the grace period, so that the programs can still end by themselves [s]"""

VOLUME = "rljob-storage"
"""name of the operator's default volume in pods"""

AGENT_PORT = 52365
"""of Ray's dashboard agent, in every pod"""
RAYLET_HEALTH = "/api/local_raylet_healthz"
"""asks the pod's raylet alone. KubeRay's probes ask /api/healthz, which on the head fails when the GCS needs more than
0.1 s: always, while all cores train. A GCS that is dead ends `ray start --block`, and with it the container
"""


def probes() -> Manifest:
    """Return a container's probes: they survive a pod whose cores are all busy, and find a raylet that is gone.

    KubeRay adds its own only where a container has none. The agent ends with its raylet, and then refuses connections.
    """
    health = {"httpGet": {"path": RAYLET_HEALTH, "port": AGENT_PORT}, "timeoutSeconds": 10, "successThreshold": 1}
    return {
        "readinessProbe": {**health, "initialDelaySeconds": 10, "periodSeconds": 5, "failureThreshold": 12},
        "livenessProbe": {**health, "initialDelaySeconds": 30, "periodSeconds": 10, "failureThreshold": 30},
    }


def eviction_hook(grace_s: int, has_only_engines: bool) -> Manifest:
    """Return a container's `lifecycle`: when its pod is deleted, the driver saves before the container gets SIGTERM."""
    holds = "Engines" if has_only_engines else "Learner"
    wait_s = max(1, grace_s - HOOK_MARGIN_S)
    command = ["python", "-m", "rljob_trainer.control.pod_eviction"]
    options = [f"--holds={holds}", f"--port={CONTROL_PORT}", f"--grace={wait_s}"]
    return {"preStop": {"exec": {"command": [*command, *options]}}}


def secret_of_ray(pod: Manifest) -> str | None:
    """Return the name of the Secret with the token that Ray in this pod asks for; None: it asks for none."""
    given = (each for container in pod["spec"]["containers"] for each in container.get("env") or ())
    sources = (each.get("valueFrom") or {} for each in given if each["name"] == RAY_TOKEN_VARIABLE)
    return next((source["secretKeyRef"]["name"] for source in sources if "secretKeyRef" in source), None)


def eviction_token(secret: str, key: str) -> Manifest:
    """Return the environment variable with the eviction token, which Secrets of older operators lack."""
    reference = {"name": secret, "key": key, "optional": True}
    return {"name": EVICTION_TOKEN_VARIABLE, "valueFrom": {"secretKeyRef": reference}}


def ray_authentication(secret: str, key: str) -> list[Manifest]:
    """Return the environment variables with which Ray accepts requests with the token only.

    KubeRay's `authOptions` sets the same variables, with a token that it makes. KubeRay gives its init container those
    of the Ray container. Ray before 2.52 ignores them.
    """
    reference = {"name": secret, "key": key}
    return [
        {"name": RAY_MODE_VARIABLE, "value": "token"},
        {"name": RAY_TOKEN_VARIABLE, "valueFrom": {"secretKeyRef": reference}},
    ]


def has_ray_authentication(raycluster: Manifest) -> bool:
    """Return whether the pods of a RayCluster were built with Ray's authentication, as all but those of an older
    operator are; one that no operator has built is none of these.
    """
    try:
        container = raycluster["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
        return any(variable["name"] == RAY_TOKEN_VARIABLE for variable in container.get("env") or ())
    except UNREADABLE:
        return True


def pod_security() -> Manifest:
    """Return the security context of a pod."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        # Always would walk through all checkpoints of a volume before every start.
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def scheduled(spec: Spec) -> Manifest:
    """Return where every pod of a job runs, with which priority, and how its image is pulled."""
    runtime, scheduling = spec.runtime, spec.scheduling
    parts: Manifest = {
        "imagePullSecrets": [{"name": name} for name in runtime.image_pull_secrets],
        "nodeSelector": dict(scheduling.node_selector),
        "tolerations": list(scheduling.tolerations),
        "priorityClassName": scheduling.priority_class_name,
    }
    return {name: value for name, value in parts.items() if value}


def container_security() -> Manifest:
    """Return the security context of a container."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def small_container(name: str, image: str | None, command: Sequence[str], memory: str) -> Manifest:
    """Return a container that runs one small program beside a job; its caller adds the mounts.

    A namespace with a quota refuses a container without requests and limits.
    """
    amounts = {"cpu": "100m", "memory": memory}
    return {
        "name": name,
        "image": image,
        "command": list(command),
        "resources": {"requests": amounts, "limits": amounts},
        "securityContext": container_security(),
    }


def scratch(mounts: Sequence[Mapping[str, Any]]) -> tuple[tuple[Manifest, ...], tuple[Manifest, ...]]:
    """Return the scratch volumes and their mounts that a pod with these mounts still needs."""
    taken = {normpath(str(mount.get("mountPath"))) for mount in mounts}
    missing = {path: volume for path, volume in SCRATCH.items() if path not in taken}
    volumes = tuple({"name": name, "emptyDir": dict(kind)} for name, kind in missing.values())
    return volumes, tuple({"name": name, "mountPath": path} for path, (name, _) in missing.items())


def variable(name: str, value: str | Mapping[str, Any]) -> Manifest:
    """Return an environment variable of a container, with its value or with where that is."""
    return {"name": name, "value": value} if isinstance(value, str) else {"name": name, **value}
