"""The operator's command line."""

import argparse
import json
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rljob_api.status import ToolPodOwner
from rljob_operator.capacity.packing import Node
from rljob_operator.capacity.snapshot import coming_of
from rljob_operator.job.job_defaults import job_defaults
from rljob_operator.queueing.ticket import Rules
from rljob_operator.world.world import Defaults, Storage

IN_CLUSTER_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True, slots=True)
class Settings:
    """How this operator runs."""

    kubeconfig: str | None
    namespaces: tuple[str, ...]
    lease_namespace: str
    lease: str
    key_secret: str
    """name of the Secret with the operator's key, beside the Lease"""
    identity: str
    port: int
    workers: int
    service_url: str
    heads_by_pod: bool
    """whether a head is reached at the address of its pod, and not by its Service"""
    sweep_s: float
    log_level: str
    defaults: Defaults
    queue: Rules | None
    """None: jobs do not wait for others"""
    coming: tuple[Node, ...] | None
    """nodes that an autoscaler can bring; None: not known"""

    def resolve(self, namespace: str, service: str, port: int) -> str:
        """Return the URL of a job's Service."""
        return self.service_url.format(namespace=namespace, service=service, port=port)


def settings(arguments: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Return the settings that a command line asks for; ends the process if it is wrong."""
    given = _parser(environ).parse_args(arguments)
    namespace = given.lease_namespace or _own_namespace()
    return Settings(
        kubeconfig=given.kubeconfig,
        namespaces=tuple(given.namespace),
        lease_namespace=namespace,
        lease=given.lease,
        key_secret=f"{given.lease}-key",
        identity=given.identity,
        port=given.port,
        workers=given.workers,
        service_url=given.service_url,
        heads_by_pod=given.head_address == "Pod",
        sweep_s=given.sweep_seconds,
        log_level=given.log_level,
        queue=Rules(given.queue_patience, given.fair_share) if given.queue == "On" else None,
        coming=given.autoscaler,
        defaults=replace(
            defaults_of(given),
            scrapers=given.scrapers,
            operator_namespace=namespace,
            release=f"{namespace}/{given.lease}",
            egress=given.egress,
            ttl_after_deletion_s=given.run_directory_ttl,
            longest_start_s=given.start_seconds,
            longest_drain_s=given.drain_seconds,
            lost_pod_s=given.lost_pod_seconds,
            avoided_nodes=given.avoided_nodes,
            tool_pod_owner=ToolPodOwner.SANDBOX if given.agent_sandbox else ToolPodOwner.STATEFUL_SET,
        ),
    )


def defaults_of(given: argparse.Namespace) -> Defaults:
    """Return the defaults of jobs that `add_defaults` has read."""
    return Defaults(
        image=given.image,
        storage=Storage(given.storage, given.storage_path) if given.storage else None,
        directory_image=given.directory_image,
        head_resources=given.head_resources,
        worker_resources=given.worker_resources,
        has_kueue=given.kueue,
        settings=given.job_defaults,
    )


def add_defaults(parser: argparse.ArgumentParser) -> None:
    """Add the options that decide whether a job is admitted, and what its pods request."""
    add = parser.add_argument
    add("--image", help="trainer image of jobs that set none")
    add("--storage", type=_volume, help="volume source, as JSON, for jobs without checkpoint.directory")
    add("--storage-path", default="/rljob", help="where that volume is mounted")
    add("--directory-image", help="makes run directories of jobs with another image than --image; absent: --image does")
    add("--head-resources", type=_resources, default={}, help="of the head pods of jobs that set none, as JSON")
    add("--kueue", action="store_true", help="jobs may name a queue of Kueue")
    add("--job-defaults", type=_job_defaults, default={}, help="further settings of jobs' pods, as a spec in JSON")
    add("--worker-resources", type=_resources, default={}, help="of the other pods of jobs that set none, as JSON")


def _parser(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m rljob_operator", description=__doc__)
    add = parser.add_argument
    add("--kubeconfig", default=environ.get("KUBECONFIG"), help="file; absent: the pod's ServiceAccount")
    add("--namespace", action="append", default=[], help="watch only this namespace; may be given again")
    add("--lease-namespace", help="of the operator's pods and of the leader election's Lease; absent: its own")
    add("--lease", default="rljob-operator", help="name of the Lease")
    add("--identity", default=f"{socket.gethostname()}-{os.getpid()}", help="name of this replica")
    add("--port", type=int, default=8080, help="of /healthz and /metrics")
    add("--workers", type=int, default=8, help="jobs that are reconciled at the same time")
    add("--scrapers", type=_labels, help="labels, as JSON, of the namespaces whose pods may read drivers' metrics")
    add("--egress", type=_rules, help="what jobs' pods may reach besides each other and DNS, as in a NetworkPolicy")
    add("--run-directory-ttl", type=int, help="seconds from a job's deletion to its directory's; absent: never")
    add("--service-url", default="http://{service}.{namespace}.svc:{port}", help="how a job's Service is reached")
    add(
        "--head-address",
        default="Pod",
        choices=["Pod", "Service"],
        help="which address the names of jobs' Services resolve to",
    )
    add("--sweep-seconds", type=float, default=60.0, help="between two checks of run directories of deleted jobs")
    add("--queue", default="On", choices=["On", "Off"], help="whether jobs wait for quota and nodes in a queue")
    add("--queue-patience", type=float, default=600.0, help="seconds for which the first in the queue may be overtaken")
    add("--fair-share", action="store_true", help="of one priority, the namespace with the fewest GPUs comes first")
    add("--start-seconds", type=float, default=3600.0, help="longest start of an attempt's pods and driver")
    add("--drain-seconds", type=float, default=1800.0, help="longest time that a driver may save, and a pod may end")
    add(
        "--lost-pod-seconds",
        type=float,
        default=120.0,
        help="after which a pod that should have ended is on a lost node",
    )
    text = "nodes that a job avoids at most because they failed it twice; 0: none"
    add("--avoided-nodes", type=int, default=2, help=text)
    add("--agent-sandbox", action="store_true", help="agent-sandbox makes the pods for tools of jobs that begin now")
    add_autoscaler(parser)
    add("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    add_defaults(parser)
    return parser


def add_autoscaler(parser: argparse.ArgumentParser) -> None:
    """Add the option that says which nodes may come."""
    text = "nodes, as JSON, that an autoscaler can bring; []: none; absent: not known"
    parser.add_argument("--autoscaler", type=_nodes, help=text)


def _nodes(text: str) -> tuple[Node, ...]:
    example = '[{"count": 4, "allocatable": {"nvidia.com/gpu": "8", "cpu": "96", "memory": "1Ti"}}]'
    try:
        return coming_of(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise argparse.ArgumentTypeError(f"must be a JSON list of nodes, for example {example}: {error}") from error


def _object(example: str) -> Callable[[str], dict[str, Any]]:
    """Return a reader of JSON objects, whose error shows one."""

    def read(text: str) -> dict[str, Any]:
        given = json.loads(text)
        if not isinstance(given, dict):
            raise argparse.ArgumentTypeError(f"must be a JSON object, for example {example}")
        return given

    return read


_volume = _object('{"hostPath": {"path": "/data"}}')
_resources = _object('{"requests": {"memory": "8Gi"}}')


def _job_defaults(text: str) -> dict[str, Any]:
    try:
        return job_defaults(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _rules(text: str) -> tuple[dict[str, Any], ...]:
    rules = json.loads(text)
    if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
        raise argparse.ArgumentTypeError('must be a JSON list of rules, for example [{"ports": [{"port": 443}]}]')
    return tuple(rules)


def _labels(text: str) -> dict[str, str]:
    labels = json.loads(text)
    if not isinstance(labels, dict) or not all(isinstance(value, str) for value in labels.values()):
        raise argparse.ArgumentTypeError('must be a JSON object of strings, for example {"team": "monitoring"}')
    return labels


def _own_namespace() -> str:
    return IN_CLUSTER_NAMESPACE.read_text().strip() if IN_CLUSTER_NAMESPACE.exists() else "default"
