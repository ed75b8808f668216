"""What the CRD makes of RLJobs in a real API server, apart from the rules that Python has too."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from rljob_api.errors import ManifestError
from rljob_api.generated import crd
from rljob_api.reading.document import document
from rljob_api.sections import Spec
from rljob_api.status import Status
from support.api.bad_manifests import Case, cases, table
from support.api.judged_rljobs import Manifest, RLJobs
from support.api.random_manifests import EXAMPLES, SCHEMAS, at, put, remove
from support.api.sample_rljob_status import SAMPLE

ONLY_IN_PYTHON = (
    "spec.checkpoint.remote",
    "spec.data.evaluationSets[",
    "spec.data.heldOut.reasoningGym",
    ".reasoningGym.task",
    ".reasoningGym.config.",
    "spec.extraArgs.",
    "spec.reward.remote.headersFrom",
    "spec.rollout.agent",
    "spec.rollout.tools.functions[",
    "spec.rollout.async.partial",
    "spec.runtime.env",
    "spec.runtime.volumeMounts[0].name",
    "spec.runtime.headResources.",
    "spec.runtime.workerResources.",
    "spec.pods.head.",
    "spec.pods.trainer.",
    "spec.pods.rollout.",
    "spec.pods.tools.template.",
)
OF_NODES = "cannot be verified on nodes with"
"""labels of nodes, which are a free mapping, decide on another field"""
OF_PAGES = "is the address of a page of the hub"
"""a URL like others: RE2 has no pattern that leaves it out"""
NULL = "nothing behind a colon"
"""Python refuses null; to an API server it means absent"""

STATUS = SAMPLE.model_dump(mode="json", by_alias=True, exclude_none=True)
FROZEN = [
    path
    for path, _ in crd.leaves(Spec, "")
    if path.partition(".")[0] not in (*crd.CHANGEABLE, crd.FIXED)
    and len(SCHEMAS.get(f"spec.{path}", {}).get("enum", "any")) > 1
]
"""fields that can change, but not in flight"""
OTHER: dict[str, Any] = {
    "data.heldOut": None,
    "data.evaluationSets": [{"name": "other", "jsonl": "other.jsonl"}],
    "data.train.reasoningGym": {"task": "chain_sum", "size": 1},
    "algorithm.critic": {"learningRate": 0.5},
    "algorithm.teacher": {"checkpoint": "other"},
    "algorithm.dualClip": 3,
    "algorithm.dynamicSampling": {},
    "algorithm.importanceSampling": {"kind": "Mask"},
    "reward.parts": [{"name": "other", "kind": "F1"}],
    "reward.remote": {"url": "http://other"},
    "reward.memoryMib": 512,
    "algorithm.kl": {"coefficient": 0.5},
    "algorithm.overlong": {"buffer": 8},
    "rollout.agent": {"function": "other:run"},
    "rollout.async": {},
    "rollout.tools": {"functions": ["calculator"]},
    "tracking.wandb": {"project": "other"},
    "runtime.volumes": [{"name": "other", "emptyDir": {}}],
    "runtime.volumeMounts": [{"name": "other", "mountPath": "/other"}],
}
OTHER_OF_TYPE: dict[str, Any] = {"string": "other", "integer": 7, "number": 0.375, "array": [7], "object": {"other": 1}}


def good() -> Manifest:
    content: Manifest = yaml.safe_load(table()["good"])
    return content


@pytest.fixture(scope="module")
def running(rljobs: RLJobs) -> Iterator[str]:
    """The name of a job whose first attempt has begun."""
    with rljobs.existing(good(), "running", {"attempt": 1}):
        yield "running"


@pytest.fixture(scope="module")
def waiting(rljobs: RLJobs) -> Iterator[str]:
    """The name of a job that waits for its first attempt."""
    with rljobs.existing(good(), "waiting", {"phase": "Queued"}):
        yield "waiting"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_accepted(rljobs: RLJobs, path):
    assert rljobs.judge(document(path.read_text())).causes == ()


def documents() -> list[Case]:
    """Return the bad manifests that reach an API server: of the right kind, and readable."""
    return [case for case in cases() if is_rljob(case.text)]


def only_in_python(field: str) -> bool:
    """Whether an API server does not judge a field. It does judge the name of an evaluation set, the key of a list."""
    is_key = field.startswith("spec.data.evaluationSets[") and field.endswith("].name")
    return any(place in field for place in ONLY_IN_PYTHON) and not is_key


def is_rljob(text: str) -> bool:
    try:
        content = document(text)
    except ManifestError:
        return False
    return (content.get("apiVersion"), content.get("kind")) == (f"{crd.GROUP}/{crd.VERSION}", crd.KIND)


@pytest.mark.parametrize("case", documents(), ids=lambda case: case.name)
def test_a_bad_manifest_is_refused_unless_only_python_can_know(rljobs: RLJobs, case: Case):
    elsewhere = all(
        only_in_python(said.partition(": ")[0]) or any(words in said for words in (OF_NODES, OF_PAGES))
        for said in case.says
    )

    accepted = rljobs.judge(document(case.text)).stored is not None

    assert accepted == (elsewhere or case.name == NULL)


def test_null_means_absent(rljobs: RLJobs):
    content = good()
    put(content, "spec.training.nodes", None)
    put(content, "spec.rollout.contextLength", None)

    stored = rljobs.judge(content).stored

    assert stored is not None
    assert stored["spec"]["training"]["nodes"] == 1
    assert "contextLength" not in stored["spec"]["rollout"]


@pytest.mark.parametrize("path", FROZEN)
def test_what_a_run_begins_with_cannot_change_in_flight(rljobs: RLJobs, running: str, path: str):
    answer = rljobs.patch(running, change(path), dry_run="All")

    part, _, name = path.partition(".")
    said = [cause for cause in answer.causes if "the run has begun" in cause[1]]
    if path == crd.SCALED:
        assert [field for field, _ in said] == [f"spec.{path}"]
    else:
        assert said == [(f"spec.{part}", begun(name))]


def test_all_that_cannot_change_is_named(rljobs: RLJobs, running: str):
    patch = {"spec": {"rollout": {"routerPolicy": "Random", "sampling": {"topK": 7}}, "seed": 5}}

    answer = rljobs.patch(running, patch, dry_run="All")

    assert answer.causes == (("spec.seed", begun()), ("spec.rollout", begun("sampling.topK", "routerPolicy")))


def begun(*fields: str) -> str:
    changed = " ".join(filter(None, ["cannot change", *fields]))
    return f"{changed}: the run has begun, status.attempt is 1; make another RLJob"


@pytest.mark.parametrize("path", FROZEN)
def test_everything_can_change_before(rljobs: RLJobs, waiting: str, path: str):
    answer = rljobs.patch(waiting, change(path), dry_run="All")

    assert "cannot change" not in answer.message


def change(path: str) -> Manifest:
    """Return a patch that gives a field another value."""
    schema = SCHEMAS.get(f"spec.{path}", {})
    present = at(good(), ["spec", *path.split(".")])
    options = [*schema.get("enum", ()), *((False, True) if schema.get("type") == "boolean" else ())]
    others = [option for option in options if option not in (present, schema.get("default"))]
    texts = schema.get("items", {}).get("type") == "string"
    value = ["x"] if texts else (others or [OTHER_OF_TYPE.get(schema.get("type", ""))])[0]
    patch: Manifest = {}
    put(patch, f"spec.{path}", OTHER.get(path, value))
    return patch


@pytest.mark.parametrize("changed", [{"recovery": {"engineRestarts": 9, "healthFailures": 5}}, {"suspend": True}])
def test_what_the_operator_reads_at_every_turn_can_change_in_flight(rljobs: RLJobs, running: str, changed: Manifest):
    answer = rljobs.patch(running, {"spec": changed}, dry_run="All")

    assert answer.causes == ()
    assert answer.stored is not None


@pytest.mark.parametrize(("before", "after"), [(None, "acme.io/a"), ("acme.io/a", "acme.io/b"), ("acme.io/a", None)])
def test_the_controller_of_a_job_can_never_change(rljobs: RLJobs, before: str | None, after: str | None):
    content = good()
    put(content, "spec.managedBy", before)
    with rljobs.existing(content, "managed", {"phase": "Queued"}):
        changed = rljobs.patch("managed", {"spec": {"managedBy": after}}, dry_run="All")
        other = rljobs.patch("managed", {"spec": {"seed": 3}}, dry_run="All")

    assert changed.causes == (("spec.managedBy", crd.NEVER_CHANGES),)
    assert other.causes == ()


@pytest.mark.parametrize("name", ["queue", "Acme.io/queue", "acme.io/"])
def test_the_controller_s_name_is_a_domain_and_a_path(rljobs: RLJobs, name: str):
    content = good()
    put(content, "spec.managedBy", name)

    assert [field for field, _ in rljobs.judge(content).causes] == ["spec.managedBy"]


def test_a_run_scales_its_engines_if_they_have_gpus_of_their_own(rljobs: RLJobs):
    content = good()
    put(content, "spec.placement", "Disaggregated")
    put(content, "spec.training.gpusPerNode", 1)
    with rljobs.existing(content, "scaled", STATUS):
        scale = rljobs.patch("scaled", {"spec": {"replicas": 3}}, rljobs.objects.patch_namespaced_custom_object_scale)
        edited = rljobs.patch("scaled", {"spec": {"rollout": {"engines": 4}}}, dry_run="All")

    assert scale.stored is not None
    assert scale.stored["spec"] == {"replicas": 3}
    assert scale.stored["status"] == {"replicas": 2, "selector": "rljob.dev/job=arithmetic"}
    assert edited.causes == ()


def test_engines_that_share_the_learners_gpus_do_not_scale(rljobs: RLJobs, running: str):
    scale = rljobs.patch(running, {"spec": {"replicas": 3}}, rljobs.objects.patch_namespaced_custom_object_scale)

    assert scale.stored is None
    assert "colocated engines sit on the learner's GPUs; suspend the job first" in scale.message


@pytest.mark.parametrize(
    ("engines", "wanted", "nearest"),
    [(4, 6, None), (4, 2, None), (3, 5, None), (4, 5, "engines 4 or 6"), (3, 1, "engines 3"), (1, 2, "engines 1")],
    ids=str,
)
def test_a_run_scales_by_whole_nodes(rljobs: RLJobs, engines: int, wanted: int, nearest: str | None):
    content = good()
    put(content, "spec.placement", "Disaggregated")
    put(content, "spec.rollout.engines", engines)
    put(content, "spec.training.gpusPerNode", 2)
    with rljobs.existing(content, "whole", STATUS):
        answer = rljobs.patch("whole", {"spec": {"rollout": {"engines": wanted}}}, dry_run="All")

    said = (
        f"cannot change from {engines} to {wanted}: the run has begun, and it scales by whole nodes of 2 engines;"
        f" suspend the job first (spec.suspend); nearest valid: {nearest}"
    )
    assert answer.causes == ((("spec.rollout.engines", said),) if nearest else ())


@pytest.mark.parametrize("placement", ["Colocated", "Disaggregated"])
def test_a_suspended_job_takes_any_number_of_engines(rljobs: RLJobs, placement: str):
    content = good()
    put(content, "spec.placement", placement)
    put(content, "spec.training.gpusPerNode", 2)
    with rljobs.existing(content, "asleep", {"attempt": 1, "phase": "Suspended"}):
        answer = rljobs.patch("asleep", {"spec": {"rollout": {"engines": 2}}}, dry_run="All")

    assert answer.causes == ()


def test_a_whole_status_is_stored_shown_and_selected(rljobs: RLJobs):
    with rljobs.existing(good(), "shown", STATUS) as stored:
        selected = [rljobs.selected(f"status.phase={phase}") for phase in ("Training", "Failed")]
        columns = rljobs.columns("shown")

    assert Status.model_validate(stored["status"]) == SAMPLE
    assert selected == [["shown"], []]
    assert columns.pop("Age").endswith("s")
    assert columns == {
        "Name": "shown",
        "Phase": "Training",
        "Ready": "True",
        "Step": 12,
        "Of": 200,
        "Reward": 0.4375,
        "Engines": 1,
        "Restarts": 1,
        "GPUs": 8,
        "Accuracy": 0.5,
        "Tokens/s": 21200,
        "Version": 12,
        "ETA": 3600,
        "Attempt": 2,
        "Saved": 10,
        "Message": "step 12 of 200",
    }


def test_a_status_without_a_field_of_the_models_is_refused(rljobs: RLJobs, waiting: str):
    change = {"status": {"phases": "Training"}}

    answer = rljobs.patch(waiting, change, rljobs.objects.patch_namespaced_custom_object_status)

    assert 'unknown field "status.phases"' in answer.message


def test_the_largest_object_stays_within_what_cel_may_cost(rljobs: RLJobs):
    with rljobs.existing(largest(), "largest", {"attempt": 1}):
        edited = rljobs.patch("largest", {"spec": {"recovery": {"engineRestarts": 9}}}, dry_run="All")
        refused = rljobs.patch("largest", {"spec": {"data": {"systemPrompt": "y" * 65536}}}, dry_run="All")

    assert edited.causes == ()
    assert [field for field, _ in refused.causes] == ["spec.data"]


def largest() -> Manifest:
    """Return a valid object with the longest texts, lists and mappings that there can be."""
    content = good()
    for path, schema in SCHEMAS.items():
        if schema["type"] == "string" and "enum" not in schema and not path.startswith("spec.algorithm.teacher."):
            put(content, path, "x" * schema["maxLength"])
    for source in ("train.parquet", "train.reasoningGym", "heldOut.parquet", "heldOut.reasoningGym"):
        remove(content, f"spec.data.{source}")
    put(content, "spec.data.heldOut.jsonl", "y" * 4096)
    put(content, "spec.data.promptTemplate", "{question}" + "x" * 65526)
    put(content, "spec.reward", {"kind": "Python", "function": "a" * 4094 + ":b"})
    put(content, "spec.algorithm.name", "a" * 4094 + ":b")
    put(content, "spec.rollout.generate", "a" * 4094 + ":b")
    put(content, "spec.weightSync.transport", "Disk")
    remove(content, "spec.pods.rollout")  # only for Disaggregated
    remove(content, "spec.pods.tools")  # only for tools in pods
    put(content, "spec.managedBy", f"{'a' * (SCHEMAS['spec.managedBy']['maxLength'] - 2)}/b")
    put(content, "spec.pods.gpuResource", f"{'a' * 253}/{'b' * 63}")
    put(content, "spec.pods.sameDomain", f"{'a' * 253}/{'b' * 63}")
    put(content, "spec.rollout.sampling.stop", ["x" * 4096] * 100)
    put(content, "spec.rollout.sampling.stopTokenIds", [2**31 - 1] * 1000)
    put(content, "spec.extraArgs.sglang", {f"key-{number}": "x" * 100 for number in range(1000)})
    return content


def test_explain_shows_the_flag_the_unit_and_the_default(rljobs: RLJobs):
    said = (
        rljobs.explained("spec", "rollout", "sampling", "maxNewTokens"),
        rljobs.explained("spec", "training", "nodes"),
    )

    assert said[0] == (
        "longest response [tokens]; with `sft`, longest that the data may have: in a whole conversation, all that "
        "follows the first question. slime: --rollout-max-response-len"
    )
    assert said[1] == "machines of the learner. slime: --actor-num-nodes. Default: 1"
