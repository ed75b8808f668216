"""The tables of `rljob status` and `rljob top`."""

import json

from rljob_api.control import EngineState
from rljob_api.status import JobEngine, Phase, Status
from rljob_cli.cluster.watching import changed, line
from rljob_cli.jobs.job_json import as_json, job_value, jobs_value
from rljob_cli.jobs.job_table import as_table
from rljob_cli.jobs.jobs import job_of, nearest
from rljob_cli.jobs.top_view import SHOWN_ENGINES, as_tables
from support.api.sample_rljob_status import NOON, SAMPLE
from support.cli.sample_job import NOW, job, raw, text


def test_the_table_has_a_row_for_each_job() -> None:
    unseen = job_of(raw(Status(), "later"))
    assert (
        text(as_table([unseen, job()], NOW, namespaces=True))
        == """\
NAMESPACE  NAME   PHASE     STEP    REWARD  HELD-OUT  ENGINES  GPUS  AGE    ETA
ml         later  Unseen    0/200        –         –  0/2         –  10m      –
ml         sums   Training  12/200    0.44      0.50  1/2         8  10m  1h00m
"""
    )


def test_top_shows_speeds_and_how_far_engines_are_behind() -> None:
    assert SAMPLE.engines is not None
    late = JobEngine(name="engine-0", state=EngineState.STALE, since=NOON, version=9)
    shown = text(as_tables([job(engines=SAMPLE.engines.model_copy(update={"items": (late,)}))], NOW, namespaces=False))
    assert (
        shown
        == """\
1 job not ended, 8 GPUs in use, 1 of 2 engines ready, rollout 21.2k tokens/s

JOB   PHASE       STEP  TIME  ROLLOUT  TRAIN  PUBLISH  TOK/S  ENGINES  GPUS
sums  Training  12/200  6.5s     3.9s   2.2s     0.3s  21.2k      1/2     8

JOB   ENGINE    STATE  FOR  WEIGHTS  BEHIND  RESTARTS  LAST ERROR
sums  engine-0  Stale  10m        9       3         0
"""
    )


def test_top_leaves_out_what_has_ended() -> None:
    assert text(as_tables([job(phase=Phase.SUCCEEDED)], NOW, namespaces=True)) == "no job runs or waits\n"


def test_top_shows_engines_in_trouble_first_and_counts_the_others() -> None:
    assert SAMPLE.engines is not None
    many = [JobEngine(name=f"engine-{i}", state=EngineState.HEALTHY, since=NOON) for i in range(SHOWN_ENGINES + 9)]
    dead = JobEngine(name="engine-99", state=EngineState.DEAD, since=NOON)
    items = SAMPLE.engines.model_copy(update={"items": (*many, dead)})
    shown = text(as_tables([job(engines=items)], NOW, namespaces=False))
    rows = [row.split()[1] for row in shown.splitlines() if row.startswith("sums  engine-")]
    assert rows[:2] == ["engine-99", "engine-0"]
    assert shown.endswith("and 10 more engines\n")


def test_json_has_every_fact_of_the_page() -> None:
    shown = json.loads(as_json(job_value(job(), NOW)))
    assert (shown["phase"], shown["phase_since"], shown["step"], shown["steps"]) == (
        "Training",
        "2026-11-21T12:00:00Z",
        12,
        200,
    )
    assert shown["step_seconds"] == {"total": 6.5, "rollout": 3.9, "train": 2.2, "publish": 0.3}
    assert shown["engines"][1]["last_error"] == "killed by SIGKILL"
    assert shown["next"][0]["command"] == "rljob logs sums -n ml -f"


def test_json_has_the_same_names_as_ever_for_programs_that_read_it() -> None:
    shown = job_value(job(), NOW)
    parts = {name: shown.pop(name) for name in ("engines", "attempts", "recovery", "next")}
    assert shown == {
        "namespace": "ml",
        "name": "sums",
        "phase": "Training",
        "phase_since": "2026-11-21T12:00:00Z",
        "message": "step 12 of 200",
        "age_seconds": 600,
        "step": 12,
        "steps": 200,
        "reward": 0.4375,
        "accuracy": 0.5,
        "perplexity": None,
        "held_out_perplexity": None,
        "evaluation_sets": {"hard": 0.25, "easy": 0.875},
        "eta_seconds": 3600,
        "rollout_tokens_per_second": 21200.0,
        "train_tokens_per_second": 60000.0,
        "step_seconds": {"total": 6.5, "rollout": 3.9, "train": 2.2, "publish": 0.3},
        "weight_version": 12,
        "goodput": None,
        "gpus": 8,
        "engines_ready": 1,
        "engines_wanted": 2,
        "last_checkpoint": {
            "step": 10,
            "path": "/runs/arithmetic/step-10",
            "verified": True,
            "time": "2026-11-21T12:00:00Z",
        },
        "directory": "/runs/arithmetic",
    }
    assert [each["state"] for each in parts["engines"]] == ["Healthy", "Dead"]
    assert [each["exit_code"] for each in parts["attempts"]] == [5, None]
    assert [each["action"] for each in parts["recovery"]] == ["RestartEngine"]
    assert [set(each) for each in parts["next"]] == [{"text", "command"}] * 2


def test_json_of_a_job_without_a_status_has_null_for_what_is_not_known() -> None:
    shown = job_value(job_of(raw(Status())), NOW)
    numbers = ("reward", "accuracy", "rollout_tokens_per_second", "train_tokens_per_second", "step_seconds", "gpus")
    others = ("phase", "phase_since", "eta_seconds", "weight_version", "last_checkpoint", "directory")
    assert {name: shown[name] for name in (*numbers, *others)} == dict.fromkeys((*numbers, *others))
    lists = ("engines", "attempts", "recovery")
    assert {name: shown[name] for name in lists} == {name: [] for name in lists}
    assert (shown["evaluation_sets"], shown["step"], shown["age_seconds"]) == ({}, 0, 600)


def test_json_says_when_a_job_that_trains_will_end_and_not_of_one_that_has_ended() -> None:
    assert job_value(job(), NOW)["eta_seconds"] == 3600
    assert job_value(job(phase=Phase.FAILED), NOW)["eta_seconds"] is None


def test_json_is_one_document_of_lines_that_people_can_read_or_one_line_of_a_watch() -> None:
    value = jobs_value([job(), job("größer")], NOW)
    assert [each["name"] for each in value["jobs"]] == ["sums", "größer"]
    assert as_json(value).startswith('{\n  "jobs": [\n    {\n      "namespace": "ml"')
    assert '"name": "größer"' in as_json(value, one_line=True)
    assert "\n" not in as_json(value, one_line=True)


def test_a_watch_reports_a_job_again_only_when_something_but_time_has_changed() -> None:
    assert SAMPLE.progress is not None
    old = [job(), job("other")]
    later = SAMPLE.progress.model_copy(update={"eta_seconds": 3000})
    further = SAMPLE.progress.model_copy(update={"step": 13})
    assert [each.name for each in changed(old, [job(progress=later), job("other", progress=further)])] == ["other"]
    assert line(job()) == (
        "ml/sums  Training  step 12/200  reward 0.44  held-out 0.50  engines 1/2  eta 1h00m: step 12 of 200"
    )


def test_the_nearest_name_is_the_one_that_was_meant() -> None:
    assert nearest("gsm8", ["sums", "gsm8k", "gsm8k-long"]) == "gsm8k"
    assert nearest("entirely-different", ["sums", "gsm8k"]) is None
