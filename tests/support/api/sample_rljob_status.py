"""A status with every field set."""

from datetime import UTC, datetime

from rljob_api.control import CurvePoint, EngineState, TokenRates
from rljob_api.status import (
    AttemptStatus,
    Condition,
    ConditionType,
    DefaultVolume,
    JobEngine,
    JobEngines,
    JobProgress,
    LastCheckpoint,
    Phase,
    Queue,
    RecoveryStep,
    Resolved,
    Status,
    StepSeconds,
)

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
SAMPLE = Status(
    observed_generation=2,
    phase=Phase.TRAINING,
    phase_since=NOON,
    began="attempt 2 begins at step 6, checkpoints/6",
    queue=Queue(position=1, since=NOON, first_since=NOON, preempted_for="ml/urgent", engines=2),
    resolved=Resolved(
        image="rljob/trainer:1",
        directory="/rljob/ml/sums",
        volume=DefaultVolume(
            source={"persistentVolumeClaim": {"claimName": "runs"}}, path="/rljob", sub_path="ml/sums"
        ),
        head_resources={"requests": {"cpu": "2"}},
        worker_resources={"requests": {"cpu": "4"}},
    ),
    conditions=(
        Condition(
            type=ConditionType.READY,
            status="True",
            observed_generation=2,
            last_transition_time=NOON,
            reason="Training",
            message="step 12 of 200",
        ),
    ),
    attempt=2,
    restarts=1,
    gpus=8,
    start_time=NOON,
    completion_time=NOON,
    progress=JobProgress(
        step=12,
        reward=0.4375,
        accuracy=0.5,
        evaluation_sets={"hard": 0.25, "easy": 0.875},
        tokens_per_second=TokenRates(rollout=21200.0, train=60000.0),
        step_seconds=StepSeconds(total=6.5, rollout=3.9, train=2.2, publish=0.3),
        weight_version=12,
        eta_seconds=3600,
    ),
    curve=(
        CurvePoint(step=0, accuracy=0.11),
        CurvePoint(step=1, reward=0.125, tokens_per_second=20100),
        CurvePoint(step=12, reward=0.4375, accuracy=0.5, tokens_per_second=21200),
    ),
    directory="/runs/arithmetic",
    release="rljob/rljob-operator",
    engines=JobEngines(
        desired=2,
        replicas=2,
        ready=1,
        selector="rljob.dev/job=arithmetic",
        items=(
            JobEngine(name="engine-0", state=EngineState.HEALTHY, since=NOON, version=12),
            JobEngine(name="engine-1", state=EngineState.DEAD, since=NOON, restarts=1, last_error="killed by SIGKILL"),
        ),
    ),
    last_checkpoint=LastCheckpoint(step=10, path="/runs/arithmetic/step-10", verified=True, time=NOON),
    attempts=(
        AttemptStatus(
            number=1,
            cluster="gsm8k-7f3a1-1",
            start_after=NOON,
            started=NOON,
            ended=NOON,
            exit_code=5,
            reason="lost a peer",
            checkpoint_step=10,
        ),
        AttemptStatus(number=2, cluster="gsm8k-7f3a1-1", start_after=NOON, started=NOON),
    ),
    recovery=(
        RecoveryStep(time=NOON, action="RestartEngine", target="engine-1", cause="killed by SIGKILL", seconds=13.5),
    ),
)
