"""A job in every phase, as a real API server shows it: made by the real operator, with fake heads."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from local_cluster.kubectl import Kubectl, Manifest
from rljob_api.control import EngineState
from support.operator.fake_head import FakeHeads, serving
from support.operator.operator_job import Job
from support.operator.operator_process import OperatorProcess, install_rights, kubeconfig_of_operator
from support.waiting import eventually


@dataclass(frozen=True)
class Seen:
    """A job at one moment."""

    raw: Manifest
    columns: dict[str, str]
    """what `kubectl get rlj -o wide` shows under each title"""


@contextmanager
def operating(kubectl: Kubectl, namespace: str, heads: FakeHeads, directory: Path) -> Iterator[OperatorProcess]:
    """Run an operator for a namespace, under its own ServiceAccount."""
    install_rights(kubectl, namespace, "--set", f"namespaces={{{namespace}}}")
    kubeconfig = kubeconfig_of_operator(kubectl, namespace, directory)
    with serving(heads) as url, OperatorProcess(kubeconfig, namespace, url, directory / "operator.log") as operator:
        yield operator


def jobs_of_all_phases(kubectl: Kubectl, namespace: str, directory: Path) -> dict[str, Seen]:
    """Return a job in each phase; `Unseen` is one that no operator has looked at."""
    heads = FakeHeads()
    heads.are_down, heads.drain_s = True, 3600.0
    walks, ill, done, broken = (
        Job(kubectl, namespace, name, **FEW_ENGINES) for name in ("walks", "ill", "done", "broken")
    )
    invalid = Job(kubectl, namespace, "invalid", checkpoint={"directory": "/not/shared"})
    homeless = Job(kubectl, namespace, "homeless", scheduling={"nodeSelector": {"pool": "nowhere"}})
    found = {"Unseen": seen(kubectl, walks)}

    def keep(job: Job, phase: str) -> None:
        eventually(lambda: job.raw()["status"].get("phase"), lambda now: now == phase, deadline_s=120)
        found[phase] = seen(kubectl, job)

    with operating(kubectl, namespace, heads, directory):
        keep(invalid, "Invalid")
        keep(homeless, "Provisioning")
        keep(walks, "Starting")
        heads.are_down = False
        for job in (walks, ill, done, broken):
            job.until("Training")
        keep(walks, "Training")
        head = heads.head(namespace, "ill")
        first, *others = head.status.engines
        dead = first.model_copy(update={"state": EngineState.DEAD, "last_error": "killed by signal 9"})
        head.change(engines=(dead, *others))
        keep(ill, "Recovering")
        heads.head(namespace, "done").end(0)
        keep(done, "Succeeded")
        heads.head(namespace, "broken").end(9)
        keep(broken, "Failed")
        walks.patch('{"suspend":true}')
        keep(walks, "Suspending")
        heads.head(namespace, "walks").end(7)
        keep(walks, "Suspended")
    return found


FEW_ENGINES = {"recovery": {"engineRestarts": 0}}
"""one that is dead stays so"""


def seen(kubectl: Kubectl, job: Job) -> Seen:
    table = kubectl("get", "rlj", job.name, "-n", job.namespace, "-o", "wide")
    return Seen(job.raw(), columns(table))


def columns(table: str) -> dict[str, str]:
    """Return what the one line of a table shows under each title."""
    titles, line = table.rstrip("\n").split("\n")
    starts = [at for at in range(len(titles)) if titles[at] != " " and (at == 0 or titles[at - 1] == " ")]
    ends = [*starts[1:], None]
    return {titles[at:end].strip(): line[at:end].strip() for at, end in zip(starts, ends, strict=True)}
