"""`rljob chaos`, from its command line to what it asks an API server for."""

import json
from collections.abc import Callable, Collection, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from rljob_api.exits import Exit
from rljob_api.status import JobEngines, Phase
from rljob_cli.chaos.faults import Fault
from rljob_cli.chaos.guard import ALLOWED, LABEL
from rljob_cli.chaos.schedule import Planned
from rljob_cli.chaos.seen import ROLES, Inside, Seen
from rljob_cli.cluster.chaos_verb import InCluster
from rljob_cli.cluster.cluster import ClusterError, connect
from rljob_cli.jobs.job_logs import Log
from rljob_cli.jobs.jobs import Manifest
from rljob_cli.main import app
from rljob_trainer.rundir.journal import Record
from support.api.sample_rljob_status import SAMPLE
from support.cli.answers import ERROR, STDOUT, Answers, page, refusal
from support.cli.sample_job import job, raw

JOB = "apis/rljob.dev/v1alpha1/namespaces/ml/rljobs/sums"
PODS, NAMESPACE = "api/v1/namespaces/ml/pods", "api/v1/namespaces/ml"
DONE = ERROR + b'{"status": "Success"}'
NOTHING = {"processes": {role: [] for role in ROLES}, "hit": None, "step": None, "refused": [], "unequal": []}
Run = Callable[..., Result]


@pytest.fixture
def answers() -> Answers:
    made = Answers()
    made.get(JOB, raw())
    made.get(PODS, page(pod("head", "headgroup"), pod("engines", "rollout"), pod("learner", "trainer")))
    made.get(NAMESPACE, {"metadata": {"name": "ml", "labels": {}}})
    return made


@pytest.fixture
def kubeconfig(answers: Answers, tmp_path: Path) -> Iterator[Path]:
    with answers.served(tmp_path) as file:
        yield file


@pytest.fixture
def rljob(kubeconfig: Path) -> Run:
    """Runs the command against the cluster."""
    return lambda *arguments: CliRunner().invoke(app, ["chaos", "sums", *arguments, "--kubeconfig", str(kubeconfig)])


@pytest.fixture
def world(kubeconfig: Path) -> InCluster:
    return InCluster(connect(kubeconfig, None), job())


def pod(name: str, group: str) -> Manifest:
    labels = {"ray.io/group": group}
    metadata = {"name": name, "namespace": "ml", "labels": labels, "creationTimestamp": "2026-11-21T12:00:00Z"}
    return {"metadata": metadata, "spec": {"containers": [{"name": "ray"}]}, "status": {"phase": "Running"}}


def answered(**what: Any) -> list[bytes]:
    """Return what an exec of the look in a pod sends."""
    return [STDOUT + json.dumps(NOTHING | what).encode(), DONE]


def changes(answers: Answers) -> list[tuple[str, str]]:
    """Return what was asked for beside reading."""
    return [(asked.method, asked.path) for asked in answers.asked if asked.method != "GET" or "exec" in asked.path]


def test_a_job_of_a_namespace_that_is_not_marked_is_not_touched(rljob: Run, answers: Answers):
    refused = rljob("--for", "1m")
    assert refused.exit_code == Exit.USAGE
    assert f"kubectl label namespace ml {LABEL}={ALLOWED}, or give --yes" in refused.stderr
    assert (refused.stdout, changes(answers)) == ("", [])


def test_labels_that_may_not_be_read_allow_nothing(rljob: Run, answers: Answers):
    answers.refuse("GET", NAMESPACE, 403, refusal(403, "namespaces is forbidden"))
    refused = rljob("--for", "1m")
    assert (refused.exit_code, changes(answers)) == (Exit.USAGE, [])
    assert "is not marked for faults (its labels may not be read)" in refused.stderr


@pytest.mark.parametrize("phase", [Phase.SUCCEEDED, Phase.SUSPENDED])
def test_a_job_that_does_not_train_is_refused_even_with_an_agreement(rljob: Run, answers: Answers, phase: Phase):
    answers.get(JOB, raw(SAMPLE.model_copy(update={"phase": phase})))
    refused = rljob("--yes")
    assert (refused.exit_code, refused.stderr) == (Exit.USAGE, f"ml/sums is {phase}; faults need a job that trains\n")
    assert changes(answers) == []


def test_a_dry_run_prints_the_plan_and_touches_nothing(rljob: Run, answers: Answers):
    shown = rljob("--dry-run", "--seed", "4", "--every", "20s", "--for", "1m", "--faults", "engine-kill,head-delete")
    title, *lines = shown.stdout.splitlines()
    assert (shown.exit_code, title) == (Exit.OK, "ml/sums: 3 faults by seed 4")
    assert {tuple(line.split()[1:]) for line in lines[:3]} == {
        ("engine-kill", "engine", "in", "engines"),
        ("head-delete", "head"),
    }
    assert changes(answers) == []
    again = rljob("--dry-run", "--seed", "4", "--every", "20s", "--for", "1m", "--faults", "engine-kill,head-delete")
    assert again.stdout == shown.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--faults", "engine-kil"), "nearest valid: engine-kill"),
        (("--faults", ","), "names no fault"),
        (("--every", "0s"), "nearest valid: 1s"),
        (("--every", "soon"), "'soon' is not a number with a unit"),
        (("--every", "1s", "--for", "1d"), "nearest valid: --every 9s"),
        (("--every", "1m", "--for", "10s"), "no fault fits into --for 10s with --every 60s; nearest valid: --for 120s"),
    ],
)
def test_a_wrong_command_line_names_the_nearest_valid_value(rljob: Run, arguments: tuple[str, ...], says: str):
    refused = rljob(*arguments)
    assert refused.exit_code == Exit.USAGE
    assert says in " ".join(refused.stderr.replace("│", " ").split())


def test_a_job_that_there_is_not_has_its_code(rljob: Run, answers: Answers):
    answers.refuse("GET", JOB, 404, refusal(404, "not found", name="sums"))
    assert rljob("--yes").exit_code == Exit.NOT_FOUND


def test_a_process_is_found_and_signalled_in_a_pod_that_has_one(world: InCluster, answers: Answers):
    answers.frames = answered(hit=77)
    hit = world.hit(Planned(1.0, Fault.ENGINE_STOP, 0.25))
    assert hit is not None and hit.target == "engine 77 in engines"
    (asked,) = [each for each in answers.asked if each.path.endswith("/exec")]
    command = asked.query.getall("command")  # type: ignore[attr-defined]  # aiohttp's
    assert asked.path == f"/{PODS}/engines/exec"
    assert command[:3] == ["python", "-I", "-c"]
    assert command[4:] == ["/runs/arithmetic", "engine", "SIGSTOP", "0.25"]


def test_a_pod_without_such_a_process_is_no_target(world: InCluster, answers: Answers):
    answers.frames = answered()
    assert world.hit(Planned(1.0, Fault.RANK_KILL, 0.0)) is None


@pytest.mark.parametrize(
    ("fault", "method", "path"),
    [
        (Fault.HEAD_DELETE, "DELETE", f"/{PODS}/head"),
        (Fault.POD_DELETE, "DELETE", f"/{PODS}/learner"),
        (Fault.EVICT, "POST", f"/{PODS}/learner/eviction"),
    ],
)
def test_a_pod_is_deleted_or_evicted(world: InCluster, answers: Answers, fault: Fault, method: str, path: str):
    answers.given[method, path] = [(200, {})]
    hit = world.hit(Planned(1.0, fault, 0.9))
    assert hit is not None and hit.target == path.split("/")[5 + 1]
    assert changes(answers) == [(method, path)]
    eviction = answers.asked[-1].body
    assert eviction is None or (eviction["kind"], eviction["metadata"]) == (
        "Eviction",
        {"name": "learner", "namespace": "ml"},
    )


def test_a_pod_that_is_gone_before_the_fault_is_passed_over(world: InCluster, answers: Answers):
    answers.given["DELETE", f"/{PODS}/engines"] = [(200, {})]
    hit = world.hit(Planned(1.0, Fault.POD_DELETE, 0.9))  # the learner's: 404
    assert hit is not None and hit.target == "engines"


def test_a_missing_right_ends_the_command_and_is_named(world: InCluster, answers: Answers):
    answers.refuse("DELETE", f"{PODS}/head", 403, refusal(403, "pods is forbidden"))
    with pytest.raises(ClusterError, match="no permission to delete pods in namespace ml") as refused:
        world.hit(Planned(1.0, Fault.HEAD_DELETE, 0.0))
    assert refused.value.exit is Exit.FORBIDDEN


def test_a_look_has_the_job_and_what_runs_in_its_heads(world: InCluster, answers: Answers, monkeypatch):
    monkeypatch.setattr("rljob_cli.cluster.chaos_verb.POLL_S", 0.0)
    running = {role: [] for role in ROLES} | {"driver": [{"pid": 9, "started": 4}]}
    answers.get(PODS, page(pod("head", "headgroup")))
    answers.frames = answered(processes=running, step={"step": 12, "age": 3.0})
    seen = world.look()
    assert (seen.drivers, seen.job.step) == (1, 12)
    assert seen.stepped_at_s == pytest.approx(seen.at_s - 3.0)


def test_a_head_that_says_something_else_counts_as_silent(world: InCluster, answers: Answers, monkeypatch):
    monkeypatch.setattr("rljob_cli.cluster.chaos_verb.POLL_S", 0.0)
    answers.frames = [STDOUT + b"no python here", DONE]
    assert world.look().heads == {}


def test_an_answer_without_end_is_cut(world: InCluster, answers: Answers, monkeypatch):
    monkeypatch.setattr("rljob_cli.cluster.chaos_verb.POLL_S", 0.0)
    monkeypatch.setattr("rljob_cli.cluster.chaos_verb.LARGEST_ANSWER", 10)
    answers.frames = [STDOUT + b"x" * 100, DONE]
    assert world.look().heads == {}


def test_the_journal_is_read_on_the_head(world: InCluster, answers: Answers):
    answers.frames = [STDOUT + b"{}\n", DONE]
    assert world.journal(()) == [b"{}\n"]
    (asked,) = [each for each in answers.asked if each.path.endswith("/exec")]
    assert asked.query.getall("command")[-1] == "/runs/arithmetic/journal.jsonl"  # type: ignore[attr-defined]


def follows(step: int) -> bytes:
    return Record("continued", step, (), f"iter_{step:07d}", 8, 8, ()).line()


@pytest.mark.parametrize(
    ("known", "largest", "until"),
    [((), 2**20, [30, 20, 10]), ({20}, 2**20, [30]), ({30}, 2**20, []), ((), 220, [30])],
)
def test_full_files_of_the_journal_are_read_once_and_within_a_bound(
    world: InCluster, monkeypatch: pytest.MonkeyPatch, known: Collection[int], largest: int, until: list[int]
):
    files = {"journal.jsonl": follows(30), "until-0000030.jsonl": follows(20), "until-0000020.jsonl": follows(10)}
    files["until-0000010.jsonl"] = b'{"event":"consumed","step":9,"prompts":[]}\n'
    asked: list[str] = []

    def read(cluster: object, of: object, log: Log, follow: bool, tail: int | None) -> Iterator[bytes]:
        asked.append(log.file)
        yield files[log.file.rpartition("/")[2]]

    monkeypatch.setattr("rljob_cli.cluster.verbs.read", read)
    monkeypatch.setattr("rljob_cli.cluster.chaos_verb.LARGEST", largest)
    found = world.journal(known)
    directory = "/runs/arithmetic"
    assert asked[: 1 + len(until)] == [
        f"{directory}/journal.jsonl",
        *(f"{directory}/journal/until-{step:07d}.jsonl" for step in until),
    ]
    assert found[-1] == files["journal.jsonl"]
    assert (len(found), sum(map(len, found)) <= largest) == (1 + len(until), True)


def test_the_grace_period_of_each_pod_is_known(world: InCluster, answers: Answers):
    patient = pod("head", "headgroup")
    patient["spec"]["terminationGracePeriodSeconds"] = 120
    answers.get(PODS, page(patient, pod("learner", "trainer")))
    assert world.pods() == {"head": 120.0, "learner": 30.0}


def test_ctrl_c_says_how_far_it_came(rljob: Run, monkeypatch: pytest.MonkeyPatch):
    def interrupted(world: InCluster) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(InCluster, "look", interrupted)
    shown = rljob("--yes", "--seed", "1")
    assert shown.exit_code == Exit.INTERRUPTED
    assert shown.stdout.splitlines()[-1] == "interrupted after 0 faults; no invariant was broken until then"


def test_an_experiment_that_hits_nothing_is_no_success(rljob: Run, monkeypatch: pytest.MonkeyPatch):
    times = count()
    nothing = {role: frozenset[tuple[int, int]]() for role in ROLES}
    head = Inside(nothing, None, 12, 1.0)
    monkeypatch.setattr(InCluster, "look", lambda world: Seen(next(times), job(engines=JobEngines()), {"head": head}))
    monkeypatch.setattr(InCluster, "hit", lambda world, planned: None)
    monkeypatch.setattr(InCluster, "journal", lambda world, known: [])
    shown = rljob("--yes", "--every", "1s", "--for", "9s", "--faults", "router-kill", "--seed", "1")
    assert "router-kill  left out: nothing runs that it could hit" in shown.stdout
    assert (shown.exit_code, "no fault was made" in shown.stdout) == (Exit.NOT_FOUND, True)
