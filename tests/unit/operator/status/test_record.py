"""What a driver says, in the job's status."""

import json
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.control import (
    ROUTER,
    CurvePoint,
    DecidedBy,
    Decision,
    EngineState,
    EngineStatus,
    Goodput,
    Incident,
    PerplexityPoint,
    Progress,
    SetAccuracy,
)
from rljob_api.exits import Exit
from rljob_api.status import MOST_ENGINES, MOST_STEPS_OF_RECOVERY, Status
from rljob_operator.status import record
from support.operator.operator_world import Surroundings, raw_job, running

CURVE = (CurvePoint(step=1, reward=0.1), CurvePoint(step=4, reward=0.4, accuracy=0.5, tokens_per_second=200))
PHASES = {"rollout": 3.90049, "train": 2.0, "publish": 0.25, "report": 0.01, "other": 0.001}
PROGRESS = Progress(step=4, steps=10, reward_mean=0.4, curve=CURVE, last_step_seconds=PHASES)


def trains() -> Surroundings:
    around = Surroundings().to_running()
    around.now += 60
    around.runs(running().model_copy(update={"progress": PROGRESS}))
    around.step()
    return around


def test_the_curve_is_kept_when_the_driver_is_gone():
    around = trains()
    around.ends(5)
    around.step()
    around.step()
    assert around.status["phase"] == "Recovering"
    assert around.status["curve"] == [
        {"step": 1, "reward": 0.1},
        {"step": 4, "reward": 0.4, "accuracy": 0.5, "tokensPerSecond": 200.0},
    ]


def test_progress_says_which_version_of_the_weights_the_engines_have():
    around = trains()
    around.now += 60
    around.runs(running().model_copy(update={"progress": PROGRESS.model_copy(update={"weight_version": 17})}))
    around.step()
    assert around.status["progress"]["weightVersion"] == 17


def test_the_curve_waits_for_its_turn_as_progress_does():
    around = trains()
    longer = PROGRESS.model_copy(update={"curve": (*CURVE, CurvePoint(step=5, reward=0.5)), "step": 5})
    around.runs(running().model_copy(update={"progress": longer}))
    assert around.plan().status is None
    around.now += 60
    assert around.plan().status.curve[-1].step == 5


def test_a_step_s_time_is_reported_by_the_phases_that_count():
    assert trains().status["progress"]["stepSeconds"] == {
        "total": 6.161,
        "rollout": 3.9,
        "train": 2.0,
        "publish": 0.25,
    }


def test_the_newest_accuracy_on_each_evaluation_set_is_reported():
    sets = {"hard": SetAccuracy(step=4, sampled=0.123456, greedy=0.5), "easy": SetAccuracy(step=4, sampled=1.0)}
    around = trains()
    around.now += 60
    around.runs(running().model_copy(update={"progress": PROGRESS.model_copy(update={"evaluation_sets": sets})}))
    around.step()
    assert around.status["progress"]["evaluationSets"] == {"hard": 0.1235, "easy": 1.0}


def test_of_what_learns_the_data_s_own_responses_perplexities_are_reported():
    held_out = (PerplexityPoint(step=0, perplexity=9.0), PerplexityPoint(step=4, perplexity=3.14159))
    reported = PROGRESS.model_copy(update={"perplexities": (8.0, 2.71828), "held_out_perplexity": held_out})
    around = trains()
    around.now += 60
    around.runs(running().model_copy(update={"progress": reported}))
    around.step()
    progress = around.status["progress"]
    assert (progress["perplexity"], progress["heldOutPerplexity"]) == (2.7183, 3.1416)


def test_a_phase_has_a_beginning_that_stays():
    around = Surroundings().to_running()
    since = around.status["phaseSince"]
    around.now += 100
    around.runs(running(step=4))
    around.step()
    assert (around.status["phase"], around.status["phaseSince"]) == ("Training", since)
    around.now += 100
    around.ends(5)
    around.step()
    assert around.status["phase"] == "Recovering"
    assert around.status["phaseSince"] > since


def test_the_run_s_directory_is_reported():
    assert trains().status["directory"] == "/rljob/ml/sums"


def test_a_replay_wants_no_engines():
    around = Surroundings(raw_job(debug={"replay": "runs/first/rollouts"})).to_running()
    assert around.status["engines"]["desired"] == 0


def test_a_job_recovers_while_an_engine_is_down():
    around = Surroundings().to_running()
    around.runs(running(EngineState.DEAD, EngineState.HEALTHY))
    around.step()
    assert around.status["phase"] == "Recovering"
    around.runs(running(EngineState.HEALTHY, EngineState.HEALTHY))
    around.step()
    assert around.status["phase"] == "Training"


@pytest.mark.parametrize(("eta_s", "shown"), [(60.4, 60), (-1.0, 0), (None, None)])
def test_the_remaining_time_is_whole_and_never_negative(eta_s: float | None, shown: int | None):
    around = Surroundings().to_running()
    around.now += 60
    around.runs(running().model_copy(update={"progress": PROGRESS.model_copy(update={"eta_seconds": eta_s})}))
    around.step()
    assert around.status["progress"].get("etaSeconds") == shown


def test_a_job_that_has_ended_has_no_remaining_time():
    around = Surroundings().to_running()
    around.runs(running().model_copy(update={"progress": PROGRESS.model_copy(update={"eta_seconds": 60.0})}))
    around.ends(Exit.OK)
    around.step()
    assert "etaSeconds" not in around.status["progress"]


def test_a_checkpoint_keeps_the_time_at_which_it_was_first_reported():
    around = Surroundings().to_running()
    around.runs(running(checkpoint=3))
    around.step()
    first = around.status["lastCheckpoint"]
    around.now += 600
    around.runs(running(step=9, checkpoint=3, heartbeat=1.0))
    around.step()
    assert around.status["lastCheckpoint"] == first
    around.runs(running(step=9, checkpoint=9))
    around.step()
    assert around.status["lastCheckpoint"]["step"] == 9
    assert around.status["lastCheckpoint"]["time"] > first["time"]


def test_every_condition_that_is_written_again_is_about_the_present_generation():
    around = Surroundings().to_running()
    around.edit(recovery={"healthFailures": 9})
    around.step()
    assert around.status["observedGeneration"] == 2
    assert {condition["observedGeneration"] for condition in around.status["conditions"]} == {2}


def test_what_is_not_known_yet_is_about_the_present_generation_too():
    around = Surroundings()
    around.step()
    around.edit(recovery={"healthFailures": 9})
    around.step()
    assert {condition["observedGeneration"] for condition in around.status["conditions"]} == {2}


def test_a_manifest_that_is_refused_was_observed_too():
    around = Surroundings(raw_job(training={"steps": -1}))
    around.step()
    around.edit(training={"steps": -2})
    around.step()
    assert (around.status["phase"], around.status["observedGeneration"]) == ("Invalid", 2)
    assert {condition["observedGeneration"] for condition in around.status["conditions"]} == {2}


def test_a_status_names_the_times_of_its_job():
    around = Surroundings()
    around.step()
    assert "startTime" not in around.status
    around.now += 100
    around.to_running()
    started = around.status["startTime"]
    around.now += 100
    around.ends(0)
    around.step()
    assert (around.status["startTime"], around.status["completionTime"]) == (started, "2027-01-15T08:03:20Z")
    assert started == "2027-01-15T08:01:40Z"


def test_each_engine_is_shown_with_why_it_died_last():
    around = Surroundings().to_running()
    assert around.status["engines"] == {
        "desired": 2,
        "replicas": 2,
        "ready": 2,
        "selector": "rljob.dev/job=sums,ray.io/group in (rollout,rollout-rest)",
        "items": [
            {"name": name, "state": "Healthy", "since": "2027-01-15T08:00:00Z", "restarts": 0, "lastError": "it died"}
            for name in ("engine-0", "engine-1")
        ],
    }


def test_an_order_that_is_given_again_is_listed_once():
    around = Surroundings().to_running()
    for _ in range(2):  # the driver's report does not show the order yet
        around.runs(running(EngineState.DEAD, EngineState.HEALTHY))
        assert around.step().orders.engines != ()
    assert [(each["action"], each["target"]) for each in around.status["recovery"]] == [
        ("RestartEngine", "engine-0 generation 1")
    ]


def killed_routers(around: Surroundings, *generations: int) -> None:
    """The driver reports failures of its router, a second apart."""
    incidents = tuple(
        Incident(time=around.now + generation, engine=ROUTER, generation=generation, error="the server ended with -9")
        for generation in generations
    )
    around.runs(running().model_copy(update={"incidents": incidents, "attempt": around.status["attempt"]}))
    around.step()


def recovered(around: Surroundings) -> list[tuple[str, str]]:
    return [(each["action"], each["target"]) for each in around.status.get("recovery", [])]


def test_a_router_that_the_driver_replaced_is_listed_once_with_an_event():
    around = Surroundings().to_running()
    killed_routers(around, 0)
    around.step()
    killed_routers(around, 0, 1)
    expected = [("RestartRouter", "router generation 1"), ("RestartRouter", "router generation 2")]
    assert recovered(around) == expected
    assert {each["cause"] for each in around.status["recovery"]} == {"the server ended with -9"}
    events = [each for each in around.events if each.reason == "RestartRouter"]
    assert [(each.kind, each.note) for each in events] == [
        ("Warning", f"{target}: the server ended with -9") for _, target in expected
    ]


def seconds_of(around: Surroundings) -> list[float | None]:
    return [each.get("seconds") for each in around.status["recovery"]]


def test_a_restart_has_the_seconds_until_all_was_well_again():
    around = Surroundings(raw_job(recovery={"driverRestarts": 9})).to_running()
    around.runs(running(EngineState.DEAD, EngineState.HEALTHY))
    around.step()
    around.now += 20
    again = EngineStatus(name="engine-0", state=EngineState.STARTING, since=around.now, generation=1)
    incident = Incident(time=around.now, engine=ROUTER, generation=0, error="gone", return_seconds=None)
    driver = running(EngineState.DEAD, EngineState.HEALTHY)
    driver = driver.model_copy(update={"engines": (again, driver.engines[1]), "incidents": (incident,)})
    around.runs(driver)
    around.step()
    assert seconds_of(around) == [None, None]
    around.now += 10
    well = again.model_copy(update={"state": EngineState.HEALTHY})
    back = incident.model_copy(update={"return_seconds": 4.0})
    around.runs(driver.model_copy(update={"engines": (well, driver.engines[1]), "incidents": (back,)}))
    around.step()
    assert seconds_of(around) == [30.0, 10.0]
    around.now += 10
    events = len(around.events)
    around.step()
    assert (seconds_of(around), len(around.events)) == ([30.0, 10.0], events)


def test_another_attempt_has_recovered_with_its_first_step_and_all_engines():
    around = Surroundings(raw_job(recovery={"driverRestarts": 9})).to_running()
    around.ends(1)
    around.step()
    around.now += 60
    around.to_running()
    for engine, phases in ((EngineState.HEALTHY, {}), (EngineState.STALE, PHASES), (EngineState.HEALTHY, PHASES)):
        assert seconds_of(around) == [None]
        around.now += 10
        driver = running(EngineState.HEALTHY, engine)
        progress = driver.progress.model_copy(update={"last_step_seconds": phases})
        around.runs(driver.model_copy(update={"attempt": around.status["attempt"], "progress": progress}))
        around.step()
    (seconds,) = seconds_of(around)
    assert seconds is not None and 90.0 <= seconds <= 100.0


@pytest.mark.parametrize(("by", "listed"), [(DecidedBy.DRIVER, 1), (DecidedBy.SUPERVISOR, 0)])
def test_an_engine_that_the_driver_restarted_without_an_operator_is_listed(by: DecidedBy, listed: int):
    around = Surroundings().to_running()
    decision = Decision(time=around.now, step=3, engine="engine-1", generation=1, by=by, reason="it died")
    around.runs(running().model_copy(update={"decisions": (decision,)}))
    around.step()
    around.step()
    assert recovered(around) == [("RestartEngine", "engine-1 generation 1")] * listed
    assert sum(each.reason == "RestartEngine" for each in around.events) == listed


def test_what_a_driver_of_an_earlier_attempt_did_is_not_listed_again():
    around = Surroundings(raw_job(recovery={"driverRestarts": 9})).to_running()
    killed_routers(around, 0)
    last = around.observed.driver.status
    around.ends(1)
    around.step()
    around.now += 60
    around.to_running()
    around.runs(last)
    around.step()
    assert [action for action, _ in recovered(around)] == ["RestartRouter", "RestartDriver"]


def test_the_same_generation_of_another_attempt_is_another_restart():
    around = Surroundings(raw_job(recovery={"driverRestarts": 9})).to_running()
    killed_routers(around, 0)
    around.runs(running(EngineState.DEAD, EngineState.HEALTHY))
    around.step()
    around.ends(1)
    around.step()
    around.now += 60
    around.to_running()
    killed_routers(around, 0)
    around.runs(running(EngineState.DEAD, EngineState.HEALTHY))
    around.step()
    engine, router = ("RestartEngine", "engine-0 generation 1"), ("RestartRouter", "router generation 1")
    assert recovered(around) == [router, engine, ("RestartDriver", "attempt 2"), router, engine]


def test_what_a_full_status_has_dropped_does_not_come_again():
    around = Surroundings().to_running()
    for last in range(MOST_STEPS_OF_RECOVERY + 3):
        around.now += 60
        incidents = tuple(
            Incident(time=around.now - 60.0 * (last - each), engine=ROUTER, generation=each, error="gone")
            for each in range(last + 1)
        )
        around.runs(running().model_copy(update={"incidents": incidents}))
        around.step()
    numbers = [int(target.split()[-1]) for _, target in recovered(around)]
    assert numbers == list(range(4, MOST_STEPS_OF_RECOVERY + 4))


def test_of_very_many_engines_a_status_shows_the_first_and_counts_all():
    around = Surroundings().to_running()
    around.runs(running(*[EngineState.HEALTHY] * (MOST_ENGINES + 1)))
    around.step()
    assert len(around.status["engines"]["items"]) == MOST_ENGINES
    assert around.status["engines"]["ready"] == MOST_ENGINES + 1


def test_a_checkpoint_of_the_same_step_at_another_place_is_a_new_one():
    around = Surroundings().to_running()
    around.runs(running(checkpoint=3))
    around.step()
    first = around.status["lastCheckpoint"]
    around.now += 600
    moved = running(checkpoint=3).checkpoint.model_copy(update={"path": "elsewhere/3"})
    around.runs(running(heartbeat=1.0).model_copy(update={"checkpoint": moved}))
    around.step()
    assert around.status["lastCheckpoint"]["path"] == "elsewhere/3"
    assert around.status["lastCheckpoint"]["time"] > first["time"]


def test_a_job_that_has_ended_shows_no_engines_and_keeps_its_progress():
    around = trains()
    around.ends(0)
    around.step()
    assert (around.status["engines"]["ready"], around.status["engines"].get("items", [])) == (0, [])
    assert around.status["progress"]["step"] == 4


def test_colocated_engines_are_found_on_the_workers():
    around = Surroundings(raw_job(placement="Colocated"))
    around.step()
    assert around.status["engines"]["selector"] == "rljob.dev/job=sums,ray.io/group in (workers,workers-rest)"


def test_a_long_message_is_cut():
    around = Surroundings()
    around.observed = replace(around.observed, refused="x" * 5000)
    around.step()
    message = around.condition("ClusterReady")["message"]
    assert len(message.encode()) == 2000
    assert message.endswith("x…")


def after(ends: list[int]) -> Status:
    around = Surroundings(raw_job(recovery={"driverRestarts": 9})).to_running()
    for code in ends:
        around.ends(code)
        around.step()
        around.now += 100
        around.ray_answers()
        around.step()
    return Status.model_validate(around.status)


def test_the_time_of_an_end_is_read_from_the_completion_and_without_it_from_the_condition():
    status = after([Exit.BAD_INPUT])
    (failed,) = (each for each in status.conditions if each.type == "Failed")
    later = status.model_copy(update={"completion_time": failed.last_transition_time + timedelta(seconds=5)})
    without = status.model_copy(update={"completion_time": None})
    ends = [record.history_of(each).outcome for each in (status, later, without)]
    at = int(failed.last_transition_time.timestamp())
    assert [end.at for end in ends if end] == [at, at + 5, at]


@given(st.lists(st.sampled_from([3, 4, 5, -9]), max_size=4), st.sampled_from([*Exit, None]))
def test_the_attempts_of_a_status_survive_being_read_and_written_again(ends: list[int], verdict: Exit | None):
    before = after(ends)
    last = before.attempts[-1].model_copy(update={"verdict": verdict})
    before = before.model_copy(update={"attempts": (*before.attempts[:-1], last)})
    assert tuple(record.recorded(attempt) for attempt in record.history_of(before).attempts) == before.attempts


@pytest.mark.parametrize(
    ("states", "replicas", "ready"),
    [
        ((EngineState.HEALTHY, EngineState.DEAD), 2, 1),
        ((EngineState.STARTING, EngineState.STALE), 2, 0),
        ((EngineState.HEALTHY, EngineState.LEAVING), 1, 1),
    ],
)
def test_an_engine_that_restarts_is_a_replica_and_one_that_leaves_is_not(
    states: tuple[EngineState, ...], replicas: int, ready: int
):
    around = trains()
    around.now += 60
    around.runs(running(*states))
    around.step()
    engines = around.status["engines"]
    assert (engines["replicas"], engines["ready"]) == (replicas, ready)


@pytest.mark.parametrize(("code", "restarts"), [(5, 1), (Exit.PREEMPTED, 1), (0, 0)])
def test_attempts_after_a_failure_are_counted_as_restarts(code: int, restarts: int):
    around = trains()
    assert around.status["restarts"] == 0
    around.ends(code)
    around.step()
    around.deletions_done()
    around.step()
    assert around.status["restarts"] == restarts


def test_a_suspension_is_no_restart_and_no_recovery():
    around = trains()
    around.edit(suspend=True)
    around.step()
    around.ends(Exit.PREEMPTED)
    around.step()
    around.deletions_done()
    around.edit(suspend=False)
    around.step()
    assert (around.status["attempt"], around.status["restarts"]) == (2, 0)
    assert not around.status.get("recovery")


@pytest.mark.parametrize("char", ["x", "\u2501", "\ud800"])
def test_a_status_fits_into_etcd_whatever_the_errors_of_its_engines_are_written_in(char: str):
    around = Surroundings(raw_job(rollout={"engines": 256, "promptsPerStep": 256, "samplesPerPrompt": 4})).to_running()
    engines = tuple(
        EngineStatus(
            name=f"engine-{index}", state=EngineState.DEAD, since=around.now, generation=1, last_error=char * 4_000
        )
        for index in range(256)
    )
    around.runs(running(engines=engines))
    around.pace = replace(around.pace, progress_due_at=0.0)
    around.step()
    assert len(json.dumps(around.status, ensure_ascii=False).encode(errors="replace")) < 2**20


def goodput_in_the_status(**changes):
    around = trains()
    around.now += 60
    told = {"wall_seconds": 100.4, "effective_share": 0.87654, "seconds": {"train": 87.6, "load": 12.4}}
    goodput = Goodput(**(told | {"lost_gpu_seconds": 99.6} | changes))
    around.runs(running().model_copy(update={"progress": PROGRESS.model_copy(update={"goodput": goodput})}))
    around.step()
    return around.status["progress"].get("goodput")


def test_where_the_time_of_a_run_went_is_in_its_progress_in_whole_seconds():
    assert goodput_in_the_status() == {
        "wallSeconds": 100,
        "effectiveShare": 0.8765,
        "seconds": {"train": 88, "load": 12},
        "lostGpuSeconds": 100,
    }


def test_times_of_a_driver_that_are_no_numbers_are_left_out_and_many_are_cut():
    nan, many = float("nan"), {f"\x1b{number}" + "x" * 99: float(number) for number in range(99)}
    bad = ({"effective_share": nan}, {"wall_seconds": float("inf")}, {"seconds": {"train": nan}})
    assert [goodput_in_the_status(**each) for each in bad] == [None] * 3
    seconds = goodput_in_the_status(seconds=many)["seconds"]
    assert (len(seconds), max(map(len, seconds)) <= 44, "\x1b" in "".join(seconds)) == (20, True, False)


def test_what_a_run_has_lost_and_waits_for_is_in_its_progress():
    around = trains()
    around.now += 60
    lost = PROGRESS.model_copy(update={"losses": {"Judge": 41, "Generate": 2**40, "x" * 99: -1}})
    around.runs(running().model_copy(update={"progress": lost, "waits_for": "the judge\x1b[2J: refused"}))
    around.step()
    progress = around.status["progress"]
    assert (progress["losses"]["Judge"], progress["losses"]["Generate"]) == (41, 2**31 - 1)
    assert max(map(len, progress["losses"])) <= 41
    assert progress["waitsFor"] == "the judge\\x1b[2J: refused"
