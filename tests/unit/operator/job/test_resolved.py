"""What a job uses of the operator's defaults stays while the chart's values change."""

import copy
from dataclasses import replace

import pytest

from rljob_api.exits import Exit
from rljob_operator.identity import KEY_ANNOTATION
from rljob_operator.world.world import Defaults, Storage
from support.operator.operator_world import DEFAULTS, Surroundings, admitted, raw_job, running

OTHER = Defaults(
    image="rljob/trainer:next",
    storage=Storage({"hostPath": {"path": "/new"}}, "/elsewhere"),
    head_resources={"requests": {"cpu": "9"}},
    worker_resources={"requests": {"cpu": "8"}},
)


def with_defaults(around: Surroundings, defaults: Defaults) -> Surroundings:
    around.defaults = defaults
    return around


def pod_specs(around: Surroundings) -> list[dict]:
    spec = around.observed.rayclusters()[-1]["spec"]
    return [group["template"]["spec"] for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]


def test_what_a_job_uses_is_recorded_once():
    around = Surroundings()
    around.step()
    assert around.status["resolved"] == {
        "image": "rljob/trainer:test",
        "directory": "/rljob/ml/sums",
        "volume": {"source": {"emptyDir": {}}, "path": "/rljob", "subPath": "ml/sums"},
        "directoryImage": "rljob/trainer:test",
        "headResources": {},
        "workerResources": {},
    }


@pytest.mark.parametrize("defaults", [OTHER, Defaults()])
def test_changed_chart_values_change_nothing_of_a_running_job(defaults: Defaults):
    around = Surroundings().to_running()
    around.step()
    with_defaults(around, defaults)
    assert around.plan().is_empty


@pytest.mark.parametrize("code", [Exit.LOST_PEER, Exit.PREEMPTED])
def test_the_next_attempt_has_the_image_the_volume_and_the_directory_of_the_first(code: Exit):
    around = Surroundings().to_running()
    first, resolved = pod_specs(around), around.status["resolved"]
    with_defaults(around, OTHER)
    around.edit(scheduling={"nodeSelector": {"pool": "other"}})
    around.ends(code)
    around.step()
    around.deletions_done()
    around.step()
    assert around.observed.rayclusters()[-1]["metadata"]["name"] == "sums-7f3a1-2"
    assert [{**spec, "nodeSelector": None, "volumes": None} for spec in pod_specs(around)] == [
        {**spec, "nodeSelector": None, "volumes": None} for spec in first
    ]
    assert around.status["resolved"] == resolved
    assert around.status["directory"] == "/rljob/ml/sums"


def test_a_job_that_was_suspended_from_the_start_keeps_what_it_was_admitted_with():
    around = Surroundings(raw_job(suspend=True))
    around.step()
    with_defaults(around, OTHER).step()
    assert around.status["resolved"]["image"] == "rljob/trainer:test"


def test_before_the_first_attempt_a_changed_spec_is_decided_anew():
    around = Surroundings(raw_job(suspend=True, runtime={"image": "mine:1"}))
    around.step()
    around.raw["spec"]["runtime"].pop("image")
    around.edit()
    around.step()
    assert around.status["resolved"]["image"] == "rljob/trainer:test"


def test_the_image_of_the_spec_comes_before_the_recorded_one():
    around = Surroundings().to_running()
    around.edit(runtime={"image": "mine:1"})
    around.step()
    assert around.status["resolved"]["image"] == "mine:1"


def test_a_job_of_an_older_operator_keeps_what_its_cluster_was_built_with():
    built = replace(DEFAULTS, head_resources={"requests": {"cpu": "1"}}, worker_resources={"requests": {"cpu": "2"}})
    around = with_defaults(Surroundings(raw_job(runtime={"device": "Gpu"})), built).to_running()
    recorded = around.status.pop("resolved")
    with_defaults(around, OTHER).step()
    assert around.status["resolved"] == {**recorded, "directoryImage": OTHER.image}
    assert around.plan().apply == ()


def test_a_run_directory_is_made_by_an_image_that_no_job_chooses():
    ours = replace(DEFAULTS, directory_image="rljob/operator:1")
    assert admitted(raw_job(), ours).resolved.directory_image == DEFAULTS.image, "nodes have it anyway"
    assert admitted(raw_job(runtime={"image": "evil"}), ours).resolved.directory_image == "rljob/operator:1"
    assert admitted(raw_job(runtime={"image": "evil"})).resolved.directory_image == DEFAULTS.image


def test_a_raycluster_that_a_tenant_writes_does_not_choose_it_either():
    around = Surroundings().to_running()
    for pod in pod_specs(around):
        for container in (*pod["initContainers"], *pod["containers"]):
            container["image"] = "evil"
    around.status.pop("resolved")
    around.step()
    assert around.status["resolved"]["image"] == "evil"
    assert around.status["resolved"]["directoryImage"] == DEFAULTS.image


def test_a_job_with_its_own_image_waits_where_the_operator_has_none():
    around = with_defaults(Surroundings(raw_job(runtime={"image": "mine:1"})), replace(DEFAULTS, image=None))
    around.step()
    assert around.condition("Admitted")["reason"] == "NoImage"
    assert "to make the run directory with" in around.condition("Admitted")["message"]


@pytest.mark.parametrize(
    "name", ["/rljob/ml/.cache", "/rljob/ml/.cache/x", "/rljob/ml/.rljob-deleted/x", "/rljob/ml/../b"]
)
def test_a_run_has_no_directory_of_the_operator_s_own(name: str):
    found = admitted(raw_job(checkpoint={"directory": name})).resolved
    assert found.volume is None


def test_a_recorded_directory_that_today_s_volume_does_not_hold_mounts_nothing_of_it():
    around = Surroundings().to_running()
    around.edit(suspend=True)
    around.ends(Exit.PREEMPTED)
    around.step()
    around.deletions_done()
    around.step()
    around.status.pop("resolved")
    moved = replace(DEFAULTS, storage=replace(DEFAULTS.storage, path="/new"))
    assert admitted(around.raw, moved).resolved.volume is None


def mount_whole(around: Surroundings) -> None:
    """Make the job one of an operator that mounted the whole volume."""
    around.status["resolved"]["volume"].pop("subPath")
    for pod in pod_specs(around):
        pod.pop("initContainers")
        (container,) = pod["containers"]
        mount, cache = (mount for mount in container["volumeMounts"] if mount["name"] == "rljob-storage")
        container["volumeMounts"].remove(cache)
        mount.pop("subPath")
        mount["mountPath"] = "/rljob"
        for variable in container["env"]:
            variable.update({"value": "/rljob/cache"} if variable["name"] == "RLJOB_CACHE" else {})


@pytest.mark.parametrize("is_known", [True, False])
def test_pods_that_mount_the_whole_volume_of_an_older_operator_stay_as_they_are(is_known: bool):
    around = Surroundings().to_running()
    around.step()
    mount_whole(around)
    around.raw["status"] = {key: each for key, each in around.status.items() if is_known or key != "resolved"}
    before = copy.deepcopy(around.observed.rayclusters())
    around.step()
    assert around.status["resolved"]["volume"] == {"source": {"emptyDir": {}}, "path": "/rljob"}
    assert around.observed.rayclusters() == before


def has_ray_token(around: Surroundings) -> list[bool]:
    return ["RAY_AUTH_TOKEN" in str(pod["containers"][0]["env"]) for pod in pod_specs(around)]


def test_a_cluster_of_an_older_operator_gets_no_pods_whose_ray_wants_a_token():
    around = Surroundings().to_running()
    around.step()
    for pod in pod_specs(around):
        (container,) = pod["containers"]
        container["env"] = [each for each in container["env"] if not each["name"].startswith("RAY_AUTH")]
    assert around.plan().apply == ()
    around.edit(scheduling={"nodeSelector": {"pool": "other"}})
    around.ends(Exit.PREEMPTED)
    around.step()
    around.deletions_done()
    around.step()
    assert has_ray_token(around) == [True, True, True], "a new cluster has only new pods"


def test_a_cluster_keeps_the_key_of_its_tokens_and_the_next_one_has_the_key_of_today():
    around = Surroundings().to_running()
    around.step()
    key_of = lambda: around.observed.rayclusters()[0]["metadata"]["annotations"].get(KEY_ANNOTATION)  # noqa: E731
    assert key_of() == "key"
    around.token = replace(around.token, next_key="another key")
    assert around.plan().apply == ()
    around.edit(scheduling={"nodeSelector": {"pool": "other"}})
    around.ends(Exit.PREEMPTED)
    around.step()
    around.deletions_done()
    around.step()
    assert key_of() == "another key"


def test_a_suspended_job_of_an_older_operator_never_moves_to_another_directory():
    around = Surroundings().to_running()
    around.edit(suspend=True)
    around.ends(Exit.PREEMPTED)
    around.step()
    around.deletions_done()
    around.step()
    around.status.pop("resolved")
    with_defaults(around, OTHER)
    around.edit(suspend=False)
    around.step()
    assert around.status["directory"] == "/rljob/ml/sums"
    assert around.observed.rayclusters() == ()


def test_an_ended_job_is_not_written_again_for_its_record():
    around = Surroundings().to_running()
    around.ends(0)
    around.step()
    around.deletions_done()
    around.step()
    around.deletions_done()
    around.status.pop("resolved")
    with_defaults(around, OTHER)
    assert around.plan().is_empty


def named(directory: str, **sections: object) -> Surroundings:
    around = Surroundings(raw_job(checkpoint={"directory": directory}, **sections))
    around.step()
    return around


def test_a_job_that_is_applied_again_finds_the_directory_of_its_name():
    first, again = Surroundings(), Surroundings()
    again.raw["metadata"]["uid"] = "00000c00-0000-4000-8000-000000000000"
    first.step()
    again.step()
    assert first.status["directory"] == again.status["directory"] == "/rljob/ml/sums"


def test_a_directory_below_the_operator_s_volume_mounts_it():
    around = named("/rljob/ml/sums-7f3a1")
    assert around.status["directory"] == "/rljob/ml/sums-7f3a1"
    mounts = pod_specs(around)[0]["containers"][0]["volumeMounts"]
    assert {"name": "rljob-storage", "mountPath": "/rljob/ml/sums-7f3a1", "subPath": "ml/sums-7f3a1"} in mounts


@pytest.mark.parametrize(
    "directory", ["/rljob", "/rljob/ml", "/rljob/mlx/a", "/rljob/others/sums", "/rljob/ml/../others/sums", "/runs/ml/a"]
)
def test_a_directory_of_another_namespace_or_volume_does_not(directory: str):
    around = named(directory)
    assert around.condition("Admitted")["reason"] == "CheckpointsNotShared"
    assert "or name a directory below /rljob/ml/" in around.condition("Admitted")["message"]


def test_a_volume_of_the_job_s_own_comes_before_the_operator_s():
    own = {"volumes": [{"name": "own", "emptyDir": {}}], "volumeMounts": [{"name": "own", "mountPath": "/rljob/ml"}]}
    around = named("/rljob/ml/sums", runtime={"device": "Cpu", **own})
    assert "volume" not in around.status["resolved"]
    assert around.condition("Admitted")["status"] == "True"


def test_where_an_attempt_began_is_in_the_status_and_an_event():
    around = Surroundings().to_running()
    around.runs(running(began="resumes from iter_0000010"))
    around.step()
    assert around.status["began"] == "resumes from iter_0000010"
    notes = [event.note for event in around.events if event.reason == "Began"]
    assert notes == ["attempt 1 resumes from iter_0000010; directory /rljob/ml/sums"]
    around.now += 60
    around.step()
    assert around.events[-1].note == notes[0]


def test_a_lost_status_finds_the_storage_that_a_job_shares_with_its_data():
    data = {
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "runs"}}],
        "volumeMounts": [{"name": "data", "mountPath": "/data", "subPath": "questions"}],
    }
    around = Surroundings(raw_job(runtime=data))
    storage = Storage({"persistentVolumeClaim": {"claimName": "runs"}})
    around.defaults = replace(around.defaults, storage=storage)
    around.to_running()
    known = copy.deepcopy(around.status["resolved"])
    around.raw["status"] = {key: each for key, each in around.status.items() if key != "resolved"}
    around.step()
    assert around.status["resolved"] == known


def test_a_lost_status_finds_no_storage_in_pods_without_volumes():
    around = Surroundings().to_running()
    for pod in pod_specs(around):
        del pod["volumes"], pod["initContainers"], pod["containers"][0]["volumeMounts"]
    around.raw["status"] = {key: each for key, each in around.status.items() if key != "resolved"}
    around.step()
    assert "volume" not in around.status["resolved"]


def spoil(cluster: dict, how: str) -> None:
    head = cluster["spec"]["headGroupSpec"]["template"]["spec"]
    match how:
        case "init container":
            head["initContainers"] = [{"name": "run-directory", "image": "x"}]
        case "owner of tools":
            cluster["metadata"]["annotations"]["rljob.dev/tool-pod-owner"] = "Evil"
        case "no container":
            head["containers"] = []
        case "no head":
            cluster["spec"] = {}
        case "lists":
            head["containers"] = [["ray-head"]]
        case "worker groups":
            cluster["spec"]["workerGroupSpecs"] = [{"groupName": "trainer"}]
        case "mount":
            head["containers"][0]["volumeMounts"] = [{"name": "rljob-storage"}]


HOSTILE = ["init container", "owner of tools", "no container", "no head", "lists", "worker groups", "mount"]


@pytest.mark.parametrize("how", HOSTILE)
def test_a_raycluster_that_no_operator_has_built_says_nothing(how: str):
    around = Surroundings().to_running()
    cluster = copy.deepcopy(around.observed.rayclusters()[0])
    spoil(cluster, how)
    beside = Surroundings()
    beside.observed = replace(beside.observed, children=(cluster,))
    beside.step()
    assert beside.status["resolved"]["image"] == "rljob/trainer:test"
