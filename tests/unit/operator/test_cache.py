"""The cache and the pulse: the newest version wins, and what has changed has to be heard of."""

from operator_world import raw_job
from rljob_operator.cache import Cache, Seen, key_of
from rljob_operator.pulse import DEAD_AFTER_S, Pulse
from rljob_operator.world import job_of

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


def test_an_older_version_does_not_replace_a_newer_one():
    cache = Cache()
    assert cache.put(child(version="10")) is Seen.NEWS
    assert cache.put(child(version="9")) is Seen.OLD
    assert cache.children(JOB)[0]["metadata"]["resourceVersion"] == "10"


def test_children_belong_to_their_job_by_label():
    assert key_of(child()) == "ml/sums"


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
    assert cache.remove_missing("RayCluster", (), "7") == ("ml/sums",)
    assert [raw["metadata"]["name"] for raw in cache.children(JOB)] == ["new"]


def test_the_answer_to_our_own_write_does_not_bring_back_what_is_gone():
    cache = Cache()
    cache.remove(child(version="6"))
    assert cache.put(child(version="5")) is Seen.OLD
    assert cache.children(JOB) == ()


def test_a_list_of_one_kind_says_nothing_about_the_others():
    cache = Cache()
    cache.put(child(version="5"))
    assert cache.remove_missing("Service", (), "7") == ()
    assert cache.children(JOB)


def test_the_conditions_of_a_child_are_news_and_kept():
    cache = Cache()
    cache.put(child(version="5"))
    status = {"state": "ready", "conditions": [{"type": "ReplicaFailure", "status": "True", "message": "no room"}]}
    assert cache.put(child(version="6") | {"status": status}) is Seen.NEWS
    assert cache.children(JOB)[0]["status"] == {"conditions": status["conditions"]}


def test_the_rest_of_the_status_of_a_child_is_no_news():
    cache = Cache()
    cache.put(child(version="5"))
    assert cache.put(child(version="6") | {"status": {"state": "ready"}}) is Seen.SAME
    assert cache.put(child(version="7") | {"spec": {"suspend": True}}) is Seen.NEWS
    assert cache.children(JOB)[0]["metadata"]["resourceVersion"] == "7"


def test_the_status_of_a_job_is_news():
    cache = Cache()
    cache.put(raw_job())
    assert cache.put(versioned(raw_job(), "2") | {"status": {"phase": "Training"}}) is Seen.NEWS


def test_a_pod_is_news_only_when_it_matters():
    cache = Cache()
    pod = child("pod", version="5", kind="Pod", owner="the RayCluster")
    cache.put(pod)
    assert cache.put(versioned(pod, "6") | {"status": {"hostIP": "10.0.0.1"}}) is Seen.SAME
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    assert cache.put(versioned(pod, "7") | {"status": ready}) is Seen.NEWS
    assert cache.pods(JOB)[0].is_ready


def test_what_nobody_reads_is_not_kept():
    cache = Cache()
    cache.put(child())
    assert "managedFields" not in cache.children(JOB)[0]["metadata"]


def test_a_watch_that_keeps_silent_about_a_change_is_dead():
    now = [0.0]
    pulse = Pulse(lambda: now[0])
    pulse.expect(child(version="7"))
    pulse.heard(child(version="6"), is_gone=False)
    now[0] = DEAD_AFTER_S + 1
    assert not pulse.is_alive
    pulse.heard(child(version="7"), is_gone=False)
    assert pulse.is_alive


def test_a_deleted_object_is_heard_of_for_good():
    pulse = Pulse(lambda: 0.0)
    pulse.expect(child(version="7"))
    pulse.heard(child(version="3"), is_gone=True)
    assert pulse.silent_s == 0.0
