"""Lack of memory is a cause only where the kernel, the kubelet or Ray say so: a signal or a code does not."""

import pytest

from rljob_doctor.known import KILL, SENDERS, known_failure
from rljob_doctor.scan import scan

NOBODY = "killed by SIGKILL, and nothing says who sent it"

OF_MEMORY = {
    "the kubelet's reason": ("pod a container ray terminated reason: OOMKilled exit code 137: ", "PodOutOfMemory"),
    "the kernel, of a container": ("Memory cgroup out of memory: Killed process 9 (python) total-vm", "PodOutOfMemory"),
    "the kernel, of a node": ("Out of memory: Killed process 9 (python) total-vm:9kB", "PodOutOfMemory"),
    "the kernel's counter": ("slurmstepd: error: Detected 1 oom_kill event in StepId=1", "PodOutOfMemory"),
    "containerd": ('level=info msg="TaskOOM event container_id:8a01"', "PodOutOfMemory"),
    "an event of a node": ("9m Warning OOMKilling node/a Memory limit reached", "PodOutOfMemory"),
    "Ray's monitor": ("(raylet) 1 Workers (tasks / actors) killed due to memory pressure (OOM)", "HostOutOfMemory"),
}
OF_NOBODY = {
    "a driver, as the operator writes it": "killed by SIGKILL; its last words: step 4 of 9",
    "a supervisor": "the program's exit code: 137",
    "a driver without words": "killed by SIGKILL",
    "a container": "pod a container ray terminated reason: Error exit code 137: ",
    "a container in JSON": '{"exitCode": 137, "reason": "Error"}',
    "a program of Docker": "worker exited with code 137",
    "a shell": "/entry.sh: line 12:    31 Killed                  python train.py",
    "a shell's last line": "Killed",
    "torchrun": "torch.distributed.elastic: failed (exitcode: -9) local_rank: 0 (pid: 7) of binary: python",
    "subprocess": "subprocess.CalledProcessError: Command 'x' died with <Signals.SIGKILL: 9>.",
}
EXCEPTIONS = (
    "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGKILL",
    "RuntimeError: DataLoader worker (pid 9) is killed by signal: Killed.",
)
RAY_GUESSES = "Worker exits with an exit code None. The worker may have exceeded K8s pod memory limits."
"""Ray adds the last sentence in every pod, to whatever has ended a worker"""


def known(text: str, *others: str):
    return known_failure([scan("log", text.encode()), *(scan("pods", each.encode()) for each in others)])


@pytest.mark.parametrize("name", OF_MEMORY)
def test_who_speaks_of_memory_is_believed(name: str):
    line, code = OF_MEMORY[name]
    found = known(line)
    assert found is not None and found.code == code
    assert NOBODY not in str(found)


@pytest.mark.parametrize("name", OF_NOBODY)
def test_a_signal_or_a_code_names_no_sender(name: str):
    found = known(OF_NOBODY[name])
    assert found is not None and (found.code, found.title, found.remedy) == ("ProgramFailed", NOBODY, SENDERS)


@pytest.mark.parametrize("line", EXCEPTIONS)
def test_an_exception_that_names_a_signal_is_shown_as_it_is(line: str):
    found = known(line)
    assert found is not None and (found.code, found.evidence) == ("PythonException", f"log: {line}")


@pytest.mark.parametrize("name", OF_NOBODY)
def test_memory_that_somebody_names_beside_it_is_the_cause(name: str):
    for line, code in OF_MEMORY.values():
        found = known(OF_NOBODY[name], line)
        assert found is not None and found.code == code, line


def test_what_ray_guesses_of_every_worker_in_a_pod_is_no_cause():
    assert known(RAY_GUESSES) is None


@pytest.mark.parametrize(
    "line", ["exit code 1", "exit code -11", "exit status 19", "status: 1379", "line 137: killed it"]
)
def test_other_ends_are_no_kill(line: str):
    assert KILL.search(line) is None
