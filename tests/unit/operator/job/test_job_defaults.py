"""The operator's settings for the pods of all jobs."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from rljob_api.sections import Spec
from rljob_operator.job.job_defaults import job_defaults, lines, with_defaults
from rljob_operator.settings import settings
from support.operator.operator_world import DEFAULTS, Surroundings, admitted, raw_job

GIVEN: dict[str, Any] = {
    "runtime": {"imagePullSecrets": ["registry"], "env": {"HF_HOME": "/cache", "A": "1"}},
    "scheduling": {"nodeSelector": {"pool": "rl", "zone": "a"}, "tolerations": [{"operator": "Exists"}]},
    "pods": {
        "head": {"labels": {"team": "rl"}, "annotations": {"note": "x"}},
        "trainer": {
            "nodeSelector": {"gpu": "h100", "zone": "b"},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
        },
    },
}
CHART = replace(DEFAULTS, settings=GIVEN)


def around(defaults=CHART, **sections: Any) -> Surroundings:
    found = Surroundings(raw_job(**sections))
    found.defaults = defaults
    return found


def groups(found: Surroundings) -> dict[str, dict[str, Any]]:
    """Return the pod templates of the newest RayCluster by the names of their groups."""
    spec = found.observed.rayclusters()[-1]["spec"]
    return {"head": spec["headGroupSpec"]["template"]} | {
        group["groupName"]: group["template"] for group in spec["workerGroupSpecs"]
    }


def merged(**sections: Any) -> Spec:
    return with_defaults(admitted(raw_job(**sections)).spec, GIVEN)


def test_the_pods_of_a_job_get_them():
    made = groups(around().to_running())
    head, trainer, rollout = (made[name]["spec"] for name in ("head", "trainer", "rollout"))
    assert head["imagePullSecrets"] == [{"name": "registry"}]
    assert {"name": "HF_HOME", "value": "/cache"} in head["containers"][0]["env"]
    assert (made["head"]["metadata"]["labels"]["team"], made["head"]["metadata"]["annotations"]["note"]) == ("rl", "x")
    assert trainer["nodeSelector"] == {"pool": "rl", "zone": "b", "gpu": "h100"}
    assert trainer["tolerations"] == [{"operator": "Exists"}, {"key": "gpu", "operator": "Exists"}]
    assert rollout["nodeSelector"] == {"pool": "rl", "zone": "a"}
    assert rollout["tolerations"] == [{"operator": "Exists"}]


def test_a_job_s_own_settings_come_first():
    own = {"labels": {"team": "mine"}, "annotations": {"note": "mine"}}
    spec = merged(
        runtime={"device": "Cpu", "imagePullSecrets": ["mine", "registry"], "env": {"A": "2"}},
        scheduling={"nodeSelector": {"zone": "c"}, "tolerations": [{"operator": "Exists"}, {"key": "own"}]},
        pods={"head": own, "trainer": {"nodeSelector": {"gpu": "b200"}, "tolerations": [{"key": "own"}]}},
    )
    assert spec.runtime.image_pull_secrets == ("registry", "mine")
    assert spec.runtime.env == {"HF_HOME": "/cache", "A": "2"}
    assert spec.scheduling.node_selector == {"pool": "rl", "zone": "c"}
    assert spec.scheduling.tolerations == ({"operator": "Exists"}, {"key": "own"})
    assert spec.pods is not None and spec.pods.head is not None and spec.pods.trainer is not None
    assert (spec.pods.head.labels, spec.pods.head.annotations) == ({"team": "mine"}, {"note": "mine"})
    assert spec.pods.trainer.node_selector == {"gpu": "b200"}
    assert [each["key"] for each in spec.pods.trainer.tolerations] == ["gpu", "own"]


def test_without_them_nothing_changes():
    spec = admitted(raw_job()).spec
    assert with_defaults(spec, {}) is spec
    assert "defaults" not in around(DEFAULTS).to_running().status["resolved"]


def test_they_are_recorded_and_stay_when_the_chart_changes():
    found = around().to_running()
    assert found.status["resolved"]["defaults"] == GIVEN
    before = groups(found)
    found.defaults = DEFAULTS
    assert found.plan().is_empty
    found.edit(scheduling={"nodeSelector": {"pool": "other"}})
    found.ends(5)
    found.step()
    found.deletions_done()
    found.step()
    after = groups(found)
    assert after["trainer"]["spec"]["nodeSelector"] == {**before["trainer"]["spec"]["nodeSelector"], "pool": "other"}
    assert found.status["resolved"]["defaults"] == GIVEN


def test_new_ones_reach_no_job_that_began_without_them():
    found = around(DEFAULTS).to_running()
    found.defaults = CHART
    assert found.plan().is_empty


def test_a_job_whose_status_is_lost_keeps_its_cluster():
    found = around().to_running()
    found.raw["status"] = {}
    found.step()
    assert found.status["resolved"]["defaults"] == GIVEN
    assert found.plan().is_empty


def test_the_plan_of_a_dry_run_shows_them():
    given = {"runtime": {"env": {"A": "secret", "B": {"valueFrom": {}}}}, "scheduling": {"nodeSelector": {"pool": "x"}}}
    assert list(lines(given)) == ["runtime.env: A, B", 'scheduling.nodeSelector: {"pool": "x"}']


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([], "must be a JSON object"),
        ({"training": {"steps": 1}}, "training: cannot be a default"),
        ({"runtime": 7}, "runtime: cannot be a default"),
        ({"runtime": {"image": "x"}}, "runtime.image: cannot be a default"),
        ({"pods": {"gpuResource": "a/b"}}, "pods.gpuResource: cannot be a default"),
        ({"pods": {"head": {"hostNetwork": True}}}, "pods.head.hostNetwork: cannot be a default"),
        (
            {"runtime": {"env": {"A": 1}}},
            'spec.runtime.env.A: 1 is neither a text nor {valueFrom: …}; nearest valid: "1"',
        ),
        ({"pods": {"trainer": {"tolerations": [{"efect": "x"}]}}}, "spec.pods.trainer.tolerations"),
    ],
)
def test_what_cannot_be_one_is_refused_by_name(given: Any, says: str):
    with pytest.raises(ValueError, match=re.escape(says)):
        job_defaults(json.dumps(given))


def test_all_that_can_be_one_is_accepted():
    role = {"labels": {"a": "b"}, "annotations": {"a": "b"}, "nodeSelector": {"a": "b"}, "tolerations": [{"key": "a"}]}
    given = GIVEN | {"pods": dict.fromkeys(("head", "trainer", "rollout", "tools"), role)}
    assert job_defaults(json.dumps(given)) == given


def test_the_command_line_takes_them_and_names_what_is_wrong(capsys: pytest.CaptureFixture[str]):
    assert settings(["--job-defaults", json.dumps(GIVEN)], {}).defaults.settings == GIVEN
    with pytest.raises(SystemExit):
        settings(["--job-defaults", '{"runtime": {"image": "x"}}'], {})
    assert "runtime.image: cannot be a default" in capsys.readouterr().err
