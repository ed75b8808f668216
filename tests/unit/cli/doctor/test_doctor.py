"""`rljob doctor`: files, directories and streams, for people and for programs."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rljob_api.exits import Exit
from rljob_api.status import AttemptFailure, ConditionType
from rljob_cli.doctor import logs as reading
from rljob_cli.doctor.command import is_job
from rljob_cli.doctor.logs import named
from rljob_cli.jobs.job_evidence import event_lines, names_of, status_lines
from rljob_cli.main import app
from rljob_doctor.scan import scan
from rljob_operator.world.pod_evidence import trouble_of
from support.api.sample_rljob_status import NOON
from support.cli.sample_job import SAMPLE, job

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 18.55 GiB. GPU 0 has a total capacity of 79 GiB"
ACTOR = "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task."


def doctor(*arguments: str, stdin: str | None = None):
    return CliRunner().invoke(app, ["doctor", *arguments], input=stdin)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "run.log"
    path.write_text(f"begin\n{OOM}\n{ACTOR}\n")
    return path


def test_a_cause_is_shown_with_evidence_remedy_and_field(log: Path):
    said = doctor(str(log))
    lines = said.stdout.splitlines()
    assert said.exit_code == Exit.OK
    assert lines[0] == "1. TrainOutOfMemory: the learner runs out of GPU memory"
    assert f"   seen:  run.log:2  {OOM}" in lines
    assert "   field: spec.training.maxTokensPerGpu" in lines
    assert "   more:  docs/troubleshooting/gpus-and-cuda.md#trainoutofmemory" in lines
    assert lines[-1] == "consequence: RayActorDied: a Ray actor died unexpectedly (run.log:3)"


def test_programs_get_json(log: Path):
    value = json.loads(doctor(str(log), "-o", "json").stdout)
    first = value["failures"][0]
    assert (first["code"], first["level"], first["field"]) == (
        "TrainOutOfMemory",
        "Cause",
        "spec.training.maxTokensPerGpu",
    )
    assert first["evidence"] == [{"log": "run.log", "line": 2, "time": None, "text": OOM}]
    assert value["logs"] == [{"name": "run.log", "lines": 3, "bytes": log.stat().st_size}]


def test_core_dumps_of_a_run_are_shown_with_the_command_that_opens_them(tmp_path: Path, log: Path):
    core = tmp_path / "cores" / "gpu-4-4711.core"
    core.parent.mkdir()
    core.touch()
    note = f"a GPU left a core dump, whose kernel is the cause: cuda-gdb -ex 'target cudacore {core}'"
    assert doctor(str(tmp_path)).stdout.startswith(f"note: {note}\n\n1. TrainOutOfMemory")
    assert json.loads(doctor(str(tmp_path), "-o", "json").stdout)["notes"] == [note]
    assert json.loads(doctor(str(log), "-o", "json").stdout)["notes"] == []


def test_a_stream_is_read():
    assert "stdin:1" in doctor("-", stdin=OOM).stdout


def test_without_a_target_a_pipe_is_read():
    assert "TrainOutOfMemory" in doctor(stdin=OOM).stdout


def test_nothing_found_ends_with_one_as_grep_does():
    said = doctor("-", stdin="all is well\nown.OddError: so odd\n" + "step done\n" * 60)
    assert said.exit_code == Exit.FAILED
    assert said.stdout == (
        "no known failure in 62 lines of 1 log. The last exception is\n  stdin:2  own.OddError: so odd\n"
    )


def test_what_is_only_likely_is_shown_as_its_line_without_a_cause_or_a_remedy():
    line = "gcs_placement.cc: The required resource is bigger than the maximum in the whole cluster, schedule failed."
    said = doctor("-", stdin=f"{line}\n")
    head, seen = said.stdout.splitlines()
    assert (head, seen) == (
        "1. not recognised; the words are those of: Ray",
        f"   seen:  stdin:1  {line}",
    )
    assert said.exit_code == Exit.FAILED
    (found,) = json.loads(doctor("-", "-o", "json", stdin=f"{line}\n").stdout)["failures"]
    assert (found["code"], found["evidence"][0]["text"]) == (None, line)
    assert not {"cause", "remedy", "title"} & found.keys()


def test_an_exception_that_is_in_no_entry_is_shown_with_its_own_message():
    said = doctor("-", stdin="all is well\nown.OddError: so odd\n")
    assert said.exit_code == Exit.OK
    assert "1. PythonException:" in said.stdout
    assert "seen:  stdin:2  own.OddError: so odd" in said.stdout


def test_a_consequence_is_shown_with_the_exception_that_it_followed():
    log = 'Scheduler hit an exception: Traceback\n  File "a.py", line 3, in f\nown.OddError: so odd\n'
    said = doctor("-", stdin=log)
    assert "1. EngineSchedulerDied:" in said.stdout
    assert "it followed this exception:\n  stdin:3  own.OddError: so odd\n" in said.stdout
    assert json.loads(doctor("-", "-o", "json", stdin=log).stdout)["followedException"]["line"] == 3


def test_a_run_that_succeeded_has_no_failure():
    said = doctor("-", stdin=f"{OOM}\nJob 'raysubmit_a' succeeded\n")
    assert (said.exit_code, "the run succeeded. It overcame TrainOutOfMemory" in said.stdout) == (Exit.FAILED, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["nowhere.log"], "nowhere.log: no such file or directory"), (["-", "a.log"], "- excludes other logs")],
)
def test_what_cannot_be_read_is_an_error_of_usage(arguments: list[str], message: str):
    said = doctor(*arguments)
    assert said.exit_code == Exit.USAGE
    assert message in said.output


def test_a_directory_without_logs_is_an_error_of_usage(tmp_path: Path):
    assert doctor(str(tmp_path)).exit_code == Exit.USAGE


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    (tmp_path / "rollouts").mkdir()
    (tmp_path / "rollouts" / "step-1.jsonl").write_text(OOM)
    (tmp_path / "journal.jsonl").write_text(OOM)
    (tmp_path / "events.jsonl").write_text('{"kind": "end", "outcome": "failed"}\n')
    (tmp_path / "logs" / "driver-attempt-1.log").write_text("ModuleNotFoundError: No module named 'own'\n")
    (tmp_path / "logs" / "driver-attempt-2.log").write_text(f"{ACTOR}\n")
    (tmp_path / "logs" / "engine-0.log").write_text("No CUDA GPUs are available\n")
    return tmp_path


def test_of_a_run_the_newest_attempt_is_read_and_no_data(run: Path):
    assert [name for _, name in named([run])] == ["logs/driver-attempt-2.log", "events.jsonl", "logs/engine-0.log"]


def test_logs_of_a_run_are_diagnosed_together(run: Path):
    lines = doctor(str(run)).stdout.splitlines()
    assert lines[0].startswith("1. GpuNotVisible")
    assert lines[-1].startswith("consequence: RayActorDied")


def test_events_say_that_a_run_has_finished(run: Path):
    (run / "events.jsonl").write_text('{"kind":"end","time":1.0,"step":4,"outcome":"finished"}\n')
    assert "the run succeeded" in doctor(str(run)).stdout


@pytest.mark.parametrize(
    ("target", "expected"), [("gsm8k", True), ("-", False), ("runs/gsm8k", False), ("gsm8k.log", False), ("/", False)]
)
def test_a_word_that_is_no_path_is_a_job(target: str, expected: bool):
    assert is_job(target) is expected


def test_states_of_containers_are_lines_of_a_log():
    ended = {"terminated": {"reason": "OOMKilled", "exitCode": 137, "finishedAt": "2026-03-04T10:00:00Z"}}
    waits = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}
    fine = {"waiting": {"reason": "ContainerCreating"}}
    pod = {
        "metadata": {"name": "head"},
        "status": {
            "containerStatuses": [
                {"name": "ray", "lastState": ended, "state": waits},
                {"name": "side", "state": fine},
            ]
        },
    }
    assert list(trouble_of(pod)) == [
        "2026-03-04T10:00:00Z pod head container ray terminated reason: OOMKilled exit code 137: ",
        "pod head container ray waiting reason: ImagePullBackOff: Back-off pulling image",
    ]


def test_the_status_says_how_the_newest_attempt_ended():
    attempt = SAMPLE.attempts[-1].model_copy(update={"ended": NOON, "exit_code": 4, "reason": "rank 1: no memory"})
    ended = job(attempts=(attempt,))
    assert status_lines(ended)[-1] == f"{NOON} attempt {attempt.number} ended with exit code 4: rank 1: no memory"
    assert names_of(ended) == ["sums", attempt.cluster]


@pytest.mark.parametrize(("status", "is_said"), [("True", True), ("False", False), ("Unknown", False)])
def test_a_job_that_has_not_succeeded_does_not_say_so(status: str, is_said: bool):
    condition = SAMPLE.conditions[0].model_copy(update={"type": ConditionType.SUCCEEDED, "status": status})
    assert (
        any(line.startswith("condition Succeeded ") for line in status_lines(job(conditions=(condition,)))) is is_said
    )


def test_while_the_next_attempt_runs_the_status_says_how_the_one_before_ended():
    evidence = "driver-attempt-1.log: The actor died unexpectedly"
    failure = AttemptFailure(code="RayActorDied", title="an actor died", remedy="look", evidence=evidence)
    first = {"number": 1, "ended": NOON, "exit_code": 5, "reason": "a rank is gone", "failure": failure}
    later = {"number": 2, "ended": None, "exit_code": None, "reason": None, "failure": None}
    ended, runs = (SAMPLE.attempts[-1].model_copy(update=each) for each in (first, later))
    recovers = status_lines(job(attempts=(ended, runs)))
    assert recovers[-2:] == [
        f"{NOON} attempt 1 ended with exit code 5: a rank is gone",
        f"{NOON} attempt 1: {evidence}",
    ]
    finished = runs.model_copy(update={"ended": NOON, "exit_code": 0})
    assert not any("attempt 1" in line for line in status_lines(job(attempts=(ended, finished))))


def test_events_of_other_objects_are_left_out():
    def event(name: str, time: str) -> dict:
        return {
            "metadata": {},
            "involvedObject": {"kind": "Pod", "name": name},
            "type": "Warning",
            "reason": "Evicted",
            "message": "low",
            "lastTimestamp": time,
            "count": 12 if name == "job-1-w" else 1,
        }

    events = [
        event("job-1-head", "2026-03-04T10:00:02Z"),
        event("other", "a"),
        event("job-1-w", "2026-03-04T10:00:01Z"),
    ]
    assert event_lines(events, ["job-1"]) == [
        "2026-03-04T10:00:01Z Warning Evicted pod/job-1-w low (x12)",
        "2026-03-04T10:00:02Z Warning Evicted pod/job-1-head low",
    ]


@pytest.mark.parametrize(
    ("times", "shown"),
    [
        ({"lastTimestamp": "3", "eventTime": "2", "metadata": {"creationTimestamp": "1"}}, "3"),
        ({"lastTimestamp": None, "eventTime": "2", "metadata": {"creationTimestamp": "1"}}, "2"),
        ({"eventTime": None, "metadata": {"creationTimestamp": "1"}}, "1"),
        ({}, ""),
    ],
)
def test_an_event_is_shown_with_the_newest_time_that_it_has(times: dict, shown: str):
    event = {"metadata": {}, "involvedObject": {"name": "job-1"}, "reason": "Pulled", "message": "image", **times}
    assert event_lines([event], ["job-1"]) == [f"{shown} Normal Pulled /job-1 image"]


@pytest.mark.parametrize(
    ("reason", "pod", "at", "shown"),
    [
        ("FailedMount", "job-1-worker", 1, False),
        ("FailedAttachVolume", "job-1-worker", 1, False),
        ("FailedCreatePodSandBox", "job-1-worker", 1, False),
        ("FailedMount", "job-1-worker", 2, False),
        ("FailedMount", "job-1-worker", 3, True),
        ("FailedMount", "job-1-head", 1, True),
        ("BackOff", "job-1-worker", 1, True),
    ],
)
def test_what_failed_before_a_pod_started_is_over(reason: str, pod: str, at: int, shown: bool):
    def event(reason: str, pod: str, at: int) -> dict[str, object]:
        about = {"kind": "Pod", "name": pod}
        return {"metadata": {}, "involvedObject": about, "reason": reason, "lastTimestamp": f"2026-03-04T10:00:0{at}Z"}

    lines = event_lines([event("Started", "job-1-worker", 2), event(reason, pod, at)], ["job-1"])
    assert any(reason in line for line in lines) == shown


def test_of_a_log_that_takes_too_long_the_end_is_read_and_the_rest_is_counted(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(reading, "LEAST_S", -1e9)
    (tmp_path / "run.log").write_text(f"begin\n{OOM}\n" * 1000 + "KeyError: 'the end'\n")
    said = doctor(str(tmp_path / "run.log"))
    assert re.match(r"note: run\.log: 11\d{4} of 116020 bytes were not read, and 0 exceptions not looked", said.stdout)
    assert "KeyError: 'the end'" in said.stdout


def test_exceptions_that_take_too_long_to_look_up_are_counted_and_the_last_one_is_looked_up():
    answers = iter([True] * 50)
    raised = b'Traceback (most recent call last):\n  File "x.py", line 1, in f\nValueError: number\n'
    found = scan("run.log", raised * 60, lambda: next(answers, False))
    assert (found.unread > 0, found.unjudged > 0, found.lines) == (True, True, 180)
    assert found.last_exception is not None and found.last_exception.line == 180


def test_a_log_without_anything_to_judge_is_read_whole_however_long_it_takes():
    found = scan("run.log", b"step 1 loss 2.0\n" * 1000, lambda: False)
    assert (found.unread, found.unjudged, found.lines) == (0, 0, 1000)
