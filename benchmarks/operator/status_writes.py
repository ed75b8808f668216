"""What a write of a status costs the API server, with one CRD beside the other: the rules of a CRD are judged at each.

The CRDs are in turn in one API server, several rounds of each, so that a change of the machine's speed meets all of
them. `without rules` is the newest CRD with its validations removed: what is left is not caused by rules.
"""

import asyncio
import copy
import json
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import yaml
from api import RLJOBS, Api, all_of, connected
from arena import Arena, Shares, arena

from rljob_operator.cluster.requests import APPLY
from rljob_operator.identity import FIELD_MANAGER
from support.operator.operator_world import Surroundings

JOBS = 20
WARM_UP = 100
"""writes before the first that counts: the API server compiles rules once"""
AT_ONCE = 4
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
RULES = "x-kubernetes-validations"
SERVER = "kube-apiserver"
Crd = dict[str, Any]


async def status_writes(files: Mapping[str, Path], rounds: int, writes: int) -> dict[str, list[float]]:
    """Return the API server's CPU time of a write in each round [ms], by name of the CRD."""
    crds: dict[str, Crd] = {name: yaml.safe_load(file.read_text()) for name, file in files.items()}
    crds["without rules"] = without_rules(list(crds.values())[-1])
    found: dict[str, list[float]] = {name: [] for name in crds}
    with arena(pods=0) as place:
        async with connected(place.server) as api:
            for _ in range(rounds):
                for name, crd in crds.items():
                    found[name].append(await cost_ms(place, api, crd, writes))
    return found


async def cost_ms(place: Arena, api: Api, crd: Crd, writes: int) -> float:
    """Return the API server's CPU time of a write with this CRD [ms]."""
    await api.send("DELETE", RLJOBS)
    await install(api, crd)
    bodies = await training_jobs(api, crd)
    await write(api, bodies, range(WARM_UP))
    shares = Shares(place, {})
    await write(api, bodies, range(WARM_UP, WARM_UP + writes))
    return shares.seconds()[SERVER] * 1000 / writes


async def install(api: Api, crd: Crd) -> None:
    """Replace the CRD, and return when the API server serves the new one."""
    where = f"{CRDS}/{crd['metadata']['name']}"
    body = {**crd, "metadata": {"name": crd["metadata"]["name"]}}
    await api.send("PATCH", f"{where}?fieldManager=benchmark&force=true", json.dumps(body).encode(), APPLY)
    await asyncio.sleep(5.0)  # no condition of a CRD says that its new schema is served


async def training_jobs(api: Api, crd: Crd) -> list[dict[str, Any]]:
    """Create jobs, and return their names with the status of a job that trains."""
    there = Surroundings().to_running()
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    spec, status = spelled(there.raw["spec"], schema["spec"]), known(there.status, schema["status"])
    bodies = []
    for number in range(JOBS):
        job = {"apiVersion": there.raw["apiVersion"], "kind": there.raw["kind"], "metadata": {"name": f"job-{number}"}}
        await api.send("POST", RLJOBS, json.dumps({**job, "spec": spec}).encode())
        bodies.append({**job, "status": status})
    return bodies


async def write(api: Api, bodies: list[dict[str, Any]], numbers: range) -> None:
    """Write so many statuses, each with another step."""

    async def one(number: int) -> None:
        body = copy.deepcopy(bodies[number % len(bodies)])
        body["status"]["progress"]["step"] = number
        where = f"{RLJOBS}/{body['metadata']['name']}/status?fieldManager={FIELD_MANAGER}&force=true"
        await api.send("PATCH", where, json.dumps(body).encode(), APPLY)

    await all_of(one, numbers, AT_ONCE)


def without_rules(node: Any) -> Any:
    """Return a schema without its validations."""
    if isinstance(node, dict):
        return {key: without_rules(value) for key, value in node.items() if key != RULES}
    return [without_rules(each) for each in node] if isinstance(node, list) else node


def spelled(value: Any, schema: Mapping[str, Any]) -> Any:
    """Return a value with its enums as this schema spells them: older CRDs had another style."""
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        return {key: spelled(each, properties.get(key, {})) for key, each in value.items()}
    return next((each for each in schema.get("enum", []) if str(each).lower() == str(value).lower()), value)


def known(value: Any, schema: Mapping[str, Any]) -> Any:
    """Return a value without the fields that an older CRD does not know: server-side apply refuses them."""
    if isinstance(value, list):
        return [known(each, schema.get("items", {})) for each in value]
    if not isinstance(value, dict) or "properties" not in schema:
        return value
    return {key: known(each, schema["properties"][key]) for key, each in value.items() if key in schema["properties"]}


def table(found: Mapping[str, list[float]]) -> list[str]:
    """Return the figures as text."""
    lines = [f"\nAPI server's CPU time of a status write [ms], {len(next(iter(found.values())))} rounds in turn"]
    for name, each in found.items():
        lines.append(f"  {name}: median {median(each):.1f}, {min(each):.1f} to {max(each):.1f}")
    return lines
