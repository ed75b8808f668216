"""What `chaos` does with a cluster: finds pods, runs a look or a signal in them, deletes and evicts them."""

import base64
import time
import zlib
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rljob_api.exits import Exit
from rljob_cli.chaos import account, guard, seen
from rljob_cli.chaos.experiment import Experiment, Hit
from rljob_cli.chaos.faults import FAULTS, Fault, Signal, targets
from rljob_cli.chaos.invariants import continued_from
from rljob_cli.chaos.schedule import Planned, schedule
from rljob_cli.chaos.seen import Inside, Seen, UnreadableError
from rljob_cli.cluster import in_pod, verbs
from rljob_cli.cluster.cluster import Cluster, ClusterError, LostError, NoObjectError
from rljob_cli.cluster.verbs import Scope
from rljob_cli.jobs import job_logs
from rljob_cli.jobs.job_logs import Log
from rljob_cli.jobs.jobs import Job, Manifest
from rljob_cli.terminal.screen import say

POLL_S = 2.0
"""between two looks [s]: each is a request, and a process in the head that lives for a tenth of a second"""
AWAY_S = 60.0
"""longest absence of the API server [s]"""
INSIDE_S = 20.0
"""longest silence of a command in a pod [s]"""
LARGEST = 2**27
"""of a journal, whose newest file begins anew at 2**24; what is older is left out [bytes]"""
GRACE_S = 30.0
"""of a pod that names none [s]"""
LARGEST_ANSWER = 2**20
"""of a look in a pod [bytes]"""
PROGRAM = base64.urlsafe_b64encode(zlib.compress(Path(in_pod.__file__).read_bytes(), 9)).decode()
"""a command in a pod is part of an address, which proxies cut or refuse beyond 8 KiB"""
TEXT = f"import base64,zlib;exec(zlib.decompress(base64.urlsafe_b64decode('{PROGRAM}')))"


@dataclass(frozen=True, slots=True)
class Wish:
    """What a command line asks for."""

    seed: int
    faults: tuple[Fault, ...]
    every_s: float
    for_s: float
    within_s: float


def chaos(where: Scope, name: str, wish: Wish, *, has_agreed: bool, dry_run: bool) -> Exit:
    """Make faults in a job, or print which; returns FAILED when an invariant is broken, NOT_FOUND when nothing was hit.

    Ctrl-C ends it: what was hit recovers without it. Raises ClusterError.
    """
    namespace = where.namespace or where.cluster.namespace
    job = where.cluster.job(namespace, name)
    planned = schedule(wish.seed, wish.faults, wish.every_s, wish.for_s)
    if not planned:
        raise ClusterError(account.no_plan(wish.every_s, wish.for_s), Exit.USAGE)
    world = InCluster(where.cluster, job)
    if dry_run:
        say(account.plan(job.key, wish.seed, planned, [world.target_of(each) for each in planned]))
        return Exit.OK
    why = guard.unfit(job) or guard.refusal(namespace, where.cluster.labels_of_namespace(namespace), has_agreed)
    if why is not None:
        raise ClusterError(why, Exit.USAGE)
    say(account.start(job.key, wish.seed, planned, wish.for_s))
    experiment = Experiment(world, say, wish.within_s)
    try:
        outcome = experiment.run(planned, wish.for_s)
    except KeyboardInterrupt:
        say(account.interrupted(experiment.injected))
        return Exit.INTERRUPTED
    say(account.verdict(outcome))
    if outcome.broken:
        return Exit.FAILED
    return Exit.OK if outcome.injected else Exit.NOT_FOUND


class InCluster:
    """A job, its pods and its journal, as a user with the role `edit` reaches them."""

    def __init__(self, cluster: Cluster, job: Job) -> None:
        self._cluster = cluster
        self._job = job
        self._began = time.monotonic()

    def look(self) -> Seen:
        """Wait a little, and look. An API server that is away for a while is waited for. Raises ClusterError."""
        until = time.monotonic() + AWAY_S
        while True:
            time.sleep(POLL_S)
            at_s = self._now()
            try:
                self._job = self._cluster.job(self._job.namespace, self._job.name)
                heads = self._cluster.heads(self._job)
                break
            except ClusterError as error:
                if error.exit is not Exit.UNREACHABLE or time.monotonic() > until:
                    raise
        found = {head["metadata"]["name"]: inside for head in heads if (inside := self._inside(head)) is not None}
        return Seen(at_s, self._job, found)

    def hit(self, planned: Planned) -> Hit | None:
        """Make a fault; None: there is no such target now. Raises ClusterError."""
        by = FAULTS[planned.fault].by
        for pod in self._targets(planned):
            name = pod["metadata"]["name"]
            try:
                match by:
                    case Signal():
                        found = self._run(pod, by.role, by.name, str(planned.draw))
                        if found.hit is None:
                            continue
                        target = f"{by.role} {found.hit} in {name}"
                    case "delete":
                        self._cluster.delete_pod(pod)
                        target = name
                    case "evict":
                        self._cluster.evict_pod(pod)
                        target = name
            except (NoObjectError, LostError, UnreadableError):
                continue  # it is gone already
            return Hit(self._now(), target)
        return None

    def target_of(self, planned: Planned) -> str:
        """Return what a fault would hit now."""
        by = FAULTS[planned.fault].by
        what = f"{by.role} in " if isinstance(by, Signal) else ""
        return next((f"{what}{pod['metadata']['name']}" for pod in self._targets(planned)), "nothing that runs now")

    def journal(self, known: Container[int]) -> Sequence[bytes]:
        """Return the files of the journal, the oldest first, without full ones in `known` and what is before them.

        Empty: it cannot be read now. Raises ClusterError if it must not.
        """
        newest = self._read(job_logs.journal(self._job), LARGEST)
        files = [newest] if newest else []
        while files and (until := continued_from(files[0])) is not None and until not in known:
            older = self._read(job_logs.full_journal(self._job, until), LARGEST - sum(map(len, files)))
            if not older:
                break
            files.insert(0, older)
        return files

    def pods(self) -> Mapping[str, float]:
        """Return the grace period of each of the job's pods, by name [s]. Raises ClusterError."""
        pods = self._cluster.pods(self._job)
        given = {pod["metadata"]["name"]: pod["spec"].get("terminationGracePeriodSeconds") for pod in pods}
        return {name: GRACE_S if grace is None else float(grace) for name, grace in given.items()}

    def _read(self, log: Log, largest: int) -> bytes | None:
        try:
            return _bounded(verbs.read(self._cluster, self._job, log, follow=False, tail=None), largest)
        except ClusterError as error:
            if error.exit is Exit.FORBIDDEN:
                raise
            return None

    def _targets(self, planned: Planned) -> list[Manifest]:
        return targets(planned.fault, self._cluster.pods(self._job), planned.draw)

    def _inside(self, head: Manifest) -> Inside | None:
        try:
            return self._run(head)
        except (ClusterError, UnreadableError) as error:
            if isinstance(error, ClusterError) and error.exit is Exit.FORBIDDEN:
                raise
            return None

    def _run(self, pod: Manifest, *arguments: str) -> Inside:
        until = time.monotonic() + INSIDE_S
        directory = self._job.status.directory or "/"
        command = ["python", "-I", "-c", TEXT, directory, *arguments]
        answer = _bounded(self._cluster.run(pod, command, lambda: time.monotonic() > until), LARGEST_ANSWER)
        return seen.inside(answer)

    def _now(self) -> float:
        return time.monotonic() - self._began


def _bounded(chunks: Iterable[bytes], largest: int) -> bytes:
    """Return all chunks together. Raises ClusterError when they are too large."""
    content = bytearray()
    for chunk in chunks:
        content += chunk
        if len(content) > largest:
            raise ClusterError(f"a file or an answer in a pod has more than {largest} bytes", Exit.FAILED)
    return bytes(content)
