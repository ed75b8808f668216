"""Where logs lie, and the command that reads them there, run by a real shell."""

import subprocess
from pathlib import Path

import pytest

from rljob_api.exits import Exit
from rljob_api.status import ConditionType, Phase
from rljob_cli.jobs.job_logs import (
    COMPONENTS,
    NoSuchLogError,
    Wanted,
    driver_log,
    engine_log,
    has_ended,
    last_lines,
    read_command,
    wanted_log,
    without_pods,
)
from support.cli.sample_job import in_phase, job


def head(cluster: str) -> dict:
    return {"metadata": {"name": "head", "labels": {"ray.io/cluster": cluster}}}


def test_a_driver_s_log_is_looked_for_where_ray_writes_it_and_then_on_the_volume() -> None:
    log = driver_log(job(), None)
    assert log.files(head("gsm8k-7f3a1-1")) == [
        "/tmp/ray/session_latest/logs/job-driver-sums-7f3a1-attempt-2.log",
        "/runs/arithmetic/logs/driver-attempt-2.log",
    ]


def test_what_ran_on_another_cluster_is_on_the_volume_only() -> None:
    assert driver_log(job(), 1).files(head("sums-7f3a1-9")) == ["/runs/arithmetic/logs/driver-attempt-1.log"]


def test_an_engine_s_log_is_on_the_volume() -> None:
    assert engine_log(job(), "engine-1").files(head("any")) == ["/runs/arithmetic/logs/engine-1.log"]


@pytest.mark.parametrize(
    ("component", "file"),
    [
        ("router", "logs/router.log"),
        ("rewards", "logs/reward.log"),
        ("tools", "logs/tools.log"),
        ("stacks", "logs/stacks-attempt-1.log"),
        ("ranks", "logs/driver-attempt-1.log"),
        ("driver", "logs/driver-attempt-1.log"),
    ],
)
def test_every_component_has_a_log(component: str, file: str) -> None:
    assert wanted_log(job(), Wanted(component=component, attempt=1)).files(head("x")) == [f"/runs/arithmetic/{file}"]
    assert component in COMPONENTS


LINES = [
    b"2026-11-24 10:00:00,000 INFO rljob_trainer.driver action=start\n",
    b"\x1b[36m(PublishingRank pid=12, ip=10.0.0.4)\x1b[0m step 1\n",
    b"(LearnerRank pid=13) step 1\n",
    b"(EngineServer pid=14) ready\n",
    b"the end",
]


@pytest.mark.parametrize(("component", "numbers"), [("ranks", [1, 2]), ("driver", [0, 4])])
def test_a_driver_s_log_is_divided_by_ray_s_prefix_wherever_its_chunks_end(component: str, numbers: list[int]) -> None:
    text = b"".join(LINES)
    log = wanted_log(job(), Wanted(component=component))
    for size in (1, 7, 1000):
        chunks = [text[start : start + size] for start in range(0, len(text), size)]
        assert list(log.lines(chunks)) == [LINES[number] for number in numbers]


def test_without_a_component_every_byte_is_passed_on_as_it_comes() -> None:
    assert list(wanted_log(job(), Wanted()).lines([b"ab", b"c\nd"])) == [b"ab", b"c\nd"]


def test_an_unknown_component_is_answered_with_those_there_are() -> None:
    with pytest.raises(NoSuchLogError, match='no component is called "rank"; there are driver, ranks, router'):
        wanted_log(job(), Wanted(component="rank"))


def test_what_is_not_there_is_reported_with_what_is() -> None:
    with pytest.raises(NoSuchLogError, match='no engine "engine-5"; nearest: engine-'):
        engine_log(job(), "engine-5")
    with pytest.raises(NoSuchLogError, match="no attempt 3; there are 1 to 2"):
        driver_log(job(), 3)
    with pytest.raises(NoSuchLogError, match="has no driver yet: because"):
        driver_log(in_phase(Phase.PROVISIONING, ConditionType.CLUSTER_READY, "False", attempts=()), None)


def test_a_job_without_pods_says_where_its_log_lies() -> None:
    ended = in_phase(Phase.SUCCEEDED, ConditionType.SUCCEEDED)
    assert without_pods(ended, driver_log(ended, None)) == (
        "ml/sums has succeeded and its pods are deleted: the driver's log of attempt 2 cannot be read from here; "
        "it is at /runs/arithmetic/logs/driver-attempt-2.log on the volume of the job"
    )


def test_a_log_is_complete_when_its_attempt_or_the_job_has_ended() -> None:
    assert [has_ended(job(), driver_log(job(), number)) for number in (1, 2)] == [True, False]
    assert not has_ended(job(), engine_log(job(), "engine-0"))
    assert has_ended(in_phase(Phase.FAILED, ConditionType.FAILED), engine_log(job(), "engine-0"))


def read(files: list[Path], tail: int | None = None) -> subprocess.CompletedProcess[str]:
    command = read_command([str(file) for file in files], tail, follow=False)
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("tail", "expected"), [(None, "one\ntwo\n"), (1, "two\n"), (9, "one\ntwo\n")])
def test_the_first_file_that_there_is_is_read(tmp_path: Path, tail: int | None, expected: str) -> None:
    found = tmp_path / "it's a log"
    found.write_text("one\ntwo\n")
    (tmp_path / "other").write_text("three\n")
    assert read([tmp_path / "absent", found, tmp_path / "other"], tail).stdout == expected
    assert last_lines("one\ntwo\n", tail) == expected


def test_no_file_has_an_exit_code_of_its_own(tmp_path: Path) -> None:
    assert read([tmp_path / "absent"]).returncode == Exit.NOT_FOUND


def test_following_waits_for_the_file_and_for_what_is_written_to_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = read_command([str(log)], None, follow=True)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        log.write_text("one\n")
        first = process.stdout.readline()
        with log.open("a") as file:
            file.write("two\n")
        second = process.stdout.readline()
        process.terminate()
    assert (first, second) == ("one\n", "two\n")
