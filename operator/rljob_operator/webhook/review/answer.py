"""What the webhook answers to one request of the API server. Pure."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from rljob_api import hub
from rljob_api.errors import ManifestError, Problem
from rljob_api.reading import field_lookup
from rljob_api.sections import Placement, Spec
from rljob_api.sizing.known_models import KNOWN, ON_THE_HUB
from rljob_api.sizing.misfits import misfits
from rljob_api.sizing.model_shape import shape
from rljob_operator.capacity.obstacle import Outcome
from rljob_operator.capacity.snapshot import Snapshot
from rljob_operator.capacity.verdict import verdict
from rljob_operator.identity import Manifest
from rljob_operator.job.admission import admission
from rljob_operator.job.admitted_job import AdmittedJob, admitted_job
from rljob_operator.webhook.review.plan_lines import plan_lines
from rljob_operator.world.claims import Claim, Reason
from rljob_operator.world.world import Defaults, Job, job_of

LONGEST_WARNING = 250
"""an API server cuts off longer ones [characters]"""
MOST_WARNINGS = 15
NO_UID = "00000000-0000-0000-0000-000000000000"
APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
SECTIONS = frozenset(entry.path for entry in field_lookup.entries().values() if entry.section is not None)


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether a request is allowed."""

    refusal: str | None = None
    """for its author; None: it is allowed"""
    warnings: tuple[str, ...] = ()
    outcome: str = "Allowed"
    """for the metric: `Allowed`, `Unchanged`, `BadManifest`, `Never`, `TooMuch`"""


UNCHANGED = Answer(outcome="Unchanged")


def answer(request: Manifest, defaults: Defaults, seen: Snapshot | None) -> Answer:
    """Return the answer to the `request` of an AdmissionReview; `seen` is None while quotas and nodes are not known."""
    raw, old = request.get("object"), request.get("oldObject")
    if raw is None or request["operation"] not in ("CREATE", "UPDATE"):
        return UNCHANGED
    if old and (old.get("spec") == raw.get("spec") or "deletionTimestamp" in raw["metadata"]):
        return UNCHANGED  # labels, finalizers and the end of a job are never refused
    namespace = request.get("namespace", "")
    job = _job(raw, namespace)
    problems = _new(_problems(job), _problems(_job(old, namespace)) if old else ())
    warnings = list(islice(pruned(raw), MOST_WARNINGS))
    if problems:
        return Answer("; ".join(map(str, problems)), _cut(warnings), "BadManifest")
    if job.spec is None:
        return Answer(None, _cut([f"{problem}" for problem in job.problems] + warnings))
    if not job.is_ours:
        return Answer(None, _cut([f"the operator leaves it alone: {job.managed_by} manages it", *warnings]))
    if job.has_begun:  # it has its pods; quotas count them
        return Answer(None, _cut([*_in_kueue(job.spec, old, namespace), *warnings]))
    new = replace(job, status={})
    found = admission(new, defaults)
    admitted = admitted_job(new, job.spec, defaults) if isinstance(found, Claim) else found
    refusal, room = _capacity(admitted, seen)
    if refusal is not None:
        return Answer(refusal, _cut(warnings), "Never")
    warnings += [*_missing(found), *room]
    if request.get("dryRun"):
        warnings += plan_lines(admitted)
    return Answer(None, _cut(warnings))


def review(request: Manifest, given: Answer) -> Manifest:
    """Return the AdmissionReview that carries an answer."""
    response: Manifest = {"uid": request["uid"], "allowed": given.refusal is None}
    if given.refusal is not None:
        response["status"] = {"code": 422, "reason": "Invalid", "message": given.refusal}
    if given.warnings:
        response["warnings"] = list(given.warnings)
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}


def pruned(raw: Manifest) -> Iterator[str]:
    """Yield a warning for each field that the author wrote and the object lacks.

    An API server drops fields that the CRD does not know, so they never reach a webhook. `kubectl apply` keeps the
    author's text in an annotation, which still has them.
    """
    text = (raw["metadata"].get("annotations") or {}).get(APPLIED)
    try:
        applied = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return
    spec = applied.get("spec") if isinstance(applied, Mapping) else None
    if isinstance(spec, Mapping):
        yield from _dropped(spec, raw.get("spec", {}), ("spec",))


def _dropped(applied: Mapping[str, Any], there: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    for name, value in applied.items():
        known = path in SECTIONS
        if name not in there and known and name not in field_lookup.siblings(path):
            meant = field_lookup.meant(path, name)
            nearest = f"; nearest valid: {meant}" if meant else ""
            yield f"{'.'.join((*path, name))}: is unknown and was dropped{nearest}"
        elif isinstance(value, Mapping) and isinstance(there.get(name), Mapping):
            yield from _dropped(value, there[name], (*path, name))


def _job(raw: Manifest, namespace: str) -> Job:
    """Return the job of an object that may lack what the API server adds later."""
    metadata = {"uid": NO_UID, "namespace": namespace, **raw["metadata"]}
    return job_of({**raw, "metadata": {**metadata, "name": metadata.get("name") or metadata["generateName"] + "xxxxx"}})


def _problems(job: Job) -> tuple[Problem, ...]:
    return job.problems if job.spec is None else _of_model(job.spec)


def _of_model(spec: Spec) -> tuple[Problem, ...]:
    """Return where a valid spec asks for more than its model can give; none for a model whose sizes are not known.

    A branch, tag or commit that is named may have other sizes, and is looked at when it is downloaded.
    """
    config = KNOWN.get(spec.model.checkpoint)
    wanted = hub.model(spec.model.checkpoint)
    if config is None and wanted is not None and wanted.revision == hub.NEWEST:
        config = ON_THE_HUB.get(wanted.repo)
    if config is None:
        return ()
    try:
        return misfits(shape(config), spec)
    except ManifestError as error:
        return error.problems


def _new(problems: Sequence[Problem], before: Sequence[Problem]) -> tuple[Problem, ...]:
    """Return the problems that a change brings: what was accepted once does not hinder other changes."""
    known = {str(problem) for problem in before}
    return tuple(problem for problem in problems if str(problem) not in known)


def _capacity(job: AdmittedJob, seen: Snapshot | None) -> tuple[str | None, list[str]]:
    """Return why a job can never get its pods, or a warning that it has to wait."""
    if seen is None:
        return None, []
    # While a cluster is full, every job waits; `rljob why` has the time to search.
    found = verdict(job, seen.of(job.namespace), searches_for_later=False)
    if found.outcome is Outcome.FITS:
        return None, []
    if found.outcome is Outcome.LATER or job.is_suspended:
        word = "it waits for room" if found.outcome is Outcome.LATER else "it can never start"
        return None, [f"{word}: {found.message}"]
    return f"the job can never start: {found.message}", []


def _in_kueue(spec: Spec, old: Manifest | None, namespace: str) -> Iterator[str]:
    """Yield why engines of a job that trains do not follow its spec: Kueue would evict a RayCluster that changes."""
    before = _job(old, namespace).spec if old else None
    if before is None or spec.scheduling.queue is None or spec.placement is not Placement.DISAGGREGATED:
        return
    if before.rollout.engines != spec.rollout.engines:
        text = f"spec.rollout.engines: {spec.rollout.engines} applies from the next attempt"
        yield f"{text}: Kueue has reserved quota for {before.rollout.engines} engines"


def _missing(found: AdmittedJob | Claim) -> Iterator[str]:
    """Yield what the operator's settings lack for this job; they may change, so the manifest is not refused."""
    if isinstance(found, Claim) and found.reason in (Reason.NO_IMAGE, Reason.NOT_SHARED, Reason.NO_KUEUE):
        yield f"it is not admitted yet: {found.message}"


def _cut(warnings: Sequence[str]) -> tuple[str, ...]:
    short = (text if len(text) <= LONGEST_WARNING else f"{text[: LONGEST_WARNING - 1]}…" for text in warnings)
    return tuple(dict.fromkeys(short))[:MOST_WARNINGS]
