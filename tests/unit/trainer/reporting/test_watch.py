"""What goes wrong slowly is reported by its name, when it begins, with the numbers that say so."""

from collections.abc import Callable
from math import exp, inf, sin
from pathlib import Path
from typing import Any

import pytest

from rljob_api import control
from rljob_api.sections import Debug, Device, Precision, Quantization, Watch
from rljob_trainer.control.status_store import StatusStore
from rljob_trainer.control.status_updates import StatusUpdater
from rljob_trainer.gpu_metrics import GpuUse
from rljob_trainer.reporting.events import read_events
from rljob_trainer.reporting.first_step import MEAN_LIMIT
from rljob_trainer.reporting.measurements import repeated, spread
from rljob_trainer.reporting.past import past_of
from rljob_trainer.reporting.reading.history import read_history
from rljob_trainer.reporting.reading.html import render
from rljob_trainer.reporting.records import FindingRecord, StepRecord
from rljob_trainer.reporting.watch import AT_ONCE, NAMES, AnomalyMonitor, anomaly_monitor, findings, held
from rljob_trainer.reporting.watch_limits import EASE, Bounds, eased, eased_bounds
from rljob_trainer.samples import Sample
from support.trainer.synthetic_run import SyntheticRun, finished_run, job

LIMITS = Watch()
BOUNDS = Bounds(mismatch=MEAN_LIMIT[Precision.FP32], oldest=2, data_wait=0.5)


def healthy(step: int, **changes: Any) -> StepRecord:
    """Return a step of a run that learns, with the noise that there always is."""
    noise = sin(7.0 * step)
    values: dict[str, Any] = {
        "reward_mean": 0.8 - 0.6 * exp(-step / 30) + 0.08 * noise,
        "entropy": 0.9 * exp(-step / 80) + 0.1 + 0.02 * noise,
        "grad_norm": 1.0 + 0.8 * abs(noise),
        "truncated": 0.1 + 0.05 * noise,
        "repeated": 0.05 + 0.02 * noise,
        "groups_without_signal": 0.4 + 0.2 * noise,
        "logprob_mismatch": 1e-6,
        "staleness": 1.3 + 0.4 * noise,
        "max_staleness": 2,
        "phase_seconds": {"rollout": 3.0 + noise, "train": 6.0, "publish": 1.0, "evaluate": 20.0},
        "response_length": 20.0,
        "loss": 0.02 * noise,
        "engine_samples": {"engine-0": 32 + round(4 * noise), "engine-1": 32 - round(4 * noise)},
        "expert_load": 1.6 + 0.3 * noise,
        "router_entropy": 1.2,
        "gpus": {"a:0": GpuUse(temperature=60.0), "a:1": GpuUse()},
        "learning_rate": 1e-5,
        "rollout_tokens": 100,
        "train_tokens": 100,
        "version": step,
    }
    return StepRecord(**values | changes, time=float(step), step=step)


def run(length: int, change: Callable[[int], dict[str, Any]] = lambda step: {}) -> list[StepRecord]:
    return [healthy(step, **change(step)) for step in range(1, length + 1)]


def names(steps: list[StepRecord], limits: Watch = LIMITS) -> list[str]:
    return [finding.name for finding in findings(past_of(steps, limits.window), limits, BOUNDS)]


def after(step: int, **values: Any) -> Callable[[int], dict[str, Any]]:
    """Return a change that all steps after this one have."""
    return lambda number: values if number > step else {}


ILLS: dict[str, Callable[[int], dict[str, Any]]] = {
    "RewardCollapse": after(90, reward_mean=0.2),
    "EntropyCollapse": after(90, entropy=0.02),
    "GradientSpike": after(99, grad_norm=60.0),
    "LossDiverging": after(90, loss=-1.2),
    "NonFinite": after(99, skipped=1, grad_norm=None, loss=None),
    "Truncation": after(90, truncated=0.7),
    "Repetition": after(90, repeated=0.6),
    "NoSignal": after(90, groups_without_signal=0.95),
    "EngineImbalance": after(90, engine_samples={"engine-0": 50, "engine-1": 14}),
    "ExpertCollapse": after(90, expert_load=5.0, router_entropy=0.3),
    "GpuThrottled": after(90, gpus={"a:0": GpuUse(hot=0.2, temperature=88.0), "a:1": GpuUse()}),
    "Mismatch": after(90, logprob_mismatch=0.02),
    "Staleness": after(99, max_staleness=3),
    "DataWait": after(90, phase_seconds={"rollout": 7.0, "train": 3.0}),
}


def test_a_healthy_run_is_left_in_peace_at_every_step():
    steps = run(150)
    assert [names(steps[:length]) for length in range(1, 151)] == [[]] * 150


def test_there_is_an_ill_for_every_name():
    assert tuple(ILLS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_an_ill_is_found_by_its_detector_and_by_no_other(name: str):
    steps = run(100, ILLS[name])
    assert names(steps) == [name]
    assert names(steps[:90]) == []


def test_what_learns_the_data_s_own_responses_may_become_sure_of_them():
    assert names(run(100, lambda step: after(90, entropy=0.02)(step) | {"reward_mean": None})) == []


def test_rewards_that_stay_negative_are_no_collapse_and_those_that_fall_are():
    assert names(run(100, lambda step: {"reward_mean": -1.0})) == []
    assert names(run(100, lambda step: {"reward_mean": -1.6 if step > 90 else -1.0})) == ["RewardCollapse"]


@pytest.mark.parametrize(
    ("name", "limits"),
    [
        ("RewardCollapse", {"reward_drop": 0.9}),
        ("EntropyCollapse", {"entropy_share": 0.01}),
        ("GradientSpike", {"gradient_spike": 100.0}),
        ("Truncation", {"truncated": 0.9}),
        ("Repetition", {"repeated": 0.9}),
        ("NonFinite", {"non_finite": 1}),
        ("NoSignal", {"no_signal": 1.0}),
        ("LossDiverging", {"loss_rise": 1.3}),
        ("EngineImbalance", {"engine_imbalance": 1.6}),
        ("ExpertCollapse", {"expert_load": 3.5}),
    ],
)
def test_a_limit_moves_the_verdict(name: str, limits: dict[str, float]):
    assert names(run(100, ILLS[name]), LIMITS.model_copy(update=limits)) == []


@pytest.mark.parametrize(
    ("watch", "precision", "limit"), [({}, "fp32", 1e-3), ({}, "bf16", 0.1), ({"mismatch": 0.2}, "fp32", 0.2)]
)
def test_bf16_may_differ_more_unless_the_manifest_says_how_much(watch, precision, limit):
    spec = job().spec
    training = spec.training.model_copy(update={"precision": Precision(precision)})
    given = spec.model_copy(update={"training": training, "watch": Watch(**watch)})
    assert anomaly_monitor(given).bounds.mismatch == limit


@pytest.mark.parametrize(
    ("kind", "watch", "limit"),
    [(Quantization.FP8, {}, 0.2), (Quantization.FP8, {"mismatch": 0.3}, 0.3), (Quantization.INT4, {}, 1.0)],
)
def test_quantised_engines_may_differ_more(kind, watch, limit):
    spec = job().spec
    rollout = spec.rollout.model_copy(update={"quantization": kind})
    training = spec.training.model_copy(update={"precision": Precision.BF16})
    given = spec.model_copy(update={"rollout": rollout, "training": training, "watch": Watch(**watch)})
    assert anomaly_monitor(given).bounds.mismatch == limit


@pytest.mark.parametrize(("watch", "limit"), [({}, inf), ({"mismatch": 0.2}, 0.2)])
def test_engines_with_older_weights_may_differ_as_much_as_they_do(watch, limit):
    given = job(ahead=True).spec.model_copy(update={"watch": Watch(**watch)})
    assert anomaly_monitor(given).bounds.mismatch == limit


def wait_limit(ahead: bool = False, device: str = "Gpu", **changes: Any) -> float:
    spec = job(ahead=ahead).spec
    runtime = spec.runtime.model_copy(update={"device": Device(device)})
    return anomaly_monitor(spec.model_copy(update={"runtime": runtime, **changes})).bounds.data_wait


def test_only_a_learner_with_gpus_of_its_own_and_samples_ahead_need_not_wait():
    assert [wait_limit(ahead=True), wait_limit(), wait_limit(ahead=True, device="Cpu")] == [0.5, inf, inf]


def test_a_manifest_may_limit_the_wait_of_any_learner_that_has_engines():
    given = Watch(data_wait=0.8)
    alone = [wait_limit(watch=given, debug=debug) for debug in (Debug(rollout_only=True), Debug(replay="runs/a"))]
    assert [wait_limit(watch=given), *alone] == [0.8, inf, inf]


@pytest.mark.parametrize(("ahead", "oldest"), [(True, 1), (False, inf)])
def test_no_token_may_be_older_than_the_bound_of_the_manifest(ahead, oldest):
    assert anomaly_monitor(job(ahead=ahead).spec).bounds.oldest == oldest


EVIDENCE = {
    "RewardCollapse": "mean reward of 10 steps to 100 is 0.2, of 10 steps to 90 it was 0.775; watch.rewardDrop 0.5",
    "NonFinite": "optimizer steps of steps 91 to 100 that were skipped because a gradient was not finite: 1, the first"
    " in step 100, the last in step 100; 1 in the whole run; watch.nonFinite 0",
    "Staleness": "the oldest token of step 100 was made by weights that are 3 steps old; rollout.async.maxStaleness 2",
    "LossDiverging": "mean |loss| of 10 steps to 100 is 1.2, of 10 steps to 70 it was 0.0117; watch.lossRise 1",
    "EngineImbalance": "of 10 steps to 100, engine-0 made 500 samples and engine-1 140; the mean of 2 engines is 320;"
    " watch.engineImbalance 1.5",
    "DataWait": "share of 10 steps to 100 for which the learner waited for samples is 0.7: 7 s of a step, in which it"
    " trained for 3 s; watch.dataWait 0.5",
}


@pytest.mark.parametrize("name", EVIDENCE)
def test_the_evidence_has_the_numbers_the_steps_and_the_limit(name: str):
    (found,) = findings(past_of(run(100, ILLS[name]), LIMITS.window), LIMITS, BOUNDS)
    assert found.evidence == EVIDENCE[name]


def test_a_skipped_step_is_reported_at_once_however_young_the_run_and_until_the_window_has_passed():
    steps = run(20, lambda step: {"skipped": int(step == 2)})
    held = [bool(names(steps[:length])) for length in range(1, 21)]
    assert held == [False] + [True] * 10 + [False] * 9


def test_skipped_steps_of_the_window_are_counted_together():
    steps = run(30, lambda step: {"skipped": 2 * (step in (11, 20, 24))})
    found = findings(past_of(steps[:24], LIMITS.window), LIMITS.model_copy(update={"non_finite": 3}), BOUNDS)
    assert "finite: 4, the first in step 20, the last in step 24; 6 in the whole run" in found[0].evidence
    assert names(steps, LIMITS.model_copy(update={"non_finite": 4})) == []


def test_the_mean_age_of_tokens_has_a_limit_of_its_own_if_the_manifest_gives_one():
    steps, limit = run(100, after(90, staleness=1.9)), LIMITS.model_copy(update={"staleness": 1.8})
    (found,) = findings(past_of(steps, LIMITS.window), limit, BOUNDS)
    assert found.evidence == (
        "mean age of the weights that made the response tokens [steps] of 10 steps to 100 is 1.9; watch.staleness 1.8"
    )
    assert names(steps[:90], limit) == names(steps) == []


def test_a_wait_that_a_publication_has_counts_and_an_evaluation_does_not():
    (step,) = run(1, lambda step: {"phase_seconds": {"publish": 4.0, "train": 4.0, "evaluate": 9.0}})
    waited = step.model_copy(update={"publish_wait_seconds": 2.0})
    assert (step.data_wait, waited.data_wait) == (0.0, 0.25)


def test_one_slow_step_is_one_of_the_window():
    slow = {"phase_seconds": {"rollout": 900.0, "train": 6.0}}
    assert names(run(100, lambda step: slow if step == 95 else {})) == []


def test_an_engine_that_was_away_is_not_compared_and_one_that_made_nothing_is():
    away = run(10, lambda step: {"engine_samples": {"engine-0": 60, **({} if step == 4 else {"engine-1": 4})}})
    idle = run(10, lambda step: {"engine_samples": {"engine-0": 64, "engine-1": 64, "engine-2": 0, "engine-3": 0}})
    assert (names(away), names(idle)) == ([], ["EngineImbalance"])


def test_few_samples_say_nothing_of_a_router():
    def given(number: int) -> dict[str, Any]:
        return {"engine_samples": {"engine-0": 2 * number, "engine-1": 0}}

    assert names(run(10, lambda step: given(4))) == []
    assert names(run(10, lambda step: given(5))) == ["EngineImbalance"]
    assert names(run(9, lambda step: given(50))) == []


@pytest.mark.parametrize(
    ("name", "saved", "words"),
    [
        ("GradientSpike", [80, 90, 99], "is of step 99: to resume from it, set checkpoint.resumeStep to 99"),
        ("GradientSpike", [80, 90, 100], "is of step 90: "),
        ("NonFinite", [90], "is of step 90: "),
        ("LossDiverging", [80, 90], "is of step 80: "),
        ("RewardCollapse", [85, 90, 95], "No checkpoint from before is left"),
        ("EntropyCollapse", [], "No checkpoint from before is left"),
    ],
)
def test_a_finding_of_the_weights_names_the_last_checkpoint_from_before_it(name, saved, words):
    watching, steps = AnomalyMonitor(LIMITS, BOUNDS, keep=2), run(100, ILLS[name])
    found = []
    for step in steps:
        found += watching.after(step)
        if step.step in saved:
            watching.saved(step.step)
    (only,) = found
    assert words.replace("is of", "from before is of") in only.advice


def test_a_finding_of_something_else_names_no_checkpoint():
    watching = AnomalyMonitor(LIMITS, BOUNDS)
    watching.saved(1)
    assert not [each for step in run(100, ILLS["Truncation"]) for each in watching.after(step) if "Step" in each.advice]


def test_the_mean_of_the_window_counts_and_one_bad_step_does_not():
    assert names(run(100, after(99, truncated=1.0, repeated=1.0, logprob_mismatch=0.005))) == []


def test_the_newest_steps_make_a_whole_window_whatever_their_number():
    assert names(run(97, after(87, reward_mean=0.2))) == ["RewardCollapse"]


def test_what_a_run_does_not_measure_is_not_watched():
    unmeasured: dict[str, Any] = dict.fromkeys(["entropy", "grad_norm", "logprob_mismatch", "reward_mean", "repeated"])
    unmeasured |= {"staleness": None, "max_staleness": None, "phase_seconds": {}}
    assert names(run(100, lambda step: unmeasured)) == []


def test_a_window_of_one_step_looks_at_each_step():
    assert names(run(3, after(2, truncated=0.6)), LIMITS.model_copy(update={"window": 1})) == ["Truncation"]


def watched(steps: list[StepRecord]) -> list[tuple[int, str]]:
    watching = AnomalyMonitor(LIMITS, BOUNDS)
    return [(step.step, finding.name) for step in steps for finding in watching.after(step)]


def test_a_finding_is_reported_when_it_begins_and_again_only_after_it_was_gone():
    ill = {"truncated": 1.0}
    found = watched(run(100, lambda step: ill if 20 < step <= 40 or 70 < step <= 90 else {}))
    assert found == [(25, "Truncation"), (75, "Truncation")]


Values = dict[str, Any]
AT_A_LIMIT: dict[str, tuple[Values, Values, Values, Values]] = {
    "RewardCollapse": ({"reward_mean": 1.0}, {"reward_mean": 0.4}, {"reward_mean": 0.53}, {"reward_mean": 0.56}),
    "EntropyCollapse": ({"entropy": 1.0}, {"entropy": 0.05}, {"entropy": 0.105}, {"entropy": 0.115}),
    "LossDiverging": ({"loss": 0.0}, {"loss": 1.2}, {"loss": 0.95}, {"loss": 0.85}),
    "Truncation": ({}, {"truncated": 0.7}, {"truncated": 0.47}, {"truncated": 0.44}),
    "Repetition": ({}, {"repeated": 0.5}, {"repeated": 0.285}, {"repeated": 0.26}),
    "NoSignal": (
        {},
        {"groups_without_signal": 0.95},
        {"groups_without_signal": 0.85},
        {"groups_without_signal": 0.8},
    ),
    "EngineImbalance": (
        {},
        {"engine_samples": {"engine-0": 50, "engine-1": 14}},
        {"engine_samples": {"engine-0": 47, "engine-1": 17}},
        {"engine_samples": {"engine-0": 46, "engine-1": 18}},
    ),
    "ExpertCollapse": ({"expert_load": 1.0}, {"expert_load": 2.5}, {"expert_load": 1.95}, {"expert_load": 1.85}),
    "GpuThrottled": (
        {},
        {"gpus": {"a:0": GpuUse(hot=0.2)}},
        {"gpus": {"a:0": GpuUse(hot=0.095)}},
        {"gpus": {"a:0": GpuUse(hot=0.085)}},
    ),
    "Mismatch": (
        {},
        {"logprob_mismatch": 2e-2},
        {"logprob_mismatch": 9.5e-4},
        {"logprob_mismatch": 8.5e-4},
    ),
    "Staleness": ({}, {"staleness": 1.9}, {"staleness": 1.7}, {"staleness": 1.6}),
    "DataWait": (
        {},
        {"phase_seconds": {"rollout": 7.0, "train": 3.0}},
        {"phase_seconds": {"rollout": 4.7, "train": 5.3}},
        {"phase_seconds": {"rollout": 4.4, "train": 5.6}},
    ),
}
"""values of a healthy run, beyond a limit, within it by less than its tolerance, and clearly within it"""


def standing(*twenties: Values) -> list[set[str]]:
    """Return what stands after each twenty steps with these values."""
    watching, found = AnomalyMonitor(LIMITS.model_copy(update={"staleness": 1.8}), BOUNDS), []
    for step in run(20 * len(twenties), lambda number: twenties[(number - 1) // 20]):
        watching.after(step)
        found.append({finding.name for finding in watching.standing})
    return found[19::20]


@pytest.mark.parametrize("name", AT_A_LIMIT)
def test_a_value_near_its_limit_neither_begins_a_finding_nor_ends_one(name: str):
    healthy, beyond, near, clear = AT_A_LIMIT[name]
    assert standing(healthy, near, beyond, near, clear) == [set(), set(), {name}, {name}, set()]


def test_every_finding_with_a_limit_of_means_has_a_tolerance():
    assert AT_A_LIMIT.keys() == set(NAMES) - AT_ONCE
    limits = LIMITS.model_copy(update={"staleness": 1.8})
    same = {name for name in Watch.model_fields if getattr(eased(limits), name) == getattr(limits, name)}
    assert same == {"window", "gradient_spike", "non_finite", "mismatch", "data_wait"}
    assert (eased(LIMITS).staleness, eased_bounds(BOUNDS).oldest) == (None, BOUNDS.oldest)


def test_what_never_stood_does_not_begin_at_the_limit_of_its_end():
    near = run(100, after(60, truncated=0.47))
    assert [found.name for found in held({"Truncation"}, past_of(near, LIMITS.window), LIMITS, BOUNDS)] == [
        "Truncation"
    ]
    assert held({"Repetition"}, past_of(near, LIMITS.window), LIMITS, BOUNDS) == ()


def test_a_value_that_stays_at_its_limit_is_reported_once():
    limit = LIMITS.truncated
    around = [limit * (1 + EASE / 2 * (1 if step // 10 % 2 else -1)) for step in range(201)]
    found = watched(run(200, lambda step: {"truncated": around[step]}))
    assert [name for _, name in found] == ["Truncation"]


def test_what_holds_is_known_with_the_numbers_of_its_beginning_until_it_is_over():
    watching, standing = AnomalyMonitor(LIMITS, BOUNDS), []
    for step in run(60, lambda step: {"truncated": 1.0, "repeated": 0.9} if 20 < step <= 40 else {}):
        watching.after(step)
        standing.append(watching.standing)
    begun = standing[24]
    assert [finding.name for finding in standing[39]] == ["Truncation", "Repetition"]
    assert [finding for finding in standing[39] if finding in begun] == list(begun) != []
    assert standing[-1] == ()


def test_the_driver_shows_what_holds(tmp_path: Path):
    synthetic = SyntheticRun(tmp_path, steps=40)
    for step in range(1, 13):
        synthetic.take(step)
    store, report = StatusStore(control.Status()), synthetic.report
    StatusUpdater(store, report.progress, report.saved, report.findings, tuple, report.engines).update()
    found = store.status.findings
    assert [finding.name for finding in found] == ["Mismatch"]
    assert "watch.mismatch" in found[0].evidence


def test_a_run_reports_it_in_events_log_and_report(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    directory = finished_run(tmp_path)
    history = read_history(directory)
    found = [each for each in read_events(directory / "events.jsonl") if isinstance(each, FindingRecord)]
    assert history.findings == tuple(found)
    assert len([each for each in caplog.records if "action=watch" in each.message]) >= len(found) > 0
    page = render(history)
    assert found[0].name in page
    assert "where to look" in page


def test_a_resumed_run_does_not_report_again_what_still_holds(tmp_path: Path):
    before = SyntheticRun(tmp_path, steps=40)
    for step in range(1, 21):
        before.take(step)
    resumed = SyntheticRun(tmp_path, steps=40, attempt=2, first=20)
    for step in range(21, 33):
        resumed.take(step)
    assert [(each.step, each.name) for each in read_history(tmp_path).findings] == [(10, "Mismatch"), (23, "NonFinite")]


def sample(tokens: tuple[int, ...]) -> Sample:
    return Sample(tokens, (0.0,) * len(tokens), "", 0, "stop", "engine-0")


def test_repetition_is_counted_in_responses_from_all_over_the_step():
    short, long = [sample((1, 2))] * 9, [sample(tuple(range(n, n + 9))) for n in range(200)]
    counted = spread([*short, *long])
    assert 32 < len(counted) <= 64
    assert counted[0] == long[0]
    assert counted[-1] in long[-4:]
    assert spread(short) == []
    assert repeated(long[0].tokens_T) == 0.0
