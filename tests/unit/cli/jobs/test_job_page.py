"""The page of one job: what stands on it in each phase."""

from datetime import timedelta
from io import StringIO

import pytest
from rich.color import Color
from rich.console import Console

from rljob_api.control import Goodput
from rljob_api.exits import Exit
from rljob_api.status import AttemptStatus, ConditionType, NodeFate, Phase, Status
from rljob_cli.jobs.job_page import BAR, as_page
from rljob_cli.jobs.jobs import Job, job_of
from support.api.sample_rljob_status import NOON, SAMPLE
from support.cli.sample_job import NOW, in_phase, job, raw, text


def page(shown: Job, later: timedelta = timedelta(), ascii_only: bool = False) -> str:
    return text(as_page(shown, NOW + later, bars=False, ascii_only=ascii_only))


def test_the_page_shows_all_that_is_known() -> None:
    assert (
        page(job())
        == """\
ml/sums  Training for 10m
step 12 of 200

step      12/200  6%  eta 1h00m
reward    0.12 → 0.44  ▁█
held-out  0.11 → 0.50  ▁█
sets      hard 0.25  easy 0.88
tokens/s  rollout 21.2k   train 60.0k
a step    6.5s: rollout 3.9s  train 2.2s  publish 0.3s
engines   1 of 2 ready
          engine-0  Healthy   for 10m  weights 12
          engine-1  Dead      for 10m  no weights  1 restart  killed by SIGKILL
gpus      8 in use
attempts  2  since 10m, on gsm8k-7f3a1-1
          1  ended 10m ago with 5: lost a peer; saved step 10
recovery  10m ago  engine-1 restarted: killed by SIGKILL; recovered after 14s
saved     step 10, 10m ago: /runs/arithmetic/step-10
files     /runs/arithmetic

next      follow the driver's log: rljob logs sums -n ml -f
          see the curve: rljob plot sums -n ml
"""
    )


EXPLAINED = [
    (Phase.INVALID, ConditionType.ADMITTED, "False", "rljob validate FILE"),
    (Phase.QUEUED, ConditionType.QUOTA_RESERVED, "False", "rljob top -A"),
    (Phase.PROVISIONING, ConditionType.CLUSTER_READY, "False", "rljob why sums -n ml"),
    (Phase.STARTING, ConditionType.TRAINING, "False", "rljob logs sums -n ml -f"),
    (Phase.TRAINING, ConditionType.TRAINING, "True", "rljob plot sums -n ml"),
    (Phase.RECOVERING, ConditionType.DEGRADED, "True", "rljob logs sums -n ml --engine engine-1 --tail 50"),
    (Phase.RECOVERING, ConditionType.TRAINING, "False", "nothing: the operator recovers it"),
    (Phase.SUSPENDING, ConditionType.TRAINING, "True", "kubectl get rljob sums -n ml --watch"),
    (Phase.SUSPENDED, ConditionType.TRAINING, "False", "kubectl patch rljob sums -n ml --type=merge"),
    (Phase.SUCCEEDED, ConditionType.SUCCEEDED, "True", "rljob plot sums -n ml"),
    (Phase.FAILED, ConditionType.FAILED, "True", "rljob logs sums -n ml"),
]


@pytest.mark.parametrize(("phase", "kind", "status", "advice"), EXPLAINED)
def test_every_phase_is_explained_by_its_condition_and_says_what_to_do(
    phase: Phase, kind: ConditionType, status: str, advice: str
) -> None:
    shown = page(in_phase(phase, kind, status))
    assert shown.startswith(f"ml/sums  {phase} for 10m\nbecause\n")
    assert advice in shown.partition("\nnext ")[2]


@pytest.mark.parametrize(
    ("manager", "says", "advice"),
    [
        ("acme.io/queue", "acme.io/queue manages it", "nothing here: acme.io/queue manages it"),
        (None, "no operator has seen it yet", "check that an operator runs"),
    ],
)
def test_a_job_that_no_operator_has_seen_says_who_should(manager: str | None, says: str, advice: str) -> None:
    unseen = raw(Status())
    shown = page(job_of({**unseen, "spec": {**unseen["spec"], "managedBy": manager}}))
    assert f"\n{says}\n" in shown
    assert advice in shown.partition("\nnext ")[2]


def test_no_phase_is_forgotten() -> None:
    assert {phase for phase, *_ in EXPLAINED} == set(Phase)


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (Exit.BAD_INPUT, "fix the files"),
        (Exit.OUT_OF_MEMORY, "lower spec.training.maxTokensPerGpu"),
        (Exit.DIVERGED, "lower spec.training.optimizer.learningRate"),
    ],
)
def test_a_job_that_failed_advises_by_the_last_exit_code(code: Exit, advice: str) -> None:
    attempt = AttemptStatus(number=1, cluster="c", start_after=NOON, started=NOON, ended=NOON, exit_code=code)
    assert advice in page(in_phase(Phase.FAILED, ConditionType.FAILED, attempts=(attempt,)))


def test_what_is_wrong_with_the_learning_is_shown() -> None:
    found = in_phase(Phase.TRAINING, ConditionType.SOUND, "False")
    assert "found " in page(found)
    assert found.condition(ConditionType.SOUND).message in page(found)
    assert "found " not in page(in_phase(Phase.TRAINING, ConditionType.SOUND, "True"))


def test_what_has_ended_holds_no_engines() -> None:
    shown = page(in_phase(Phase.SUCCEEDED, ConditionType.SUCCEEDED))
    assert "engines" not in shown
    assert "8 were in use" in shown
    assert "eta" not in shown


@pytest.mark.parametrize("phase", [Phase.QUEUED, Phase.SUSPENDED, Phase.INVALID])
def test_a_job_without_pods_uses_no_gpus(phase: Phase) -> None:
    shown = page(in_phase(phase, ConditionType.READY, "False"))
    assert "gpus      none in use; 8 wanted" in shown


@pytest.mark.parametrize(
    "phase", [Phase.PROVISIONING, Phase.STARTING, Phase.TRAINING, Phase.RECOVERING, Phase.SUSPENDING]
)
def test_a_job_with_pods_uses_its_gpus(phase: Phase) -> None:
    assert "gpus      8 in use" in page(in_phase(phase, ConditionType.READY, "False"))


def test_a_job_that_failed_before_its_first_attempt_never_used_gpus() -> None:
    assert "8 were never used" in page(in_phase(Phase.FAILED, ConditionType.FAILED, attempts=()))


def test_a_job_that_nobody_has_seen_asks_for_the_operator() -> None:
    shown = page(job_of(raw(Status())))
    assert shown.startswith("ml/sums  Unseen\nno operator has seen it yet\n")
    assert "kubectl get pods -A -l app.kubernetes.io/name=rljob-operator" in shown


def test_a_change_that_the_operator_has_not_seen_is_reported() -> None:
    assert "the operator has not seen the newest change yet" in page(job_of(raw(SAMPLE, generation=3)))


def test_a_job_that_is_being_deleted_says_so() -> None:
    assert page(job_of(raw(SAMPLE, deletionTimestamp="2026-11-21T12:05:00Z"))).startswith("ml/sums  Deleting")


def test_fields_of_a_newer_operator_are_passed_over() -> None:
    newer = raw()
    newer["status"] |= {"weather": "fine"}
    newer["status"]["progress"] |= {"mood": "good"}
    assert job_of(newer) == job()


def test_what_learns_the_data_s_own_responses_shows_perplexities() -> None:
    learning = raw()
    learning["status"]["curve"] = [
        {"step": 0, "heldOutPerplexity": 9.0},
        {"step": 1, "perplexity": 8.0},
        {"step": 2, "perplexity": 2.0, "heldOutPerplexity": 3.0},
    ]
    shown = page(job_of(learning))
    assert "perplexity  8.00 → 2.00  █▁" in shown
    assert "held-out    9.00 → 3.00  █▁" in shown


def test_without_unicode_the_curve_is_drawn_in_ascii() -> None:
    assert "0.12 → 0.44  _@" in page(job(), ascii_only=True)


@pytest.mark.parametrize(("step", "colour"), [(12, Color.parse("#5b9bf8")), (200, Color.parse("green"))])
def test_on_a_terminal_the_steps_are_a_bar_whose_colour_says_whether_all_are_done(step: int, colour: Color) -> None:
    assert SAMPLE.progress is not None
    shown = as_page(job(progress=SAMPLE.progress.model_copy(update={"step": step})), NOW, bars=True, ascii_only=False)
    console = Console(file=StringIO(), width=100, force_terminal=True, color_system="truecolor")
    bars = [part for part in console.render(shown) if set(part.text) == {"━"} and part.style is not None]
    assert bars[0].style is not None and bars[0].style.color == colour
    assert len(bars[0].text) == max(1, BAR * step // 200)


def test_what_was_lost_and_what_is_awaited_is_shown() -> None:
    assert SAMPLE.progress is not None
    changes = {"losses": {"Generate": 3, "Judge": 41}, "waits_for": "the judge http://judge: connection refused"}
    shown = page(job(progress=SAMPLE.progress.model_copy(update=changes)))
    assert "Generate 3  Judge 41" in shown
    assert "the judge http://judge: connection refused" in shown


def test_where_the_time_went_is_a_line() -> None:
    assert SAMPLE.progress is not None
    seconds = {"rollout": 5000.0, "train": 3400.0, "load": 400.0, "recovery": 200.0}
    goodput = Goodput(wall_seconds=9000.0, effective_share=0.9333, seconds=seconds, lost_gpu_seconds=4800.0)
    shown = page(job(progress=SAMPLE.progress.model_copy(update={"goodput": goodput})))
    assert "93.3% of 2.5 h in steps that count; load 4%, recovery 2%; 1.33 GPU-hours lost" in " ".join(shown.split())


def with_nodes(*nodes: dict[str, NodeFate]) -> Job:
    """Return a job with an attempt for each of these; the last one is open."""
    return job(
        attempts=tuple(
            AttemptStatus(number=i, cluster="c", start_after=NOON, ended=None if i == len(nodes) else NOON, nodes=each)
            for i, each in enumerate(nodes, start=1)
        )
    )


def test_the_nodes_of_the_newest_attempt_and_those_that_it_avoids_are_named() -> None:
    shown = page(with_nodes({"gpu-9": NodeFate.USED}, {"gpu-1": NodeFate.USED, "gpu-7": NodeFate.AVOIDED}))
    assert "\nnodes     gpu-1\navoids    gpu-7\n" in shown
    assert "\nnodes     gpu-0  gpu-1  gpu-2  gpu-3  gpu-4  gpu-5  gpu-6  gpu-7  and 2 more\n" in page(
        with_nodes({f"gpu-{i}": NodeFate.USED for i in range(10)})
    )


def test_the_nodes_that_failed_attempts_are_listed_with_how() -> None:
    used, away, drained = NodeFate.USED, NodeFate.UNREACHABLE, NodeFate.EVICTED
    found = with_nodes({"b": drained, "a": away}, {"b": away, "c": used}, {"c": NodeFate.AVOIDED})
    assert found.failed_nodes == (
        ("a", "Unreachable in attempt 1"),
        ("b", "Evicted in attempt 1, Unreachable in attempt 2"),
    )
