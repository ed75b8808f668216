"""`rljob why JOB` of a job that trains: what its steps take, phase by phase, beside what they usually take."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from rljob_api.exits import Exit
from rljob_api.status import AttemptFailure, Condition, ConditionType, Phase, Status
from rljob_cli.cluster import verbs as cluster_verbs
from rljob_cli.cluster.cluster import ClusterError, NotPossibleError
from rljob_cli.cluster.verbs import Scope
from rljob_cli.jobs.jobs import Job, Manifest, job_of
from rljob_trainer.reporting.records import RunRecord, StepRecord
from support.api.sample_rljob_status import NOON, SAMPLE
from support.cli.sample_job import raw
from support.trainer.synthetic_run import job as training_job

DIRECTORY = "/runs/sums"
FAST = {"rollout": 3.0, "train": 2.0, "publish": 0.5}
SLOW = {"rollout": 9.0, "train": 2.0, "publish": 0.5, "checkpoint": 4.0}
HEAD = {"metadata": {"name": "head", "namespace": "ml", "labels": {}}}


def record(slow: bool = True, steps: int = 40) -> bytes:
    """Return the record of a run whose last ten steps are slow, and a line that is being written."""
    manifest = training_job(200).model_dump(mode="json", by_alias=True, exclude_none=True)
    start = RunRecord(time=0.0, job="sums", model="m", task="t", steps=200, attempt=1, step=0, manifest=manifest)
    done = [
        StepRecord(
            time=float(number),
            step=number,
            reward_mean=number / 100,
            entropy=0.9,
            rollout_tokens=3000,
            train_tokens=4000,
            phase_seconds=SLOW if slow and number > steps - 10 else FAST,
        )
        for number in range(1, steps + 1)
    ]
    return b"".join(each.model_dump_json().encode() + b"\n" for each in (start, *done)) + b'{"kind": "st'


class Cluster:
    """A cluster whose head has a record, which may be read or not."""

    namespace = "ml"

    def __init__(self, status: Status, written: bytes, heads: int = 1, refusal: ClusterError | None = None) -> None:
        self._raw, self._written, self._heads, self._refusal = raw(status), written, heads, refusal
        self.commands: list[str] = []

    def raw_job(self, namespace: str, name: str) -> Manifest:
        return self._raw

    def job(self, namespace: str, name: str) -> Job:
        return job_of(self._raw)

    def readable(self, path: str, selector: str = "", fields: str = "") -> list[Manifest] | None:
        return [] if "rayclusters" in path else None

    def heads(self, job: Job) -> list[Manifest]:
        return [HEAD] * self._heads

    def run(self, pod: Manifest, command: list[str], is_over: Any) -> Iterator[bytes]:
        if self._refusal:
            raise self._refusal
        self.commands.append(command[-1])
        half = len(self._written) // 2
        yield from (self._written[:half], self._written[half:])


def trains(**changes: Any) -> Status:
    fine = Condition(
        type=ConditionType.TRAINING, status="True", last_transition_time=NOON, reason="Training", message="step 40"
    )
    given = {"phase": Phase.TRAINING, "conditions": (fine,), "directory": DIRECTORY, "curve": (), **changes}
    return SAMPLE.model_copy(update=given)


def why(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> tuple[str, dict[str, Any]]:
    cluster_verbs.why(Scope(cluster, "ml"), "sums", as_json=False)  # type: ignore[arg-type]  # has what is needed
    shown = capsys.readouterr().out
    cluster_verbs.why(Scope(cluster, "ml"), "sums", as_json=True)  # type: ignore[arg-type]  # has what is needed
    return shown, json.loads(capsys.readouterr().out)


def test_a_slow_job_says_which_phase_is_slow_and_compared_with_what(capsys):
    cluster = Cluster(trains(), record())
    shown, value = why(cluster, capsys)
    said = (
        "it is slow: the last 10 steps took 12s each, steps 1 to 10 5.5s; most of it is rollout, 9.0s instead of 3.0s"
    )
    assert shown.splitlines()[0] == f"ml/sums is Training: {said}"
    assert value["sentence"] == said
    assert (value["namespace"], value["name"], value["phase"], value["blocker"]) == (
        "ml",
        "sums",
        "Training",
        "Training",
    )
    assert value["since"] == NOON.timestamp()
    assert value.keys() == {"namespace", "name", "phase", "blocker", "since", "sentence", "evidence", "numbers"}
    assert {"kind", "text"} == set().union(*value["evidence"])
    numbers = {each["name"].strip(): (each["now"], each["before"]) for each in value["numbers"]}
    assert (numbers["rollout"], numbers["train"], numbers["publish"]) == ((9.0, 3.0), (2.0, 2.0), (0.5, 0.5))
    assert numbers["step"] == (11.5, 5.5)
    assert numbers["checkpoint, each"] == (4.0, 4.0)
    assert numbers["wait for samples"] == (9.0, 3.0)
    assert any(line.split() == ["rollout", "9", "s", "3", "s"] for line in shown.splitlines())
    assert cluster.commands == [f"{DIRECTORY}/events.jsonl"] * 2


def test_the_last_step_of_the_status_is_not_shown_beside_the_record_of_all(capsys):
    _, value = why(Cluster(trains(), record()), capsys)
    assert {each["kind"] for each in value["evidence"]} & {"step", "speed", "reward"} == set()
    _, coarse = why(Cluster(trains(), record(), heads=0), capsys)
    assert "step" in {each["kind"] for each in coarse["evidence"]}
    assert coarse["numbers"] == []


def test_a_job_as_fast_as_usual_keeps_its_own_sentence(capsys):
    _, value = why(Cluster(trains(), record(slow=False)), capsys)
    assert value["sentence"] == "step 40"
    assert value["numbers"][0] == {"name": "step", "now": 5.5, "before": 5.5, "unit": "s"}


def test_what_is_wrong_comes_before_what_is_slow(capsys):
    failure = AttemptFailure(code="TrainOutOfMemory", title="the learner", remedy="lower it", evidence="log:7 CUDA")
    attempts = (*SAMPLE.attempts[:-1], SAMPLE.attempts[-1].model_copy(update={"failure": failure}))
    _, value = why(Cluster(trains(phase=Phase.FAILED, attempts=attempts), record()), capsys)
    assert value["sentence"] == "TrainOutOfMemory: the learner; lower it"
    assert value["numbers"]


@pytest.mark.parametrize(
    ("cluster", "says"),
    [
        (
            Cluster(
                trains(), b"", refusal=NotPossibleError("403 Forbidden (needs create on pods/exec)", Exit.FORBIDDEN)
            ),
            "the record of its steps cannot be read: 403 Forbidden (needs create on pods/exec)",
        ),
        (Cluster(trains(), b"nonsense\n"), "the record of its steps cannot be read: events.jsonl:1: not a record"),
        (Cluster(trains(), b""), "the record of its steps cannot be read: events.jsonl has no record of a start"),
    ],
)
def test_without_the_record_the_status_answers_and_the_reason_is_said(cluster: Cluster, says: str, capsys):
    _, value = why(cluster, capsys)
    found = {each["kind"]: each["text"] for each in value["evidence"]}
    assert found["steps"].startswith(says)
    assert (value["sentence"], "step" in found) == ("step 40", True)


@pytest.mark.parametrize("status", [trains(phase=Phase.SUCCEEDED), trains(progress=None), trains(directory=None)])
def test_nothing_is_read_of_a_job_that_does_not_train(status: Status, capsys):
    cluster = Cluster(status, record())
    why(cluster, capsys)
    assert cluster.commands == []
