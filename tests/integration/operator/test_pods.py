"""`spec.pods` in a real cluster: what KubeRay makes of the settings of each role."""

from collections.abc import Callable

from local_cluster.kubectl import Manifest
from support.waiting import eventually

PODS = {
    "head": {"labels": {"team": "rl"}},
    "trainer": {
        "annotations": {"example.com/networks": "rdma"},
        "schedulerName": "another-scheduler",
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
        ],
    },
    "rollout": {
        "template": {
            "spec": {
                "containers": [
                    {
                        "name": "logs",
                        "image": "registry/logs:1",
                        "securityContext": {
                            "allowPrivilegeEscalation": False,
                            "runAsNonRoot": True,
                            "capabilities": {"drop": ["ALL"]},
                        },
                    },
                    {"name": "ray-worker", "env": [{"name": "NCCL_DEBUG", "value": "INFO"}]},
                ]
            }
        }
    },
    "sameDomain": "kubernetes.io/os",
}


def by_role(pods: list[Manifest]) -> dict[str, Manifest]:
    """Return a job's pods by the names of their groups."""
    return {pod["metadata"]["labels"]["ray.io/group"]: pod for pod in pods}


def test_the_pods_of_each_role_are_as_their_section_says(new_job: Callable, start: Callable) -> None:
    start()
    job = new_job(pods=PODS)
    pods = by_role(eventually(job.pods, lambda pods: len(pods) == 3))
    head, trainer, rollout = (pods[name] for name in ("headgroup", "trainer", "rollout"))
    assert head["metadata"]["labels"]["team"] == "rl"
    assert "DoesNotExist" in str(head["spec"]["affinity"]["nodeAffinity"])
    assert trainer["metadata"]["annotations"]["example.com/networks"] == "rdma"
    assert trainer["spec"]["schedulerName"] == "another-scheduler"
    (spread,) = trainer["spec"]["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"]["ray.io/group"] == "trainer"
    assert [each["name"] for each in rollout["spec"]["containers"]] == ["ray-worker", "logs"]
    assert {"name": "NCCL_DEBUG", "value": "INFO"} in rollout["spec"]["containers"][0]["env"]
    (near,) = rollout["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert near["labelSelector"]["matchLabels"].items() <= rollout["metadata"]["labels"].items()
    assert near["topologyKey"] == "kubernetes.io/os"


def test_what_a_pod_cannot_have_is_said_in_the_status(new_job: Callable, start: Callable) -> None:
    start()
    template = {"spec": {"restartPolicy": "Sometimes"}}
    job = new_job(pods={"trainer": {"template": template}})

    def message() -> str:
        conditions = job.raw().get("status", {}).get("conditions", [])
        return " ".join(each["message"] for each in conditions if each["type"] in ("ClusterReady", "Stalled", "Ready"))

    assert eventually(message, lambda text: "Sometimes" in text, 60.0)
