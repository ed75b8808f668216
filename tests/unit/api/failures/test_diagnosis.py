"""The first and most specific failure is the cause; what follows from it is a consequence."""

import pytest

from rljob_api.failures.diagnosis import EPISODE, Diagnosis, diagnose
from rljob_api.failures.scan import scan

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 18.55 GiB. GPU 0 has a total capacity of 79 GiB"
TIMEOUT = "[rank3]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE)"
ACTOR = "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task."
JOB = "Job entrypoint command failed with exit code 1, last available logs (truncated to 20,000 chars):"
KILLED = "(raylet) 1 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed"
NAN = "RuntimeError: Unexpected result nan (message='loss is NaN')"
FINE = "2026-03-04 10:00:00 INFO step done"


def diagnosis(*lines: str) -> Diagnosis:
    return diagnose([scan("log", "\n".join(lines).encode())])


def codes(*lines: str) -> list[str]:
    return [each.failure.code for each in diagnosis(*lines).findings]


def test_a_timeout_after_an_exhausted_gpu_is_its_consequence():
    assert codes(OOM, FINE, TIMEOUT, ACTOR, JOB) == ["TrainOutOfMemory", "NcclTimeout", "RayActorDied", "RayJobFailed"]


def test_the_consequence_may_be_written_first():
    assert codes(TIMEOUT, FINE, OOM)[0] == "TrainOutOfMemory"


def test_a_worker_killed_for_memory_hides_that_its_actor_died():
    assert codes(KILLED, ACTOR) == ["HostOutOfMemory"]


def test_a_timeout_alone_is_reported():
    assert codes(FINE, TIMEOUT) == ["NcclTimeout"]


def test_the_first_cause_of_the_end_comes_first():
    assert codes(NAN, OOM)[0] == "NonFiniteStep"


def test_a_cause_that_the_run_survived_comes_last():
    lines = [OOM, *[FINE] * (EPISODE + 1), NAN, ACTOR]
    found = diagnosis(*lines).findings
    assert [(each.failure.code, each.is_earlier) for each in found] == [
        ("NonFiniteStep", False),
        ("RayActorDied", False),
        ("TrainOutOfMemory", True),
    ]


def test_a_cause_that_stays_in_force_counts_from_the_beginning():
    lost = "    will not load any checkpoints and will start from random"
    assert codes(lost, *[FINE] * (EPISODE + 1), NAN)[0] == "CheckpointNotLoaded"


def test_a_run_that_succeeded_has_overcome_its_failures():
    found = diagnosis(OOM, ACTOR, FINE, "Job 'raysubmit_7wNNGHdVi92R8wt2' succeeded")
    assert (found.findings, set(found.overcome)) == ((), {"TrainOutOfMemory", "RayActorDied"})


def test_a_failure_after_a_success_counts():
    assert codes("Job 'raysubmit_a' succeeded", OOM) == ["TrainOutOfMemory"]


def test_of_several_logs_the_earliest_time_is_first():
    engine = scan("engine-0.log", f"[2026-03-04 10:25:31 TP0] x\n{NAN}".encode())
    driver = scan("driver.log", f"2026-03-04 10:25:40 y\n{OOM}".encode())
    assert [each.failure.code for each in diagnose([driver, engine]).findings] == ["NonFiniteStep", "TrainOutOfMemory"]


@pytest.mark.parametrize(
    ("where", "code"),
    [
        ('  File "/x/sglang/srt/model_executor/model_runner.py", line 9, in forward', "EngineOutOfMemory"),
        ('  File "/x/megatron/core/pipeline_parallel/schedules.py", line 9, in backward_step', "TrainOutOfMemory"),
        ('  File "/x/slime/actor.py", line 9, in wake_up', "ColocatedOutOfMemory"),
    ],
)
def test_the_traceback_says_whose_memory_was_exhausted(where: str, code: str):
    assert codes(where, OOM) == [code]


def test_without_a_known_failure_the_last_exception_is_given():
    found = diagnosis("own.OddError: so odd")
    assert found.findings == ()
    assert found.last_exception is not None


EXCEPTION = '  File "reward.py", line 3, in score\nValueError: could not convert string to float: "x"'
SHAPES = "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"


def test_an_exception_without_an_entry_of_its_own_is_reported():
    assert codes(FINE, EXCEPTION) == ["PythonException"]


def test_an_exception_is_not_reported_beside_what_says_more():
    assert codes(EXCEPTION, ACTOR) == ["RayActorDied"]
    assert codes(EXCEPTION, OOM) == ["TrainOutOfMemory"]
    assert codes(EXCEPTION, SHAPES) == ["TensorMismatch"]


def test_a_general_cause_is_reported_beside_its_consequences_and_not_beside_a_specific_cause():
    assert codes(SHAPES, TIMEOUT) == ["TensorMismatch", "NcclTimeout"]
    assert codes(SHAPES, OOM) == ["TrainOutOfMemory"]


def test_an_exception_that_a_program_went_on_after_is_not_reported():
    assert codes(EXCEPTION, "reward failed; skipping the sample") == []
