"""Settings of the operator for the pods of all jobs, in the form of a manifest's spec. Pure.

    runtime       imagePullSecrets, env
    scheduling    nodeSelector, tolerations
    pods.ROLE     labels, annotations, nodeSelector, tolerations

A job's own settings come first: its variables and labels replace those of the same name; its pull Secrets and
tolerations are added.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rljob_api.errors import ManifestError
from rljob_api.reading.manifest import parse
from rljob_api.sections import PodRole, Pods, Runtime, Scheduling, Spec
from rljob_operator.job.pod_roles import ROLES, role_of

OF_ROLE = ("labels", "annotations", "nodeSelector", "tolerations")
FIELDS: Mapping[str, tuple[str, ...]] = {
    "runtime": ("imagePullSecrets", "env"),
    "scheduling": ("nodeSelector", "tolerations"),
    "pods": ROLES,
}
ANY_JOB: Mapping[str, Any] = {
    "model": {"checkpoint": "any"},
    "data": {"train": {"jsonl": "any"}},
    "reward": {"kind": "ExactMatch"},
    "rollout": {
        "promptsPerStep": 1,
        "samplesPerPrompt": 2,
        "sampling": {"maxNewTokens": 1},
        "tools": {"functions": ["calculator"]},
    },
    "training": {"steps": 1, "optimizer": {"learningRate": 1e-6}},
    "placement": "Disaggregated",
}
"""a job that may have all these settings"""


def job_defaults(text: str) -> dict[str, Any]:
    """Return the settings that a JSON object holds. Raises ValueError, which names the field."""
    given = json.loads(text)
    if not isinstance(given, dict):
        raise ValueError('must be a JSON object, for example {"runtime": {"env": {"HF_HOME": "/cache"}}}')
    for path in _unknown(given):
        raise ValueError(f"{path}: cannot be a default")
    manifest = {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "any"}}
    try:
        parse({**manifest, "spec": {**ANY_JOB, **given}})
    except ManifestError as error:
        raise ValueError("; ".join(map(str, error.problems))) from error
    return given


def _unknown(given: Mapping[str, Any]) -> Iterator[str]:
    """Yield the fields that no default may set."""
    for section, fields in given.items():
        known = FIELDS.get(section)
        if known is None or not isinstance(fields, Mapping):
            yield section
            continue
        yield from (f"{section}.{field}" for field in fields if field not in known)
        roles = fields.items() if section == "pods" else ()
        for role, settings in roles:
            names = settings if isinstance(settings, Mapping) else ("",)
            yield from (f"pods.{role}.{name}" for name in names if name not in OF_ROLE)


def with_defaults(spec: Spec, given: Mapping[str, Any]) -> Spec:
    """Return a job's spec with these settings beside its own."""
    if not given:
        return spec
    runtime = Runtime.model_validate(given.get("runtime", {}))
    scheduling = Scheduling.model_validate(given.get("scheduling", {}))
    own, where = spec.runtime, spec.scheduling
    sections = {
        "runtime": own.model_copy(
            update={
                "image_pull_secrets": _union(runtime.image_pull_secrets, own.image_pull_secrets),
                "env": {**runtime.env, **own.env},
            }
        ),
        "scheduling": where.model_copy(
            update={
                "node_selector": {**scheduling.node_selector, **where.node_selector},
                "tolerations": _union(scheduling.tolerations, where.tolerations),
            }
        ),
    }
    roles = Pods.model_validate(given.get("pods", {}))
    pods: dict[str, Any] = {
        role: _role(default, spec, role_of(spec, role)) for role in ROLES if (default := getattr(roles, role))
    }
    if pods:
        sections["pods"] = (spec.pods or Pods()).model_copy(update=pods)
    return spec.model_copy(update=sections)


def _role(default: PodRole, spec: Spec, own: PodRole) -> PodRole:
    chosen = spec.scheduling.node_selector  # what a job says about all its pods comes before a default of a role
    selector = {label: value for label, value in default.node_selector.items() if label not in chosen}
    return own.model_copy(
        update={
            "labels": {**default.labels, **own.labels},
            "annotations": {**default.annotations, **own.annotations},
            "node_selector": {**selector, **own.node_selector},
            "tolerations": _union(default.tolerations, own.tolerations),
        }
    )


def _union(first: Sequence[Any], second: Sequence[Any]) -> tuple[Any, ...]:
    return (*first, *(each for each in second if each not in first))


def pull_secrets(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the pull Secrets among these settings."""
    return tuple(given.get("runtime", {}).get("imagePullSecrets", ()))


def lines(given: Mapping[str, Any]) -> Iterator[str]:
    """Yield the settings, one a line: `scheduling.nodeSelector: {"pool": "gpu"}`.

    Of variables only the names: all who may try a manifest read these lines, and a value may be a secret.
    """
    for section, fields in given.items():
        for field, value in fields.items():
            is_environment = (section, field) == ("runtime", "env")
            yield f"{section}.{field}: {', '.join(value) if is_environment else json.dumps(value)}"
