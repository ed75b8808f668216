"""The first and most specific failure is the cause; what follows from it is a consequence."""

import pytest

from rljob_doctor.diagnosis import EPISODE, Diagnosis, diagnose
from rljob_doctor.occurrences import LAST_WORDS
from rljob_doctor.scan import scan

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


def test_what_the_line_of_a_success_quotes_is_no_failure():
    assert codes(f"condition Succeeded Finished: resumed after {OOM}") == []


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


def test_an_exception_with_which_a_log_ends_is_its_failure():
    found = diagnosis("own.OddError: so odd", *[FINE] * (LAST_WORDS - 1), "").findings
    assert [(each.failure.code, each.evidence[0].text) for each in found] == [
        ("PythonException", "own.OddError: so odd")
    ]


def test_an_exception_after_which_a_log_goes_on_is_only_the_last_one():
    found = diagnosis("own.OddError: so odd", *[FINE] * LAST_WORDS, "")
    assert found.findings == ()
    assert found.last_exception is not None


def test_an_exception_in_a_run_that_succeeded_is_no_failure():
    assert codes("own.OddError: so odd", "Job 'raysubmit_7wNNGHdVi92R8wt2' succeeded") == []


def test_a_hint_that_is_an_exception_is_not_reported_twice():
    assert codes("wandb.errors.errors.CommError: Run initialization has timed out after 90.0 sec") == [
        "WandbUnreachable"
    ]


def test_an_exception_at_the_end_counts_although_there_is_a_hint():
    assert codes("[2026-03-04 10:25:31 TP0] KV cache pool is full. Retract requests.", "own.OddError: so odd") == [
        "PythonException",
        "KvCacheFull",
    ]


NEARLY_FULL = (
    "(raylet) file_system_monitor.cc:116: /tmp/ray/session_1 is over 95% full, available space: 4.1 GB; capacity: 98.3"
    " GB. Object creation will fail if spilling is required."
)


TRACEBACK = "Traceback (most recent call last):"


@pytest.mark.parametrize(
    ("after", "code"),
    [
        ((), "RayDiskNearlyFull"),
        ((TRACEBACK, '  File "own.py", line 3, in play', "own.OddError: so odd"), "PythonException"),
        (("OSError: [Errno 28] No space left on device: '/x'",), "DiskFull"),
        (("ray.exceptions.OutOfDiskError: Local disk is full",), "RayDiskFull"),
    ],
)
def test_a_disk_that_is_nearly_full_is_reported_unless_something_else_ended_the_run(after: tuple[str, ...], code: str):
    assert codes(NEARLY_FULL, *after) == [code]


EXCEPTION = '  File "own.py", line 3, in play\nValueError: could not convert string to float: "x"'
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
    assert codes("attempt 1 failed, retrying", "Traceback (most recent call last):", EXCEPTION) == []


HANDLED = ["attempt 1 failed, retrying", "Traceback (most recent call last):", EXCEPTION]


def test_what_is_said_of_another_traceback_does_not_hide_an_exception():
    before = diagnosis(*HANDLED, *[FINE] * 300, EXCEPTION).findings
    after = diagnosis("Traceback (most recent call last):", EXCEPTION, *[FINE] * 10, *HANDLED).findings
    assert [
        [(each.failure.code, each.count, each.evidence[0].line) for each in found] for found in (before, after)
    ] == [
        [("PythonException", 1, 306)],
        [("PythonException", 1, 3)],
    ]


@pytest.mark.parametrize(
    "words", ["max_retries=3", "retry_interval_s: 10", "eos_token='<|im_end|>'", "tool_call_parser=None"]
)
def test_a_setting_that_names_a_retry_or_a_tool_does_not_hide_an_exception(words: str):
    assert codes(f"ServerArgs({words})", FINE, FINE, "Traceback (most recent call last):", EXCEPTION) == [
        "PythonException"
    ]
    assert codes("Traceback (most recent call last):", EXCEPTION, *[FINE] * 3, "retrying later") == ["PythonException"]


WRAPPED = [
    "ray.exceptions.RayTaskError(ValueError): ray::RolloutManager.generate() (pid=9, ip=10.0.0.7)",
    '  File "rollout.py", line 3, in generate',
    "ValueError: no samples are left",
]


def test_the_exception_s_own_message_comes_before_the_line_that_passes_it_on():
    evidence = diagnosis(*WRAPPED).findings[0].evidence
    assert [each.text for each in evidence] == [WRAPPED[2], WRAPPED[0]]


def test_of_chained_exceptions_the_deepest_comes_first():
    during = "The above exception was the direct cause of the following exception:"
    lines = [EXCEPTION, "", during, "", '  File "b.py", line 9, in b', "own.OddError: so odd"]
    assert diagnosis(*lines).findings[0].evidence[0].text == EXCEPTION.split("\n")[1]


def test_a_consequence_names_the_exception_that_it_followed():
    found = diagnosis(
        "[2026-03-04 10:25:31 TP0] Scheduler hit an exception: Traceback (most recent call last):", EXCEPTION
    )
    assert found.findings[0].failure.code == "EngineSchedulerDied"
    assert found.exception is not None
    assert found.exception.text == EXCEPTION.split("\n")[1]
    assert diagnosis(EXCEPTION, OOM).exception is None


def test_the_exception_that_a_consequence_followed_is_not_the_line_that_passes_it_on():
    found = diagnosis(*WRAPPED, ACTOR)
    assert found.findings[0].failure.code == "RayActorDied"
    assert found.exception is not None
    assert found.exception.text == WRAPPED[2]


@pytest.mark.parametrize(
    ("later", "is_overcome"),
    [
        ("", True),
        ('{"kind":"step","step":5}', True),
        ('{"kind":"run","attempt":2}', False),
        ('{"kind":"run","attempt":2}\n{"kind":"end","outcome":"failed","message":"CheckpointError"}', False),
        ('{"kind":"run","attempt":2}\n{"kind":"end","outcome":"finished","message":""}', True),
    ],
)
def test_a_run_that_succeeded_once_may_fail_when_it_goes_on(later: str, is_overcome: bool):
    events = f'{{"kind":"run","attempt":1}}\n{{"kind":"end","outcome":"finished","message":""}}\n{later}\n'
    log = "rljob_trainer.rundir.journal.JournalError: journal.jsonl:3: consumed step 0 where 1 was next\n"
    found = diagnose([scan("events.jsonl", events.encode()), scan("driver.log", log.encode())])
    assert [each.failure.code for each in found.findings] == ([] if is_overcome else ["RljobJournalDamaged"])
    assert found.overcome == (("RljobJournalDamaged",) if is_overcome else ())
