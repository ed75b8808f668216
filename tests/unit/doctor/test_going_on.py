"""A wait that ends, a request that is sent again, and an error after which the program works, are no failures."""

import pytest

from rljob_doctor.catalogue import catalogue
from rljob_doctor.diagnosis import diagnose
from rljob_doctor.entry import Level
from rljob_doctor.scan import scan
from support.tables import each_of

TRACEBACK = "Traceback (most recent call last):"
FRAME = '  File "/app/judge.py", line 40, in call'
TIMEOUT = "httpx.ReadTimeout: timed out"
WAITS = "(raylet) Warning: The following resource request cannot be scheduled right now: {'GPU': 8.0}."
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 18.55 GiB."
LOST = "E0304 10:00:00.1 1 a.go:12] failed to attach volume: any words"
STEPS = [
    "(TaskRunner pid=36) step:2 - actor/pg_loss:0.01 - critic/rewards/mean:0.2",
    "(MegatronTrainRayActor pid=99) step 14: {'train/loss': 0.01, 'train/grad_norm': 0.4}",
    " iteration       12/     400 | consumed samples: 3072 | lm loss: 1.2E-02 | number of nan iterations: 0 |",
    "{'loss': 0.4, 'grad_norm': 1.2, 'learning_rate': 1e-06}",
    '{"kind": "step", "step": 3}',
    "[2026-03-01 10:01:00] The server is fired up and ready to roll!",
    "2026-03-01 Ray runtime started.",
]


def codes(*lines: str) -> list[str]:
    return [each.failure.code for each in diagnose([scan("log", "\n".join(lines).encode())]).findings]


@each_of(STEPS)
def test_a_wait_before_a_step_has_ended(step: str):
    assert codes(WAITS) == ["GpusInsufficient"]
    assert codes(WAITS, step) == []
    assert codes(step, WAITS) == ["GpusInsufficient"]


@each_of(STEPS)
def test_a_guess_before_a_step_is_none(step: str):
    assert codes(LOST) == ["VolumeMountFailed"]
    assert codes(LOST, step) == []
    assert codes(step, LOST) == ["VolumeMountFailed"]


def test_a_step_that_is_not_finite_is_no_progress():
    assert "GpusInsufficient" in codes(WAITS, "step 14: {'train/loss': nan, 'train/grad_norm': nan}")
    assert codes(WAITS, "step 14: reward nan") == ["GpusInsufficient"]
    assert codes(WAITS, "step 14: reward 0.3") == []


def test_what_does_not_end_by_itself_counts_although_steps_follow():
    assert codes(OOM, STEPS[0])[:1] == ["TrainOutOfMemory"]
    assert codes(WAITS, OOM, STEPS[0])[:1] == ["GpusInsufficient"]


def test_in_another_log_steps_prove_nothing():
    logs = [scan("raylet", WAITS.encode()), scan("driver", STEPS[0].encode())]
    assert [each.failure.code for each in diagnose(logs).findings] == ["GpusInsufficient"]


@pytest.mark.parametrize(
    "later",
    [
        "(autoscaler +2m10s) Resized to 64 CPUs, 16 GPUs.",
        "  Normal  Scheduled  3m  default-scheduler  Successfully assigned ml/head to gpu-1",
    ],
)
def test_gpus_that_came_end_the_wait_for_them(later: str):
    assert codes(WAITS, later) == []
    assert codes(WAITS, later, WAITS) == ["GpusInsufficient"]


@pytest.mark.parametrize(
    "later",
    [
        "WARNING: judge request failed, retrying (attempt 1/5)",
        "skipping this sample",
        "falling back to the other judge",
    ],
)
def test_a_request_that_is_sent_again_is_no_failure(later: str):
    assert codes(TRACEBACK, FRAME, TIMEOUT) == ["RolloutTimeout"]
    assert codes(TRACEBACK, FRAME, TIMEOUT, later) == []


@each_of(
    [
        "judge: attempt 5/5, no retry",
        "judge: attempt 5 of 5, no retry",
        "judge: gave up, no more retry",
        "no answer after 5 retries",
        "Maximum number of retries reached, no retry",
        "retries exhausted, no retry",
    ]
)
def test_a_request_that_was_sent_too_often_is_a_failure(later: str):
    assert codes(TRACEBACK, FRAME, TIMEOUT, later) == ["RolloutTimeout"]


def test_a_line_that_says_itself_that_it_gave_up_is_a_failure():
    assert codes(TRACEBACK, FRAME, f"{TIMEOUT} after 5 retries", "skipping the rest") == ["RolloutTimeout"]


def test_a_line_before_a_traceback_says_that_it_is_tried_again():
    assert codes("request failed, retry 2:", TRACEBACK, FRAME, TIMEOUT) == []


def test_earlier_tries_do_not_hide_the_last_one():
    assert codes("retrying in 2 s", "retrying in 4 s", TIMEOUT) == ["RolloutTimeout"]


def test_an_error_that_does_not_pass_is_no_matter_of_retries():
    assert codes(OOM, "skipping this sample")[:1] == ["TrainOutOfMemory"]


@each_of(
    [
        "rollout 12: 256 samples",
        "the server is ready",
        "epoch 1",
        "checkpoint saved",
        "waiting for http://10.0.0.3/health ... ok",
        "driver validation: done",
    ]
)
def test_a_guess_before_a_line_that_says_that_something_works_is_none(well: str):
    assert codes(LOST, well) == []
    assert codes(well, LOST) == ["VolumeMountFailed"]


def test_a_line_that_looks_like_an_error_itself_says_not_that_something_works():
    assert codes(LOST, "rollout 12 failed") == ["VolumeMountFailed"]


def test_a_status_says_less_than_who_answers_with_it():
    line = "openai.InternalServerError: Error code: 503 - {'error': 'No available workers (all circuits open)'}"
    assert codes(line) == ["RouterNoWorkers"]
    assert codes(line, "openai.InternalServerError: Error code: 500")[:1] == ["RequestRefused"]


def test_a_hint_says_no_more_than_a_failure_in_the_same_line():
    line = "openai.InternalServerError: Error code: 500 - KV cache pool is full. Retract requests."
    assert codes(line) == ["RequestRefused", "KvCacheFull"]


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("assert self.total_num_heads % tp_size == 0", "TrainPartitionMismatch"),
        ("assert rollout_samples % n == 0", "BatchInvariant"),
        ("assert a.shape == b.shape", "TensorMismatch"),
        ("assert odd is not None", "PythonException"),
    ],
)
def test_a_failed_assertion_without_a_message_is_judged_by_its_source(source: str, code: str):
    assert codes(TRACEBACK, FRAME, f"    {source}", "AssertionError") == [code]
    assert codes(TRACEBACK, FRAME, f"    {source}", "           ^^^^^^^^", "AssertionError") == [code]
    assert codes(TRACEBACK, FRAME, f"    {source}", FRAME, "    own()", "AssertionError") == ["PythonException"]


def test_only_failures_that_may_end_by_themselves_pass():
    passing = {code for code, failure in catalogue().items() if failure.passing}
    assert {"GpusInsufficient", "EngineUnreachable", "QueueWaits", "HubUnreachable"} <= passing
    assert not passing & {"TrainOutOfMemory", "NonFiniteStep", "CheckpointNotLoaded", "PythonException", "NcclTimeout"}
    assert all(not catalogue()[code].lasting for code in passing)
    assert all(catalogue()[code].level is not Level.HINT or code == "WandbUnreachable" for code in passing)


def test_a_traceback_that_is_cut_off_before_a_step_is_none():
    assert codes(TRACEBACK, FRAME) == ["PythonException"]
    assert codes(TRACEBACK, FRAME, STEPS[0]) == []
    assert codes(STEPS[0], TRACEBACK, FRAME) == ["PythonException"]


def test_a_timeout_of_a_library_ends_its_traceback():
    lines = (TRACEBACK, '  File "/app/own.py", line 40, in call', "own.SlowTimeout: too slow")
    assert codes(*lines) == ["PythonException"]
    assert codes(*lines, "skipping it") == []


COMM = "wandb.errors.errors.CommError: Run initialization has timed out after 90.0 sec."
ADMITTED = "  Normal   Admitted  2m  kueue-admission  Admitted by ClusterQueue rl"
PENDING = (
    "  Warning  Pending  9m  kueue-admission  couldn't assign flavors: insufficient unused quota for nvidia.com/gpu"
)


@pytest.mark.parametrize("before", [(), (TRACEBACK, FRAME)])
def test_a_hint_whose_exception_ends_the_log_is_the_cause(before: tuple[str, ...]):
    lines = (*before, COMM, "ERR cli.py:74 -- Job 'raysubmit_8T' failed")
    assert levels(*lines)[:1] == [("WandbUnreachable", Level.CAUSE)]
    assert levels(*before, COMM, *["any words"] * 60, OOM)[0] == ("TrainOutOfMemory", Level.CAUSE)


def test_a_hint_in_another_line_stays_one():
    assert levels("wandb: Network error (ReadTimeout), entering retry loop.", "ValueError: 3")[-1] == (
        "WandbUnreachable",
        Level.HINT,
    )


def levels(*lines: str) -> list[tuple[str, Level]]:
    found = diagnose([scan("log", "\n".join(lines).encode())]).findings
    return [(each.failure.code, each.failure.level) for each in found]


def test_what_a_later_line_proves_overcome_suggests_nothing_else():
    assert codes(PENDING) == ["QueueWaits"]
    assert codes(PENDING, ADMITTED) == []
    assert codes(ADMITTED, PENDING) == ["QueueWaits"]


def test_a_server_of_files_that_answers_again_is_no_failure():
    lost, back = "[88.2] nfs: server 10.0.9.4 not responding, still trying", "[92.2] nfs: server 10.0.9.4 OK"
    assert codes(lost) == ["StorageLost"]
    assert codes(lost, back) == []
    assert codes(lost, back, lost)[:1] == ["StorageLost"]


SGLANG = '  File "/a/sglang/srt/models/qwen2.py", line 1, in __init__'
VERIFIER = '  File "/a/verifier.py", line 1, in check'
WAITED = '  File "/usr/lib/python3.12/asyncio/timeouts.py", line 115, in __aexit__'
ANSWERED = '  File "/a/aiohttp/helpers.py", line 671, in __exit__'
DOCKER = "docker.errors.APIError: 500 Server Error for http+docker://localhost/v1.47/containers/create"
KOPF = "kopf.objects [ERROR   ] [rl/grpo] Handler 'reconcile' failed with an exception"
REFUSED = "aiohttp.client_exceptions.ClientConnectorError: Cannot connect to host 10.4.0.9:443 ssl:default"
SPOT = "4m  Warning  SpotInterruption  node/ip-10-0-4-9  Instance will be interrupted at 03:40"
EXPIRED = "failed to list *v1.Node: x509: certificate has expired or is not yet valid"
XID = "XidCriticalError: Xid=69 on Device=GPU-7540; marking device as unhealthy."
NVLINK = "6m  Warning  GpuNvlinkWatch  node/gpu-7  ErrorCode:DCGM_FR_NVLINK_DOWN GPU:3 NVLINK"
RECLAIM = "I0914 03:31:02 1201 eviction_manager.go:398] must evict pod(s) to reclaim"
TAINTED = "[ 4.1] nvidia: module verification failed: signature and/or required key missing - tainting kernel"
OOMD = "systemd-oomd[911]: Killed /user.slice/rl.scope due to memory used (25) / total (26)"
KARPENTER = '"message":"initiating delete from interruption message","messageKind":"spot_interrupted"'
UPSTREAMS = "2026/09/14 [error] 31#31: *8 no live upstreams while connecting to upstream, server: _"
LINK_DOWN, LINK_UP = (f"kernel: mlx5_core 0000:5e:00.1 ens5f1np1: Link {state}" for state in ("down", "up"))
NO_CNI = "NetworkReady=false reason:NetworkPluginNotReady message:cni plugin not initialized"
JUST_READY = '"Fast updating node status as it just became ready"'
NOT_YET = (
    '  Warning  FailedMount  5m  kubelet  MountVolume.SetUp failed for "a" : failed to sync configmap cache: timed out'
)
CLAIMS = "0/22 nodes are available: 6 node(s) had untolerated taint {control-plane: }, 16 cannot allocate all claims."
NO_REPOSITORY = "huggingface_hub.errors.RepositoryNotFoundError: 404 Client Error. (Request ID: Root=1-8a)"
PRIVATE = "If you are trying to access a private or gated repo, make sure you are authenticated."
UNHEALTHY = "[miles-router] Worker http://10.42.3.7:15000 failed health check (1/3)"
PROBE = "    Readiness:  exec [wget -T 2 healthz] delay=10s timeout=2s period=5s #success=1 #failure=10"


@each_of(
    [
        ((TRACEBACK, SGLANG, "    assert heads % tp_size == 0", "AssertionError"), "EngineParallelSize"),
        ((TRACEBACK, VERIFIER, WAITED, "TimeoutError"), "RewardTimeout"),
        ((TRACEBACK, VERIFIER, ANSWERED, "TimeoutError: Connection timeout"), "RewardServiceDown"),
        ((TRACEBACK, FRAME, DOCKER), "GenerateFunctionFailed"),
        ((KOPF, TRACEBACK, FRAME, REFUSED), "ApiServerUnreachable"),
        ((TRACEBACK, FRAME, REFUSED), "EngineUnreachable"),
        ((SPOT,), "PodPreempted"),
        (("TP0] Failed to update parameter online: KeyError('model.layers.0.q_proj.weight').",), "WeightSyncMismatch"),
        ((EXPIRED,), "ClockSkew"),
        ((XID,), "GpuXid"),
        ((NVLINK,), "GpuXid"),
        ((RECLAIM,), "PodEvicted"),
        (("AssertionError: /ref must exist: no latest_checkpointed_iteration.txt found",), "CheckpointNotLoaded"),
        (("AttributeError: module 'own' has no attribute 'compute_score'",), "UserFunctionMissing"),
        ((" iteration 124/ 2000 | lm loss: 4.9E+01 | grad norm: 99211.331 |",), "LossDiverging"),
        ((" iteration 124/ 2000 | lm loss: 4.9E-01 | grad norm: 9921.331 |",), None),
        ((TAINTED,), None),
        ((OOMD,), "HostOutOfMemory"),
        (('level=info msg="TaskOOM event container_id:8a01"',), "PodOutOfMemory"),
        ((KARPENTER,), "PodPreempted"),
        ((UPSTREAMS,), "ServiceWithoutEndpoints"),
        (("| GPU 3 has an uncorrectable memory error |",), "GpuMemoryError"),
        (("DBE: Detected 1 volatile double-bit ECC error(s) in GPU 3.",), "GpuMemoryError"),
        (("DBE: Detected 0 volatile double-bit ECC error(s) in GPU 3.",), None),
        ((LINK_DOWN,), "InfinibandError"),
        ((LINK_DOWN, LINK_UP), None),
        ((LINK_DOWN, LINK_UP, LINK_DOWN), "InfinibandError"),
        ((NO_CNI,), "SandboxNetworkFailed"),
        ((NO_CNI, JUST_READY), None),
        (("(raylet) Worker exit type: INTENDED_SYSTEM_EXIT Worker exit detail: the actor is killed",), None),
        ((NOT_YET,), None),
        ((CLAIMS,), "PodUnschedulableGpu"),
        (('"JobDeploymentStatus":"Failed","reason":"AppFailed","message":"exit code 1"',), "RayJobFailed"),
        ((NO_REPOSITORY, PRIVATE), "ModelNotFound"),
        (("huggingface_hub.errors.HfHubHTTPError: 401 Client Error.", PRIVATE), "HubGated"),
        ((UNHEALTHY,), "ProbeFailed"),
        ((UNHEALTHY, "[miles-router] Worker http://10.42.3.7:15000 is healthy again"), None),
        (("Worker exit type: INTENDED_SYSTEM_EXIT The actor is dead because all references were removed.",), None),
        ((PROBE,), None),
    ]
)
def test_words_of_whole_logs_name_their_failure(lines: tuple[str, ...], code: str | None):
    assert codes(*lines)[:1] == ([code] if code else [])


DIED = "ray.exceptions.RayActorError: The actor died unexpectedly before finishing this task."


def test_a_line_of_any_words_before_a_death_says_what_led_to_it():
    assert codes(LOST, DIED) == ["VolumeMountFailed", "RayActorDied"]
    assert codes(DIED, LOST) == ["RayActorDied"]
    assert codes(LOST, OOM, DIED)[:1] == ["TrainOutOfMemory"]
    assert codes(LOST, STEPS[0], DIED) == ["RayActorDied"]


def test_a_line_that_says_little_or_names_a_consequence_leads_to_nothing():
    assert codes("E0304 10:00:00.1 1 a.go:12] failed to bind: connection reset by peer", DIED) == ["RayActorDied"]
    assert codes("E0304 10:00:00.1 1 a.go:12] liveness probe of x failed", DIED) == ["RayActorDied"]
    assert codes("E0304 10:00:00.1 1 a.go:12] call failed: http status 502", DIED) == ["RayActorDied"]


def test_an_exception_of_no_topic_does_not_hide_what_led_to_a_death():
    assert "VolumeMountFailed" in codes(LOST, DIED, TRACEBACK, FRAME, "OwnOddity: 3", TRACEBACK, FRAME, "ValueError: 3")
