"""An RLJob of a cluster as the command line sees it: what the object says, and what follows from it. Pure."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rljob_api.control import EngineState
from rljob_api.foreign_text import printable, printable_value
from rljob_api.sections import OUR_MANAGER
from rljob_api.status import AttemptStatus, Condition, ConditionType, JobEngine, NodeFate, Phase, Status

Manifest = dict[str, Any]

ENDED = frozenset({Phase.SUCCEEDED, Phase.FAILED})
WITH_PODS = frozenset({Phase.PROVISIONING, Phase.STARTING, Phase.TRAINING, Phase.RECOVERING, Phase.SUSPENDING})
"""phases in which a job has a RayCluster, or is about to have one"""
EXPLAINED_BY = {
    Phase.INVALID: ConditionType.ADMITTED,
    Phase.QUEUED: ConditionType.QUOTA_RESERVED,
    Phase.PROVISIONING: ConditionType.CLUSTER_READY,
    Phase.STARTING: ConditionType.TRAINING,
    Phase.TRAINING: ConditionType.TRAINING,
    Phase.RECOVERING: ConditionType.DEGRADED,
    Phase.SUSPENDING: ConditionType.TRAINING,
    Phase.SUSPENDED: ConditionType.TRAINING,
    Phase.SUCCEEDED: ConditionType.SUCCEEDED,
    Phase.FAILED: ConditionType.FAILED,
}


@dataclass(frozen=True, slots=True)
class Job:
    """One RLJob."""

    namespace: str
    name: str
    uid: str
    created: datetime
    generation: int
    steps: int
    """that the spec asks for"""
    engines: int
    """that the spec asks for"""
    is_deleting: bool
    status: Status
    managed_by: str
    """controller that acts on it"""
    runtime: Manifest
    """section `runtime` of the spec, as it was written"""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def has_ended(self) -> bool:
        return self.status.phase in ENDED

    @property
    def holds_gpus(self) -> bool:
        """Whether it has GPUs: not while it is queued, suspended or refused, and not after its end."""
        return self.status.phase in WITH_PODS

    @property
    def is_outdated(self) -> bool:
        """Whether the operator has not looked at the newest spec yet."""
        return (self.status.observed_generation or 0) < self.generation

    @property
    def step(self) -> int:
        return self.status.progress.step if self.status.progress else 0

    @property
    def engines_ready(self) -> int:
        return self.status.engines.ready if self.status.engines else 0

    @property
    def engines_wanted(self) -> int:
        return self.status.engines.desired if self.status.engines else self.engines

    @property
    def unwell(self) -> tuple[JobEngine, ...]:
        """Engines that do not serve the current weights."""
        items = self.status.engines.items if self.status.engines else ()
        return tuple(engine for engine in items if engine.state is not EngineState.HEALTHY)

    @property
    def attempt(self) -> AttemptStatus | None:
        """The newest start of the driver."""
        return self.status.attempts[-1] if self.status.attempts else None

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes of the newest attempt's pods."""
        known = self.attempt.nodes if self.attempt else None
        return tuple(node for node, fate in (known or {}).items() if fate is not NodeFate.AVOIDED)

    @property
    def avoided(self) -> tuple[str, ...]:
        """Nodes that get no pod of the newest attempt."""
        known = self.attempt.nodes if self.attempt else None
        return tuple(node for node, fate in (known or {}).items() if fate is NodeFate.AVOIDED)

    @property
    def failed_nodes(self) -> tuple[tuple[str, str], ...]:
        """Each node that failed an attempt, with how: `Evicted in attempt 1, Unreachable in attempt 2`."""
        found: dict[str, list[str]] = {}
        for attempt in self.status.attempts:
            for node, fate in (attempt.nodes or {}).items():
                if fate not in (NodeFate.USED, NodeFate.AVOIDED):
                    found.setdefault(node, []).append(f"{fate} in attempt {attempt.number}")
        return tuple((node, ", ".join(how)) for node, how in sorted(found.items()))

    def condition(self, kind: ConditionType) -> Condition | None:
        return self.status.condition(kind)

    @property
    def explanation(self) -> str:
        """Why it is in its phase, in words; "" without a reason."""
        phase = self.status.phase
        if self.is_deleting:
            return "it is being deleted"
        if phase is None:
            return "no operator has seen it yet" if self.managed_by == OUR_MANAGER else f"{self.managed_by} manages it"
        found = self.condition(EXPLAINED_BY[phase])
        if phase is Phase.RECOVERING and (found is None or found.status != "True"):
            found = self.condition(ConditionType.TRAINING)
        found = found or self.condition(ConditionType.READY)
        return found.message if found else ""


def job_of(raw: Manifest) -> Job:
    """Return the RLJob that an object of the API server is, with printable texts.

    Fields of a newer operator's status are ignored.
    """
    metadata, spec = raw["metadata"], raw["spec"]
    return Job(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        created=datetime.fromisoformat(metadata["creationTimestamp"]),
        generation=metadata["generation"],
        steps=spec["training"]["steps"],
        engines=spec["rollout"]["engines"],
        is_deleting="deletionTimestamp" in metadata,
        status=Status.model_validate(printable_value(raw.get("status", {})), extra="ignore"),
        managed_by=printable(spec.get("managedBy") or OUR_MANAGER),
        runtime=spec.get("runtime", {}),
    )


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the name that was probably meant."""
    known = list(names)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return close[0] if close else (known[0] if len(known) == 1 else None)
