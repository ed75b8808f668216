"""Labels, ports, and the names of children. Pure.

A name is made of the job's own (at most 40 characters, see `rljob_api.sections.Metadata`), five digits of its uid and,
where one object follows another, the attempt for which it was made: `gsm8k-7f3a1-2`. So a name shows its job, never
equals that of a deleted job of the same name, and is reproducible.
"""

from dataclasses import dataclass
from typing import Any

from rljob_api.sections import OUR_MANAGER

Manifest = dict[str, Any]
"""an object as the Kubernetes API shows it"""

GROUP = "rljob.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "RLJob"
PLURAL = "rljobs"

FIELD_MANAGER = "rljob-operator"
JOB_LABEL = f"{GROUP}/job"
"""on every child and on every pod: the name of the RLJob"""
SPEC_ANNOTATION = f"{GROUP}/spec"
"""on a RayCluster: digest of what it was built from. A job whose spec has another one needs another cluster"""
KEY_ANNOTATION = f"{GROUP}/token-key"
"""on a RayCluster: id of the operator's key from which its pods' tokens are derived; older operators wrote none"""
TOOL_POD_OWNER_ANNOTATION = f"{GROUP}/tool-pod-owner"
"""on a RayCluster: kind of the objects that make the pods for the tools of its driver; absent: StatefulSet"""
ATTEMPT_ANNOTATION = f"{GROUP}/attempt"
"""on a job's Service: number of the newest attempt, for an operator that finds the job without its status"""
TOOLS_LABEL = f"{GROUP}/tools"
"""on a pod that runs tools, and on its StatefulSet or Sandbox: the RayCluster that it goes with. No other pod has it"""
MANAGED_BY = {"app.kubernetes.io/managed-by": FIELD_MANAGER}

HOSTNAME_LABEL = "kubernetes.io/hostname"
"""of a node, as a rule its name"""

RAY_CLUSTER_LABEL = "ray.io/cluster"
RAY_GROUP_LABEL = "ray.io/group"
RAY_NODE_TYPE_LABEL = "ray.io/node-type"

HEAD_CONTAINER = "ray-head"
WORKER_CONTAINER = "ray-worker"
RAY_CONTAINERS = (HEAD_CONTAINER, WORKER_CONTAINER)
"""of Ray in a job's pods; further ones are the user's, or a mesh's"""

CONTROL_PORT = 8643
"""of the driver's control protocol, on the head"""
METRICS_PORT = 8644
"""of the driver's metrics, on the head, for jobs that name no other"""
METRICS_PORT_NAME = "driver-metrics"
"""of that port in the head's pod; KubeRay calls Ray's own `metrics`"""
DASHBOARD_PORT = 8265
"""of the Ray Jobs API, on the head"""

RAY_TOKEN_KEY = "rayToken"
"""in a job's Secret: the token that Ray in its pods asks for"""

SCHEDULER_LABELS = (
    "volcano.sh/",
    "yunikorn.apache.org/",
    "kai.scheduler/",
    "ray.io/scheduler-name",
    "ray.io/priority-class-name",
    "ray.io/gang-scheduling-enabled",
)
"""labels of an RLJob, or their prefixes, that its RayCluster gets: KubeRay reads them for a batch scheduler"""

TOOLS_DIGEST_KEY = "toolsTokenDigest"
"""in a job's Secret: digest of the token that the pods of its tools accept"""

LONGEST_NUMBER = 10
"""of an attempt: a status holds numbers of 31 bits [digits]"""
LONGEST_RAYCLUSTER = 53
"""KubeRay's limit, which it checks only after the object has been accepted"""


def manager(raw: Manifest) -> str:
    """Return the controller that acts on an RLJob."""
    named: str | None = raw.get("spec", {}).get("managedBy")
    return named or OUR_MANAGER


def scheduler_labels(raw: Manifest) -> dict[str, str]:
    """Return the labels of an RLJob that are for a batch scheduler."""
    labels: dict[str, str] = raw["metadata"].get("labels") or {}
    return {name: value for name, value in labels.items() if name.startswith(SCHEDULER_LABELS)}


def job_name(name: str, uid: str) -> str:
    """Return the name of the children that a job has one of: `gsm8k-7f3a1`."""
    return f"{name}-{uid.replace('-', '')[:5]}"


def secret_name(name: str, uid: str, key: str | None) -> str:
    """Return the name of the Secret with a job's tokens, `gsm8k-7f3a1-0d4c5b6a`; `key` is the id of their key.

    None: a RayCluster of an older operator. A Secret that is there under this name so holds the tokens of this key.
    """
    return job_name(name, uid) if key is None else f"{job_name(name, uid)}-{key}"


def cluster_name(name: str, uid: str, attempt: int) -> str:
    """Return the name of the RayCluster that is built for an attempt and used by the next ones as long as it lasts."""
    return f"{job_name(name, uid)}-{attempt}"


def attempt_of_cluster(name: str) -> int:
    """Return the attempt that a RayCluster of this name was built for; 0: no operator has named it."""
    number = name.rpartition("-")[2]
    return int(number) if number.isdecimal() and len(number) < LONGEST_NUMBER else 0


def token_key(cluster: Manifest) -> str | None:
    """Return the id of the key of a RayCluster's tokens; None: an older operator has built it."""
    found: str | None = (cluster["metadata"].get("annotations") or {}).get(KEY_ANNOTATION)
    return found


@dataclass(frozen=True, slots=True)
class ClusterRef:
    """A RayCluster by its name, and the tokens of its pods: pods of different tokens cannot be mixed in one."""

    name: str
    token_key: str | None = None
    """id of the operator's key from which its tokens are derived; None with a RayCluster of an older operator"""
    has_ray_token: bool = True
    """whether Ray in its pods asks for a token; false with a RayCluster of an older operator"""
    avoids: tuple[str, ...] = ()
    """nodes that get none of its pods"""


def submission_id(name: str, uid: str, attempt: int) -> str:
    """Return Ray's id for the driver of an attempt. Ray refuses a second one: there are never two drivers for one."""
    return f"{job_name(name, uid)}-attempt-{attempt}"


OF_SERVICE = "-driver"
"""ends the name of the Service in front of a head"""


def service_name(name: str, uid: str) -> str:
    """Return the name of the Service in front of the head: Ray Jobs API and control protocol."""
    return f"{job_name(name, uid)}{OF_SERVICE}"


def job_of_service(service: str) -> tuple[str, str] | None:
    """Return the name of the job with a Service of this name, and what `job_name` calls its children; None: no job."""
    children = service.removesuffix(OF_SERVICE)
    name = children.rpartition("-")[0]
    return (name, children) if children != service and name else None
