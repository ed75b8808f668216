"""The pods that run a job's tools: code that a model writes runs there, with nothing of the job. Pure.

    StatefulSet     one pod for each concurrent call; it belongs to one RayCluster, and comes and goes with it
    Sandboxes       of agent-sandbox, in its place: one for each pod
    Service         their names in DNS
    NetworkPolicy   lets the job's pods in, and nothing out

The pods have the job's image and no volume of it, no token, no variable of `runtime.env` but PYTHONPATH, no account of
the API server, no rights and no network. What their server holds of the job is the digest of a token.
"""

import hashlib
import json
from collections.abc import Callable, Mapping

from rljob_api.sections import Tools
from rljob_api.sizing.tool_pods import num_tool_pods
from rljob_api.status import ToolPodOwner
from rljob_api.tool_protocol import DIGEST_VARIABLE, HEALTH, MODULE, PODS_VARIABLE, PORT, host
from rljob_operator.children.metadata import owned
from rljob_operator.identity import (
    JOB_LABEL,
    MANAGED_BY,
    SPEC_ANNOTATION,
    TOOLS_DIGEST_KEY,
    TOOLS_LABEL,
    ClusterRef,
    Manifest,
    job_name,
)
from rljob_operator.job.admitted_job import AdmittedJob
from rljob_operator.job.pod_roles import TOOLS, role_of, with_role
from rljob_operator.job.pods import container_security, pod_security, scheduled

USER = 10002
"""uid and gid of these pods: not those of the job's other pods, which share volumes"""
LONGEST_NAME = 30
"""of the job's own name in that of the StatefulSet, whose pods have a label with it and a digest"""
SANDBOX_API = "agents.x-k8s.io/v1beta1"
"""served by agent-sandbox 0.5 and newer"""
SCRATCH_MIB = 128
"""of /tmp"""
SERVER_MIB = 256
"""for the server, for /dev/shm, and for what a call takes between two looks at it"""
SCRATCH = "rljob-tmp"
SAFE = ({"name": "HOME", "value": "/"}, {"name": "PYTHONNOUSERSITE", "value": "1"})
"""A container that starts again finds the files of a call in /tmp. Its server must import none of them: neither from
its directory, nor from the packages of its home
"""


def tool_children(job: AdmittedJob, cluster: ClusterRef) -> tuple[Manifest, ...]:
    """Return the children for the tools of an attempt on this RayCluster; none if no pods are needed."""
    if num_tool_pods(job.spec) == 0:
        return ()
    return network_policy(job), service(job, cluster.name), *OWNERS[owner(job)](job, cluster)


def owner(job: AdmittedJob) -> ToolPodOwner:
    """Return the kind of the objects that make the pods."""
    return job.resolved.tool_pod_owner or ToolPodOwner.STATEFUL_SET


def pods_selector(job: AdmittedJob) -> Manifest:
    """Return what selects the pods of the job's tools."""
    return {
        "matchLabels": {JOB_LABEL: job.name},
        "matchExpressions": [{"key": TOOLS_LABEL, "operator": "Exists"}],
    }


def others_selector(job: AdmittedJob) -> Manifest:
    """Return what selects all other pods of the job."""
    return {
        "matchLabels": {JOB_LABEL: job.name},
        "matchExpressions": [{"key": TOOLS_LABEL, "operator": "DoesNotExist"}],
    }


def ports() -> list[Manifest]:
    """Return the port of their server, as in a NetworkPolicy."""
    return [{"port": PORT, "protocol": "TCP"}]


def network_policy(job: AdmittedJob) -> Manifest:
    return owned(job, "networking.k8s.io/v1", "NetworkPolicy", service_name(job)) | {
        "spec": {
            "podSelector": pods_selector(job),
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [{"podSelector": others_selector(job)}], "ports": ports()}],
            "egress": [],
        }
    }


def service(job: AdmittedJob, cluster: str) -> Manifest:
    return owned(job, "v1", "Service", service_name(job)) | {
        "spec": {
            "clusterIP": "None",
            # A pod whose probe fails once still runs its call, and the driver finds out by itself who is there.
            "publishNotReadyAddresses": True,
            "selector": {TOOLS_LABEL: cluster},
            "ports": [{"name": "tools", "port": PORT, "targetPort": PORT, "protocol": "TCP"}],
        }
    }


def statefulset(job: AdmittedJob, cluster: ClusterRef) -> Manifest:
    spec = {
        "replicas": num_tool_pods(job.spec),
        "serviceName": service_name(job),
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": {TOOLS_LABEL: cluster.name}},
        "template": template(job, cluster),
    }
    return _owner(job, cluster.name, "apps/v1", ToolPodOwner.STATEFUL_SET, pods_name(job, cluster.name), spec)


def sandboxes(job: AdmittedJob, cluster: ClusterRef) -> tuple[Manifest, ...]:
    """Return a Sandbox for each pod. agent-sandbox gives the pod the Sandbox's name, and the template's labels."""
    return tuple(_sandbox(job, cluster, index) for index in range(num_tool_pods(job.spec)))


def _sandbox(job: AdmittedJob, cluster: ClusterRef, index: int) -> Manifest:
    name, _, subdomain = host(_pool(job, cluster.name), index).partition(".")
    pod = template(job, cluster)
    # What a StatefulSet sets by itself: our Service then has the pod's name in DNS, with any version of agent-sandbox.
    pod["spec"] |= {"hostname": name, "subdomain": subdomain}
    return _owner(job, cluster.name, SANDBOX_API, ToolPodOwner.SANDBOX, name, {"podTemplate": pod})


OWNERS: Mapping[ToolPodOwner, Callable[[AdmittedJob, ClusterRef], tuple[Manifest, ...]]] = {
    ToolPodOwner.STATEFUL_SET: lambda job, cluster: (statefulset(job, cluster),),
    ToolPodOwner.SANDBOX: sandboxes,
}
"""by kind: what returns the objects that make the pods for the tools of a job with this RayCluster"""


def _owner(job: AdmittedJob, cluster: str, api_version: str, kind: ToolPodOwner, name: str, spec: Manifest) -> Manifest:
    child = owned(job, api_version, kind.value, name)
    child["metadata"]["labels"][TOOLS_LABEL] = cluster
    # The API server rewrites what it is given, quantities for example: the digest says whether it came from this spec.
    child["metadata"]["annotations"] = {SPEC_ANNOTATION: _digest(spec)}
    return child | {"spec": spec}


def is_current(seen: Manifest, wanted: Manifest) -> bool:
    """Return whether an object that makes pods was made from this one, and makes as many."""
    ours, metadata = wanted["metadata"], seen["metadata"]
    labels, annotations = metadata.get("labels", {}), metadata.get("annotations", {})
    return (
        annotations.get(SPEC_ANNOTATION) == ours["annotations"][SPEC_ANNOTATION]
        and all(labels.get(name) == value for name, value in ours["labels"].items())
        and bool(metadata.get("ownerReferences"))
        and ("replicas" not in wanted["spec"] or seen["spec"].get("replicas") == wanted["spec"]["replicas"])
    )


def template(job: AdmittedJob, cluster: ClusterRef) -> Manifest:
    """Return the template of their pods."""
    tools, runtime = job.spec.rollout.tools, job.spec.runtime
    assert tools is not None
    secret = {"secretKeyRef": {"name": job.secret_name(cluster.token_key), "key": TOOLS_DIGEST_KEY}}
    given = runtime.env.get("PYTHONPATH")
    # One that comes from a Secret stays there.
    search_path = [{"name": "PYTHONPATH", "value": given}] if isinstance(given, str) else []
    probe = {"httpGet": {"path": HEALTH, "port": PORT}, "timeoutSeconds": 10}
    container: Manifest = {
        "name": "tools",
        "image": job.resolved.image,
        "imagePullPolicy": runtime.image_pull_policy,
        # Without a shell: the server has to be the first process.
        "command": ["python", "-m", MODULE],
        "workingDir": "/",
        "env": [{"name": DIGEST_VARIABLE, "valueFrom": secret}, *SAFE, *search_path],
        "ports": [{"name": "tools", "containerPort": PORT, "protocol": "TCP"}],
        "resources": role_of(job.spec, TOOLS).resources or resources(tools),
        "securityContext": container_security(),
        "readinessProbe": {**probe, "periodSeconds": 5},
        "livenessProbe": {**probe, "periodSeconds": 20, "failureThreshold": 6},
        "volumeMounts": [{"name": SCRATCH, "mountPath": "/tmp"}],
    }
    pod: Manifest = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        # The first process of a container takes no SIGTERM, and nothing is lost with a call.
        "terminationGracePeriodSeconds": 1,
        "securityContext": {**pod_security(), "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER},
        "containers": [container],
        "volumes": [{"name": SCRATCH, "emptyDir": {"medium": "Memory", "sizeLimit": f"{SCRATCH_MIB}Mi"}}],
        **scheduled(job.spec),
    }
    labels = {JOB_LABEL: job.name, TOOLS_LABEL: cluster.name, **MANAGED_BY}
    return with_role({"metadata": {"labels": labels}, "spec": pod}, job.spec, TOOLS, cluster.name, "")


def resources(tools: Tools) -> Manifest:
    """Return what a pod has whose job says nothing: the memory of a call, and what surrounds it."""
    memory = f"{tools.memory_mib + SCRATCH_MIB + SERVER_MIB}Mi"
    return {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"cpu": "1", "memory": memory}}


def driver_variable(job: AdmittedJob, cluster: str) -> dict[str, str]:
    """Return the environment variable with which the driver finds the pods; empty if there are none."""
    if num_tool_pods(job.spec) == 0:
        return {}
    return {PODS_VARIABLE: _pool(job, cluster)}


def _pool(job: AdmittedJob, cluster: str) -> str:
    """Return what the names of the pods in DNS are made of."""
    return f"{pods_name(job, cluster)}.{service_name(job)}"


def service_name(job: AdmittedJob) -> str:
    """Return the name of the Service and of the NetworkPolicy: `gsm8k-7f3a1-tools`."""
    return f"{job_name(job.name, job.uid)}-tools"


def pods_name(job: AdmittedJob, cluster: str) -> str:
    """Return what the names of the pods that go with a RayCluster begin with: `gsm8k-7f3a1-2-tools`."""
    return f"{job.name[:LONGEST_NAME].rstrip('-')}{cluster.removeprefix(job.name)}-tools"


def _digest(spec: Manifest) -> str:
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]
