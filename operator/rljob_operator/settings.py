"""The operator's command line."""

import argparse
import json
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rljob_operator.world import Defaults, Storage

IN_CLUSTER_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True, slots=True)
class Settings:
    """How this operator runs."""

    kubeconfig: str | None
    namespaces: tuple[str, ...]
    lease_namespace: str
    lease: str
    identity: str
    port: int
    workers: int
    service_url: str
    log_level: str
    defaults: Defaults

    def resolve(self, namespace: str, service: str, port: int) -> str:
        """Return the URL of a job's Service."""
        return self.service_url.format(namespace=namespace, service=service, port=port)


def settings(arguments: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Return the settings that a command line asks for; ends the process if it is wrong."""
    given = _parser(environ).parse_args(arguments)
    return Settings(
        kubeconfig=given.kubeconfig,
        namespaces=tuple(given.namespace),
        lease_namespace=given.lease_namespace or _own_namespace(),
        lease=given.lease,
        identity=given.identity,
        port=given.port,
        workers=given.workers,
        service_url=given.service_url,
        log_level=given.log_level,
        defaults=Defaults(
            image=given.image,
            storage=Storage(given.storage, given.storage_path) if given.storage else None,
            scrapers=given.scrapers,
            head_resources=given.head_resources,
            worker_resources=given.worker_resources,
        ),
    )


def _parser(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m rljob_operator", description=__doc__)
    add = parser.add_argument
    add("--kubeconfig", default=environ.get("KUBECONFIG"), help="file; absent: the pod's ServiceAccount")
    add("--namespace", action="append", default=[], help="watch only this namespace; may be given again")
    add("--lease-namespace", help="of the leader election's Lease; absent: the operator's own")
    add("--lease", default="rljob-operator", help="name of the Lease")
    add("--identity", default=f"{socket.gethostname()}-{os.getpid()}", help="name of this replica")
    add("--port", type=int, default=8080, help="of /healthz and /metrics")
    add("--workers", type=int, default=8, help="jobs that are looked at at once")
    add("--image", help="trainer image of jobs that name none")
    add("--scrapers", type=_labels, help="labels, as JSON, of the namespaces whose pods may read drivers' metrics")
    add("--storage", type=_volume, help="volume source, as JSON, for jobs without checkpoint.directory")
    add("--storage-path", default="/rljob", help="where that volume is mounted")
    add("--head-resources", type=_resources, default={}, help="of the heads of jobs that name none, as JSON")
    add("--worker-resources", type=_resources, default={}, help="of the other pods of jobs that name none, as JSON")
    add("--service-url", default="http://{service}.{namespace}.svc:{port}", help="how a job's Service is reached")
    add("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    return parser


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


def _labels(text: str) -> dict[str, str]:
    labels = json.loads(text)
    if not isinstance(labels, dict) or not all(isinstance(value, str) for value in labels.values()):
        raise argparse.ArgumentTypeError('must be a JSON object of strings, for example {"team": "monitoring"}')
    return labels


def _own_namespace() -> str:
    return IN_CLUSTER_NAMESPACE.read_text().strip() if IN_CLUSTER_NAMESPACE.exists() else "default"
