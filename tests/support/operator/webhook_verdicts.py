"""What would be wrong with the webhook's answer to a manifest."""

import json

from rljob_api.errors import ManifestError
from rljob_api.reading.manifest import parse
from rljob_operator.capacity.packing import Node
from rljob_operator.capacity.quantities import amounts
from rljob_operator.capacity.snapshot import Snapshot
from rljob_operator.children.children import children
from rljob_operator.children.rollout_pods import RolloutPods
from rljob_operator.identity import ClusterRef, Manifest
from rljob_operator.job.admitted_job import admitted_job
from rljob_operator.job.cluster_shape import num_rollout_pods
from rljob_operator.webhook.review.answer import APPLIED, LONGEST_WARNING, answer, review
from rljob_operator.world.kueue import with_labels
from rljob_operator.world.world import job_of
from support.operator.operator_world import DEFAULTS

NODES = tuple(Node(f"n{i}", amounts({"nvidia.com/gpu": 8, "cpu": 64, "memory": "256Gi", "pods": 110})) for i in (1, 2))
SEEN = Snapshot({}, {}, NODES, ())


def complaint(raw: Manifest) -> str | None:
    """Return what is wrong with the answer to a manifest that is created; None: nothing.

    Raises AssertionError where an API server would see status 500.
    """
    try:
        return _complaint(raw)
    except Exception as error:
        raise AssertionError(json.dumps(raw)) from error


def _complaint(raw: Manifest) -> str | None:
    given = raw["metadata"] if isinstance(raw.get("metadata"), dict) else {}
    texts = {key: given[key] for key in ("labels", "annotations") if is_of_texts(given.get(key))}
    known = {**texts, "name": "sums", "namespace": "ml", "uid": "7f3a1c00-0000-4000-8000-000000000000"}
    known["annotations"] = {APPLIED: json.dumps(raw), **texts.get("annotations", {})}
    stored = {**raw, "metadata": known}
    request = {"uid": "u", "operation": "CREATE", "namespace": "ml", "dryRun": True, "object": stored}
    found = answer(request, DEFAULTS, SEEN)
    json.dumps(review(request, found))
    valid = is_valid({**stored, "spec": with_labels(stored.get("spec"), texts.get("labels", {}))})
    if (found.outcome == "BadManifest") == valid:
        return f"Python says valid={valid}, the webhook {found}: {json.dumps(raw)}"
    if any(len(warning) > LONGEST_WARNING for warning in found.warnings):
        return f"a warning is too long: {found.warnings}"
    if found.refusal is None:
        job = job_of(stored)
        assert job.spec is not None
        admitted = admitted_job(job, job.spec, DEFAULTS)
        json.dumps(children(admitted, ClusterRef("c"), 1, RolloutPods(num_rollout_pods(job.spec))))
    return None


def is_of_texts(given: object) -> bool:
    """Return whether these can be labels or annotations, which an API server checks before all else."""
    return isinstance(given, dict) and all(isinstance(each, str) for each in (*given, *given.values()))


def is_valid(raw: Manifest) -> bool:
    """Return whether Python takes a manifest."""
    try:
        parse(raw)
    except ManifestError:
        return False
    return True
