"""Which job holds a run directory, and which directories are the same."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_operator.cache.cache import Cache
from rljob_operator.world.run_claims import DEEPEST, Places, RunClaim, RunIndex, claim_of, holder, overlapping, place
from support.operator.operator_world import raw_job

PVC = {"persistentVolumeClaim": {"claimName": "runs"}}
OURS = {"directory": "/rljob/ml/a", "volume": {"source": PVC, "path": "/rljob", "subPath": "ml/a"}}
HERE = ("ml", '{"persistentVolumeClaim": "runs"}', "ml/a")


def own(mount: str, source: dict[str, Any], **more: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    return [{"name": "mine", **source}], [{"name": "mine", "mountPath": mount, **more}]


@pytest.mark.parametrize(
    ("resolved", "volumes", "mounts"),
    [
        (OURS, [], []),
        ({"directory": "/data/ml/a"}, *own("/data", PVC)),
        ({"directory": "/data//ml/x/../a/"}, *own("/data/", PVC)),
        ({"directory": "/data/a"}, *own("/data", PVC, subPath="ml")),
        ({"directory": "/data/a"}, *own("/data/a", PVC, subPath="ml/a")),
        ({"directory": "/data/ml/a", "volume": OURS["volume"]}, *own("/data", PVC)),
        (
            {"directory": "/data/in/a"},
            [{"name": "out", "nfs": {"server": "s"}}, {"name": "mine", **PVC}],
            [{"name": "out", "mountPath": "/data"}, {"name": "mine", "mountPath": "/data/in", "subPath": "ml"}],
        ),
    ],
)
def test_one_directory_has_many_paths(resolved: Any, volumes: Any, mounts: Any):
    assert place("ml", resolved, volumes, mounts) == HERE


@pytest.mark.parametrize(
    "other",
    [
        place("team", OURS, [], []),
        place("ml", {**OURS, "directory": "/rljob/ml/b"}, [], []),
        place("ml", {"directory": "/d/ml/a"}, *own("/d", {"persistentVolumeClaim": {"claimName": "b"}})),
        place("ml", {"directory": "/d/ml/a"}, *own("/d", {"nfs": {"server": "s", "path": "/"}})),
    ],
)
def test_other_namespaces_volumes_and_directories_are_others(other: Any):
    assert other not in (None, HERE)


@pytest.mark.parametrize(
    ("resolved", "volumes", "mounts"),
    [
        ({"directory": "/tmp/a"}, *own("/data", PVC)),
        ({"directory": "/data/a"}, *own("/data", {"emptyDir": {}})),
        ({"directory": "/data/a"}, [], [{"name": "mine", "mountPath": "/data"}]),
        ({"directory": "/rljob/a", "volume": {"source": {"emptyDir": {}}, "path": "/rljob"}}, [], []),
    ],
)
def test_what_no_two_pods_share_belongs_to_nobody(resolved: Any, volumes: Any, mounts: Any):
    assert place("ml", resolved, volumes, mounts) is None


def job(name: str = "sums", **status: Any) -> dict[str, Any]:
    raw = raw_job(name)
    metadata = {**raw["metadata"], "uid": name, "creationTimestamp": "2026-11-24T12:00:00Z", "resourceVersion": "1"}
    return {**raw, "metadata": metadata, "status": {"resolved": OURS, **status}}


@pytest.mark.parametrize(
    ("raw", "has_begun", "may_begin"),
    [
        (job(), False, True),
        (job(attempts=[{"number": 1}]), True, False),
        (job(phase="Invalid"), False, False),
        ({**job(), "spec": {**job()["spec"], "suspend": True}}, False, False),
        ({**job(attempts=[{"number": 1}]), "spec": {**job()["spec"], "suspend": True}}, True, False),
    ],
)
def test_a_job_holds_its_directory_from_its_first_attempt_on(raw: Any, has_begun: bool, may_begin: bool):
    found = claim_of(raw)
    assert found is not None
    assert (found.place, found.has_begun, found.may_begin) == (HERE, has_begun, may_begin)


@pytest.mark.parametrize(
    "raw",
    [
        job(completionTime="2026-11-24T13:00:00Z", attempts=[{"number": 1}]),
        {**job(), "status": {}},
        {**job(), "spec": {**job()["spec"], "managedBy": "acme.io/queue"}},
    ],
)
def test_an_ended_an_unknown_and_a_foreign_job_claim_nothing(raw: Any):
    assert claim_of(raw) is None


def test_a_job_claims_a_directory_in_a_volume_of_its_own():
    volumes, mounts = own("/data", PVC)
    raw = job(resolved={"directory": "/data/ml/a"})
    found = claim_of({**raw, "spec": {**raw["spec"], "runtime": {"volumes": volumes, "volumeMounts": mounts}}})
    assert found is not None
    assert found.place == HERE


def test_a_volume_is_the_same_in_whatever_order_it_is_written():
    first, second = {"server": "s", "path": "/"}, {"path": "/", "server": "s"}
    places = [place("ml", {"directory": "/d/a"}, *own("/d", {"nfs": nfs})) for nfs in (first, second)]
    assert places[0] is not None
    assert places[0] == places[1]


MINE = RunClaim("mine", "5", HERE, has_begun=False, may_begin=True, created="2026-11-24T12:00:05Z")
EARLIER, LATER = replace(MINE, name="earlier", uid="6", created="2026-11-24T12:00:04Z"), replace(MINE, uid="6")


@pytest.mark.parametrize(
    ("others", "name"),
    [
        ([], None),
        ([MINE], None),
        ([LATER], None),
        ([EARLIER], "earlier"),
        ([replace(EARLIER, may_begin=False)], None),
        ([EARLIER, replace(LATER, name="running", has_begun=True, may_begin=False)], "running"),
        ([replace(LATER, name="twin", uid="4")], "twin"),
    ],
)
def test_who_has_begun_holds_it_and_then_who_was_created_first(others: list[RunClaim], name: str | None):
    found = holder(MINE, others)
    assert (found.name if found else None) == name


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=6))
def test_of_all_that_wait_at_most_one_begins_and_one_does_if_nobody_holds_it(jobs: list[tuple[int, bool]]):
    claims = [
        replace(MINE, name=str(i), uid=str(i), created=f"2026-11-24T12:00:0{at}Z", has_begun=begun, may_begin=not begun)
        for i, (at, begun) in enumerate(jobs)
    ]
    free = [each for each in claims if not each.has_begun and holder(each, claims) is None]
    assert len(free) == (0 if any(begun for _, begun in jobs) else 1)


def test_the_cache_forgets_a_claim_with_its_job_and_keeps_the_newest():
    cache = Cache()
    cache.put(job())
    assert [claim.has_begun for claim in cache.runs[HERE].values()] == [False]
    cache.begins(job(attempts=[{"number": 1}]))
    assert [claim.has_begun for claim in cache.runs[HERE].values()] == [True]
    cache.put({**job(completionTime="x"), "metadata": {**job()["metadata"], "resourceVersion": "2"}})
    assert not cache.runs
    cache.put({**job(), "metadata": {**job()["metadata"], "resourceVersion": "3"}})
    cache.remove(job())
    assert not cache.runs


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"nfs": {"server": "s", "path": "/"}}, {"nfs": {"server": "s", "path": "/ml", "readOnly": True}}),
        ({"hostPath": {"path": "/ml/.."}}, {"hostPath": {"path": "/ml/", "type": "Directory"}}),
        (PVC, {"persistentVolumeClaim": {"claimName": "runs", "readOnly": True}}),
    ],
)
def test_one_directory_is_seen_through_several_sources(one: dict, other: dict):
    inside = "/d/a" if one is not PVC else "/d/ml/a"
    places = [
        place("ml", {"directory": "/d/ml/a"}, *own("/d", one)),
        place("ml", {"directory": inside}, *own("/d", other)),
    ]
    assert places[0] is not None
    assert places[0] == places[1]


PARTS = st.lists(st.sampled_from(["a", "b", "a b", "..a"]), max_size=4)
DIRECTORIES = PARTS.map("/".join).map(lambda path: path or ".")


def are_nested(one: str, other: str) -> bool:
    first, second = ([] if each == "." else each.split("/") for each in (one, other))
    return all(x == y for x, y in zip(first, second, strict=False))


def there(directory: str, uid: str = "1") -> RunClaim:
    return replace(MINE, uid=uid, name=uid, place=(*HERE[:2], directory))


@given(st.lists(DIRECTORIES, max_size=8), DIRECTORIES, st.sets(st.integers(0, 7)))
def test_directories_overlap_if_one_is_the_other_or_inside_of_it(others: list[str], mine: str, gone: set[int]):
    index, places = RunIndex(), Places()
    for i, each in enumerate(others):
        index.put(there("somewhere/else", str(i)))
        index.put(there(each, str(i)))
    for i in gone:
        index.remove(str(i))
    left = {str(i): each for i, each in enumerate(others) if i not in gone}
    for each in left.values():
        places.add(there(each).place)
    expected = {uid for uid, each in left.items() if are_nested(mine, each)}
    assert {claim.uid for claim in overlapping(index.runs, there(mine).place)} == expected
    assert places.overlap(there(mine).place) == bool(expected)
    for uid in left:
        index.remove(uid)
    assert not index.runs


def test_a_very_deep_directory_counts_as_the_one_that_it_begins_with():
    """A name of 4,096 characters has 2,048 directories around it."""
    deep = place("ml", {**OURS, "directory": "/rljob/ml/" + "a/" * 2000}, [], [])
    assert deep == place("ml", {**OURS, "directory": "/rljob/ml" + "/a" * (DEEPEST - 1)}, [], [])
