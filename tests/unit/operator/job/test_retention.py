"""Run directories of deleted jobs: when one is deleted, which ones never are, and how."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from rljob_operator.identity import Manifest
from rljob_operator.job import retention
from rljob_operator.job.pods import pod_security
from rljob_operator.job.retention import Step
from rljob_operator.world.world import Defaults, Storage
from support.operator.operator_world import raw_job
from support.operator.run_records import DEFAULTS, NOW, RECORD, STORAGE, begun


def test_a_job_with_an_attempt_in_the_operator_s_volume_has_a_record():
    assert retention.record_of_job(begun(), DEFAULTS) == RECORD


def test_a_job_uses_the_directory_it_has_the_one_it_names_and_the_one_it_would_get():
    here, named = "/rljob/ml/sums", {"checkpoint": {"directory": "/data//runs/x/"}}
    moved = {**begun(**named), "status": {"directory": "/data/runs/before"}}
    assert retention.directories(moved, STORAGE) == ("/data/runs/before", "/data/runs/x", here)
    assert retention.directories(raw_job(), STORAGE) == (here,)


@pytest.mark.parametrize(
    ("raw", "defaults"),
    [
        (begun(attempt=0), DEFAULTS),
        (begun(), replace(DEFAULTS, ttl_after_deletion_s=None)),
        ({**begun(), "status": {"attempt": 1, "directory": "/mine/sums", "resolved": {}}}, DEFAULTS),
        (raw_job(), DEFAULTS),
    ],
)
def test_other_jobs_have_none(raw: Manifest, defaults: Defaults):
    assert retention.record_of_job(raw, defaults) is None


def test_the_manifest_s_own_time_comes_first():
    for ttl_s in (0, 7):
        record = retention.record_of_job(begun(checkpoint={"ttlSecondsAfterDeletion": ttl_s}), DEFAULTS)
        assert record is not None
        assert record.ttl_s == ttl_s


@pytest.mark.parametrize(
    ("since", "is_used", "expected"),
    [
        (None, True, Step.NOTHING),
        (NOW, True, Step.UNMARK),
        (None, False, Step.MARK),
        (NOW - 3599, False, Step.NOTHING),
        (NOW - 3600, False, Step.CLEAN),
    ],
)
def test_a_directory_is_deleted_when_no_job_has_used_it_for_its_time(since: float, is_used: bool, expected: Step):
    assert retention.step(retention.marked(RECORD, since and int(since)), is_used, NOW) is expected


@pytest.mark.parametrize(
    ("change", "ours"),
    [
        ({}, True),
        ({"directory": "/rljob/ml/team/sums"}, True),
        ({"directory": "/rljob/ml"}, False),
        ({"directory": "/rljob/other/sums"}, False),
        ({"directory": "/rljob/ml/../other/sums"}, False),
        ({"directory": "/etc"}, False),
        ({"directory": "/rljob/ml/.cache"}, False),
        ({"directory": "/rljob/ml/.cache/models"}, False),
        ({"path": "/"}, False),
        ({"volume": '{"hostPath": {"path": "/"}}'}, False),
    ],
)
def test_a_record_that_somebody_has_edited_reaches_only_runs_of_its_namespace(change: dict, ours: bool):
    assert retention.is_ours_to_delete(replace(RECORD, **change), STORAGE) is ours


def test_a_volume_is_the_same_in_any_order_of_its_fields():
    """The chart's values and the API server order them differently."""
    source = {"nfs": {"server": "files", "path": "/runs"}}
    other = {"nfs": {"path": "/runs", "server": "files"}}
    record = replace(RECORD, volume=retention._text(source))
    assert retention.is_ours_to_delete(record, Storage(other))


def test_a_record_is_read_as_it_was_written_and_a_broken_one_is_left_alone():
    for record in (RECORD, retention.marked(RECORD, 17)):
        raw = retention.manifest(record)
        raw["metadata"]["uid"] = "u"
        assert retention.record_of(raw) == replace(record, uid="u")
    raw["data"]["ttlSeconds"] = "soon"
    assert retention.record_of(raw) is None


TTL_S = 3600


AN_HOUR_AGO, AGES_AGO = TTL_S + 10, 10 * TTL_S


def run_in(directory: Path, age_s: int = AN_HOUR_AGO) -> Path:
    """Return a run directory that was written last this long ago."""
    checkpoint = directory / "checkpoints/iter_1"
    checkpoint.mkdir(parents=True)
    for each in (directory / "driver.json", checkpoint / "weights"):
        each.touch()
    for each in (directory, *directory.rglob("*")):
        old(each, age_s)
    return directory


def old(path: Path, age_s: int) -> None:
    os.utime(path, follow_symlinks=False)
    os.utime(path, (path.lstat().st_mtime - age_s,) * 2, follow_symlinks=False)


def delete(directory: Path, ttl_s: int = TTL_S) -> subprocess.CompletedProcess[str]:
    """Run the Job that deletes a directory, whose parent is that of a namespace."""
    storage = Storage(STORAGE.source, str(directory.parent.parent))
    record = replace(RECORD, namespace=directory.parent.name, directory=str(directory), ttl_s=ttl_s)
    (container,) = retention.cleaner(record, storage, "trainer:1")["spec"]["template"]["spec"]["containers"]
    return subprocess.run(container["command"], capture_output=True, text=True)


def test_the_script_deletes_the_directory_and_what_an_earlier_one_left(tmp_path: Path):
    run, other, third = (run_in(tmp_path / "ml" / name) for name in ("it's a run", "it's a run 2", "a.deleted-1"))
    for _ in range(2):
        assert delete(run).returncode == 0
        assert sorted(run.parent.iterdir()) == sorted([other, third])
    (left,) = (tmp_path / "ml" / f".{replace(RECORD, directory=str(run)).cleaner}",)
    run_in(left / "run")
    assert delete(run).returncode == 0
    assert sorted(run.parent.iterdir()) == sorted([other, third])


@pytest.mark.parametrize("target", ["../../b", "../other", "../mine/."])
def test_the_script_deletes_nothing_behind_a_link(tmp_path: Path, target: str):
    for each in ("a/mine/victim", "a/other/victim", "b/victim"):
        run_in(tmp_path / each)
    (tmp_path / "a/mine/link").symlink_to(target)
    (tmp_path / "a/direct").symlink_to(target.removeprefix("../"))
    before = sorted(tmp_path.rglob("*"))
    for each in ("a/mine/link/victim", "a/direct"):
        refused = delete(tmp_path / each)
        assert refused.returncode == 1
        assert "it is kept" in refused.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_a_link_in_a_run_that_is_deleted_leads_to_nothing(tmp_path: Path):
    mine, victim = run_in(tmp_path / "a/mine"), run_in(tmp_path / "b/victim")
    (mine / "link").symlink_to("../../b")
    for each in (mine, mine / "link"):
        old(each, AN_HOUR_AGO)
    assert delete(mine).returncode == 0
    assert not mine.exists()
    assert victim.exists()


@pytest.mark.parametrize("name", ["checkpoints/iter_1/weights", "driver.json", "checkpoints"])
def test_a_run_that_a_job_of_another_cluster_writes_is_kept(tmp_path: Path, name: str):
    """No API server that this operator asks knows that job."""
    run = run_in(tmp_path / "ml/run")
    (run / name).touch()
    refused = delete(run)
    assert refused.returncode == 1
    assert "was written to within 3600 s: it is kept" in refused.stderr
    assert [each.name for each in run.parent.iterdir()] == ["run"]


@pytest.mark.parametrize("name", ["driver.json", "inner/driver.json"])
def test_a_run_with_a_driver_at_work_is_kept_however_short_the_time_to_live(tmp_path: Path, name: str):
    run = run_in(tmp_path / "ml/run", age_s=600)
    run_in(run / "inner", age_s=600)
    old(run, 600)
    for each in run.rglob("driver.json"):
        old(each, AGES_AGO)
    old(run / name, 600)
    refused = delete(run, ttl_s=60)
    assert refused.returncode == 1
    assert "has a driver at work: it is kept" in refused.stderr
    old(run / name, retention.ALIVE_S + 10)
    assert delete(run, ttl_s=60).returncode == 0


def test_the_job_that_deletes_a_directory_mounts_its_volume_and_ends():
    labels = {"rljob.dev/run-of": "sums", "app.kubernetes.io/managed-by": "rljob-operator"}
    job = retention.cleaner(RECORD, STORAGE, "trainer:1")
    template = job["spec"].pop("template")
    (container,) = template["spec"]["containers"]
    (volume,) = template["spec"]["volumes"]
    assert job == {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": RECORD.cleaner, "namespace": "ml", "labels": labels},
        "spec": {"backoffLimit": 4, "activeDeadlineSeconds": 86400, "ttlSecondsAfterFinished": 600},
    }
    assert template["metadata"] == {"labels": labels}
    assert template["spec"]["restartPolicy"] == "OnFailure"
    assert container["volumeMounts"] == [{"name": volume["name"], "mountPath": "/rljob/ml", "subPath": "ml"}]
    assert volume["persistentVolumeClaim"] == {"claimName": "runs"}
    assert (container["name"], container["image"]) == ("delete", "trainer:1")
    shell, rest = container["command"][:4], container["command"][4:]
    assert shell == ["sh", "-c", retention.SCRIPT, "rljob-delete"]
    assert rest == [f"/rljob/ml/.{RECORD.cleaner}", "3600", "900", "driver.json", "/rljob/ml/sums"]


def test_the_pod_that_deletes_a_directory_runs_without_rights():
    pod = retention.cleaner(RECORD, STORAGE, "trainer:1")["spec"]["template"]["spec"]
    assert pod["securityContext"] == pod_security()
    assert pod["automountServiceAccountToken"] is False
