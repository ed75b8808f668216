"""Where a run's files lie, and which of the operator's volume its pods see."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from rljob_api.exits import Exit
from rljob_operator.job import storage
from rljob_operator.job.admission import admission
from rljob_operator.world.claims import Claim
from rljob_operator.world.world import Storage, job_of
from support.operator.operator_world import DEFAULTS, Surroundings, admitted, cluster_of, pods, raw_job


@pytest.mark.parametrize(
    ("sections", "path"),
    [
        ({}, "/rljob/ml/sums"),
        ({"checkpoint": {"directory": "/runs/mine"}}, "/runs/mine"),
    ],
)
def test_a_run_s_directory_is_the_manifest_s_or_lies_on_the_operator_s_storage(sections: dict, path: str):
    job = admitted(raw_job(**sections))
    assert storage.directory(job) == path


@pytest.mark.parametrize(
    ("sections", "path"),
    [({}, "/rljob/ml/.cache"), ({"checkpoint": {"directory": "/runs/mine"}}, "/runs/mine/cache")],
)
def test_converted_models_lie_where_learners_and_engines_read_them(sections: dict, path: str):
    (head,) = cluster_of(admitted(raw_job(**sections)))["headGroupSpec"]["template"]["spec"]["containers"]
    assert {"name": "RLJOB_CACHE", "value": path} in head["env"]


def test_a_cache_that_the_manifest_names_is_kept():
    (head,) = cluster_of(admitted(raw_job(runtime={"env": {"RLJOB_CACHE": "/mine"}})))["headGroupSpec"]["template"][
        "spec"
    ]["containers"]
    assert [each["value"] for each in head["env"] if each["name"] == "RLJOB_CACHE"] == ["/mine"]


def test_the_operator_s_storage_is_mounted_unless_the_manifest_names_a_directory():
    given = {"volumes": [{"name": "r", "emptyDir": {}}], "volumeMounts": [{"name": "r", "mountPath": "/runs"}]}
    assert {"name": "rljob-storage", "emptyDir": {}} in pods()[0]["volumes"]
    mount = {"name": "rljob-storage", "mountPath": "/rljob/ml/sums", "subPath": "ml/sums"}
    assert all(mount in pod["containers"][0]["volumeMounts"] for pod in pods())
    own = pods(runtime=given, checkpoint={"directory": "/runs/x"})
    assert all("rljob-storage" not in str(pod) for pod in own)


def mounts_of_storage(container: dict) -> list[dict]:
    return [mount for mount in container["volumeMounts"] if mount["name"] == "rljob-storage"]


@pytest.mark.parametrize("pod", pods())
def test_no_container_of_a_program_sees_another_job_s_run(pod: dict):
    (container,), (whole, part) = pod["containers"], pod["initContainers"]
    assert [mount["subPath"] for mount in mounts_of_storage(container)] == ["ml/sums", "ml/.cache"]
    assert mounts_of_storage(whole) == [{"name": "rljob-storage", "mountPath": "/rljob-volume"}]
    assert whole["command"] == ["mkdir", "-p", "--", "/rljob-volume/ml"]
    in_part = {"name": "rljob-storage", "mountPath": "/rljob-volume/ml", "subPath": "ml"}
    assert mounts_of_storage(part) == [in_part]
    assert part["command"][-2:] == ["/rljob-volume/ml/sums", "/rljob-volume/ml/.cache"]
    for first in (whole, part):
        assert first["securityContext"] == container["securityContext"]
        assert first["resources"]["requests"] == {"cpu": "100m", "memory": "64Mi"}


@pytest.mark.parametrize("pod", pods(runtime={"image": "evil", "imagePullPolicy": "Never"}))
def test_the_containers_that_see_other_runs_have_the_operator_s_image(pod: dict):
    assert pod["containers"][0]["image"] == "evil"
    assert [first["image"] for first in pod["initContainers"]] == [DEFAULTS.image, DEFAULTS.image]
    assert {first["imagePullPolicy"] for first in pod["initContainers"]} == {"IfNotPresent"}


def make(*directories: Path) -> subprocess.CompletedProcess[str]:
    command = ["sh", "-c", storage.MAKE_DIRECTORIES, "first", *map(str, directories)]
    return subprocess.run(command, capture_output=True, text=True)


def test_run_directories_are_made_for_their_owner_alone(tmp_path: Path):
    made = [tmp_path / "ml/it's a run", tmp_path / "ml/first/second", tmp_path / "ml/.cache"]
    for _ in range(2):
        assert make(*made).returncode == 0
    assert [path.stat().st_mode & 0o777 for path in (*made, tmp_path / "ml/first")] == [0o700] * 4


@pytest.mark.parametrize("target", ["../../b", "../other", "nowhere", "."])
def test_a_run_gets_no_directory_behind_a_link_of_another_run(tmp_path: Path, target: str):
    for each in ("a/mine", "a/other/victim", "b/victim"):
        (tmp_path / each).mkdir(parents=True)
    (tmp_path / "a/mine/link").symlink_to(target)
    before = sorted(tmp_path.rglob("*"))
    refused = make(tmp_path / "a/mine/link/victim", tmp_path / "a/.cache")
    assert refused.returncode == 1
    assert "a run directory is behind no link" in refused.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_directory_that_is_a_link_is_refused(tmp_path: Path):
    (tmp_path / "victim").mkdir()
    (tmp_path / "run").symlink_to("victim")
    assert make(tmp_path / "run").returncode == 1


def test_a_named_directory_of_the_operator_s_storage_is_mounted_beside_the_cache_of_its_namespace():
    (pod, *_) = pods(checkpoint={"directory": "/rljob/ml/first/run"})
    mount = {"name": "rljob-storage", "mountPath": "/rljob/ml/first/run", "subPath": "ml/first/run"}
    cache = {"name": "rljob-storage", "mountPath": "/rljob/ml/.cache", "subPath": "ml/.cache"}
    assert mounts_of_storage(pod["containers"][0]) == [mount, cache]


def test_a_job_with_its_own_volume_needs_no_init_container():
    given = {"volumes": [{"name": "r", "emptyDir": {}}], "volumeMounts": [{"name": "r", "mountPath": "/runs"}]}
    assert all("initContainers" not in pod for pod in pods(runtime=given, checkpoint={"directory": "/runs/x"}))


CLAIM = Storage({"persistentVolumeClaim": {"claimName": "runs"}})
DATA = {
    "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "runs"}}],
    "volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": True}],
}


@pytest.mark.parametrize(("claim", "name"), [("runs", "data"), ("others", "rljob-storage")])
def test_a_claim_is_one_volume_of_a_pod_also_where_the_job_has_its_data_on_it(claim: str, name: str):
    runtime = {**DATA, "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]}
    cluster = cluster_of(admitted(raw_job(runtime=runtime), replace(DEFAULTS, storage=CLAIM)))
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        claims = [
            each["persistentVolumeClaim"]["claimName"] for each in pod["volumes"] if "persistentVolumeClaim" in each
        ]
        assert sorted(claims) == sorted({claim, "runs"})
        (whole, part), (container,) = pod["initContainers"], pod["containers"]
        assert whole["volumeMounts"] == [{"name": name, "mountPath": "/rljob-volume"}]
        assert part["volumeMounts"] == [{"name": name, "mountPath": "/rljob-volume/ml", "subPath": "ml"}]
        mounts = {each["mountPath"]: each for each in container["volumeMounts"]}
        assert mounts["/rljob/ml/sums"] == {"name": name, "mountPath": "/rljob/ml/sums", "subPath": "ml/sums"}
        assert mounts["/data"] == DATA["volumeMounts"][0]


NFS = {"nfs": {"server": "files", "path": "/exports/runs"}}
HOST = {"hostPath": {"path": "/data/runs"}}
CSI = {"csi": {"driver": "d", "volumeAttributes": {"share": "runs"}}}
SAME = [
    (NFS, {"nfs": {"server": "files", "path": "/exports/runs", "readOnly": True}}),
    (NFS, {"nfs": {"server": "FILES.", "path": "/exports//runs/b/"}}),
    (NFS, {"nfs": {"server": "files", "path": "/"}}),
    (HOST, {"hostPath": {"path": "/data/x/../runs/b/victim", "type": "Directory"}}),
    (HOST, {"hostPath": {"path": "/"}}),
    (CSI, {"csi": {**CSI["csi"], "readOnly": True}}),
]
OTHERS = [
    (NFS, {"nfs": {"server": "files", "path": "/exports/runs2"}}),
    (NFS, {"nfs": {"server": "other", "path": "/exports/runs"}}),
    (HOST, {"hostPath": {"path": "/models"}}),
    (CSI, {"csi": {"driver": "d", "volumeAttributes": {"share": "data"}}}),
    (CLAIM.source, CLAIM.source),
    (NFS, {"emptyDir": {}}),
]


def refused(whole: dict, **sections: object) -> str | None:
    found = admission(job_of(raw_job(**sections)), replace(DEFAULTS, storage=Storage(whole)))
    return found.message if isinstance(found, Claim) else None


@pytest.mark.parametrize(("whole", "own"), SAME, ids=str)
def test_a_job_names_no_volume_with_the_runs_of_all_namespaces(whole: dict, own: dict):
    volume = {"name": "mine", **own}
    message = refused(whole, runtime={"volumes": [volume]})
    assert message is not None
    assert message.startswith("spec.runtime.volumes[0]: has files of the operator's own volume")
    patched = refused(whole, pods={"head": {"template": {"spec": {"volumes": [{"name": "a"}, volume]}}}})
    assert patched is not None
    assert patched.startswith("spec.pods.head.template.spec.volumes[1]: has files of the operator's own volume")


@pytest.mark.parametrize(("whole", "own"), OTHERS, ids=str)
def test_other_volumes_are_the_job_s_to_name(whole: dict, own: dict):
    assert refused(whole, runtime={"volumes": [{"name": "mine", **own}]}) is None


def test_a_job_that_has_begun_gets_no_new_pods_with_such_a_volume():
    around = Surroundings().to_running()
    around.defaults = replace(DEFAULTS, storage=Storage(NFS))
    around.edit(pods={"head": {"template": {"spec": {"volumes": [{"name": "mine", **NFS}]}}}})
    around.step()
    assert around.condition("Admitted")["reason"] == "RefusedNow"
    around.ends(Exit.PREEMPTED)
    around.step()
    around.deletions_done()
    around.step()
    assert around.observed.rayclusters() == ()
