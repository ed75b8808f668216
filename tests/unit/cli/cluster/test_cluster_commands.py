"""The commands that look at a cluster, from their command line to what they ask an API server for, and back."""

import base64
import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from rljob_api.control import EngineState
from rljob_api.exits import Exit
from rljob_api.status import AttemptStatus, JobEngine, Phase, Status
from rljob_cli.cluster import verbs as cluster_verbs
from rljob_cli.cluster import watching
from rljob_cli.jobs import job_page
from rljob_cli.jobs.jobs import Manifest, job_of
from rljob_cli.main import app
from rljob_operator.identity import RAY_TOKEN_KEY, service_name
from support.api.sample_rljob_status import NOON, SAMPLE
from support.cli.answers import ERROR, STDOUT, Answers, page, refusal
from support.cli.sample_job import raw

OF_ML = "apis/rljob.dev/v1alpha1/namespaces/ml/rljobs"
PODS, EVENTS = "api/v1/namespaces/ml/pods", "api/v1/namespaces/ml/events"
DONE = ERROR + b'{"status": "Success"}'
Run = Callable[..., Result]


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
def rljob(answers: Answers, tmp_path: Path) -> Iterator[Run]:
    """Runs a command against the cluster."""
    with answers.served(tmp_path) as file:
        yield lambda *arguments: CliRunner().invoke(app, [*arguments, "--kubeconfig", str(file)])


def status(**changes: Any) -> Status:
    return SAMPLE.model_copy(update=changes)


def attempt(**fields: Any) -> AttemptStatus:
    return AttemptStatus(cluster="sums-1", start_after=NOON, **fields)


def head(**spec: Any) -> Manifest:
    metadata = {"name": "head", "namespace": "ml", "creationTimestamp": "2026-11-21T12:00:00Z", "labels": {}}
    return {
        "metadata": metadata,
        "spec": {"containers": [{"name": "ray", **spec}]},
        "status": {"phase": "Running"},
    }


def of_job(answers: Answers, given: Manifest, *pods: Manifest) -> None:
    answers.get(f"{OF_ML}/sums", given)
    answers.get(PODS, page(*pods))


def paths(answers: Answers) -> list[str]:
    return [asked.path for asked in answers.asked]


def test_the_table_has_the_jobs_of_the_namespace_of_the_context_and_no_column_for_it(rljob: Run, answers: Answers):
    answers.get(OF_ML, page(raw(name="b"), raw(name="a")))
    shown = rljob("status")

    title, *rows = shown.stdout.splitlines()
    assert (shown.exit_code, title.split()[0], [row.split()[0] for row in rows]) == (Exit.OK, "NAME", ["a", "b"])


def test_the_table_of_all_namespaces_names_them(rljob: Run, answers: Answers):
    answers.get("apis/rljob.dev/v1alpha1/rljobs", page(raw(name="a"), raw(name="b", namespace="other")))
    title, *rows = rljob("status", "-A").stdout.splitlines()

    assert title.split()[:2] == ["NAMESPACE", "NAME"]
    assert [row.split()[:2] for row in rows] == [["ml", "a"], ["other", "b"]]


def test_a_namespace_that_is_named_comes_before_that_of_the_context(rljob: Run, answers: Answers):
    answers.get("apis/rljob.dev/v1alpha1/namespaces/other/rljobs", page(raw(name="b", namespace="other")))
    assert [job["name"] for job in json.loads(rljob("status", "-n", "other", "-o", "json").stdout)["jobs"]] == ["b"]


@pytest.mark.parametrize(
    ("arguments", "path", "where"),
    [
        (("status",), OF_ML, "namespace ml"),
        (("status", "-A"), "apis/rljob.dev/v1alpha1/rljobs", "any namespace"),
    ],
)
def test_no_jobs_are_said_to_be_none(rljob: Run, answers: Answers, arguments, path, where):
    answers.get(path, page())
    assert rljob(*arguments).stderr == f"no RLJobs in {where}\n"


def test_one_job_is_a_page_or_json(rljob: Run, answers: Answers):
    answers.get(f"{OF_ML}/sums", raw())
    shown, value = rljob("status", "sums"), json.loads(rljob("status", "sums", "-o", "json").stdout)

    assert (shown.exit_code, "step 12 of 200" in shown.stdout) == (Exit.OK, True)
    assert (value["name"], value["namespace"], value["phase"]) == ("sums", "ml", "Training")


@pytest.mark.parametrize(("phase", "code"), [(Phase.SUCCEEDED, Exit.OK), (Phase.FAILED, Exit.FAILED)])
def test_a_watched_job_is_followed_to_its_end_whose_code_it_has(rljob, answers, monkeypatch, phase, code):
    monkeypatch.setattr(watching, "INTERVAL_S", 0.0)
    answers.get(f"{OF_ML}/sums", raw(), raw(status(phase=phase)))
    shown = rljob("status", "sums", "--watch")

    said = [line.split("  ")[:2] for line in shown.stdout.splitlines()]
    assert (shown.exit_code, said) == (code, [["ml/sums", "Training"], ["ml/sums", str(phase)]])


def test_a_watched_job_is_one_line_of_json_at_each_change(rljob: Run, answers: Answers, monkeypatch):
    monkeypatch.setattr(watching, "INTERVAL_S", 0.0)
    answers.get(f"{OF_ML}/sums", raw(), raw(), raw(status(phase=Phase.SUCCEEDED)))
    shown = rljob("status", "sums", "--watch", "-o", "json")

    assert [json.loads(line)["phase"] for line in shown.stdout.splitlines()] == ["Training", "Succeeded"]


def test_top_shows_the_engines_or_the_queue_and_json_leaves_out_what_has_ended(rljob: Run, answers: Answers):
    answers.get(OF_ML, page(raw(name="a"), raw(status(phase=Phase.SUCCEEDED), "b")))

    assert "engine-0" in rljob("top").stdout
    assert "wait for" in rljob("top", "--queues").stdout and "engine-0" not in rljob("top", "--queues").stdout
    assert [job["name"] for job in json.loads(rljob("top", "-o", "json").stdout)["jobs"]] == ["a"]


def test_why_is_asked_about_the_job_that_is_named(rljob: Run, answers: Answers):
    of_job(answers, raw(status(phase=Phase.SUCCEEDED)), head())
    answers.get("apis/ray.io/v1/namespaces/ml/rayclusters", page())
    value = json.loads(rljob("why", "sums", "-o", "json").stdout)

    assert (value["namespace"], value["name"], value["phase"]) == ("ml", "sums", "Succeeded")
    assert f"/{OF_ML}/sums" in paths(answers)


def test_resume_changes_the_job_at_the_version_that_was_read(rljob: Run, answers: Answers):
    given = raw(status(phase=Phase.FAILED), resourceVersion="41")
    answers.get(f"{OF_ML}/sums", given)
    answers.given["PATCH", f"/{OF_ML}/sums"] = [(200, given)]
    shown = rljob("resume", "sums")

    (patch,) = [asked for asked in answers.asked if asked.method == "PATCH"]
    assert shown.exit_code == Exit.OK and "sums" in shown.stdout
    assert (patch.path, patch.headers["Content-Type"]) == (f"/{OF_ML}/sums", "application/merge-patch+json")
    assert patch.body == {"metadata": {"resourceVersion": "41"}, "spec": {"recovery": {"resumes": 1}}}


def test_a_job_that_cannot_be_resumed_is_a_wrong_command_and_stays_as_it_is(rljob: Run, answers: Answers):
    answers.get(f"{OF_ML}/sums", raw())
    refused = rljob("resume", "sums")

    assert (refused.exit_code, refused.stderr) == (
        Exit.USAGE,
        "sums is Training, and only a Failed job can be resumed\n",
    )
    assert [asked.method for asked in answers.asked] == ["GET"]


LINES = "one\n(LearnerRank pid=7) two\nthree\nfour\n"


@pytest.mark.parametrize(
    ("arguments", "tail", "shown"),
    [
        ((), "+1", LINES),
        (("--tail", "2"), "2", LINES),
        (("--component", "driver"), "+1", "one\nthree\nfour\n"),
        (("--component", "driver", "--tail", "2"), "+1", "three\nfour\n"),
        (("--component", "driver", "--tail", "2", "--follow"), "+1", "one\nthree\nfour\n"),
        (("--component", "ranks"), "+1", "(LearnerRank pid=7) two\n"),
    ],
)
def test_a_log_is_read_on_the_head(rljob: Run, answers: Answers, arguments, tail, shown):
    """With a component, its last lines are counted here: the log has those of others, too."""
    ended = attempt(number=2, started=NOON, ended=NOON)
    of_job(answers, raw(status(attempts=(ended,))), head())
    answers.frames = [STDOUT + LINES.encode(), DONE]
    found = rljob("logs", "sums", *arguments)

    (asked,) = [each for each in answers.asked if each.path.endswith("/exec")]
    command = asked.query.getall("command")  # type: ignore[attr-defined]  # aiohttp's
    assert (found.exit_code, found.stdout) == (Exit.OK, shown)
    assert command[4:] == [tail, "", "/runs/arithmetic/logs/driver-attempt-2.log"]


@pytest.mark.parametrize(("ended", "follows"), [(NOON, ""), (None, "-F")])
def test_a_log_of_an_attempt_that_has_ended_is_not_waited_for(rljob, answers, ended, follows):
    of_job(answers, raw(status(attempts=(attempt(number=2, started=NOON, ended=ended),))), head())
    answers.frames = [STDOUT + LINES.encode(), DONE]
    rljob("logs", "sums", "--follow")

    (asked,) = [each for each in answers.asked if each.path.endswith("/exec")]
    assert asked.query.getall("command")[5] == follows  # type: ignore[attr-defined]  # aiohttp's


def test_the_log_of_an_engine_and_of_an_attempt_are_files_of_their_own(rljob: Run, answers: Answers):
    attempts = tuple(attempt(number=number, started=NOON, ended=NOON) for number in (1, 2))
    of_job(answers, raw(status(attempts=attempts)), head())
    answers.frames = [STDOUT + LINES.encode(), DONE]
    rljob("logs", "sums", "--attempt", "1")
    rljob("logs", "sums", "--engine", "engine-1")
    rljob("logs", "sums", "--component", "router")

    asked = [each.query.getall("command") for each in answers.asked if each.path.endswith("/exec")]  # type: ignore[attr-defined]  # aiohttp's
    assert [command[-1].rpartition("/")[2] for command in asked] == [
        "driver-attempt-1.log",
        "engine-1.log",
        "router.log",
    ]


def test_a_log_that_is_not_there_names_pod_and_file(rljob: Run, answers: Answers):
    of_job(answers, raw(), head())
    missing = {"details": {"causes": [{"reason": "ExitCode", "message": str(Exit.NOT_FOUND.value)}]}}
    answers.frames = [ERROR + json.dumps({"status": "Failure", **missing}).encode()]
    found = rljob("logs", "sums", "--engine", "engine-0")

    assert (found.exit_code, found.stderr) == (
        Exit.NOT_FOUND,
        "the log of engine-0 is not on pod head: looked for /runs/arithmetic/logs/engine-0.log\n",
    )


@pytest.mark.parametrize("engine", ["engine-5", "quite-another"])
def test_an_engine_that_is_not_there_leads_to_one_that_is(rljob: Run, answers: Answers, engine):
    answers.get(f"{OF_ML}/sums", raw())
    found = rljob("logs", "sums", "--engine", engine)

    assert (found.exit_code, found.stderr.startswith(f'ml/sums has no engine "{engine}"; nearest: engine-')) == (
        Exit.NOT_FOUND,
        True,
    )


RAY_POD = [{"name": "RAY_AUTH_TOKEN", "valueFrom": {"secretKeyRef": {"name": "sums-token", "key": "k"}}}]


def ray_log(answers: Answers, given: Manifest, *texts: str) -> str:
    """Have a head that may not be reached, and Ray with these logs, one after the other; return Ray's path."""
    job = job_of(given)
    answers.refuse("GET", f"{PODS}/head/exec", 403, refusal(403, "no"))
    service = f"api/v1/namespaces/ml/services/{service_name(job.name, job.uid)}:8265/proxy/api/jobs"
    path = f"{service}/{cluster_verbs.job_logs.driver_log(job, None).submission}/logs"
    answers.get(path, *({"logs": text} for text in texts))
    return path


@pytest.mark.parametrize(("arguments", "shown"), [((), "one\ntwo\nthree\n"), (("--tail", "2"), "two\nthree\n")])
def test_where_no_command_may_run_the_log_comes_from_ray_with_the_token_of_the_job(rljob, answers, arguments, shown):
    given = raw(status(attempts=(attempt(number=2, started=NOON, ended=NOON),)))
    of_job(answers, given, head(env=RAY_POD))
    path = ray_log(answers, given, "one\ntwo\nthree\n")
    secret = {RAY_TOKEN_KEY: base64.b64encode(b"of ray").decode()}
    answers.get("api/v1/namespaces/ml/secrets/sums-token", {"data": secret})
    found = rljob("logs", "sums", *arguments)

    (asked,) = [each for each in answers.asked if each.path == f"/{path}"]
    assert (found.exit_code, found.stdout) == (Exit.OK, shown)
    assert asked.headers["X-Ray-Authorization"] == "Bearer of ray"


def test_ray_is_asked_again_while_the_attempt_runs_and_what_is_new_is_written(rljob, answers, monkeypatch):
    monkeypatch.setattr(watching, "INTERVAL_S", 0.0)
    monkeypatch.setattr(cluster_verbs, "LOOK_S", 0.0)
    monkeypatch.setattr(cluster_verbs, "ENDED_FOR_S", 0.0)
    running, ended = (attempt(number=2, started=NOON, ended=end) for end in (None, NOON))
    given = raw(status(attempts=(running,)))
    of_job(answers, given, head())
    answers.get(f"{OF_ML}/sums", given, given, given, raw(status(attempts=(ended,))))
    path = ray_log(answers, given, "one\n", "one\ntwo\n", "one\ntwo\nthree\n")
    found = rljob("logs", "sums", "--follow", "--tail", "5")

    assert (found.exit_code, found.stdout) == (Exit.OK, "one\ntwo\nthree\n")
    asked = [each for each in answers.asked if each.path == f"/{path}"]
    assert len(asked) == 3 and all("X-Ray-Authorization" not in each.headers for each in asked)


def test_a_token_that_may_not_be_read_is_named_beside_what_ray_says(rljob: Run, answers: Answers):
    given = raw(status(attempts=(attempt(number=2, started=NOON, ended=NOON),)))
    of_job(answers, given, head(env=RAY_POD))
    path = ray_log(answers, given)
    answers.refuse("GET", path, 401, "no token")
    answers.refuse("GET", "api/v1/namespaces/ml/secrets/sums-token", 403, refusal(403, "not you"))
    found = rljob("logs", "sums")

    assert found.exit_code == Exit.UNREACHABLE
    for words in ("no permission to create pods/exec", "failed, too: get services/proxy", "Ray's token", "not you"):
        assert words in found.stderr


def test_the_log_of_an_engine_has_no_other_way(rljob: Run, answers: Answers):
    of_job(answers, raw(), head())
    answers.refuse("GET", f"{PODS}/head/exec", 403, refusal(403, "no"))
    found = rljob("logs", "sums", "--engine", "engine-0")

    assert found.exit_code == Exit.FORBIDDEN
    assert found.stderr.endswith("; there is no other way to read an engine's log\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--engine", "engine-0", "--driver"),
        ("--engine", "engine-0", "--attempt", "1"),
        ("--component", "router", "--engine", "engine-0"),
        ("--component", "router", "--driver"),
    ],
)
def test_two_logs_at_once_are_a_wrong_command(rljob: Run, answers: Answers, arguments):
    assert rljob("logs", "sums", *arguments).exit_code == Exit.USAGE
    assert answers.asked == []


OUT_OF_MEMORY = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"


@pytest.mark.parametrize("phase", [Phase.FAILED, Phase.TRAINING])
def test_doctor_reads_what_there_is_of_log_events_pods_and_status_of_a_job(rljob: Run, answers: Answers, phase):
    of_job(answers, raw(status(phase=phase, attempts=(attempt(number=2, started=NOON),))), head())
    answers.get(EVENTS, page())
    answers.frames = [STDOUT + b"begins\n" + OUT_OF_MEMORY, DONE]
    found = json.loads(rljob("doctor", "sums", "-o", "json").stdout)

    first = found["failures"][0]
    assert first["code"] == "TrainOutOfMemory"
    assert "the driver's log of attempt 2:2" in json.dumps(first).replace('", "line": ', ":")
    (asked,) = [each for each in answers.asked if each.path.endswith("/exec")]
    assert asked.query.getall("command")[4:6] == ["+1", ""]  # type: ignore[attr-defined]  # aiohttp's


def test_doctor_says_what_it_may_not_read(rljob: Run, answers: Answers):
    answers.get(f"{OF_ML}/sums", raw(status(attempts=())))
    for path in (EVENTS, PODS):
        answers.refuse("GET", path, 403, refusal(403, "no"))
    found = rljob("doctor", "sums")

    for words in ("you may not list events", "you may not list pods", "ml/sums has no driver yet"):
        assert words in found.stdout + found.stderr


def test_plot_draws_the_curve_of_the_job_as_json_too(rljob: Run, answers: Answers):
    answers.get("apis/rljob.dev/v1alpha1/namespaces/other/rljobs/sums", raw(namespace="other"))
    value = json.loads(rljob("plot", "sums", "-n", "other", "-o", "json").stdout)

    assert value["name"] == "other/sums"
    assert [point["reward"] for point in value["points"]] == [None, 0.125, 0.4375]


def test_engines_beyond_those_shown_are_counted(rljob: Run, answers: Answers):
    items = tuple(
        JobEngine(name=f"engine-{number}", state=EngineState.HEALTHY, since=NOON + timedelta(seconds=number))
        for number in range(40)
    )
    engines = SAMPLE.engines.model_copy(update={"items": items}) if SAMPLE.engines else None
    answers.get(f"{OF_ML}/sums", raw(status(engines=engines)))
    shown = rljob("status", "sums").stdout

    rest = 40 - job_page.SHOWN_ENGINES
    assert f"and {rest} more" in shown
