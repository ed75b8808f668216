"""From text to a job: defaults, types, and what an API server hands back."""

import json
import math
import pickle

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from rljob_api.errors import ABSENT, ManifestError, Problem
from rljob_api.reading import field_lookup, field_types
from rljob_api.reading.manifest import load, nearest_whole, parse, problems
from rljob_api.rules import registry, scope
from rljob_api.sections import CPU_KV_TOKENS, Device, Placement


def test_a_good_manifest_becomes_a_job_with_defaults(good):
    job = load(good)

    assert job.spec.placement is Placement.COLOCATED
    assert job.spec.rollout.sampling.stop == ()
    assert job.spec.training.optimizer.clip_grad == 1.0


def test_a_good_manifest_has_no_problems(good):
    assert problems(good) == ()


def test_a_manifest_with_all_defaults_filled_in_is_as_valid_as_without(good):
    filled = json.loads(load(good).model_dump_json(by_alias=True, exclude_none=True))

    assert parse(filled) == load(good)


def test_a_job_survives_being_written_and_read_again(good):
    job = load(good)

    assert load(job.model_dump_json(by_alias=True, exclude_none=True)) == job


def test_an_object_from_an_api_server_may_have_more_metadata(good):
    content = json.loads(load(good).model_dump_json(by_alias=True, exclude_none=True))
    content["metadata"] |= {"uid": "7", "labels": {"team": "a"}, "managedFields": []}

    assert parse(content).metadata.name == "arithmetic"


def test_a_job_is_read_as_kubectl_shows_it(good):
    shown = json.loads(load(good).model_dump_json(by_alias=True, exclude_none=True)) | {"status": {"phase": "Running"}}

    assert load(json.dumps(shown)) == load(good)


def test_a_whole_number_is_a_number(good):
    assert load(good.replace("maxNewTokens: 2048", "{maxNewTokens: 2048, temperature: 2}")).spec.rollout.sampling


def test_a_manifest_error_survives_pickling(good):
    with pytest.raises(ManifestError) as caught:
        load(good.replace("steps: 200", "steps: 0"))

    copied = pickle.loads(pickle.dumps(caught.value))

    assert copied.problems == caught.value.problems
    assert str(copied) == "spec.training.steps: 0 is less than 1; nearest valid: 1"


def test_absent_stays_itself_when_pickled():
    problem = Problem("spec", ABSENT, "is missing")

    assert pickle.loads(pickle.dumps(problem)).value is ABSENT


def test_long_values_are_shortened():
    said = str(Problem("spec", "x" * 500, "is long"))

    assert len(said) < 90


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("train.jsonl", "x" * 4097, "spec.data.train.jsonl: has more than 4096 characters"),
        ("maxNewTokens: 2048", f"{{maxNewTokens: 2048, stop: {['x'] * 101}}}", "has more than 100 entries"),
    ],
)
def test_texts_and_lists_have_an_end(good, old, new, said):
    (problem,) = problems(good.replace(old, new))

    assert said in f"{problem.field}: {problem.rule}"


def test_every_rule_passes_the_good_manifest(good):
    spec = load(good).spec
    broken = {rule.name: found for rule in registry.RULES if (found := list(rule(spec)))}
    assert not broken, broken


def test_the_kv_cache_has_a_size_of_its_own_on_cpu(good):
    rollout = load(good).spec.rollout

    assert (rollout.kv_tokens(Device.CPU), rollout.kv_tokens(Device.GPU)) == (CPU_KV_TOKENS, None)


def test_held_out_questions_may_be_a_part_of_the_training_file(good):
    same = good.replace("jsonl: test.jsonl", "jsonl: train.jsonl\n      limit: 20")

    assert problems(same) == ()


def test_unlimited_held_out_questions_may_not_be_the_same_task(good):
    task = "reasoningGym: {task: chain_sum, size: 10}"
    same = good.replace("jsonl: test.jsonl", task).replace("jsonl: train.jsonl", task)

    assert [problem.field for problem in problems(same)] == ["spec.data.heldOut.reasoningGym"]


@pytest.mark.parametrize("value", ["null", "3", "[1]", "word", "{a: 1}", "''", "-1", "1.5", "true", ".nan"])
@pytest.mark.parametrize(
    "line",
    ["  steps: 200", "kind: Math", "gpusPerNode: 8", "maxNewTokens: 2048", "learningRate: 1.0e-6", "name: arithmetic"],
)
def test_any_value_anywhere_gives_a_job_or_problems(good, line, value):
    name = line.partition(":")[0]
    text = good.replace(line, f"{name}: {value}")

    assert all(isinstance(problem, Problem) for problem in problems(text))


def test_fields_that_only_a_cluster_reads_are_distinguished(good):
    text = (
        good
        + "\n  suspend: true\n  managedBy: acme.io/queue"
        + "\n  runtime: {image: trainer, env: {A: b}, imagePullPolicy: IfNotPresent}"
    )

    assert scope.only_in_a_cluster(load(text).spec) == ("spec.suspend", "spec.managedBy", "spec.runtime.image")


def test_every_field_that_says_so_is_only_for_a_cluster():
    said = {
        field_lookup.dotted(path) for path, entry in field_lookup.entries().items() if "Only in a cluster" in entry.text
    }

    assert said == {field.at for field in scope.CLUSTER_ONLY}


@pytest.mark.parametrize(
    ("debug", "said"),
    [
        ("{}", ()),
        ("{dumpRollouts: true}", ()),
        ("{rolloutOnly: true}", ("spec.algorithm.entropyCoefficient", "spec.watch.dataWait")),
        ("{replay: runs/a/rollouts}", ("spec.rollout.engines", "spec.evaluation.interval", "spec.watch.dataWait")),
    ],
)
def test_fields_that_a_debug_mode_leaves_without_effect_are_reported(good, debug, said):
    set_too = "algorithm: {entropyCoefficient: 0.01}\n  evaluation: {interval: 5}\n  watch: {dataWait: 0.9}"
    text = f"{good}\n  {set_too}\n  debug: {debug}"

    assert scope.left_out(load(text).spec) == said


def test_every_field_that_a_debug_mode_may_leave_without_effect_exists():
    named = {field_lookup.dotted(path) for path in field_lookup.entries()}

    assert {field.at for field in (*scope.LEARNER_ONLY, *scope.ENGINES_ONLY)} <= named


@pytest.mark.parametrize("header", ["X-Judge", ""])
def test_an_empty_value_of_a_mapping_is_a_problem_of_its_key(good, header):
    raw = yaml.safe_load(good)
    raw["spec"]["reward"] = {"kind": "Remote", "remote": {"url": "http://judge/score", "headersFromEnv": {header: ""}}}
    with pytest.raises(ManifestError) as caught:
        parse(raw)
    (problem,) = caught.value.problems
    assert (problem.field, problem.value) == (f"spec.reward.remote.headersFromEnv.{header}", "")
    assert problem.rule.startswith("is empty; expected headers of the request")


@pytest.mark.parametrize(("amount", "taken"), [("1e-3", True), (2.5e22, True), (5e-324, False), ("1e100", False)])
def test_an_amount_has_at_most_two_digits_of_exponent_which_is_what_the_operator_reads(good, amount, taken):
    raw = yaml.safe_load(good)
    raw["spec"]["runtime"] = {"workerResources": {"requests": {"cpu": amount}}}
    if taken:
        parse(raw)
    else:
        with pytest.raises(ManifestError, match="is not a Kubernetes quantity"):
            parse(raw)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "steps: 200",
            "steps: null",
            "spec.training.steps: null is not a value; expected: rollouts to train on (whole number, at least 1)",
        ),
        (
            "gpusPerNode: 8",
            "gpusPerNode: 8\n    nodes: null",
            "spec.training.nodes: null is not a value; leave the field out for its default 1",
        ),
    ],
)
def test_no_value_leads_to_the_default_if_there_is_one(good, old, new, said):
    assert said in [str(problem) for problem in problems(good.replace(old, new))]


def test_a_value_in_a_mapping_with_the_wrong_type_is_described_in_words(good):
    raw = yaml.safe_load(good)
    raw["spec"]["reward"] = {"kind": "Remote", "remote": {"url": "http://judge/score", "headersFromEnv": {"X": 5}}}
    with pytest.raises(ManifestError) as caught:
        parse(raw)
    assert str(caught.value).startswith("spec.reward.remote.headersFromEnv.X: 5 has the wrong type; expected: text")


WHOLE = [
    path for path, entry in field_lookup.entries().items() if field_types.kind(entry.field).startswith("whole number")
]


@example(("spec", "seed"), 2.0**53)  # seeds end before it, on both sides
@example(("spec", "seed"), -(2.0**53))
@given(st.sampled_from(WHOLE), st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_with_a_point_leads_to_the_nearest_whole_number_that_the_field_takes(path, value):
    near = nearest_whole(path, value)
    assert takes(path, near)
    assert all(abs(other - value) >= abs(near - value) for other in (near - 1, near + 1) if takes(path, other))


@pytest.mark.parametrize("path", [("spec", "training", "steps"), ("spec", "rollout", "engines")])
def test_what_is_no_finite_number_is_near_to_none(path):
    assert [nearest_whole(path, value) for value in (math.inf, math.nan, "2", None)] == [None] * 4


def takes(path, value):
    try:
        field_types.adapter(field_lookup.entries()[path].field).validate_python(value, strict=True)
    except ValidationError:
        return False
    return value is not None
