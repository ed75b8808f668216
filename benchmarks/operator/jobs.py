"""The jobs of the benchmark, and what the operator makes of one, as bytes for the bare client."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from api import RLJOBS, Api, all_of
from arena import NAMESPACE

from rljob_operator.cluster.cluster import path
from rljob_operator.cluster.requests import APPLY
from rljob_operator.identity import API_VERSION, FIELD_MANAGER, KIND
from rljob_operator.plan import plan
from rljob_operator.world.world import ControlToken, World, job_of
from support.operator.operator_world import DEFAULTS, NOW, raw_job

PODS_OF_JOB = 3
"""head, trainer, engine"""


def name(number: int) -> str:
    return f"job-{number:05}"


async def create(api: Api, numbers: Sequence[int]) -> list[dict[str, Any]]:
    """Create these jobs, all at once, and return them."""
    made: list[dict[str, Any]] = []

    async def one(number: int) -> None:
        raw = raw_job(name(number))
        body = {**raw, "metadata": {"name": name(number), "namespace": NAMESPACE}}
        made.append(json.loads(await api.send("POST", RLJOBS, json.dumps(body).encode())))

    await all_of(one, numbers)
    return made


@dataclass(frozen=True)
class Write:
    """One request."""

    method: str
    path: str
    body: bytes
    kind: str


def writes(raw: dict[str, Any]) -> list[Write]:
    """Return what the operator writes for a new job, in its order: status, Secret, and the children."""
    job = job_of(raw)
    todo = plan(job, World(token=ControlToken("0" * 43), defaults=DEFAULTS), NOW)
    assert todo.status is not None and todo.secret is not None
    status = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": job.name, "namespace": job.namespace, "resourceVersion": job.resource_version},
        "status": todo.status.model_dump(mode="json", by_alias=True, exclude_none=True),
    }
    query = f"?fieldManager={FIELD_MANAGER}"
    applied = [(f"{RLJOBS}/{job.name}/status", status)]
    applied += [(f"/{path(child['kind'], NAMESPACE, child['metadata']['name'])}", child) for child in todo.apply]
    first, *rest = [
        Write("PATCH", f"{where}{query}&force=true", json.dumps(body).encode(), APPLY) for where, body in applied
    ]
    secret = Write("POST", f"/{path('Secret', NAMESPACE)}{query}", json.dumps(todo.secret).encode(), "application/json")
    return [first, secret, *rest]
