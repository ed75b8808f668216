"""A pod whose engines die again and again is swapped, and only such a pod."""

from dataclasses import replace

import pytest

from rljob_api.control import DecidedBy, Decision, EngineState
from rljob_operator.children.pod_swaps import MOST
from rljob_operator.identity import Manifest
from support.operator.operator_world import NOW, Surroundings, engines, raw_job, running

HEALTHY, DEAD = EngineState.HEALTHY, EngineState.DEAD
SECOND = "sums-7f3a1-1-rollout-1"


def restarted(*names: str, step: int = 3) -> tuple[Decision, ...]:
    """Return as many restarts of these engines at a step as there may be."""
    return tuple(
        Decision(time=NOW, step=step, engine=name, generation=i, by=DecidedBy.SUPERVISOR, reason="it died")
        for name in names
        for i in (1, 2, 3)
    )


def runs(around: Surroundings, *states: EngineState, spent: tuple[str, ...] = (), step: int = 3) -> None:
    known = running(*states, step=step, decisions=restarted(*spent, step=3))
    around.runs(known.model_copy(update={"engines": engines(*states, generation=3)}))
    around.step()


def job(placement: str = "Disaggregated", **sections: object) -> Surroundings:
    around = Surroundings(raw_job(rollout={"engines": 4}, placement=placement, **sections)).to_running()
    around.runs(running(*[HEALTHY] * 4))
    around.step()
    return around


def leaving(around: Surroundings) -> tuple[int, list[str]]:
    (cluster,) = around.observed.rayclusters()
    group: Manifest = next(each for each in cluster["spec"]["workerGroupSpecs"] if each["groupName"] == "rollout")
    return group["replicas"], group["scaleStrategy"]["workersToDelete"]


def actions(around: Surroundings) -> list[tuple[str, str]]:
    return [(step["action"], step["target"]) for step in around.status.get("recovery", ())]


def test_a_pod_whose_engines_are_out_of_restarts_is_swapped_once():
    around = job()
    runs(around, HEALTHY, HEALTHY, DEAD, DEAD, spent=("engine-2", "engine-3"))
    assert leaving(around) == (2, [SECOND])
    assert actions(around) == [("ReplacePod", f"pod {SECOND}")]
    assert around.events[-1].note == f"pod {SECOND}: engine-3 died 4 times since step 3: it died"
    assert around.plan().is_empty
    pods = tuple(replace(pod, is_deleting=pod.name == SECOND) for pod in around.observed.pods)
    around.observed = replace(around.observed, pods=pods)
    around.step()
    assert leaving(around) == (2, [])
    assert len(actions(around)) == 1


def test_it_stays_named_until_it_is_gone_even_if_a_step_has_passed():
    around = job()
    runs(around, HEALTHY, HEALTHY, DEAD, DEAD, spent=("engine-2", "engine-3"))
    runs(around, HEALTHY, HEALTHY, DEAD, DEAD, spent=("engine-2", "engine-3"), step=4)
    assert leaving(around) == (2, [SECOND])


@pytest.mark.parametrize(
    ("states", "spent"),
    [
        ((HEALTHY, HEALTHY, HEALTHY, DEAD), ("engine-3",)),
        ((HEALTHY, HEALTHY, DEAD, DEAD), ("engine-3",)),
        ((HEALTHY, HEALTHY, EngineState.STARTING, DEAD), ("engine-3",)),
    ],
    ids=["a healthy engine is there", "the other may be restarted", "the other starts"],
)
def test_a_pod_with_an_engine_that_lives_or_may_stays(states, spent):
    around = job()
    runs(around, *states, spent=spent)
    assert leaving(around) == (2, [])


def test_if_no_engine_is_left_the_attempt_ends_and_no_pod_is_swapped():
    around = job()
    runs(around, *[DEAD] * 4, spent=tuple(f"engine-{i}" for i in range(4)))
    assert leaving(around) == (2, [])
    assert around.status["attempts"][0]["verdict"] == 5


@pytest.mark.parametrize(
    ("placement", "sections"),
    [("Colocated", {"training": {"gpusPerNode": 4}}), ("Disaggregated", {"scheduling": {"queue": "gpus"}})],
)
def test_pods_with_ranks_and_pods_that_kueue_counts_are_not_swapped(placement, sections):
    around = Surroundings(raw_job(rollout={"engines": 4}, placement=placement, **sections))
    around.defaults = replace(around.defaults, has_kueue=True)
    around.to_running()
    runs(around, HEALTHY, HEALTHY, DEAD, DEAD, spent=("engine-2", "engine-3"))
    assert [action for action, _ in actions(around) if action == "ReplacePod"] == []


def test_an_attempt_swaps_no_more_pods_than_its_budget():
    around = Surroundings(raw_job(rollout={"engines": 8})).to_running()
    around.runs(running(*[HEALTHY] * 8))
    around.step()
    spent = tuple(f"engine-{i}" for i in range(2, 8))
    runs(around, HEALTHY, HEALTHY, *[DEAD] * 6, spent=spent)
    assert [action for action, _ in actions(around)] == ["ReplacePod"] * MOST
    replicas, names = leaving(around)
    assert (replicas, len(names)) == (4, MOST)
