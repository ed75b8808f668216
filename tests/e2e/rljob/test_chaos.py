"""`rljob chaos` on a job in pods of real nodes: faults at random times, and all invariants hold from outside."""

import re
import subprocess

import pytest

from local_cluster.kubectl import Kubectl
from local_cluster.project import Workspace
from rljob_api.exits import Exit
from rljob_cli.chaos.guard import ALLOWED, LABEL
from rljob_cli.chaos.invariants import Invariant
from support.cli.command import Ended, command, environment
from support.operator.job_in_pods import JobInPods
from support.trainer.whole_run import PROMPTS_PER_STEP, expected_journal, uids, without_commits

pytestmark = pytest.mark.timeout(1800)

INTERVAL = 5
"""steps between two checkpoints"""


def job_with_engines_apart(kubectl: Kubectl, place: Workspace) -> JobInPods:
    """Return a job that goes on until it is suspended, with a learner and two engines in three pods."""
    job = JobInPods(
        kubectl,
        place,
        placement="Disaggregated",
        rollout={"engines": 2},
        training={"steps": 4000},
        checkpoint={"interval": INTERVAL},
        recovery={"driverRestarts": 20},
    )
    kubectl("label", "namespace", place.namespace, f"{LABEL}={ALLOWED}")
    return job


def chaos(job: JobInPods, *arguments: str) -> Ended:
    """Run `rljob chaos` until it ends by itself, and show its output as it comes."""
    given = command(("chaos", job.name, "-n", job.place.namespace, *arguments))
    around, pipe, same = environment(job.kubectl.kubeconfig), subprocess.PIPE, subprocess.STDOUT
    with subprocess.Popen(given, env=around, text=True, stdout=pipe, stderr=same) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    return Ended(process.returncode, "".join(lines))


def holds(job: JobInPods, ended: Ended) -> list[str]:
    """Assert that all invariants held, and that the journal is that of an undisturbed run; return the faults."""
    assert ended.code == Exit.OK, (ended.out, job.report())
    *lines, held, _ = ended.out.splitlines()[1:]
    assert held == f"held: {', '.join(Invariant)}"
    job.change({"suspend": True})
    job.until(lambda: job.phase == "Suspended")
    due = expected_journal(job.journal[-1]["step"], PROMPTS_PER_STEP, INTERVAL, uids(epochs=800))
    assert without_commits(job.journal) == without_commits(due)
    return [re.split("  +", line.strip())[1] for line in lines]


def test_a_job_holds_while_its_processes_are_killed(kubectl: Kubectl, place: Workspace) -> None:
    job = job_with_engines_apart(kubectl, place)
    job.until(lambda: job.step >= 2)
    kinds = "engine-kill,router-kill,rank-kill,driver-kill"
    assert len(holds(job, chaos(job, "--every=15s", "--for=80s", "--seed=3", f"--faults={kinds}"))) >= 2


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("plan", "kinds"),
    [
        ("--every=10s --for=380s --seed=5", "engine-stop,router-stop,router-kill,pod-delete,evict"),
        ("--every=10s --for=420s --seed=1", "engine-stop,pod-delete,head-delete,evict"),
    ],
)
def test_a_job_holds_while_processes_hang_and_pods_go(
    kubectl: Kubectl, place: Workspace, plan: str, kinds: str
) -> None:
    job = job_with_engines_apart(kubectl, place)
    job.until(lambda: job.step >= 2)
    made = holds(job, chaos(job, *plan.split(), f"--faults={kinds}"))
    assert len(made) >= 2
    assert set(made) & {"pod-delete", "head-delete", "evict"}
