"""Run directories of deleted jobs: when one is deleted, which ones never are, and how."""

import asyncio
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rljob_operator import retention
from rljob_operator.cache import Cache
from rljob_operator.cluster import ConflictError
from rljob_operator.identity import Manifest
from rljob_operator.plan import Target
from rljob_operator.pods import pod_security
from rljob_operator.retention import RunRecord, Step
from rljob_operator.sweeper import Sweeper
from rljob_operator.world import Defaults, Storage
from support.operator.operator_world import raw_job

STORAGE = Storage({"persistentVolumeClaim": {"claimName": "runs"}})
DEFAULTS = Defaults(image="trainer:1", storage=STORAGE, ttl_after_deletion_s=3600)
NOW = 1_800_000_000.0
RECORD = RunRecord("ml", "sums", "/rljob/ml/sums", retention._text(STORAGE.source), "/rljob", 3600)


def begun(name: str = "sums", attempt: int = 1, **sections: Any) -> Manifest:
    """Return a job in the operator's volume that has had attempts."""
    volume = {"source": dict(STORAGE.source), "path": "/rljob"}
    status = {"attempt": attempt, "directory": f"/rljob/ml/{name}", "resolved": {"volume": volume}}
    raw = raw_job(name, **sections)
    return {**raw, "metadata": {**raw["metadata"], "uid": name, "resourceVersion": "1"}, "status": status}


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


def delete(directory: Path) -> None:
    subprocess.run(["sh", "-c", retention.SCRIPT, "rljob-delete", str(directory)], check=True)


def test_the_script_deletes_the_directory_and_what_an_earlier_one_left(tmp_path: Path):
    run, left, other = tmp_path / "it's a run", tmp_path / "it's a run.deleted-1", tmp_path / "it's a run 2"
    for each in (run, left, other):
        (each / "iter_1").mkdir(parents=True)
    delete(run)
    assert list(tmp_path.iterdir()) == [other]
    delete(run)
    assert list(tmp_path.iterdir()) == [other]


class Api:
    """Records, Jobs and RLJobs as an API server keeps them."""

    def __init__(self, *rljobs: Manifest) -> None:
        self.rljobs = list(rljobs)
        self.objects: dict[tuple[str, str], Manifest] = {}

    async def pages(self, kind: str, namespaces: Any, label: str | None = None) -> Any:
        objects = self.rljobs if kind == "RLJob" else [v for (each, _), v in self.objects.items() if each == kind]
        yield type("Page", (), {"objects": tuple(objects)})

    async def read(self, kind: str, namespace: str, name: str) -> Manifest | None:
        return self.objects.get((kind, name))

    async def apply(self, wanted: Manifest, force: bool) -> Manifest:
        return self._put(wanted)

    async def create(self, wanted: Manifest) -> Manifest:
        if (wanted["kind"], wanted["metadata"]["name"]) in self.objects:
            raise ConflictError("there", 409)
        return self._put(wanted)

    async def delete(self, target: Target) -> None:
        self.objects.pop((target.kind, target.name), None)

    def _put(self, raw: Manifest) -> Manifest:
        name = raw["metadata"]["name"]
        self.objects[raw["kind"], name] = {**raw, "metadata": {**raw["metadata"], "uid": name}}
        return raw

    def of(self, kind: str) -> list[Manifest]:
        return [raw for (each, _), raw in self.objects.items() if each == kind]


class Place:
    """A sweeper with its surroundings; `at` is the time [unix s]."""

    def __init__(self, *rljobs: Manifest, defaults: Defaults = DEFAULTS) -> None:
        self.at = NOW
        self.api: Any = Api(*rljobs)
        self.cache = Cache()
        for raw in rljobs:
            self.cache.put(raw)
        self.sweeper = Sweeper(self.api, self.cache, (), defaults, lambda: self.at)

    def sweep(self, times: int = 1) -> None:
        for _ in range(times):
            asyncio.run(self.sweeper.sweep())

    def delete(self, raw: Manifest) -> None:
        self.api.rljobs.remove(raw)
        self.cache.remove(raw)


def test_a_deleted_job_s_directory_goes_after_its_time_and_then_the_record():
    job = begun()
    place = Place(job)
    place.sweep(2)
    assert [each["data"]["directory"] for each in place.api.of("ConfigMap")] == ["/rljob/ml/sums"]
    place.delete(job)
    place.sweep()
    place.at += 3599
    place.sweep()
    assert place.api.of("Job") == []
    place.at += 1
    place.sweep(2)
    (cleaner,) = place.api.of("Job")
    (container,) = cleaner["spec"]["template"]["spec"]["containers"]
    assert container["command"][-1] == "/rljob/ml/sums"
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    cleaner["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    place.sweep()
    assert place.api.of("ConfigMap") == []


def test_a_job_that_is_applied_again_in_time_keeps_its_directory():
    job = begun()
    place = Place(job)
    place.sweep()
    place.delete(job)
    place.sweep()
    place.at += 3600
    place.sweep()
    assert len(place.api.of("Job")) == 1, "the Job has begun and is taken back"
    again = {**begun(attempt=0), "metadata": {**job["metadata"], "uid": "other"}}
    place.cache.put(again)
    place.sweep()
    assert place.api.of("Job") == []
    assert "unusedSince" not in place.api.of("ConfigMap")[0]["data"]


def test_a_directory_that_another_job_names_stays():
    job, other = begun(), begun("more", checkpoint={"directory": "/rljob/ml/sums"})
    place = Place(job, other)
    place.sweep()
    place.delete(job)
    place.at += 7200
    place.sweep(3)
    assert place.api.of("Job") == []


def test_what_the_cache_does_not_know_yet_and_the_api_server_does_is_not_deleted():
    job = begun()
    place = Place(job)
    place.sweep()
    place.cache.remove(job)
    place.sweep()
    assert "unusedSince" not in place.api.of("ConfigMap")[0]["data"]


def test_a_directory_in_another_volume_than_today_s_is_kept():
    job = begun()
    place = Place(job)
    place.sweep()
    place.delete(job)
    place.sweep()
    place.at += 7200
    elsewhere = replace(DEFAULTS, storage=Storage({"persistentVolumeClaim": {"claimName": "new"}}))
    place.sweeper = Sweeper(place.api, place.cache, (), elsewhere, lambda: place.at)
    place.sweep(2)
    assert place.api.of("Job") == []


def test_a_job_whose_time_to_live_is_withdrawn_loses_its_record():
    place = Place(begun())
    place.sweep()
    forever = replace(DEFAULTS, ttl_after_deletion_s=None)
    place.sweeper = Sweeper(place.api, place.cache, (), forever, lambda: place.at)
    place.sweep()
    assert place.api.of("ConfigMap") == []


@pytest.mark.parametrize("ttl_s", [7, None])
def test_the_records_of_another_release_s_jobs_are_left_alone(ttl_s: int | None):
    job = begun()
    job["status"]["release"] = "team/other"
    place = Place(job)
    place.sweep()
    assert place.api.of("ConfigMap") == []
    place.api.objects["ConfigMap", RECORD.name] = retention.manifest(RECORD)
    other = replace(DEFAULTS, ttl_after_deletion_s=ttl_s)
    place.sweeper = Sweeper(place.api, place.cache, (), other, lambda: place.at)
    place.sweep()
    assert place.api.of("ConfigMap") == [retention.manifest(RECORD)]


def test_the_pod_that_deletes_a_directory_has_the_pull_secrets_of_all_jobs():
    job = begun()
    place = Place(job, defaults=replace(DEFAULTS, settings={"runtime": {"imagePullSecrets": ["registry"]}}))
    place.sweep()
    place.delete(job)
    place.sweep()
    place.at += 3600
    place.sweep()
    (cleaner,) = place.api.of("Job")
    assert cleaner["spec"]["template"]["spec"]["imagePullSecrets"] == [{"name": "registry"}]


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
    assert container["volumeMounts"] == [{"name": volume["name"], "mountPath": "/rljob"}]
    assert volume["persistentVolumeClaim"] == {"claimName": "runs"}
    assert (container["name"], container["image"]) == ("delete", "trainer:1")
    assert container["command"] == ["sh", "-c", retention.SCRIPT, "rljob-delete", "/rljob/ml/sums"]


def test_the_pod_that_deletes_a_directory_runs_without_rights():
    pod = retention.cleaner(RECORD, STORAGE, "trainer:1")["spec"]["template"]["spec"]
    assert pod["securityContext"] == pod_security()
    assert pod["automountServiceAccountToken"] is False
