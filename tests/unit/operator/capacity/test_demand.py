"""What is counted for a job is what the scheduler and the quotas see of its RayCluster."""

from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from rljob_operator.capacity.demand import HEAD, alike, demand
from rljob_operator.identity import Manifest
from rljob_operator.world.world import job_of
from support.operator.operator_world import admitted, cluster_of, raw_job

AMOUNTS = st.fixed_dictionaries({}, optional={"cpu": st.sampled_from(["500m", "2"]), "memory": st.just("1Gi")})
RESOURCES = st.fixed_dictionaries({}, optional={"requests": AMOUNTS, "limits": AMOUNTS})
SELECTORS = st.dictionaries(st.sampled_from(["pool", "zone"]), st.sampled_from(["a", "b"]), max_size=2)
TOLERATIONS = st.lists(st.sampled_from([{"key": "gpu", "operator": "Exists"}, {"operator": "Exists"}]), max_size=2)
NAMES = st.sampled_from(["ray-head", "ray-worker", "fetch", "logs"])
CHANGED = st.fixed_dictionaries({"name": NAMES}, optional={
    "resources": RESOURCES,
    "env": st.just([{"name": "A", "value": "1"}]),
    "securityContext": st.just({"capabilities": {"drop": ["NET_RAW"]}}),
    "restartPolicy": st.just("Always"),
})  # fmt: skip


def without_restart(found: list[Manifest]) -> list[Manifest]:
    """Return changes of init containers as changes of containers."""
    return [{name: value for name, value in each.items() if name != "restartPolicy"} for each in found]


CONTAINERS = st.lists(CHANGED, max_size=2, unique_by=lambda each: each["name"])
PATCHES = st.fixed_dictionaries({}, optional={
    "containers": CONTAINERS.map(without_restart),
    "initContainers": CONTAINERS | st.just([{"name": "fetch", "$patch": "delete"}]),
    "nodeSelector": st.one_of(st.none(), SELECTORS, SELECTORS.map(lambda found: {"$patch": "replace", **found})),
    "tolerations": st.none() | TOLERATIONS,
    "priorityClassName": st.none() | st.just("low"),
    "hostname": st.just("a"),
})  # fmt: skip
ROLES = st.fixed_dictionaries({}, optional={
    "resources": RESOURCES,
    "nodeSelector": SELECTORS,
    "tolerations": TOLERATIONS,
    "capabilities": st.just(["IPC_LOCK"]),
    "hostNetwork": st.just(True),
    "template": PATCHES.map(lambda spec: {"spec": spec}),
})  # fmt: skip
SCHEDULING = st.fixed_dictionaries({}, optional={
    "nodeSelector": SELECTORS, "tolerations": TOLERATIONS, "priorityClassName": st.just("high"),
})  # fmt: skip
ROLES_OF = ("head", "trainer", "rollout")
OWN_VOLUME = {
    "volumes": [{"name": "own", "persistentVolumeClaim": {"claimName": "own"}}],
    "volumeMounts": [{"name": "own", "mountPath": "/own"}],
}


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    """Return manifests that differ in all that decides what their pods take, and where."""
    is_mounted = draw(st.booleans())
    device, per_engine = draw(st.sampled_from([("Cpu", 1), ("Gpu", 1), ("Gpu", 2)]))
    runtime: dict[str, Any] = {"device": device, **(OWN_VOLUME if is_mounted else {})}
    runtime |= draw(st.fixed_dictionaries({}, optional={"headResources": RESOURCES, "workerResources": RESOURCES}))
    placement, roles = draw(st.sampled_from([("Colocated", ROLES_OF[:2]), ("Disaggregated", ROLES_OF)]))
    pods = draw(st.fixed_dictionaries({}, optional=dict.fromkeys(roles, ROLES)))
    further = [{}, {"sameDomain": "rack"}, *([{"gpuResource": "amd.com/gpu"}] if device == "Gpu" else [])]
    pods |= draw(st.sampled_from(further))
    return raw_job(
        placement=placement,
        training={"nodes": draw(st.integers(1, 2)), "gpusPerNode": draw(st.sampled_from([2, 4]))},
        rollout={"engines": draw(st.integers(1, 3)), "gpusPerEngine": per_engine},
        runtime=runtime,
        scheduling=draw(SCHEDULING),
        pods=pods,
        **({"checkpoint": {"directory": "/own/runs"}} if is_mounted else {}),
    )


@given(manifests())
def test_each_pod_counts_as_it_is_built(raw: Manifest):
    assume(not job_of(raw).problems)
    job = admitted(raw)
    built = cluster_of(job)
    head = alike(HEAD, 1, built["headGroupSpec"]["template"]["spec"])
    workers = [alike(g["groupName"], g["replicas"], g["template"]["spec"]) for g in built["workerGroupSpecs"]]
    assert demand(job) == (head, *workers)
