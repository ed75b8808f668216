"""The Python client, against answers of an API server as a test says them."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rljob_api.exits import Exit
from rljob_cli import client
from rljob_cli.client import (
    JobEndedError,
    JobHandle,
    ManifestError,
    MetricPoint,
    NoObjectError,
    NotResumableError,
    Phase,
)
from rljob_cli.cluster.cluster import ClusterError, connect
from rljob_cli.jobs.jobs import Manifest
from support.api.sample_rljob_status import SAMPLE
from support.cli.answers import Answers, refusal
from support.cli.command import environment
from support.cli.installed_extras import ROOT
from support.cli.sample_job import points, raw

OF_ML = "apis/rljob.dev/v1alpha1/namespaces/ml/rljobs"
SUMS = f"{OF_ML}/sums"
EXAMPLE = ROOT / "docs" / "examples" / "quickstart.yaml"


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
def kubeconfig(answers: Answers, tmp_path: Path) -> Iterator[Path]:
    with answers.served(tmp_path) as file:
        yield file


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
def handle(kubeconfig: Path, pauses: list[float]) -> JobHandle:
    """Return a job; each pause moves its clock."""
    return JobHandle(connect(kubeconfig, None), "ml", "sums", sleep=pauses.append, clock=lambda: sum(pauses))


def at(step: int, phase: Phase = Phase.TRAINING, **metadata: Any) -> Manifest:
    """Return the job in a phase after so many steps."""
    assert SAMPLE.progress is not None
    progress = SAMPLE.progress.model_copy(update={"step": step})
    status = SAMPLE.model_copy(update={"phase": phase, "progress": progress, "observed_generation": 2})
    return raw(status, resourceVersion=str(step), **metadata)


def events(*objects: Manifest, kind: str = "MODIFIED") -> str:
    """Return what a watch answers."""
    return "".join(f"{json.dumps({'type': kind, 'object': each})}\n" for each in objects)


def test_a_file_is_applied_in_the_namespace_of_the_context(kubeconfig: Path, answers: Answers):
    answers.given["PATCH", f"/{OF_ML}/quickstart"] = [(200, {})]
    handle = client.apply(EXAMPLE, kubeconfig=kubeconfig)
    (asked,) = answers.asked
    assert repr(handle) == "<RLJob ml/quickstart>"
    assert asked.headers["Content-Type"] == "application/apply-patch+yaml"
    assert dict(asked.query) == {"fieldManager": "rljob-client"}
    assert asked.body["metadata"] == {"name": "quickstart", "namespace": "ml"}
    assert asked.body["spec"]["training"]["optimizer"]["learningRate"] == 2.5e-5
    assert "evaluation" in asked.body["spec"]
    assert "watch" not in asked.body["spec"], "a default is not written"


@pytest.mark.parametrize(("given", "expected"), [(None, "theirs"), ("mine", "mine")])
def test_a_mapping_is_applied_in_its_namespace_unless_another_is_given(
    kubeconfig: Path, answers: Answers, given: str | None, expected: str
):
    path = f"/apis/rljob.dev/v1alpha1/namespaces/{expected}/rljobs/sums"
    answers.given["PATCH", path] = [(200, {})]
    job = raw(name="sums")
    manifest = {**job, "metadata": {"name": "sums", "namespace": "theirs"}}
    handle = client.apply(manifest, namespace=given, kubeconfig=kubeconfig)
    assert handle.namespace == expected
    assert "status" not in answers.asked[0].body
    assert manifest["metadata"] == {"name": "sums", "namespace": "theirs"}, "the caller's mapping stays as it is"


def test_a_wrong_manifest_is_not_sent(kubeconfig: Path, answers: Answers):
    job = raw(name="sums")
    with pytest.raises(ManifestError, match="steps"):
        client.apply({**job, "spec": {**job["spec"], "training": {"steps": 0}}}, kubeconfig=kubeconfig)
    assert answers.asked == []


def test_a_field_of_another_owner_is_an_error(kubeconfig: Path, answers: Answers):
    answers.refuse("PATCH", f"{OF_ML}/quickstart", 409, refusal(409, 'conflict with "kubectl"'))
    with pytest.raises(ClusterError, match='conflict with "kubectl"'):
        client.apply(EXAMPLE, kubeconfig=kubeconfig)


def test_a_job_that_is_there_is_found_and_another_is_not(kubeconfig: Path, answers: Answers):
    answers.get(SUMS, at(1))
    assert client.job("sums", kubeconfig=kubeconfig).status.phase is Phase.TRAINING
    answers.refuse("GET", f"{OF_ML}/other", 404, refusal(404, "rljobs not found", name="other"))
    with pytest.raises(ClusterError) as error:
        client.job("other", kubeconfig=kubeconfig)
    assert error.value.exit is Exit.NOT_FOUND


def test_a_wait_ends_with_the_phase(handle: JobHandle, answers: Answers):
    answers.get(SUMS, at(1))
    answers.get(OF_ML, events(at(2), at(200, Phase.SUCCEEDED)))
    assert handle.wait("Succeeded").phase is Phase.SUCCEEDED
    assert dict(answers.asked[1].query) == {
        "watch": "true",
        "fieldSelector": "metadata.name=sums",
        "resourceVersion": "1",
        "timeoutSeconds": "300",
    }


@pytest.mark.parametrize("phase", [Phase.FAILED, Phase.INVALID, Phase.SUCCEEDED])
def test_a_wait_for_what_will_not_come_ends(handle: JobHandle, answers: Answers, phase: Phase):
    answers.get(SUMS, at(1, phase))
    with pytest.raises(JobEndedError, match=f"ml/sums is {phase}: "):
        handle.wait(Phase.SUSPENDED)


def test_an_old_end_does_not_end_the_wait_for_a_changed_job(handle: JobHandle, answers: Answers):
    answers.get(SUMS, at(1, Phase.INVALID, generation=3))
    answers.get(OF_ML, events(at(200, Phase.SUCCEEDED)))
    assert handle.wait().phase is Phase.SUCCEEDED


def test_a_wait_has_an_end(handle: JobHandle, answers: Answers, pauses: list[float]):
    answers.get(SUMS, at(1))
    answers.get(OF_ML, "")
    with pytest.raises(TimeoutError, match="ml/sums is Training and not Succeeded after 3 s"):
        handle.wait(timeout_s=3)
    assert pauses == [1.0, 1.0, 1.0]
    assert answers.asked[1].query["timeoutSeconds"] == "3"


def test_a_phase_that_does_not_exist_is_an_error(handle: JobHandle):
    with pytest.raises(ValueError, match="Done"):
        handle.wait("Done")


def test_a_stream_yields_each_change_once_until_the_end(handle: JobHandle, answers: Answers):
    answers.get(SUMS, at(1), at(3))
    answers.get(OF_ML, events(at(1), at(2)), events(at(3), at(200, Phase.SUCCEEDED)))
    assert [progress.step for progress in handle.stream()] == [1, 2, 3, 200]


def test_a_stream_outlives_a_cluster_that_is_away(handle: JobHandle, answers: Answers, pauses: list[float]):
    away = (503, refusal(503, "no leader"))
    answers.given["GET", f"/{SUMS}"] = [(200, at(1)), away, away, (200, at(2)), (200, at(9, Phase.FAILED))]
    answers.get(OF_ML, "", events(at(5)), "")
    assert [progress.step for progress in handle.stream()] == [1, 2, 5, 9]
    assert pauses == [1.0, 2.0, 4.0, 1.0]


def test_a_cluster_that_stays_away_ends_a_stream(handle: JobHandle, answers: Answers, pauses: list[float]):
    answers.get(SUMS, at(1))
    answers.refuse("GET", OF_ML, 503, refusal(503, "no leader"))
    with pytest.raises(ClusterError, match="no leader"):
        list(handle.stream())
    assert pauses == [2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0, 30.0]


@pytest.mark.parametrize("last", [events({"code": 410}, kind="ERROR"), events(at(2)) + '{"type": "MODI'])
def test_a_watch_that_breaks_off_begins_anew(handle: JobHandle, answers: Answers, last: str):
    answers.get(SUMS, at(1), at(200, Phase.SUCCEEDED))
    answers.get(OF_ML, last)
    assert [progress.step for progress in handle.stream()][-1] == 200


def test_a_job_that_is_deleted_ends_a_stream(handle: JobHandle, answers: Answers):
    answers.get(SUMS, at(1))
    answers.get(OF_ML, events(at(1), kind="DELETED"))
    with pytest.raises(NoObjectError, match="RLJob ml/sums was deleted"):
        list(handle.stream())


def test_a_missing_permission_is_not_waited_for(handle: JobHandle, answers: Answers, pauses: list[float]):
    answers.get(SUMS, at(1))
    answers.refuse("GET", OF_ML, 403, refusal(403, "forbidden"))
    with pytest.raises(ClusterError, match="no permission to watch rljobs in namespace ml"):
        list(handle.stream())
    assert pauses == []


def test_the_curve_comes_as_points_metrics_and_frame(handle: JobHandle, answers: Answers):
    curve = points(10)
    answers.get(SUMS, raw(SAMPLE.model_copy(update={"curve": curve})))
    assert handle.curve() == curve
    assert handle.metrics()[-2:] == [MetricPoint(10, "reward", 1.0), MetricPoint(10, "accuracy", 0.5)]


def test_a_frame_has_a_row_a_step(handle: JobHandle, answers: Answers):
    pytest.importorskip("pandas")
    answers.get(SUMS, raw(SAMPLE.model_copy(update={"curve": points(10)})))
    frame = handle.to_frame()
    assert frame.index.tolist() == list(range(1, 11))
    assert frame["reward"].iloc[-1] == 1.0
    assert frame["accuracy"].count() == 1


def test_a_frame_of_a_job_without_steps_is_empty(handle: JobHandle, answers: Answers):
    pytest.importorskip("pandas")
    answers.get(SUMS, raw(SAMPLE.model_copy(update={"curve": ()})))
    frame = handle.to_frame()
    assert (len(frame), "reward" in frame) == (0, True)


def test_without_pandas_a_frame_says_what_to_install(handle: JobHandle, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match="to_frame needs pandas: pip install pandas"):
        handle.to_frame()


def test_a_job_is_suspended(handle: JobHandle, answers: Answers):
    answers.given["PATCH", f"/{SUMS}"] = [(200, {})]
    handle.suspend()
    assert answers.asked[0].body == {"spec": {"suspend": True}}


def test_a_suspended_job_is_resumed(handle: JobHandle, answers: Answers):
    job = at(1, Phase.SUSPENDED)
    answers.get(SUMS, {**job, "spec": {**job["spec"], "suspend": True}})
    answers.given["PATCH", f"/{SUMS}"] = [(200, {})]
    handle.resume()
    assert answers.asked[1].body == {"spec": {"suspend": False}}


def test_a_failed_job_gets_another_attempt(handle: JobHandle, answers: Answers):
    answers.get(SUMS, at(1, Phase.FAILED))
    answers.given["PATCH", f"/{SUMS}"] = [(200, {})]
    handle.resume()
    assert answers.asked[1].body == {"metadata": {"resourceVersion": "1"}, "spec": {"recovery": {"resumes": 1}}}


def test_a_job_that_trains_is_not_resumed(handle: JobHandle, answers: Answers):
    answers.get(SUMS, at(1))
    with pytest.raises(NotResumableError, match="only a Failed job"):
        handle.resume()


def test_a_job_is_deleted_once(handle: JobHandle, answers: Answers):
    answers.given["DELETE", f"/{SUMS}"] = [(200, {}), (404, refusal(404, "rljobs not found", name="sums"))]
    handle.delete()
    with pytest.raises(NoObjectError):
        handle.delete()


def test_the_page_begins_with_lines_that_run(kubeconfig: Path, answers: Answers):
    pytest.importorskip("pandas")
    code = (ROOT / "docs" / "python.md").read_text().partition("```python\n")[2].partition("```")[0]
    answers.given["PATCH", f"/{OF_ML}/quickstart"] = [(200, {})]
    answers.get(f"{OF_ML}/quickstart", at(200, Phase.SUCCEEDED))
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, env=environment(kubeconfig), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("200 ")
    assert len(code.splitlines()) <= 15
