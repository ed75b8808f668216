"""RLJobs from Python, for notebooks and scripts: apply, wait, curve, stream. It finds the cluster as kubectl does.

    apply(manifest) ─► JobHandle ─► status, wait, stream, curve, metrics, to_frame, suspend, resume, delete

Needs rljob's extra `cluster`, and pandas for `to_frame`.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rljob_api.control import CurvePoint
from rljob_api.errors import ManifestError
from rljob_api.exits import Exit
from rljob_api.reading import manifest as manifests
from rljob_api.reading.document import document
from rljob_api.status import JobProgress, Phase, Status
from rljob_cli.cluster.cluster import WATCH_S, Cluster, ClusterError, NoObjectError, connect
from rljob_cli.jobs.jobs import Job, job_of
from rljob_cli.jobs.resumption import NotResumableError, patch_of

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = [
    "ClusterError",
    "CurvePoint",
    "JobEndedError",
    "JobHandle",
    "JobProgress",
    "ManifestError",
    "MetricPoint",
    "NoObjectError",
    "NotResumableError",
    "Phase",
    "Status",
    "apply",
    "job",
]

RECONNECTS = 8
"""tries in turn after the connection to the cluster was lost"""
PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
"""between two watches; doubled after each try in vain"""
NEVER = (Phase.SUCCEEDED, Phase.FAILED, Phase.INVALID)
"""phases that end a wait for another one: they do not pass by themselves"""


class JobEndedError(RuntimeError):
    """A job will not reach the phase that is waited for; the text says why."""


@dataclass(frozen=True, slots=True)
class MetricPoint:
    """One measurement."""

    step: int
    metric: str
    """a field of CurvePoint: `reward`, `accuracy`, ..."""
    value: float


def apply(
    manifest: Mapping[str, Any] | Path | str,
    *,
    namespace: str | None = None,
    context: str | None = None,
    kubeconfig: Path | None = None,
) -> "JobHandle":
    """Create an RLJob, or change it, from a mapping or a YAML file.

    The namespace is, in this order: the one that is given, the manifest's, that of the context. Raises ManifestError
    with all problems of the manifest, before the cluster is asked, and ClusterError.
    """
    content = dict(manifest) if isinstance(manifest, Mapping) else document(Path(manifest).read_text())
    wanted = {key: value for key, value in content.items() if key != manifests.STATUS}
    checked = manifests.parse(wanted)
    cluster = connect(kubeconfig, context)
    where = namespace or wanted["metadata"].get("namespace") or cluster.namespace
    wanted["metadata"] = {**wanted["metadata"], "namespace": where}
    cluster.apply_job(where, checked.metadata.name, wanted)
    return JobHandle(cluster, where, checked.metadata.name)


def job(
    name: str, *, namespace: str | None = None, context: str | None = None, kubeconfig: Path | None = None
) -> "JobHandle":
    """Return an RLJob that is in the cluster. Raises NoObjectError or another ClusterError."""
    cluster = connect(kubeconfig, context)
    found = cluster.job(namespace or cluster.namespace, name)
    return JobHandle(cluster, found.namespace, found.name)


class JobHandle:
    """An RLJob of a cluster. Each property and method asks the cluster anew."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        name: str,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.namespace = namespace
        self.name = name
        self._cluster = cluster
        self._sleep = sleep
        self._clock = clock

    def __repr__(self) -> str:
        return f"<RLJob {self.namespace}/{self.name}>"

    @property
    def status(self) -> Status:
        """The status, empty until an operator has seen the job."""
        return self._cluster.job(self.namespace, self.name).status

    def wait(self, for_: Phase | str = Phase.SUCCEEDED, timeout_s: float | None = None) -> Status:
        """Return the status once the job is in a phase.

        Raises JobEndedError when it has ended otherwise, TimeoutError, and ClusterError when the cluster is away.
        """
        wanted = Phase(for_)
        phase: Phase | None = None
        for seen in self._seen(timeout_s):
            phase = seen.status.phase
            if phase == wanted:
                return seen.status
            if phase in NEVER and not seen.is_outdated:
                raise JobEndedError(f"{seen.key} is {phase}: {seen.explanation}")
        raise TimeoutError(f"{self.namespace}/{self.name} is {phase or 'new'} and not {wanted} after {timeout_s:g} s")

    def stream(self, timeout_s: float | None = None) -> Iterator[JobProgress]:
        """Yield the progress each time it changes, until the job ends or is invalid, or the time is over.

        A lost connection is made again, RECONNECTS times in turn. Raises ClusterError after that.
        """
        last: JobProgress | None = None
        for seen in self._seen(timeout_s):
            progress = seen.status.progress
            if progress is not None and progress != last:
                yield progress
                last = progress
            if seen.status.phase in NEVER and not seen.is_outdated:
                return

    def curve(self) -> tuple[CurvePoint, ...]:
        """Return the whole run in at most 64 points, oldest first."""
        return self.status.curve

    def metrics(self) -> list[MetricPoint]:
        """Return all measurements of the curve, by step."""
        return [
            MetricPoint(point.step, name, value)
            for point in self.curve()
            for name, value in point.model_dump(exclude={"step"}, exclude_none=True).items()
        ]

    def to_frame(self) -> "DataFrame":
        """Return the curve as a data frame, a row a step. Raises ModuleNotFoundError without pandas."""
        try:
            import pandas  # only here, so that all else works without it
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("to_frame needs pandas: pip install pandas", name="pandas") from error
        rows = [point.model_dump() for point in self.curve()]
        return pandas.DataFrame(rows, columns=list(CurvePoint.model_fields)).set_index("step")

    def suspend(self) -> None:
        """Let the job save and give its GPUs back."""
        self._cluster.change_job(self.namespace, self.name, {"spec": {"suspend": True}})

    def resume(self) -> None:
        """Let a suspended job continue, or begin another attempt of a failed one. Raises NotResumableError."""
        raw = self._cluster.raw_job(self.namespace, self.name)
        patch = {"spec": {"suspend": False}} if raw["spec"].get("suspend") else patch_of(raw)
        self._cluster.change_job(self.namespace, self.name, patch)

    def delete(self) -> None:
        """Delete the job; its run directory stays."""
        self._cluster.delete_job(self.namespace, self.name)

    def _seen(self, timeout_s: float | None) -> Iterator[Job]:
        """Yield the job as it is, and then at each change, until the time is over."""
        until = None if timeout_s is None else self._clock() + timeout_s
        failed = 0
        while True:
            try:
                raw = self._cluster.raw_job(self.namespace, self.name)
                yield job_of(raw)
                left_s = WATCH_S if until is None else until - self._clock()
                version = raw["metadata"]["resourceVersion"]
                for changed in self._cluster.changes_of_job(self.namespace, self.name, version, left_s):
                    failed = 0
                    yield job_of(changed)
                failed = 0
            except ClusterError as error:
                failed += 1
                if error.exit is not Exit.UNREACHABLE or failed > RECONNECTS:
                    raise
            if until is not None and self._clock() >= until:
                return
            self._sleep(min(PAUSE_S * 2**failed, LONGEST_PAUSE_S))
