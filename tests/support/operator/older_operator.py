"""Jobs of an older operator, with all that it and its driver had made of them: recorded once, on a real API server.

`older/crd.yaml` is the CRD of that operator. Names and owners of children have the job's uid, which the API server
chooses, so it is replaced.
"""

import base64
import json
from pathlib import Path
from typing import Any

import yaml

from local_cluster.kubectl import Kubectl, Manifest
from rljob_api.control import Status
from rljob_operator.identity import FIELD_MANAGER
from support.operator.fake_head import FakeHeads, Head

OLDER = Path(__file__).parent / "older"
CRD = OLDER / "crd.yaml"
TRAINS, SUCCEEDED, FAILED = "sums", "ended", "broken"
"""what each of the jobs does"""


def make_older_jobs(kubectl: Kubectl, namespace: str, heads: FakeHeads) -> None:
    """Make the jobs and their children again, as the older operator, and the driver of the one that trains."""
    text = (OLDER / "objects.yaml").read_text().replace("NAMESPACE", namespace)
    for job in _objects(text, "RLJob"):
        name, uid = job["metadata"]["name"], job["metadata"]["uid"]
        kubectl.apply({key: job[key] for key in ("apiVersion", "kind", "spec")} | {"metadata": _in(namespace, name)})
        mine = kubectl.get("rljob", name, "-n", namespace)["metadata"]["uid"]
        text = text.replace(uid, mine).replace(f"{name}-{uid[:5]}", f"{name}-{mine[:5]}")
    for job in _objects(text, "RLJob"):
        # Written as a whole by the operator's field manager, as server-side apply does it.
        body = {key: job[key] for key in ("apiVersion", "kind", "status")}
        _apply(kubectl, body | {"metadata": _in(namespace, job["metadata"]["name"])}, "--subresource=status")
    for kind in ("Secret", "ConfigMap", "Service", "NetworkPolicy", "RayCluster"):
        for child in _objects(text, kind):
            _apply(kubectl, {**child, "metadata": {**child["metadata"], "namespace": namespace}})
    (secret,) = (each for each in _objects(text, "Secret") if each["metadata"]["name"].startswith(TRAINS))
    prefix = secret["metadata"]["name"]
    heads.heads[namespace, f"{prefix}-driver"] = Head(
        jobs={f"{prefix}-attempt-1": "FAILED", f"{prefix}-attempt-2": "RUNNING"},
        exit_codes={f"{prefix}-attempt-1": 5},
        token=base64.b64decode(secret["data"]["token"]).decode(),
        status=Status.model_validate(yaml.safe_load(text)["driver"]),
    )


def _objects(text: str, kind: str) -> list[Manifest]:
    return [each for each in yaml.safe_load(text)["objects"] if each["kind"] == kind]


def _in(namespace: str, name: str) -> dict[str, Any]:
    return {"name": name, "namespace": namespace}


def _apply(kubectl: Kubectl, body: Manifest, *options: str) -> None:
    manager = ("--server-side", f"--field-manager={FIELD_MANAGER}", "--force-conflicts")
    kubectl("apply", *manager, *options, "-f", "-", given=json.dumps(body))
