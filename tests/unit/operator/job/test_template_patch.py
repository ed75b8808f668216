"""A patch of a pod template merges as Kubernetes' strategic merge patch does."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_operator.job.template_patch import merged

POD = {
    "spec": {
        "containers": [{"name": "ray-worker", "image": "a", "env": [{"name": "A", "value": "1"}]}],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
        "tolerations": [{"key": "gpu"}],
        "nodeSelector": {"pool": "gpu"},
    }
}


def spec(patch: dict) -> dict:
    found: dict = merged(POD, {"spec": patch})["spec"]
    return found


def test_a_container_is_found_by_its_name_and_its_environment_too():
    env = [{"name": "A", "value": "2"}, {"name": "B", "value": "3"}]
    (container,) = spec({"containers": [{"name": "ray-worker", "env": env}]})["containers"]
    assert container == {"name": "ray-worker", "image": "a", "env": env}


def test_another_name_is_another_container_and_comes_last():
    names = [each["name"] for each in spec({"containers": [{"name": "logs", "image": "b"}]})["containers"]]
    assert names == ["ray-worker", "logs"]


def test_a_list_that_did_not_exist_is_made():
    assert spec({"initContainers": [{"name": "fetch"}]})["initContainers"] == [{"name": "fetch"}]


@pytest.mark.parametrize(
    ("patch", "field", "expected"),
    [
        ({"tolerations": [{"key": "other"}]}, "tolerations", [{"key": "other"}]),
        ({"nodeSelector": {"zone": "a"}}, "nodeSelector", {"pool": "gpu", "zone": "a"}),
        ({"nodeSelector": {"$patch": "replace", "zone": "a"}}, "nodeSelector", {"zone": "a"}),
        ({"nodeSelector": None}, "nodeSelector", None),
        ({"volumes": [{"name": "tmp", "$patch": "delete"}]}, "volumes", []),
        ({"volumes": [{"name": "none", "$patch": "delete"}]}, "volumes", POD["spec"]["volumes"]),
        ({"volumes": [{"name": "tmp", "emptyDir": None, "hostPath": {"path": "/x"}}]}, "volumes", [
            {"name": "tmp", "hostPath": {"path": "/x"}},
        ]),
        ({"hostname": "x"}, "hostname", "x"),
    ],
)  # fmt: skip
def test_other_fields_merge_are_replaced_or_removed(patch: dict, field: str, expected: object):
    assert spec(patch).get(field) == expected


PATCHES = st.recursive(
    st.none() | st.integers() | st.just("x"),
    lambda inner: (
        st.dictionaries(st.sampled_from(["a", "env", "volumes"]), inner, max_size=3)
        | st.lists(st.fixed_dictionaries({"name": st.sampled_from("ab"), "value": inner}), max_size=3)
    ),
    max_leaves=8,
)


@given(PATCHES.filter(lambda patch: isinstance(patch, dict)), PATCHES.filter(lambda patch: isinstance(patch, dict)))
def test_merging_twice_changes_nothing_more_and_nothing_that_was_given(there: dict, patch: dict):
    before = copy.deepcopy((there, patch))
    once = merged(there, patch)
    assert merged(once, patch) == once
    assert (there, patch) == before
