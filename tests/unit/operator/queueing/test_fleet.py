"""Whole jobs in a queue: plans, statuses and pods, whatever the order of events, and whenever the operator dies."""

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_operator.plan import Plan
from rljob_operator.queueing.ledger import Ledger
from rljob_operator.queueing.tickets import shows, ticket_of
from rljob_operator.world.world import DriverState
from support.operator.operator_world import DEFAULTS, NOW, Surroundings, admitted, raw_job, running
from support.operator.queue_world import RULES, quotas

GPUS = 8
SIZES = (4, 8, 2, 4, 8, 1)
CLASSES = (None, None, None, "high", "low", None)
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "reconcile",
                "reconcile",
                "pass",
                "pods",
                "trains",
                "ends",
                "gone",
                "restart",
                "crash",
                "suspend",
                "resume",
            ]
        ),
        st.integers(0, len(SIZES) - 1),
    ),
    max_size=120,
)
CALM = (
    "reconcile",
    "pass",
    "reconcile",
    "pods",
    "reconcile",
    "trains",
    "reconcile",
    "ends",
    "reconcile",
    "gone",
    "reconcile",
)
"""what happens to a job that nothing disturbs"""
ROUNDS = 12


class Fleet:
    """Jobs, and an operator that may be killed."""

    def __init__(self) -> None:
        self.jobs = [Surroundings(_raw(number, gpus)) for number, gpus in enumerate(SIZES)]
        self.now = NOW
        self.ledger = Ledger()
        self.known: set[int] = set()

    def happen(self, what: str, number: int) -> None:
        around = self.jobs[number]
        self.now += 1
        around.now = self.now
        match what:
            case "reconcile":
                around.act(self.planned(number))
            case "crash":  # between the status and all that follows it
                around.act(Plan(status=self.planned(number).status))
                self.restart()
            case "restart":
                self.restart()
            case "pass" if len(self.known) == len(self.jobs):
                self.ledger.decide(quotas(ml=GPUS), RULES, self.now)
            case "pods":
                around.pods_ready()
            case "trains":
                around.ray_answers()
                if (
                    around.observed.driver
                    and around.observed.driver.state is not DriverState.UNKNOWN
                    and around.submitted
                ):
                    around.runs(running(step=2, checkpoint=1))
            case "ends":
                draining = (
                    around.observed.driver
                    and around.observed.driver.status
                    and "Draining" in str(around.observed.driver)
                )
                around.ends(7 if draining else 0)
            case "gone":
                around.deletions_done()
            case "suspend" | "resume":
                around.edit(suspend=what == "suspend")

    def restart(self) -> None:
        self.ledger = Ledger()
        self.known.clear()
        for around in self.jobs:
            around.observed = replace(around.observed, driver=None)
            around.pace = replace(around.pace, progress_due_at=0.0)

    def planned(self, number: int) -> Plan:
        around, key = self.jobs[number], f"ml/job-{number}"
        job, pods = admitted(around.raw, DEFAULTS), around.observed.pods
        granted = self.ledger.granted(key)
        clusters = around.observed.rayclusters()
        ticket = ticket_of(job, NOW + number, pods, bool(pods or clusters), granted, clusters)
        self.ledger.put(ticket, granted is not None and shows(job, granted))
        self.known.add(number)
        around.queue_decision = self.ledger.decision(key)
        return around.plan()

    def gpus(self) -> int:
        """Return the GPUs of all pods, and of all that hold a reservation without having made pods yet."""
        return sum(size for size, around in zip(SIZES, self.jobs, strict=True) if _holds(around))


def _raw(number: int, gpus: int) -> dict[str, Any]:
    raw = raw_job(
        f"job-{number}",
        placement="Colocated",
        runtime={"device": "Gpu"},
        rollout={"engines": gpus},
        training={"gpusPerNode": gpus},
        scheduling={"priorityClassName": CLASSES[number]} if CLASSES[number] else {},
    )
    raw["metadata"]["uid"] = f"{number:08d}-0000-4000-8000-000000000000"
    return raw


def _holds(around: Surroundings) -> bool:
    conditions = around.status.get("conditions", ())
    reserved = any((each["type"], each["status"]) == ("QuotaReserved", "True") for each in conditions)
    return reserved or bool(around.observed.pods or around.observed.rayclusters())


@given(EVENTS)
@settings(max_examples=60, deadline=None)
def test_pods_and_reservations_are_never_more_than_the_quota(events):
    fleet = Fleet()
    for what, number in events:
        fleet.happen(what, number)
        assert fleet.gpus() <= GPUS, (what, number)


@given(EVENTS)
@settings(max_examples=5, deadline=None)
def test_every_job_ends_when_the_operator_lives_for_a_while(events):
    fleet = Fleet()
    for what, number in events:
        fleet.happen(what, number)
    for _ in range(ROUNDS):
        for number, around in enumerate(fleet.jobs):
            if around.raw["spec"].get("suspend"):
                fleet.happen("resume", number)
            for what in CALM if around.status.get("phase") != "Succeeded" else ():
                fleet.happen(what, number)
    assert [around.status["phase"] for around in fleet.jobs] == ["Succeeded"] * len(SIZES)
