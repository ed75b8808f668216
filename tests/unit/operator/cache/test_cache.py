"""The cache and the liveness of the watches: the newest version wins, and every change has to come as an event."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.reading.depth import DEEPEST_OBJECT, too_deep
from rljob_operator.cache import cache as cache_module
from rljob_operator.cache.cache import Cache, Freshness, TooManyError, is_ours, key_of, size_of
from rljob_operator.cache.watch_liveness import DEAD_AFTER_S, WatchLiveness
from rljob_operator.children.children import is_as_wanted
from rljob_operator.world.world import is_deleting, job_of
from support.operator.operator_world import raw_job

JOB = job_of(raw_job())


def child(name: str = "sums-7f3a1-1", version: str = "5", owner: str = JOB.uid, kind: str = "RayCluster") -> dict:
    labels = {"rljob.dev/job": "sums", "ray.io/cluster": "sums-7f3a1-1"}
    metadata = {
        "name": name,
        "namespace": "ml",
        "uid": f"uid-of-{name}",
        "resourceVersion": version,
        "labels": labels,
        "ownerReferences": [{"uid": owner}],
        "managedFields": ["much"],
    }
    return {"apiVersion": "ray.io/v1", "kind": kind, "metadata": metadata, "spec": {}}


def versioned(raw: dict, version: str) -> dict:
    return raw | {"metadata": raw["metadata"] | {"resourceVersion": version}}


def head(version: str, ip: str | None, cluster: str = "sums-7f3a1-1", is_deleting: bool = False, at: int = 0) -> dict:
    raw = child(f"{cluster}-head-{at}", version, kind="Pod")
    raw["metadata"] |= {"creationTimestamp": f"2026-11-27T10:00:{at:02}Z"}
    raw["metadata"]["labels"] |= {"ray.io/cluster": cluster, "ray.io/node-type": "head"}
    if is_deleting:
        raw["metadata"]["deletionTimestamp"] = "2026-11-27T11:00:00Z"
    return raw | {"status": {"podIP": ip} if ip else {}}


def test_the_address_of_a_head_is_that_of_its_newest_pod_that_stays():
    cache = Cache()
    assert cache.head_ip(JOB.key, "sums-7f3a1") is None
    cache.put(head("1", "10.0.0.9", "sums-7f3a12-1"))
    assert cache.head_ip(JOB.key, "sums-7f3a1") is None, "of another job"
    cache.put(head("2", "10.0.0.1", at=1))
    assert cache.head_ip(JOB.key, "sums-7f3a1") == "10.0.0.1"
    cache.put(head("3", None, at=2))
    assert cache.head_ip(JOB.key, "sums-7f3a1") is None, "the newest has no address yet"
    cache.put(head("4", "10.0.0.2", is_deleting=True, at=2))
    assert cache.head_ip(JOB.key, "sums-7f3a1") == "10.0.0.1"


def test_the_address_of_a_head_is_not_that_of_a_worker():
    cache, worker = Cache(), head("1", "10.0.0.3")
    worker["metadata"]["labels"]["ray.io/node-type"] = "worker"
    cache.put(worker)
    assert cache.head_ip(JOB.key, "sums-7f3a1") is None


def test_an_older_version_does_not_replace_a_newer_one():
    cache = Cache()
    assert cache.put(child(version="10")) is Freshness.CHANGED
    assert cache.put(child(version="9")) is Freshness.STALE
    assert cache.children(JOB)[0]["metadata"]["resourceVersion"] == "10"


def test_the_same_version_again_is_no_news():
    cache = Cache()
    cache.put(child(version="10"))
    assert cache.put(child(version="10")) is Freshness.STALE


def test_a_version_that_is_no_number_is_older_than_every_number():
    cache = Cache()
    cache.put(child(version="unknown"))
    assert cache.put(child(version="1")) is Freshness.UNCHANGED
    assert cache.children(JOB)[0]["metadata"]["resourceVersion"] == "1"


def test_an_object_without_a_version_is_older_than_every_number():
    cache, raw = Cache(), child(version="1")
    del raw["metadata"]["resourceVersion"]
    cache.put(child(version="1"))
    assert cache.put(raw) is Freshness.STALE


def test_children_belong_to_their_job_by_label():
    assert key_of(child()) == "ml/sums"


OWNER = {"kind": "RLJob", "apiVersion": "rljob.dev/v1alpha1", "name": "sums", "uid": JOB.uid, "controller": True}


def relabelled(labels: dict | None, owners: list[dict], name: str = "sums-7f3a1-1") -> dict:
    raw = child(name)
    metadata = {key: value for key, value in raw["metadata"].items() if key not in ("labels", "ownerReferences")}
    return {**raw, "metadata": {**metadata, "ownerReferences": owners, **({"labels": labels} if labels else {})}}


@pytest.mark.parametrize("labels", [None, {"rljob.dev/job": "another"}], ids=["removed", "changed"])
def test_a_raycluster_whose_label_is_lost_is_found_by_its_owner(labels):
    cache = Cache()
    raw = relabelled(labels, [OWNER])
    cache.put(raw)
    assert is_ours(raw)
    assert [found["metadata"]["name"] for found in cache.children(JOB)] == ["sums-7f3a1-1"]


def test_a_raycluster_whose_owner_is_removed_is_found_by_its_label_and_name():
    cache = Cache()
    cache.put(relabelled({"rljob.dev/job": "sums"}, []))
    cache.put(relabelled({"rljob.dev/job": "sums"}, [], name="sums-00000-1"))
    cache.put(relabelled({"rljob.dev/job": "sums"}, [], name="sums-7f3a1b-1"))
    assert [found["metadata"]["name"] for found in cache.children(JOB)] == ["sums-7f3a1-1"]


@pytest.mark.parametrize(
    "owners",
    [[], [OWNER | {"kind": "RayJob", "apiVersion": "ray.io/v1"}], [OWNER | {"controller": False}]],
    ids=["none", "another kind", "no controller"],
)
def test_a_raycluster_of_others_is_not_ours(owners):
    assert not is_ours(relabelled(None, owners))


def test_children_of_a_deleted_job_of_the_same_name_are_not_ours():
    cache = Cache()
    cache.put(child(owner="another"))
    assert cache.children(JOB) == ()


def test_pods_are_those_of_our_rayclusters():
    cache = Cache()
    cache.put(child("pod", kind="Pod", owner="the RayCluster"))
    foreign = child("foreign", kind="Pod")
    foreign["metadata"]["labels"]["ray.io/cluster"] = "sums-00000-1"
    cache.put(foreign)
    assert [pod.name for pod in cache.pods(JOB)] == ["pod"]


def test_a_list_shows_what_is_gone_but_not_what_is_newer_than_it():
    cache = Cache()
    cache.put(child("old", version="5"))
    cache.put(child("new", version="9"))
    assert cache.remove_missing("RayCluster", (), "7") == {"uid-of-old": "ml/sums"}
    assert [raw["metadata"]["name"] for raw in cache.children(JOB)] == ["new"]


def test_the_answer_to_our_own_write_does_not_bring_back_what_is_gone():
    cache = Cache()
    cache.remove(child(version="6"))
    assert cache.put(child(version="5")) is Freshness.STALE
    assert cache.children(JOB) == ()


def test_a_list_of_one_kind_says_nothing_about_the_others():
    cache = Cache()
    cache.put(child(version="5"))
    assert cache.remove_missing("Service", (), "7") == {}
    assert cache.children(JOB)


def test_the_conditions_of_a_child_are_news_and_kept():
    cache = Cache()
    cache.put(child(version="5"))
    status = {"state": "ready", "conditions": [{"type": "ReplicaFailure", "status": "True", "message": "no room"}]}
    assert cache.put(child(version="6") | {"status": status}) is Freshness.CHANGED
    assert cache.children(JOB)[0]["status"] == {"conditions": status["conditions"]}


def test_the_rest_of_the_status_of_a_child_is_no_news():
    cache = Cache()
    cache.put(child(version="5"))
    assert cache.put(child(version="6") | {"status": {"state": "ready"}}) is Freshness.UNCHANGED
    assert cache.put(child(version="7") | {"spec": {"suspend": True}}) is Freshness.CHANGED
    assert cache.children(JOB)[0]["metadata"]["resourceVersion"] == "7"


def test_the_status_of_a_job_is_news():
    cache = Cache()
    cache.put(raw_job())
    assert cache.put(versioned(raw_job(), "2") | {"status": {"phase": "Training"}}) is Freshness.CHANGED


def test_a_pod_is_news_only_when_it_matters():
    cache = Cache()
    pod = child("pod", version="5", kind="Pod", owner="the RayCluster")
    cache.put(pod)
    assert cache.put(versioned(pod, "6") | {"status": {"hostIP": "10.0.0.1"}}) is Freshness.UNCHANGED
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    assert cache.put(versioned(pod, "7") | {"status": ready}) is Freshness.CHANGED
    assert cache.pods(JOB)[0].is_ready


def test_what_nobody_reads_is_not_kept():
    cache = Cache()
    cache.put(child())
    assert "managedFields" not in cache.children(JOB)[0]["metadata"]


def test_a_watch_that_keeps_silent_about_a_change_is_dead():
    now = [0.0]
    watch = WatchLiveness(lambda: now[0])
    watch.expect(child(version="7"))
    watch.arrived(child(version="6"), is_gone=False)
    now[0] = DEAD_AFTER_S + 1
    assert not watch.is_alive
    watch.arrived(child(version="7"), is_gone=False)
    assert watch.is_alive


def test_a_deleted_object_is_no_longer_expected():
    watch = WatchLiveness(lambda: 0.0)
    watch.expect(child(version="7"))
    watch.arrived(child(version="3"), is_gone=True)
    assert watch.silent_s == 0.0


def deleted(raw: dict) -> dict:
    return raw | {"metadata": raw["metadata"] | {"deletionTimestamp": "2026-11-21T00:00:00Z"}}


def test_a_deletion_that_has_begun_is_news_and_kept():
    cache = Cache()
    cache.put(child(version="5"))
    assert cache.put(deleted(child(version="6"))) is Freshness.CHANGED
    assert is_deleting(cache.children(JOB)[0])


def test_a_job_that_is_being_deleted_is_seen_as_such():
    cache = Cache()
    cache.put(deleted(raw_job()))
    raw = cache.job(JOB.key)
    assert raw is not None
    assert job_of(raw).is_deleting


def test_a_pod_that_is_being_deleted_is_seen_as_such():
    cache = Cache()
    cache.put(deleted(child("pod", kind="Pod")))
    assert cache.pods(JOB)[0].is_deleting


def test_all_that_the_operator_reads_of_an_object_is_kept():
    cache = Cache()
    raw = child(version="5")
    raw["metadata"]["annotations"] = {"rljob.dev/spec": "a digest"}
    cache.put(raw)
    (kept,) = cache.children(JOB)
    assert kept == raw | {"metadata": {key: raw["metadata"][key] for key in raw["metadata"] if key != "managedFields"}}


def test_a_job_is_kept_as_it_was_written():
    cache = Cache()
    raw = versioned(raw_job(), "7") | {"status": {"phase": "Training"}}
    cache.put(raw)
    assert cache.job(JOB.key) == raw
    assert cache.jobs() == (JOB.key,)


def test_a_job_of_which_nothing_is_left_is_forgotten():
    cache = Cache()
    cache.put(raw_job())
    cache.put(child(version="5"))
    cache.remove(raw_job())
    assert (cache.job(JOB.key), cache.jobs()) == (None, (JOB.key,))
    cache.remove(child())
    assert cache.jobs() == ()


def test_only_the_newest_10000_deleted_objects_are_remembered():
    cache = Cache()
    for number in range(10_001):
        cache.remove(child(f"pod-{number}", kind="Pod"))
    assert cache.put(child("pod-1", kind="Pod")) is Freshness.STALE
    assert cache.put(child("pod-0", kind="Pod")) is Freshness.CHANGED


def test_an_expected_event_is_missing_since_the_first_change_that_it_should_show():
    now = [0.0]
    watch = WatchLiveness(lambda: now[0])
    watch.expect(child(version="7"))
    now[0] = 30.0
    watch.expect(child(version="8"))
    now[0] = 50.0
    watch.arrived(child(version="7"), is_gone=False)
    assert watch.silent_s == 50.0
    watch.arrived(child(version="9"), is_gone=False)
    assert watch.silent_s == 0.0


def test_an_object_whose_label_was_removed_and_put_back_is_seen_again():
    """For a watch by label it was gone meanwhile."""
    cache = Cache()
    cache.put(child(version="5", kind="Pod"))
    cache.remove(child(version="6", kind="Pod"))
    assert cache.put(child(version="7", kind="Pod")) is Freshness.CHANGED
    assert [pod.name for pod in cache.pods(JOB)] == ["sums-7f3a1-1"]


def test_an_object_that_a_list_missed_and_a_later_one_shows_is_seen_again():
    cache = Cache()
    cache.put(child(version="5"))
    cache.remove_missing("RayCluster", (), "7")
    assert cache.put(child(version="6")) is Freshness.STALE
    assert cache.put(child(version="8")) is Freshness.CHANGED


def test_a_list_of_one_namespace_says_nothing_about_the_others():
    cache = Cache()
    cache.put(child(version="5"))
    assert cache.remove_missing("RayCluster", (), "7", "others") == {}
    assert cache.remove_missing("RayCluster", (), "7", "ml") == {"uid-of-sums-7f3a1-1": "ml/sums"}


def test_what_is_withdrawn_is_no_longer_expected():
    now = [0.0]
    watch = WatchLiveness(lambda: now[0])
    watch.expect(child(version="7"))
    now[0] = DEAD_AFTER_S + 1
    watch.withdraw(["uid-of-sums-7f3a1-1", "another"])
    assert watch.is_alive


def configmap(number: int, size: int, job: str = "sums") -> dict:
    raw = child(f"{job}-7f3a1-{number}", version="5", kind="ConfigMap")
    raw["metadata"]["labels"]["rljob.dev/job"] = job
    return raw | {"data": {"manifest.yaml": "x" * size, "other": "y" * size}, "binaryData": {"a": "eA==" * size}}


def test_of_a_configmap_only_a_digest_is_kept():
    """Whoever may write ConfigMaps can give 900 of them the label of a job, with 1 MiB each."""
    cache = Cache()
    for number in range(20):
        assert cache.put(configmap(number, 300_000, job=f"none-{number}")) is Freshness.CHANGED
    assert cache._bytes["ml"] < 20 * 1000


def test_a_change_of_a_configmap_is_news():
    cache = Cache()
    cache.put(configmap(1, 5))
    assert cache.put(versioned(configmap(1, 5), "6")) is Freshness.UNCHANGED
    assert cache.put(versioned(configmap(1, 6), "7")) is Freshness.CHANGED


def test_a_configmap_as_it_is_kept_is_as_wanted_only_with_the_same_manifest():
    cache = Cache()
    wanted = {"kind": "ConfigMap", "metadata": {"name": "sums-7f3a1-1"}, "data": {"manifest.yaml": "x" * 5}}
    cache.put(configmap(1, 5))
    (kept,) = cache.children(JOB)
    assert is_as_wanted(kept, wanted)
    assert not is_as_wanted(kept, wanted | {"data": {"manifest.yaml": "x" * 6}})
    del kept["digests"]["manifest.yaml"]
    assert not is_as_wanted(kept, wanted)


def large(name: str, namespace: str, size: int, version: str = "5") -> dict:
    raw = child(name, version)
    raw["metadata"] |= {"namespace": namespace, "uid": f"{namespace}/{name}"}
    return raw | {"spec": {"text": "x" * size}}


def test_a_namespace_with_too_many_objects_costs_no_other(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cache_module, "MOST_OF_NAMESPACE", 10_000)
    cache = Cache()
    cache.put(large("a", "evil", 4_000))
    cache.put(large("b", "evil", 4_000))
    with pytest.raises(TooManyError, match="namespace evil"):
        cache.put(large("c", "evil", 4_000))
    with pytest.raises(TooManyError):
        cache.put(large("b", "evil", 8_000, "6"))
    assert cache.put(large("b", "evil", 3_000, "7")) is Freshness.CHANGED, "it may become smaller"
    assert cache.put(large("c", "good", 4_000)) is Freshness.CHANGED
    cache.remove(large("a", "evil", 4_000, "8"))
    assert cache.put(large("c", "evil", 4_000, "9")) is Freshness.CHANGED, "what is gone has made room"


@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "remove", "missing", "forget"]), st.integers(0, 3), st.integers(0, 500)),
        max_size=30,
    )
)
def test_the_bytes_of_a_namespace_are_those_of_its_objects(steps: list[tuple[str, int, int]]):
    cache = Cache()
    for version, (step, which, size) in enumerate(steps, 1):
        raw = large(f"n{which}", f"ns{which % 2}", size, str(version))
        match step:
            case "put":
                cache.put(raw)
            case "remove":
                cache.remove(raw)
            case "missing":
                cache.remove_missing("RayCluster", [raw["metadata"]["uid"]], str(version))
            case _:
                cache.forget(f"ns{which % 2}")
    held: dict[str, int] = {}
    for key, objects in cache._objects.items():
        for known in objects.values():
            namespace = key.partition("/")[0]
            held[namespace] = held.get(namespace, 0) + size_of(known.content)
    assert cache._bytes == held


@pytest.mark.parametrize("depth", [300, 900])
def test_what_is_kept_of_an_object_can_be_read_by_what_recurses(depth: int):
    value: list = []
    for _ in range(depth):
        value = [value]
    cache, raw = Cache(), raw_job()
    cache.put(raw | {"spec": {**raw["spec"], "extraArgs": value}})
    kept = cache.job(JOB.key)
    assert kept is not None
    assert too_deep(kept, DEEPEST_OBJECT) is None
    assert job_of(kept).spec is None


def bound(number: int, cluster: str = "sums-7f3a1-1", **metadata: object) -> dict:
    raw = head("5", None, cluster, at=number)
    raw["metadata"] |= metadata
    return raw | {"spec": {"nodeName": f"gpu-{number}"}}


def test_the_last_pods_that_are_gone_are_kept_with_the_time():
    cache = Cache(clock=lambda: 1000.0)
    cache.put(child())
    for number in range(12):
        cache.put(bound(number))
        cache.remove(bound(number))
    assert [(pod.node, pod.is_deleting, pod.deleted_at) for pod in cache.gone_pods(JOB)] == [
        (f"gpu-{number}", True, 1000.0) for number in range(4, 12)
    ]


def test_a_pod_that_is_gone_keeps_the_time_of_its_deletion_and_one_without_a_node_is_forgotten():
    cache = Cache(clock=lambda: 1000.0)
    deleted = bound(1, deletionTimestamp="2027-01-15T08:02:00Z", deletionGracePeriodSeconds=120)
    for raw in (child(), deleted, head("5", None, at=2), bound(3, "sums-7f3a12-1")):
        cache.put(raw)
    cache.remove_missing("Pod", [], "6")
    assert [(pod.node, pod.deleted_at) for pod in cache.gone_pods(JOB)] == [("gpu-1", 1_800_000_000.0)]
    cache.remove(child())
    assert cache.gone_pods(JOB) == ()
