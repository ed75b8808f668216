"""Random manifests: the webhook always answers, refuses what Python refuses, and takes only what can be built."""

import json
from typing import Any

from rljob_api.errors import ManifestError
from rljob_api.reading.manifest import parse
from rljob_api.sizing.known_models import KNOWN
from rljob_api.sizing.misfits import misfits
from rljob_api.sizing.model_shape import shape
from rljob_operator.capacity.packing import Node
from rljob_operator.capacity.quantities import amounts
from rljob_operator.capacity.snapshot import Snapshot
from rljob_operator.children.children import raycluster
from rljob_operator.children.rollout_pods import RolloutPods
from rljob_operator.identity import ClusterRef
from rljob_operator.job.admitted_job import admitted_job
from rljob_operator.webhook.review.answer import APPLIED, answer
from rljob_operator.world.world import job_of
from support.api.random_manifests import Manifest, manifests
from support.operator.operator_world import DEFAULTS
from support.tables import each_of

NUMBER = 400
NODES = tuple(Node(f"n{i}", amounts({"nvidia.com/gpu": 4, "cpu": 64, "memory": "256Gi", "pods": 110})) for i in (1, 2))
SEEN = Snapshot({}, {}, NODES, ())


def is_valid(raw: Manifest) -> bool:
    """Return whether Python takes a manifest, and the model can give what it asks for, if its sizes are known."""
    try:
        spec = parse(raw).spec
        known = KNOWN.get(spec.model.checkpoint)
        return known is None or not misfits(shape(known), spec)
    except ManifestError:
        return False


def asked(raw: Manifest, **more: Any) -> Any:
    request = {"uid": "u", "operation": "CREATE", "namespace": "ml", "dryRun": True, "object": raw}
    return answer({**request, **more}, DEFAULTS, SEEN)


@each_of(manifests(NUMBER))
def test_the_webhook_agrees_with_python_and_takes_only_what_can_be_built(raw: Manifest):
    applied = {"annotations": {APPLIED: json.dumps(raw)}}
    found = asked({**raw, "metadata": {**raw["metadata"], **applied}})
    assert (found.outcome == "BadManifest") == (not is_valid(raw))
    assert all(len(warning) <= 250 for warning in found.warnings)
    if found.refusal is None:
        job = job_of({**raw, "metadata": {"uid": "7f3a1c00", "namespace": "ml", **raw["metadata"]}})
        assert job.spec is not None
        built = raycluster(admitted_job(job, job.spec, DEFAULTS), ClusterRef("c"), RolloutPods(1))
        assert built["spec"]["workerGroupSpecs"]


@each_of(manifests(NUMBER // 4, seed=7))
def test_a_change_that_brings_nothing_new_is_never_refused(raw: Manifest):
    suspended = {**raw, "spec": {**raw["spec"], "suspend": True}}
    again = {**suspended, "spec": {**suspended["spec"], "scheduling": {"ttlSecondsAfterFinished": 9}}}
    assert asked(again, oldObject=suspended, operation="UPDATE").refusal is None
