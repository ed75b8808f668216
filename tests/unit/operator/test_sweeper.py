"""Which directories of deleted jobs the sweeper has deleted, whose records it trusts, and what stops it."""

from dataclasses import replace
from typing import Any

import pytest

from rljob_operator.cluster.cluster import ClusterError
from rljob_operator.execution.keys import Keys
from rljob_operator.identity import Manifest
from rljob_operator.job import retention
from rljob_operator.sweeper import Sweeper
from rljob_operator.world.world import Storage
from support.operator.operator_world import raw_job
from support.operator.run_records import DEFAULTS, RECORD, Place, begun, sealed


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


def test_the_directory_of_a_volume_that_pods_do_not_share_is_told_apart_by_its_path():
    defaults = replace(DEFAULTS, storage=Storage({"emptyDir": {}}))
    jobs = begun(), begun("sums-2"), begun("sums-3")
    jobs[2]["status"]["directory"] = "/rljob/ml/sums/inner"
    for job in jobs:
        job["status"]["resolved"]["volume"]["source"] = {"emptyDir": {}}
    place = Place(*jobs, defaults=defaults)
    place.sweep()
    place.delete(jobs[0])
    place.at += 3600
    place.sweep(2)
    place.at += 3600
    place.sweep()
    assert place.api.of("Job") == []
    place.delete(jobs[2])
    place.sweep(2)
    place.at += 3600
    place.sweep(2)
    (cleaner,) = place.api.of("Job")
    assert cleaner["spec"]["template"]["spec"]["containers"][0]["command"][-1] == "/rljob/ml/sums/inner"
