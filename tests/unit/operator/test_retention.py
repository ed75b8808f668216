"""Run directories of deleted jobs: when one is deleted, which ones never are, and how."""

import asyncio
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rljob_operator import retention
from rljob_operator.cache import Cache
from rljob_operator.cluster import ClusterError, ConflictError
from rljob_operator.identity import Manifest
from rljob_operator.keys import Keys
from rljob_operator.plan import Target
from rljob_operator.pods import pod_security
from rljob_operator.retention import RunRecord, Step
from rljob_operator.sweeper import OF_THIS_PROCESS, Sweeper
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


def sealed(record: RunRecord, keys: Keys = OF_THIS_PROCESS) -> Manifest:
    """Return the ConfigMap that a sweeper with these keys writes."""
    raw = retention.manifest(record)
    data = {**raw["data"], "seal": keys.seal(record.sealed_text)}
    return {**raw, "metadata": {**raw["metadata"], "uid": "u"}, "data": data}


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
    place.api.objects["ConfigMap", RECORD.name] = sealed(RECORD)
    other = replace(DEFAULTS, ttl_after_deletion_s=ttl_s)
    place.sweeper = Sweeper(place.api, place.cache, (), other, lambda: place.at)
    place.sweep()
    assert place.api.of("ConfigMap") == [sealed(RECORD)]


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


def test_the_deletion_waits_for_a_job_inside_of_the_directory_or_around_it():
    for directory in ("/rljob/ml/exp/lr2", "/rljob/ml//exp/./a/../lr2", "/rljob/ml"):
        outer, other = begun("exp"), begun("lr2", checkpoint={"directory": directory})
        place = Place(outer, other)
        place.sweep()
        place.delete(outer)
        place.at += 7200
        place.sweep(3)
        assert place.api.of("Job") == []
        assert all("unusedSince" not in each["data"] for each in place.api.of("ConfigMap"))


@pytest.mark.parametrize("sub_path", [None, "ml", "ml/exp"])
def test_it_waits_for_a_job_that_mounts_the_volume_by_itself(sub_path: str | None):
    runtime = {
        "volumes": [{"name": "mine", "persistentVolumeClaim": {"claimName": "runs"}}],
        "volumeMounts": [{"name": "mine", "mountPath": "/data", **({"subPath": sub_path} if sub_path else {})}],
    }
    inside = {None: "/data/ml/exp/lr2", "ml": "/data/exp/lr2", "ml/exp": "/data/lr2"}[sub_path]
    outer, other = begun("exp"), raw_job("lr2", runtime=runtime, checkpoint={"directory": inside})
    other["metadata"] |= {"uid": "lr2", "resourceVersion": "1"}
    place = Place(outer, other)
    place.sweep()
    place.delete(outer)
    place.at += 7200
    place.sweep(3)
    assert place.api.of("Job") == []


def test_a_directory_with_a_run_inside_that_has_more_time_goes_after_it():
    outer = begun("exp")
    inner = begun("lr2", checkpoint={"directory": "/rljob/ml/exp/lr2", "ttlSecondsAfterDeletion": 9000})
    inner["status"]["directory"] = "/rljob/ml/exp/lr2"
    place = Place(outer, inner)
    place.sweep()
    for each in (outer, inner):
        place.delete(each)
    place.sweep()
    place.at += 3600
    place.sweep(2)
    assert place.api.of("Job") == []
    place.at += 5400
    place.sweep(2)
    (cleaner,) = place.api.of("Job")
    assert cleaner["spec"]["template"]["spec"]["containers"][0]["command"][-1] == "/rljob/ml/exp/lr2"


def test_a_directory_with_a_run_inside_that_stays_for_ever_stays():
    outer = begun("exp")
    inner = begun("lr2", checkpoint={"directory": "/rljob/ml/exp/lr2"})
    inner["status"]["directory"] = "/rljob/ml/exp/lr2"
    place = Place(outer)
    place.sweep()
    place.delete(outer)
    place.cache.put(inner)
    forever = replace(DEFAULTS, ttl_after_deletion_s=None)
    place.sweeper = Sweeper(place.api, place.cache, (), forever, lambda: place.at)
    place.sweep()
    assert place.api.of("ConfigMap") == []


FORGED = replace(RECORD, directory="/rljob/ml/other", unused_since=1, ttl_s=0)
OTHER_KEYS = Keys.of(b"k" * 32)


@pytest.mark.parametrize(
    "raw",
    [
        {**sealed(FORGED), "data": retention.manifest(FORGED)["data"]},
        {**sealed(RECORD), "data": {**sealed(RECORD)["data"], "directory": "/rljob/ml/other"}},
        {**sealed(RECORD), "data": {**sealed(RECORD)["data"], "unusedSince": "1"}},
        {**sealed(RECORD), "data": {**sealed(RECORD)["data"], "ttlSeconds": "0"}},
        {**sealed(replace(FORGED, namespace="b"))},
        {**sealed(FORGED, OTHER_KEYS)},
        {**sealed(FORGED), "data": {**sealed(FORGED)["data"], "seal": ":"}},
        {**sealed(FORGED), "data": {**sealed(FORGED)["data"], "seal": "\u00e9" + sealed(FORGED)["data"]["seal"]}},
    ],
)
def test_a_record_that_the_operator_has_not_written_deletes_nothing_and_stays_as_it_is(raw: Manifest, caplog: Any):
    raw["metadata"]["namespace"] = "ml"
    place = Place()
    place.api.objects["ConfigMap", "x"] = raw
    place.at += 1e6
    place.sweep(3)
    assert place.api.of("Job") == []
    assert place.api.of("ConfigMap") == [raw]
    (said,) = [each.getMessage() for each in caplog.records if "NotSealed" in each.getMessage()]
    assert "records=1 first=ml/rljob-run-" in said


def test_a_live_job_s_record_of_an_older_operator_is_written_again_with_a_seal():
    place = Place(begun())
    place.api.objects["ConfigMap", RECORD.name] = retention.manifest(RECORD) | {
        "metadata": {**retention.manifest(RECORD)["metadata"], "uid": "u"}
    }
    place.sweep()
    (written,) = place.api.of("ConfigMap")
    assert written["data"] == sealed(RECORD)["data"]


def test_a_record_by_an_older_key_of_the_operator_is_trusted():
    place = Place()
    place.api.objects["ConfigMap", RECORD.name] = sealed(retention.marked(RECORD, 1), OTHER_KEYS)
    place.sweeper = Sweeper(place.api, place.cache, (), DEFAULTS, lambda: place.at, Keys.of(b"new" * 11, b"k" * 32))
    place.sweep()
    assert len(place.api.of("Job")) == 1


REFUSALS = [
    ("apply", ClusterError("immutable", 422)),
    ("apply", ClusterError("not ours", 403)),
    ("create", ClusterError("exceeded quota", 403)),
    ("create", ClusterError("because it is being terminated", 403)),
    ("read", ClusterError("internal error", 500)),
    ("delete", ClusterError("gone", 410)),
]


@pytest.mark.parametrize(("verb", "error"), REFUSALS, ids=str)
def test_what_one_namespace_refuses_stops_no_other(verb: str, error: ClusterError, caplog: Any):
    """The first and the last namespace of the list refuse."""
    jobs = []
    for namespace in ("a", "ml", "z"):
        job = begun()
        job["metadata"] |= {"namespace": namespace, "uid": namespace}
        job["status"]["directory"] = f"/rljob/{namespace}/sums"
        jobs.append(job)
    place = Place(*jobs)
    works = getattr(place.api, verb)

    async def refuses(first: Any, *rest: Any, **more: Any) -> Any:
        namespace = rest[0] if verb == "read" else getattr(first, "namespace", None) or first["metadata"]["namespace"]
        if namespace != "ml":
            raise error
        return await works(first, *rest, **more)

    setattr(place.api, verb, refuses)
    place.sweep()
    for job in jobs:
        place.delete(job)
    place.sweep()
    place.at += 3600
    place.sweep(2)
    of_ml = [each for each in place.api.of("Job") if each["metadata"]["namespace"] == "ml"]
    assert len(of_ml) == 1
    of_ml[0]["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    place.sweep()
    assert [each for each in place.api.of("ConfigMap") if each["metadata"]["namespace"] == "ml"] == []


def test_an_api_server_that_does_not_answer_ends_the_look():
    async def silent(*_: Any, **__: Any) -> Any:
        raise ClusterError("no response", 0)

    place = Place(begun())
    place.api.apply = silent
    with pytest.raises(ClusterError):
        place.sweep()


def test_a_job_that_cannot_be_read_keeps_all_directories_of_its_namespace_alone(caplog: Any):
    odd, other = begun("odd"), begun("elsewhere")
    odd["status"]["resolved"] = {"volume": {"source": 7, "path": "/rljob"}}
    other["metadata"] |= {"namespace": "b", "uid": "b"}
    other["status"]["directory"] = "/rljob/b/elsewhere"
    place = Place(odd, other)
    place.api.objects["ConfigMap", RECORD.name] = sealed(retention.marked(RECORD, 1))
    place.sweep(2)
    assert place.api.of("Job") == []
    assert [each["metadata"]["namespace"] for each in place.api.of("ConfigMap")] == ["ml", "b"]
    assert "job=ml/odd outcome=unreadable" in caplog.text
