"""Jobs that another controller acts on, for example MultiKueue: the operator leaves them alone."""

import pytest

from rljob_api.exits import Exit
from rljob_api.reading.manifest import problems
from rljob_api.sections import OUR_MANAGER
from rljob_operator.children.children import for_driver
from rljob_operator.job import retention
from rljob_operator.world.world import Defaults, job_of
from support.operator.operator_world import Surroundings, admitted, raw_job

OTHER = "kueue.x-k8s.io/multikueue"


@pytest.mark.parametrize("more", [{}, {"training": {"steps": -1}}, {"suspend": True}])
def test_a_job_of_another_controller_is_left_alone(more: dict):
    around = Surroundings(raw_job(managedBy=OTHER, **more))
    assert around.plan().is_empty
    assert around.plan().follow is None
    assert around.plan().requeue_after_s is None


def test_a_job_whose_status_another_cluster_wrote_is_left_alone():
    around = Surroundings().to_running()
    around.edit(managedBy=OTHER)
    assert around.plan().is_empty
    assert around.plan().follow is None


@pytest.mark.parametrize("named", [{"managedBy": OUR_MANAGER}, {}])
def test_the_operator_s_own_jobs_get_their_children(named: dict):
    assert [child["kind"] for child in Surroundings(raw_job(**named)).plan().apply][-1] == "RayCluster"


@pytest.mark.parametrize("named", ["queue", "Acme.io/queue", "acme.io/", f"acme.io/{'x' * 60}", ""])
def test_a_manager_s_name_is_a_domain_and_a_path(named: str):
    raw = raw_job(managedBy=named)
    assert [problem.field for problem in job_of(raw).problems] == ["spec.managedBy"]


def test_neither_field_makes_another_cluster_or_reaches_the_driver():
    plain, both = raw_job(), raw_job(suspend=True, managedBy=OUR_MANAGER)
    assert admitted(both).digest == admitted(plain).digest
    assert for_driver(both) == for_driver(plain)


def test_the_run_directory_of_another_controller_s_job_is_not_the_operator_s_to_delete():
    volume = {"source": {"hostPath": {"path": "/runs"}}, "path": "/rljob"}
    status = {"attempt": 1, "directory": "/rljob/ml/sums", "resolved": {"volume": volume}}
    defaults = Defaults(ttl_after_deletion_s=60)
    assert retention.record_of_job({**raw_job(), "status": status}, defaults) is not None
    assert retention.record_of_job({**raw_job(managedBy=OTHER), "status": status}, defaults) is None


def suspended_by_an_older_version(begins: bool) -> Surroundings:
    """Return a job that was suspended, as an API server shows it that does not know the old field any more."""
    around = Surroundings().to_running() if begins else Surroundings()
    around.edit(suspend=True)
    around.step()
    if begins:
        around.ends(Exit.PREEMPTED)
        around.step()
        around.deletions_done()
        around.step()
    assert around.status["phase"] == "Suspended"
    around.raw["spec"].pop("suspend")
    return around


@pytest.mark.parametrize("begins", [True, False])
def test_a_job_that_an_older_version_suspended_stays_so_until_its_spec_changes(begins: bool):
    around = suspended_by_an_older_version(begins)
    for _ in range(3):
        around.step()
        assert (around.status["phase"], around.observed.rayclusters()) == ("Suspended", ())
    assert "set spec.suspend to true and then to false" in around.condition("Training")["message"]
    around.edit(suspend=True)
    around.step()
    assert around.condition("Training")["message"] == "the job is suspended"
    around.edit(suspend=False)
    around.step()
    assert around.status["phase"] != "Suspended"
    assert len(around.observed.rayclusters()) == 1


def test_it_stays_so_too_where_its_options_have_the_older_spelling():
    around = suspended_by_an_older_version(begins=True)
    around.raw["spec"]["rollout"]["routerPolicy"] = "cache_aware"
    assert around.job.spec is None
    for _ in range(3):
        around.step()
        assert (around.status["phase"], around.observed.rayclusters()) == ("Suspended", ())


def test_the_old_place_of_suspend_is_refused_with_the_new_one():
    text = "apiVersion: rljob.dev/v1alpha1\nkind: RLJob\nmetadata: {name: a}\nspec: {scheduling: {suspend: true}}"
    found = next(each for each in problems(text) if each.field == "spec.scheduling.suspend")
    assert (found.rule, found.nearest) == ("unknown field", "spec.suspend")
